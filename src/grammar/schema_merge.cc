#include <algorithm>

#include "base/error.h"
#include "grammar/schema.h"

namespace moesaic::grammar {
namespace {

JsonArray all_patterns(const JsonObject& schema) {
  JsonArray out;
  if (const Json* one = schema.if_contains("pattern")) out.push_back(*one);
  if (const Json* some = schema.if_contains(kPatterns); some != nullptr && some->is_array())
    out.insert(out.end(), some->get_array().begin(), some->get_array().end());
  return out;
}

bool is_free(const Json& schema) {
  if (schema.is_bool()) return schema.get_bool();
  return schema.is_object() &&
         std::ranges::all_of(schema.get_object(), [](const auto& m) { return is_annotation(m.key()); });
}

bool has_type(const std::vector<std::string>& types, std::string_view type) {
  return std::ranges::find(types, type) != types.end();
}

// A type list where integers are numbers too.
bool covers(const std::vector<std::string>& types, std::string_view type) {
  return has_type(types, type) || (type == "integer" && has_type(types, "number"));
}

std::vector<std::string> common_types(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::string> out;
  for (const std::string& type : a)
    if (covers(b, type)) out.push_back(type);
  for (const std::string& type : b)
    if (covers(a, type) && !has_type(out, type)) out.push_back(type);
  return out;
}

// The same for equal values: 1 and 1.0 are.
std::string canonical(const Json& value) {
  if (!value.is_number()) return write_json(value, {.sort_keys = true});
  const Decimal number = to_decimal(value);
  return (number.negative ? "-" : "") + number.whole + "." + number.fraction;
}

JsonArray common_values(const JsonArray& a, const JsonArray& b) {
  std::set<std::string> known;
  for (const Json& value : b) known.insert(canonical(value));
  JsonArray out;
  for (const Json& value : a)
    if (known.contains(canonical(value))) out.push_back(value);
  return out;
}

bool is_number(const Json& value) {
  return value.is_number();
}

struct Merger {
  SchemaReader& reader;
  const JsonObject &a, &b;
  const std::string& where;
  JsonObject out = {};

  const Json* in_a(const char* name) const { return a.if_contains(name); }
  const Json* in_b(const char* name) const { return b.if_contains(name); }
  bool both(const char* name) const { return a.contains(name) && b.contains(name); }

