// Pieces of JSON text as expressions. White space is bounded: nothing, or one space after : and , (docs/grammars.md).
#pragma once

#include "base/json.h"
#include "grammar/code_points.h"

namespace moesaic::grammar {

// `text` inside a JSON string, without the quotes: the one spelling that Spelling::json has.
std::string json_text(std::string_view text);

class JsonText {
 public:
  explicit JsonText(Pool& pool);

  ExprId comma, colon;  // with the optional space
  ExprId quote;

  ExprId character();                       // of a string, plain or with an escape; never half of a surrogate pair
  ExprId string(int64_t min, int64_t max);  // with quotes; lengths in code points
  ExprId key(std::string_view name);        // with quotes and colon
  ExprId value();                           // anything
  ExprId object();                          // any object
  ExprId array();
  ExprId constant(const Json& value);
  // Members between braces, or values between brackets.
  ExprId in_braces(ExprId members);
  ExprId in_brackets(ExprId values);
  // A key, with quotes, that is none of the names; escapes are left out of it, so that it has one spelling.
  ExprId other_key(std::vector<std::string> names);

 private:
  ExprId list(ExprId part);  // none, or some with commas
  ExprId unlike(std::span<const std::u32string> names, size_t from);

  Pool& pool_;
  ExprId character_ = -1, value_ = -1, object_ = -1, array_ = -1;
};

}  // namespace moesaic::grammar
