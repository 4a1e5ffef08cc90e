// Pieces of the grammars of answers: rules as text (docs/grammars.md), the values that a schema allows.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_format.h"

namespace moesaic {

// "text" as a literal of a grammar.
std::string grammar_literal(std::string_view text);
// The language of a source as an expression; rules that it needs are appended to `rules`. invalid_argument for a
// schema that is no JSON and for a grammar without rules.
Result<std::string> embed_source(const GrammarSource& source, std::string& rules);

// One JSON type that a schema allows: string, number, boolean, null, array or object; empty: any.
struct SchemaVariant {
  std::string type;
  Json schema;  // restricted to that type
};
// References within `whole` are followed.
std::vector<SchemaVariant> schema_variants(const Json& schema, const JsonObject& whole);

class GrammarRules {
 public:
  explicit GrammarRules(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  std::string& text() { return text_; }
  void add(std::string_view name, std::string_view expression);
  // A marker of a format: the tokenizer's token, or else its letters.
  std::string marker(std::string_view name) const;
  // Any text before `end`, a marker.
  std::string text_before(std::string_view end);
  // The parameters of a tool as one JSON object.
  std::string json_arguments(const Json& parameters) const;

 private:
  const Tokenizer* tokenizer_;
  std::string text_;
  std::map<std::string, std::string, std::less<>> texts_;  // rules for text before letters
};

// How a format writes one argument of a call. `type` is a SchemaVariant's; `key` and `value` are expressions.
using WriteArgument = std::string (*)(GrammarRules& rules, std::string_view key, std::string_view type,
                                      std::string_view value);
// The arguments of one call, written one by one in the order of the schema. `end` is the marker that ends a text.
std::string listed_arguments(GrammarRules& rules, const std::string& name, const Json& parameters, std::string_view end,
                             WriteArgument write);

}  // namespace moesaic