  // Keywords that only one side has, in order; the rest is for the functions below.
  void copy() {
    for (const JsonObject* side : {&a, &b})
      for (const auto& [name, value] : *side)
        if (!out.contains(name)) out[name] = value;
  }
  void types() {
    if (!both("type")) return;
    JsonArray list;
    for (const std::string& type : common_types(schema_types(a), schema_types(b))) list.emplace_back(type);
    out["type"] = list;
  }
  void constants() {
    const auto x = constant_values(a), y = constant_values(b);
    if (!x && !y) return;
    out["enum"] = x && y ? common_values(*x, *y) : x ? *x : *y;
    JsonObject kept;
    for (const auto& [name, value] : out)
      if (name != "const") kept[name] = value;
    out = std::move(kept);
  }
  void bound(const char* name, int direction) {  // 1: the larger of two is the tighter one
    if (!both(name) || !is_number(*in_a(name)) || !is_number(*in_b(name))) return;
    const int order = compare(to_decimal(*in_a(name)), to_decimal(*in_b(name)));
    out[name] = order * direction >= 0 ? *in_a(name) : *in_b(name);
  }
  void bounds() {
    for (const char* name : {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}) bound(name, 1);
    for (const char* name : {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}) bound(name, -1);
  }
  void patterns() {
    JsonArray list = all_patterns(a), more = all_patterns(b);
    if (list.empty() || more.empty()) return;
    list.insert(list.end(), more.begin(), more.end());
    out[kPatterns] = list;
    JsonObject kept;
    for (const auto& [name, value] : out)
      if (name != "pattern") kept[name] = value;
    out = std::move(kept);
  }
  void equal_or_problem(const char* name) {
    if (both(name) && *in_a(name) != *in_b(name))
      reader.problem(name, where, "two different ones must both hold, which is not supported");
  }
  void required() {
    if (!both("required") || !in_a("required")->is_array() || !in_b("required")->is_array()) return;
    JsonArray list = in_a("required")->get_array();
    for (const Json& name : in_b("required")->get_array())
      if (std::ranges::find(list, name) == list.end()) list.push_back(name);
    out["required"] = list;
  }
  // What one side says of a property: its own schema, or that of additional ones.
  static Json property(const JsonObject& side, std::string_view name) {
    const Json* own = side.if_contains("properties");
    if (own != nullptr && own->is_object())
      if (const Json* schema = own->get_object().if_contains(name)) return *schema;
    const Json* more = side.if_contains("additionalProperties");
    return more == nullptr ? Json(true) : *more;
  }
  void properties() {
    const bool patterned = a.contains("patternProperties") || b.contains("patternProperties");
    const auto closed = [](const Json* more) { return more != nullptr && !is_free(*more); };
    if (patterned && (closed(in_a("additionalProperties")) || closed(in_b("additionalProperties"))))
      return reader.problem("patternProperties", where, "not together with additionalProperties inside allOf or anyOf");
    JsonObject merged;
    for (const JsonObject* side : {&a, &b}) {
      const Json* own = side->if_contains("properties");
      if (own == nullptr || !own->is_object()) continue;
      for (const auto& [name, schema] : own->get_object())
        if (!merged.contains(name))
          merged[name] = reader.merge(property(a, name), property(b, name),
                                      fmt::format("{}/properties/{}", where, std::string_view(name)));
    }
    if (!merged.empty()) out["properties"] = merged;
    if (both("additionalProperties"))
      out["additionalProperties"] =
          reader.merge(*in_a("additionalProperties"), *in_b("additionalProperties"), where + "/additionalProperties");
    pattern_properties();
  }
  void pattern_properties() {
    if (!both("patternProperties") || !in_a("patternProperties")->is_object() ||
        !in_b("patternProperties")->is_object())
      return;
    JsonObject merged = in_a("patternProperties")->get_object();
    for (const auto& [pattern, schema] : in_b("patternProperties")->get_object()) {
      const Json* known = merged.if_contains(pattern);
      merged[pattern] = known == nullptr ? schema : reader.merge(*known, schema, where + "/patternProperties");
    }
    out["patternProperties"] = merged;
  }
  void items() {
    const auto has = [](const JsonObject& side) { return side.contains("items") || side.contains("prefixItems"); };
    if (!has(a) || !has(b)) return;
    if (a.contains("prefixItems") || b.contains("prefixItems")) {
      equal_or_problem("items");
      if (!both("prefixItems") || *in_a("prefixItems") != *in_b("prefixItems"))
        reader.problem("prefixItems", where, "two different lists of items must both hold, which is not supported");
      return;
    }
    out["items"] = reader.merge(*in_a("items"), *in_b("items"), where + "/items");
  }
  void choices(const char* name) {
    if (!both(name) || !in_a(name)->is_array() || !in_b(name)->is_array()) return;
    JsonArray list;
    for (const Json& x : in_a(name)->get_array())
      for (const Json& y : in_b(name)->get_array())
        list.push_back(reader.merge(x, y, fmt::format("{}/{}/{}", where, name, list.size())));
    out[name] = list;
  }
  void all_of() {
    if (!both("allOf") || !in_a("allOf")->is_array() || !in_b("allOf")->is_array()) return;
    JsonArray list = in_a("allOf")->get_array();
    list.insert(list.end(), in_b("allOf")->get_array().begin(), in_b("allOf")->get_array().end());
    out["allOf"] = list;
  }
};

std::string unescape_pointer(std::string_view part) {
  std::string out;
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1')) {
      out += part[++i] == '0' ? '~' : '/';
    } else if (part[i] == '%' && i + 2 < part.size()) {
      out += static_cast<char>(std::strtol(std::string(part.substr(i + 1, 2)).c_str(), nullptr, 16));
      i += 2;
    } else {
      out += part[i];
    }
  }
  return out;
}

