#include "grammar/schema.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace moesaic::grammar {
namespace {

// JSON values of the schemas read while compiling, merged ones included: a few lines of nested allOf can mean millions.
constexpr int64_t kMostWork = 4'000'000;
constexpr size_t kMessageBytes = 64 << 10;  // of a list of problems; longer ones end in a count

constexpr std::array<std::string_view, 16> kAnnotations = {
    "title",    "description", "default",  "examples",  "example", "$schema",     "$id",           "id",
    "$comment", "deprecated",  "readOnly", "writeOnly", "$defs",   "definitions", "discriminator", "$anchor"};
constexpr std::array<std::string_view, 5> kMoreAnnotations = {"contentEncoding", "contentMediaType", "contentSchema",
                                                              "externalDocs", "xml"};
constexpr std::array<std::string_view, 26> kKeywords = {"type",
                                                        "enum",
                                                        "const",
                                                        "properties",
                                                        "required",
                                                        "additionalProperties",
                                                        "minProperties",
                                                        "maxProperties",
                                                        "items",
                                                        "prefixItems",
                                                        "minItems",
                                                        "patternProperties",
                                                        "maxItems",
                                                        "minLength",
                                                        "maxLength",
                                                        "pattern",
                                                        "format",
                                                        "minimum",
                                                        "maximum",
                                                        "multipleOf",
                                                        "anyOf",
                                                        "oneOf",
                                                        "allOf",
                                                        "exclusiveMinimum",
                                                        "exclusiveMaximum",
                                                        kPatterns};
constexpr std::array<std::string_view, 7> kTypes = {"object",  "array",   "string", "number",
                                                    "integer", "boolean", "null"};

template <size_t N>
bool among(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// Unsupported keywords that say nothing in this form.
bool says_nothing(std::string_view keyword, const Json& value) {
  if (keyword == "uniqueItems") return value.is_bool() && !value.get_bool();
  if (keyword == "minContains" || keyword == "maxContains") return false;
  const bool free = (value.is_bool() && value.get_bool()) || (value.is_object() && value.get_object().empty());
  if (keyword == "unevaluatedProperties" || keyword == "unevaluatedItems" || keyword == "propertyNames") return free;
  if (keyword == "dependentRequired" || keyword == "dependentSchemas" || keyword == "dependencies")
    return value.is_object() && value.get_object().empty();
  return false;
}

int64_t count_values(const Json& value) {
  int64_t count = 1;
  if (value.is_object())
    for (const auto& member : value.get_object()) count += count_values(member.value());
  if (value.is_array())
    for (const Json& each : value.get_array()) count += count_values(each);
  return count;
}

bool has_only_annotations_beside(const JsonObject& schema, std::string_view keyword) {
  return std::ranges::all_of(
      schema, [&](const auto& member) { return member.key() == keyword || is_annotation(member.key()); });
}

JsonObject without(const JsonObject& schema, std::string_view keyword) {
  JsonObject out;  // erase() would change the order
  for (const auto& [name, value] : schema)
    if (name != keyword) out[name] = value;
  return out;
}

}  // namespace

bool is_annotation(std::string_view keyword) {
  return among(kAnnotations, keyword) || among(kMoreAnnotations, keyword) || keyword.starts_with("x-");
}

const char* type_of(const Json& value) {
  switch (value.kind()) {
    case boost::json::kind::null: return "null";
    case boost::json::kind::bool_: return "boolean";
    case boost::json::kind::string: return "string";
    case boost::json::kind::array: return "array";
    case boost::json::kind::object: return "object";
    case boost::json::kind::double_: {
      const Decimal number = to_decimal(value);
      return number.fraction.empty() ? "integer" : "number";
    }
    default: return "integer";
  }
}

std::optional<JsonArray> constant_values(const JsonObject& schema) {
  const Json* one = schema.if_contains("const");
  const Json* some = schema.if_contains("enum");
  if (one == nullptr && some == nullptr) return std::nullopt;
  if (some == nullptr) return JsonArray{*one};
  if (!some->is_array()) return JsonArray{};
  if (one == nullptr) return some->get_array();
  const bool known = std::ranges::find(some->get_array(), *one) != some->get_array().end();
  return known ? JsonArray{*one} : JsonArray{};
}

std::vector<std::string> schema_types(const JsonObject& schema) {
  if (const Json* type = schema.if_contains("type")) {
    if (type->is_string()) return {std::string(type->get_string())};
    std::vector<std::string> out;
    if (type->is_array())
      for (const Json& each : type->get_array()) out.emplace_back(each.is_string() ? each.get_string().c_str() : "");
    return out;
  }
  static const std::map<std::string, std::vector<const char*>> about = {
      {"object",
       {"properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"}},
      {"array", {"items", "prefixItems", "minItems", "maxItems"}},
      {"string", {"minLength", "maxLength", "pattern", "format", kPatterns}},
      {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}};
  std::vector<std::string> out;
  for (const auto& [type, keywords] : about)
    if (std::ranges::any_of(keywords, [&](const char* keyword) { return schema.contains(keyword); }))
      out.push_back(type);
  return out.empty() ? std::vector<std::string>{"object", "array", "string", "number", "boolean", "null"} : out;
}

void SchemaReader::problem(std::string_view keyword, const std::string& where, std::string_view why) {
  std::string found = fmt::format("`{}` at {}{}{}", keyword, where, why.empty() ? "" : ": ", why);
  if (problems.contains(found)) return;
  problem_bytes += found.size();
  if (!problems.empty() && problem_bytes > kMessageBytes) ++more_problems;
  else problems.insert(std::move(found));
}

void SchemaReader::spend(const std::string& where, const Json& copied) {
  pool.schema_work += count_values(copied);
  if (pool.schema_work > kMostWork)
    fail_argument(
        "the JSON schema is too large: at {} its allOf, anyOf, oneOf and $ref have led to more than {} values; combine "
        "fewer of them",
        where, kMostWork);
}

void SchemaReader::check_keywords(const JsonObject& schema, const std::string& where) {
  for (const auto& [name, value] : schema) {
    if (name == kPatterns && !value.is_array()) problem("\\u0001patterns", where, "");
    if (is_annotation(name) || among(kKeywords, std::string_view(name)) || says_nothing(name, value)) continue;
    problem(name, where, "");
  }
  const Json* type = schema.if_contains("type");
  if (type == nullptr) return;
  if (!type->is_string() && !type->is_array()) return problem("type", where, "it must be a name or a list of names");
  for (const std::string& name : schema_types(schema))
    if (!among(kTypes, std::string_view(name)))
      problem("type", where, fmt::format("\"{}\" is none of {}", name, fmt::join(kTypes, ", ")));
}

int64_t SchemaReader::count(const JsonObject& schema, const char* keyword, const std::string& where, int64_t fallback) {
  const Json* value = schema.if_contains(keyword);
  if (value == nullptr) return fallback;
  const bool number = value->is_number();
  const Decimal decimal = number ? to_decimal(*value) : Decimal{};
  if (!number || decimal.negative || !decimal.fraction.empty()) {
    problem(keyword, where, "it must be a whole number that is not negative");
    return fallback;
  }
  return decimal.whole.size() > 15 ? int64_t{1} << 50 : std::stoll(decimal.whole);
}

ExprId SchemaReader::reference(const std::string& pointer, const std::string& where) {
  const auto known = rules.find(pointer);
  if (known != rules.end()) return pool.call(known->second);
  const Json* target = resolve(pointer, where);
  if (target == nullptr) return pool.never();
  const int32_t rule = pool.add_rule(pointer);
  rules[pointer] = rule;
  const ExprId body = values(*target, pointer);
  pool.rules[static_cast<size_t>(rule)].body = body;
  return pool.call(rule);
}

void SchemaReader::check_exclusive(const JsonArray& parts, const std::string& where) {
  for (size_t a = 0; a < parts.size(); ++a)
    for (size_t b = a + 1; b < parts.size(); ++b) {
      if (disjoint(parts[a], parts[b], where)) continue;
      return problem("oneOf", where,
                     fmt::format("alternatives {} and {} may both match; use anyOf, or give them different types, or "
                                 "a required property with different constants",
                                 a, b));
    }
}

ExprId SchemaReader::alternatives(const JsonObject& schema, const char* keyword, const std::string& where) {
  const Json& list = schema.at(keyword);
  if (!list.is_array() || list.get_array().empty())
    return problem(keyword, where, "it must be a list of schemas"), pool.never();
  const bool alone = has_only_annotations_beside(schema, keyword);
  const JsonObject rest = without(schema, keyword);
  JsonArray parts;
  std::vector<ExprId> choices;
  const JsonArray& all = list.get_array();
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string place = fmt::format("{}/{}/{}", where, keyword, i);
    parts.push_back(alone ? all[i] : merge(rest, all[i], place));
    choices.push_back(values(parts.back(), place));
  }
  if (std::string_view(keyword) == "oneOf") check_exclusive(parts, where);
  return pool.choice(std::move(choices));
}

