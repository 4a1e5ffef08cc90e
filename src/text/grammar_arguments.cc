// Arguments of calls that are written one by one: what each tool's schema allows, as a grammar.
#include <fmt/format.h>

#include "text/answer_grammar.h"

namespace moesaic {
namespace {

constexpr std::string_view kTypes[] = {"number", "boolean", "null", "array", "object"};

// A part of the schema as a schema of its own.
std::string json_value(const Json& part, const JsonObject& whole) {
  if (!part.is_object()) return "%json{}";
  JsonObject schema = part.get_object();
  for (const char* definitions : {"$defs", "definitions"})
    if (const Json* d = whole.if_contains(definitions); d != nullptr && !schema.contains(definitions))
      schema[definitions] = *d;
  return "%json" + write_json(Json(schema), {.compact = true});
}

// A string as it is written without quotes. Patterns and lengths are not enforced: only enum and const are.
std::string text_value(GrammarRules& rules, const Json& schema, std::string_view end) {
  std::vector<std::string> literals;
  const JsonObject* object = schema.if_object();
  if (object == nullptr) return rules.text_before(end);
  if (const Json* constant = object->if_contains("const"); constant != nullptr && constant->is_string())
    literals.push_back(grammar_literal(constant->get_string()));
  if (const Json* values = object->if_contains("enum"); values != nullptr && values->is_array())
    for (const Json& v : values->get_array())
      if (v.is_string()) literals.push_back(grammar_literal(v.get_string()));
  return literals.empty() ? rules.text_before(end) : fmt::format("({})", fmt::join(literals, " | "));
}

struct ArgumentRules {
  GrammarRules& rules;
  const JsonObject& whole;
  std::string_view end;
  WriteArgument write;

  std::string any(std::string_view key) {
    std::vector<std::string> out = {write(rules, key, "string", rules.text_before(end))};
    for (const std::string_view type : kTypes)
      out.push_back(write(rules, key, type, fmt::format("%json{{\"type\":\"{}\"}}", type)));
    return fmt::format("{}", fmt::join(out, " | "));
  }

  std::string argument(std::string_view key, const Json& schema) {
    std::vector<std::string> out;
    for (const SchemaVariant& v : schema_variants(schema, whole)) {
      if (v.type.empty()) out.push_back(any(key));
      else if (v.type == "string") out.push_back(write(rules, key, v.type, text_value(rules, v.schema, end)));
      else out.push_back(write(rules, key, v.type, json_value(v.schema, whole)));
    }
    return fmt::format("{}", fmt::join(out, " | "));
  }
};

bool is_required(const JsonObject& schema, std::string_view key) {
  const Json* required = schema.if_contains("required");
  if (required == nullptr || !required->is_array()) return false;
  for (const Json& name : required->get_array())
    if (name.is_string() && name.get_string() == key) return true;
  return false;
}

}  // namespace

std::string listed_arguments(GrammarRules& rules, const std::string& name, const Json& parameters, std::string_view end,
                             WriteArgument write) {
  static const JsonObject kNone;
  const JsonObject& whole = parameters.is_object() ? parameters.get_object() : kNone;
  ArgumentRules arguments{rules, whole, end, write};
  const Json* properties = whole.if_contains("properties");
  const Json* more = whole.if_contains("additionalProperties");
  const bool closed = more != nullptr && more->is_bool() && !more->get_bool();
  if (properties == nullptr || !properties->is_object()) {
    if (closed) return "\"\"";
    rules.add(name + "-any", arguments.any("[A-Za-z0-9_.$-]{1,64}"));
    return name + "-any*";
  }
  std::string out;
  for (size_t i = 0; const auto& [key, schema] : properties->get_object()) {
    const std::string rule = fmt::format("{}-{}", name, i++);
    rules.add(rule, arguments.argument(grammar_literal(key), schema));
    out += (out.empty() ? "" : " ") + rule + (is_required(whole, key) ? "" : "?");
  }
  return out.empty() ? "\"\"" : out;
}

}  // namespace moesaic