const Json* child(const Json& value, const std::string& name) {
  if (value.is_object()) return value.get_object().if_contains(name);
  if (!value.is_array() || name.empty() || name.size() > 6 || name.find_first_not_of("0123456789") != std::string::npos)
    return nullptr;
  const size_t index = std::stoul(name);
  return index < value.get_array().size() ? &value.get_array()[index] : nullptr;
}

// Draft 4 wrote exclusiveMinimum: true beside minimum.
void move_exclusive(JsonObject& schema, const char* exclusive, const char* bound) {
  const Json* flag = schema.if_contains(exclusive);
  if (flag == nullptr || !flag->is_bool()) return;
  const bool set = flag->get_bool();
  const Json* value = schema.if_contains(bound);
  const Json kept = value == nullptr ? Json() : *value;
  schema.erase(exclusive);
  if (!set || value == nullptr) return;
  schema.erase(bound);
  schema[exclusive] = kept;
}

}  // namespace

const Json* SchemaReader::resolve(const std::string& pointer, const std::string& where) {
  if (pointer == "#") return &root;
  if (!pointer.starts_with("#/")) {
    problem("$ref", where,
            fmt::format("\"{}\" is not in this schema; only \"#\" and \"#/...\" are supported", pointer));
    return nullptr;
  }
  const Json* at = &root;
  for (size_t begin = 2; at != nullptr && begin <= pointer.size();) {
    const size_t end = std::min(pointer.find('/', begin), pointer.size());
    at = child(*at, unescape_pointer(std::string_view(pointer).substr(begin, end - begin)));
    begin = end + 1;
  }
  if (at == nullptr) problem("$ref", where, fmt::format("there is nothing at \"{}\"", pointer));
  return at;
}

JsonObject SchemaReader::normalize(const JsonObject& given, const std::string& where) {
  JsonObject schema = given;
  move_exclusive(schema, "exclusiveMinimum", "minimum");
  move_exclusive(schema, "exclusiveMaximum", "maximum");
  if (const Json* nullable = schema.if_contains("nullable")) {
    const bool add = nullable->is_bool() && nullable->get_bool() && schema.contains("type");
    schema.erase("nullable");
    if (add) {
      JsonArray list;
      for (const std::string& type : schema_types(given)) list.emplace_back(type);
      list.emplace_back("null");
      schema["type"] = list;
    }
  }
  const Json* items = schema.if_contains("items");
  if (items != nullptr && items->is_array()) {
    const Json list = *items;
    const Json* more = schema.if_contains("additionalItems");
    const std::optional<Json> rest = more == nullptr ? std::nullopt : std::optional(*more);
    schema.erase("items");
    schema.erase("additionalItems");
    schema["prefixItems"] = list;
    if (rest) schema["items"] = *rest;
  } else if (schema.contains("additionalItems")) {
    schema.erase("additionalItems");  // says nothing without a list of items
  }
  static_cast<void>(where);
  return schema;
}

Json SchemaReader::expand_ref(const Json& given, const std::string& where) {
  Json schema = given;
  for (int hops = 0; schema.is_object() && schema.get_object().contains("$ref"); ++hops) {
    spend(where, schema);
    const Json& ref = schema.get_object().at("$ref");
    const Json* target = ref.is_string() && hops < 100 ? resolve(std::string(ref.get_string()), where) : nullptr;
    if (target == nullptr) {
      if (hops >= 100 || !ref.is_string()) problem("$ref", where, "it leads back to itself");
      return Json(false);
    }
    spend(where, *target);
    JsonObject rest;
    for (const auto& [name, value] : schema.get_object())
      if (name != "$ref") rest[name] = value;
    const bool alone = std::ranges::all_of(rest, [](const auto& m) { return is_annotation(m.key()); });
    schema = alone ? *target : merge(*target, rest, where);
  }
  return schema;
}