ExprId SchemaReader::constants(const JsonObject& schema, const std::string& where) {
  const JsonArray values_of = *constant_values(schema);
  if (const Json* list = schema.if_contains("enum"); list != nullptr && !list->is_array())
    problem("enum", where, "it must be a list of values");
  for (const auto& [name, value] : schema)
    if (!is_annotation(name) && name != "enum" && name != "const" && name != "type")
      problem(name, where, "not together with enum or const; leave it out, or the values that it excludes");
  const std::vector<std::string> types = schema_types(schema);
  const auto fits = [&](const Json& value) {
    const std::string type = type_of(value);
    return !schema.contains("type") || std::ranges::find(types, type) != types.end() ||
           (type == "integer" && std::ranges::find(types, "number") != types.end());
  };
  std::vector<std::string> texts;
  std::vector<ExprId> choices;
  for (const Json& value : values_of) {
    if (!fits(value)) continue;
    if (value.is_string()) texts.push_back('"' + json_text(value.get_string()) + '"');
    else choices.push_back(text.constant(value));
  }
  choices.push_back(pool.one_of(std::move(texts)));
  return pool.choice(std::move(choices));
}

ExprId SchemaReader::of_types(const JsonObject& schema, const std::string& where) {
  const std::vector<std::string> types = schema_types(schema);
  const bool any_number = std::ranges::find(types, "number") != types.end();
  std::vector<ExprId> choices;
  for (const std::string& type : types) {
    if (type == "object") choices.push_back(object_values(schema, where));
    if (type == "array") choices.push_back(array_values(schema, where));
    if (type == "string") choices.push_back(string_values(schema, where));
    if (type == "number") choices.push_back(number_values(schema, false, where));
    if (type == "integer" && !any_number) choices.push_back(number_values(schema, true, where));
    if (type == "boolean") choices.push_back(pool.choice({pool.literal("true"), pool.literal("false")}));
    if (type == "null") choices.push_back(pool.literal("null"));
  }
  return pool.choice(std::move(choices));
}

