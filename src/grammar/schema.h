// JSON schemas as expressions (docs/grammars.md, JSON schema, says what is supported and how it is read).
#pragma once

#include <map>
#include <set>

#include "grammar/decimal.h"
#include "grammar/json_text.h"

namespace moesaic::grammar {

// Values that the schema allows. Throws Error(invalid_argument) that lists every unsupported keyword with its place.
ExprId schema_values(Pool& pool, JsonText& text, const Json& schema);

// What one schema and its parts have in common while they are compiled.
struct SchemaReader {
  Pool& pool;
  JsonText& text;
  const Json& root;
  std::set<std::string> problems = {};  // one for each unsupported or malformed keyword
  size_t problem_bytes = 0, more_problems = 0;
  std::map<std::string, int32_t> rules = {};  // of schemas that $ref names, by pointer
  int64_t depth = 0;

  // The values of a schema. `where` is its JSON pointer, for messages.
  ExprId values(const Json& schema, const std::string& where);
  void problem(std::string_view keyword, const std::string& where, std::string_view why);

  // schema_merge.cc. Schemas are objects or booleans; what cannot be merged is a problem.
  Json merge(const Json& a, const Json& b, const std::string& where);
  const Json* resolve(const std::string& pointer, const std::string& where);
  // Older and newer spellings become one: const is kept, nullable becomes a type, items: [...] prefixItems.
  JsonObject normalize(const JsonObject& schema, const std::string& where);
  Json expand_ref(const Json& schema, const std::string& where);
  // Whether no value fits both, as far as types, constants and required properties show it.
  bool disjoint(const Json& a, const Json& b, const std::string& where, int levels = 8);

  // schema_scalar.cc
  ExprId string_values(const JsonObject& schema, const std::string& where);
  ExprId number_values(const JsonObject& schema, bool whole, const std::string& where);
  // schema_object.cc
  ExprId object_values(const JsonObject& schema, const std::string& where);
  ExprId array_values(const JsonObject& schema, const std::string& where);

  int64_t count(const JsonObject& schema, const char* keyword, const std::string& where, int64_t fallback);

 private:
  ExprId object_schema(const JsonObject& given, const std::string& where);
  ExprId reference(const std::string& pointer, const std::string& where);
  ExprId alternatives(const JsonObject& schema, const char* keyword, const std::string& where);
  void check_exclusive(const JsonArray& parts, const std::string& where);
  void check_keywords(const JsonObject& schema, const std::string& where);
  ExprId constants(const JsonObject& schema, const std::string& where);
  ExprId of_types(const JsonObject& schema, const std::string& where);
  void spend(const std::string& where, const Json& copied);
};

// Several patterns that must all match, made by merge(); no JSON schema has a keyword of this name.
inline constexpr const char* kPatterns = "\x01patterns";

bool is_annotation(std::string_view keyword);
// The values of enum or const, or null.
std::optional<JsonArray> constant_values(const JsonObject& schema);
// Types that the schema allows: those it says, else those that its other keywords are about, else all.
std::vector<std::string> schema_types(const JsonObject& schema);
const char* type_of(const Json& value);  // integer for whole numbers
// Pattern of a `format`, or null.
const char* format_pattern(std::string_view format);
std::string format_names();

}  // namespace moesaic::grammar