Json SchemaReader::merge(const Json& first, const Json& second, const std::string& where) {
  spend(where, first);
  spend(where, second);
  if (++depth > 4 * pool.limits.depth)
    fail_argument("the JSON schema combines schemas without end at {}; a $ref inside allOf may lead back to itself",
                  where);
  const Json a = expand_ref(first, where), b = expand_ref(second, where);
  --depth;
  if (a.is_bool() && !a.get_bool()) return a;
  if (b.is_bool() && !b.get_bool()) return b;
  if (is_free(a)) return b;
  if (is_free(b)) return a;
  if (!a.is_object() || !b.is_object())
    return problem("schema", where, "it must be an object or a boolean"), Json(false);
  const JsonObject x = normalize(a.get_object(), where), y = normalize(b.get_object(), where);
  ++depth;
  Merger merger{*this, x, y, where};
  merger.copy();
  merger.types();
  merger.bounds();
  merger.equal_or_problem("multipleOf");
  merger.equal_or_problem("format");
  merger.required();
  merger.properties();
  merger.items();
  merger.choices("anyOf");
  merger.choices("oneOf");
  merger.all_of();
  merger.patterns();
  merger.constants();
  --depth;
  return merger.out;
}

namespace {

bool lists(const JsonObject& schema, const char* keyword, std::string_view name) {
  const Json* list = schema.if_contains(keyword);
  if (list == nullptr || !list->is_array()) return false;
  return std::ranges::any_of(list->get_array(),
                             [&](const Json& each) { return each.is_string() && each.get_string() == name; });
}

// Properties that `a` requires and `b` cannot have.
bool closed_to(const JsonObject& a, const JsonObject& b) {
  const Json* required = a.if_contains("required");
  const Json* more = b.if_contains("additionalProperties");
  if (required == nullptr || !required->is_array() || more == nullptr || !more->is_bool() || more->get_bool())
    return false;
  if (b.contains("patternProperties")) return false;
  const Json* known = b.if_contains("properties");
  return std::ranges::any_of(required->get_array(), [&](const Json& name) {
    return name.is_string() &&
           (known == nullptr || !known->is_object() || !known->get_object().contains(name.get_string()));
  });
}

}  // namespace

bool SchemaReader::disjoint(const Json& first, const Json& second, const std::string& where, int levels) {
  spend(where, first);
  spend(where, second);
  const Json a = expand_ref(first, where), b = expand_ref(second, where);
  if ((a.is_bool() && !a.get_bool()) || (b.is_bool() && !b.get_bool())) return true;
  if (levels == 0 || !a.is_object() || !b.is_object()) return false;
  const JsonObject x = normalize(a.get_object(), where), y = normalize(b.get_object(), where);
  const auto values_x = constant_values(x), values_y = constant_values(y);
  if (values_x && values_y) return common_values(*values_x, *values_y).empty();
  const auto types = [](const JsonObject& schema, const std::optional<JsonArray>& constants_of) {
    std::vector<std::string> out;
    if (!constants_of) return schema.contains("type") ? schema_types(schema) : schema_types({});
    for (const Json& value : *constants_of) out.emplace_back(type_of(value));
    return out;
  };
  const std::vector<std::string> shared = common_types(types(x, values_x), types(y, values_y));
  if (shared.empty()) return true;
  if (shared != std::vector<std::string>{"object"}) return false;
  if (closed_to(x, y) || closed_to(y, x)) return true;
  const Json* properties = x.if_contains("properties");
  const Json* others = y.if_contains("properties");
  if (properties == nullptr || !properties->is_object() || others == nullptr || !others->is_object()) return false;
  for (const auto& [name, schema] : properties->get_object()) {
    const Json* other = others->get_object().if_contains(name);
    if (other == nullptr || (!lists(x, "required", name) && !lists(y, "required", name))) continue;
    if (disjoint(schema, *other, where, levels - 1)) return true;
  }
  return false;
}

}  // namespace moesaic::grammar