ExprId SchemaReader::object_schema(const JsonObject& given, const std::string& where) {
  const JsonObject schema = normalize(given, where);
  if (const Json* ref = schema.if_contains("$ref")) {
    if (!ref->is_string()) return problem("$ref", where, "it must be a text such as \"#/$defs/name\""), pool.never();
    const std::string pointer(ref->get_string());
    if (has_only_annotations_beside(schema, "$ref")) return reference(pointer, where);
    return values(expand_ref(schema, where), where);
  }
  if (const Json* all = schema.if_contains("allOf")) {
    if (!all->is_array() || all->get_array().empty())
      return problem("allOf", where, "it must be a list of schemas"), pool.never();
    const JsonArray parts = all->get_array();
    if (parts.size() == 1 && has_only_annotations_beside(schema, "allOf")) return values(parts[0], where + "/allOf/0");
    Json merged = without(schema, "allOf");
    for (size_t i = 0; i < parts.size(); ++i) merged = merge(merged, parts[i], fmt::format("{}/allOf/{}", where, i));
    return values(merged, where);
  }
  for (const char* keyword : {"anyOf", "oneOf"})
    if (schema.contains(keyword)) return alternatives(schema, keyword, where);
  check_keywords(schema, where);
  if (schema.contains("enum") || schema.contains("const")) return constants(schema, where);
  const bool free = std::ranges::all_of(schema, [](const auto& member) { return is_annotation(member.key()); });
  return free ? text.value() : of_types(schema, where);
}

ExprId SchemaReader::values(const Json& schema, const std::string& where) {
  spend(where, schema);
  if (schema.is_bool()) return schema.get_bool() ? text.value() : pool.never();
  if (!schema.is_object()) return problem("schema", where, "it must be an object or a boolean"), pool.never();
  if (++depth > 4 * pool.limits.depth)
    fail_argument("the JSON schema is nested too deeply at {}; the limit is {}", where, 4 * pool.limits.depth);
  const ExprId out = object_schema(schema.get_object(), where);
  --depth;
  return out;
}

ExprId schema_values(Pool& pool, JsonText& text, const Json& schema) {
  SchemaReader reader{pool, text, schema};
  const int32_t rule = pool.add_rule("#");
  reader.rules["#"] = rule;
  const ExprId body = reader.values(schema, "#");
  pool.rules[static_cast<size_t>(rule)].body = body;
  if (!reader.problems.empty())
    fail_argument("the JSON schema uses what is not supported; remove or replace {}{}",
                  fmt::join(reader.problems, "; "),
                  reader.more_problems == 0 ? "" : fmt::format("; and {} more", reader.more_problems));
  return pool.call(rule);
}

}  // namespace moesaic::grammar
