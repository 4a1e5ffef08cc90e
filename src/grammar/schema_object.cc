#include <algorithm>

#include "base/error.h"
#include "grammar/regex_parser.h"
#include "grammar/regular.h"
#include "grammar/schema.h"

namespace moesaic::grammar {
namespace {

constexpr size_t kMostKeySets = 64;      // of keys by the patterns they match
constexpr int64_t kMostPoints = 20'000;  // of an object whose properties are counted

struct Property {
  std::string name;
  ExprId member = 0;  // key, colon and value
  bool required = false;
};

struct Shape {
  std::vector<Property> properties;
  ExprId others = 0;  // member with any other key; never where there are none
  int64_t min = 0, max = kNoBound;
};

// Keys of one set have the same schemas to fit.
struct KeySet {
  Dfa keys;
  std::vector<Json> schemas;
};

std::vector<std::string> required_names(SchemaReader& reader, const JsonObject& schema, const std::string& where) {
  std::vector<std::string> out;
  const Json* list = schema.if_contains("required");
  if (list == nullptr) return out;
  const auto wrong = [&] { reader.problem("required", where, "it must be a list of names"); };
  if (!list->is_array()) return wrong(), out;
  for (const Json& name : list->get_array()) {
    if (!name.is_string()) return wrong(), out;
    if (std::ranges::find(out, std::string_view(name.get_string())) == out.end()) out.emplace_back(name.get_string());
  }
  return out;
}

const JsonObject* object_keyword(SchemaReader& reader, const JsonObject& schema, const char* keyword,
                                 const std::string& where) {
  const Json* value = schema.if_contains(keyword);
  if (value == nullptr) return nullptr;
  if (!value->is_object()) return reader.problem(keyword, where, "it must be an object of schemas"), nullptr;
  return &value->get_object();
}

// Members in the order of the properties; between points [i][count][commas begun]. Counts are kept only as far as the
// bounds need them, and of the other members one is counted: they may repeat a key.
struct Sequence {
  Pool& pool;
  JsonText& text;
  const Shape& shape;
  const std::string& where;
  Graph graph = {};
  int64_t top = 0;  // counts saturate here
  std::vector<int32_t> points = {};

  int32_t& point(size_t i, int64_t members, bool begun) {
    return points[(i * static_cast<size_t>(top + 1) + static_cast<size_t>(members)) * 2 + (begun ? 1 : 0)];
  }
  int64_t next_count(int64_t members) const { return std::min(members + 1, top); }
  bool enough(int64_t members) const { return members >= shape.min; }
  bool room(int64_t members) const { return shape.max == kNoBound || members < shape.max; }
  ExprId member(ExprId expr, bool begun) { return begun ? pool.join({text.comma, expr}) : expr; }

  void add_property(size_t i) {
    const Property& property = shape.properties[i];
    for (int64_t n = 0; n <= top; ++n)
      for (const bool begun : {false, true}) {
        if (room(n)) graph.add(point(i, n, begun), member(property.member, begun), point(i + 1, next_count(n), true));
        if (!property.required) graph.add(point(i, n, begun), pool.empty(), point(i + 1, n, begun));
      }
  }
  // Without bounds a comma comes first, so that there is one copy of each member.
  void add_plain_property(size_t i) {
    const Property& property = shape.properties[i];
    const int32_t before = graph.add_point();
    graph.add(point(i, 0, false), pool.empty(), before);
    graph.add(point(i, 0, true), text.comma, before);
    graph.add(before, property.member, point(i + 1, 0, true));
    if (property.required) return;
    for (const bool begun : {false, true}) graph.add(point(i, 0, begun), pool.empty(), point(i + 1, 0, begun));
  }
  void add_others() {
    const size_t last = shape.properties.size();
    for (int64_t n = 0; n <= top; ++n)
      for (const bool begun : {false, true}) {
        const int32_t from = point(last, n, begun);
        if (enough(n)) graph.add(from, pool.empty(), 1);
        if (shape.others == pool.never() || !room(n) || !enough(n + 1)) continue;
        const ExprId more = pool.join({text.comma, shape.others});
        const int64_t left = shape.max == kNoBound ? kNoBound : shape.max - n - 1;
        graph.add(from, pool.join({member(shape.others, begun), pool.repeat(more, 0, left)}), 1);
      }
  }
  ExprId build() {
    const bool counted = shape.min > 0 || shape.max != kNoBound;
    const auto count = static_cast<int64_t>(shape.properties.size());
    if (counted) top = std::min(count, std::max(shape.min, shape.max == kNoBound ? 0 : shape.max));
    if ((count + 1) * (top + 1) > kMostPoints)
      fail_argument(
          "the JSON schema is too large: the object at {} counts up to {} of {} properties; leave "
          "minProperties and maxProperties out",
          where, top, count);
    points.resize(static_cast<size_t>((count + 1) * (top + 1)) * 2);
    for (int32_t& each : points) each = graph.add_point();
    graph.add(0, pool.empty(), point(0, 0, false));
    for (size_t i = 0; i < shape.properties.size(); ++i) counted ? add_property(i) : add_plain_property(i);
    add_others();
    return text.in_braces(pool.graph(std::move(graph)));
  }
};

// Counted members appear once for each count: as calls of a rule they are short.
ExprId as_rule(Pool& pool, ExprId expr) {
  if (expr == pool.never()) return expr;
  const int32_t rule = pool.add_rule("member");
  pool.rules[static_cast<size_t>(rule)].body = expr;
  return pool.call(rule);
}

struct ObjectReader {
  SchemaReader& reader;
  const JsonObject& schema;
  const std::string& where;
  Shape shape = {};
  std::vector<std::string> names = {};  // declared
  std::vector<std::pair<Dfa, Json>> patterns = {};

  Pool& pool() const { return reader.pool; }
  bool has_more() const { return schema.contains("additionalProperties"); }
  // A schema for keys that nothing else speaks of. Objects that declare properties are closed unless they say
  // otherwise.
  Json more() const {
    if (const Json* own = schema.if_contains("additionalProperties")) return *own;
    return !schema.contains("properties") && !schema.contains("patternProperties");
  }
  void read_patterns() {
    const JsonObject* list = object_keyword(reader, schema, "patternProperties", where);
    if (list == nullptr) return;
    for (const auto& [pattern, value] : *list) {
      const std::string what = "the pattern in patternProperties at " + where;
      patterns.emplace_back(
          make_dfa(pool(),
                   [&](Pool& own) { return parse_regex(own, pattern, Spelling::json, Anchoring::search, what); }),
          value);
    }
  }
  // A declared name may match patterns too.
  Json with_patterns(const std::string& name, Json value) {
    for (const auto& [keys, other] : patterns)
      if (accepts(keys, json_text(name))) value = reader.merge(value, other, where);
    return value;
  }
  void add_property(const std::string& name, const Json& value, bool required, const std::string& place) {
    names.push_back(name);
    const ExprId allowed = reader.values(with_patterns(name, value), place);
    if (allowed == pool().never() && !required) return;
    shape.properties.push_back({name, pool().join({reader.text.key(name), allowed}), required});
  }
  void read_properties() {
    std::vector<std::string> required = required_names(reader, schema, where);
    if (const JsonObject* list = object_keyword(reader, schema, "properties", where))
      for (const auto& [name, value] : *list) {
        const auto found = std::ranges::find(required, std::string_view(name));
        const bool needed = found != required.end();
        if (needed) required.erase(found);
        add_property(std::string(name), value, needed, fmt::format("{}/properties/{}", where, std::string_view(name)));
      }
    for (const std::string& name : required) {
      const bool matched =
          std::ranges::any_of(patterns, [&](const auto& p) { return accepts(p.first, json_text(name)); });
      const Json value = has_more() ? matched ? Json(true) : more() : Json(true);
      add_property(name, value, true, where + "/additionalProperties");
    }
  }
  void read_others() {
    const std::string place = where + "/additionalProperties";
    if (patterns.empty()) {
      const ExprId allowed = reader.values(more(), place);
      if (allowed != pool().never()) shape.others = pool().join({reader.text.other_key(names), allowed});
      return;
    }
    std::vector<ExprId> choices;
    for (KeySet& set : split_keys()) {
      Json value = set.schemas.empty() ? more() : Json(true);
      for (const Json& each : set.schemas) value = reader.merge(value, each, where + "/patternProperties");
      const ExprId allowed = reader.values(value, where + "/patternProperties");
      if (allowed == pool().never()) continue;
      choices.push_back(pool().join(
          {reader.text.quote, pool().dfa(std::move(set.keys)), reader.text.quote, reader.text.colon, allowed}));
    }
    shape.others = pool().choice(std::move(choices));
  }
  std::vector<KeySet> split_keys() {
    CodePoints all;
    all.add(0, kLastCodePoint);
    const Dfa any =
        make_dfa(pool(), [&](Pool& own) { return own.repeat(one_of(own, all, Spelling::json), 0, kNoBound); });
    std::vector<std::string> spelled;
    for (const std::string& name : names) spelled.push_back(json_text(name));
    const Dfa known = make_dfa(pool(), [&](Pool& own) { return own.one_of(spelled); });
    std::vector<KeySet> sets;
    sets.push_back({combine(pool(), any, known, Keep::first_only), {}});
    for (const auto& [keys, value] : patterns) {
      std::vector<KeySet> next;
      for (KeySet& set : sets) {
        KeySet in{combine(pool(), set.keys, keys, Keep::both), set.schemas};
        in.schemas.push_back(value);
        KeySet out{combine(pool(), set.keys, keys, Keep::first_only), std::move(set.schemas)};
        if (!in.keys.next.empty()) next.push_back(std::move(in));
        if (!out.keys.next.empty()) next.push_back(std::move(out));
      }
      sets = std::move(next);
      if (sets.size() > kMostKeySets)
        fail_argument("the JSON schema is too large: patternProperties at {} overlap in more than {} ways", where,
                      kMostKeySets);
    }
    return sets;
  }
  ExprId read() {
    shape.min = reader.count(schema, "minProperties", where, 0);
    shape.max = reader.count(schema, "maxProperties", where, kNoBound);
    read_patterns();
    read_properties();
    read_others();
    const auto needed = std::ranges::count_if(shape.properties, [](const Property& p) { return p.required; });
    if (shape.min <= needed) shape.min = 0;  // always met
    if (shape.others == pool().never() && shape.max >= static_cast<int64_t>(shape.properties.size()))
      shape.max = kNoBound;
    // One member with another key surely counts, more may be the same key again.
    const auto most = static_cast<int64_t>(shape.properties.size()) + (shape.others == pool().never() ? 0 : 1);
    if (shape.min > most && shape.others != pool().never())
      return reader.problem("minProperties", where, "with keys that are not declared only 1 is supported"),
             pool().never();
    if (shape.min > most) return pool().never();
    if (shape.min > 0 || shape.max != kNoBound) {
      for (Property& property : shape.properties) property.member = as_rule(pool(), property.member);
      shape.others = as_rule(pool(), shape.others);
    }
    return Sequence{pool(), reader.text, shape, where}.build();
  }
};

}  // namespace

ExprId SchemaReader::object_values(const JsonObject& schema, const std::string& where) {
  const bool free = std::ranges::none_of(schema, [](const auto& member) {
    const std::string_view name = member.key();
    return name == "properties" || name == "patternProperties" || name == "additionalProperties" ||
           name == "required" || name == "minProperties" || name == "maxProperties";
  });
  if (free) return text.object();
  return ObjectReader{*this, schema, where}.read();
}

ExprId SchemaReader::array_values(const JsonObject& schema, const std::string& where) {
  const int64_t min = count(schema, "minItems", where, 0), max = count(schema, "maxItems", where, kNoBound);
  if (max != kNoBound && min > max) return pool.never();
  std::vector<ExprId> prefix;
  const Json* list = schema.if_contains("prefixItems");
  if (list != nullptr && !list->is_array()) return problem("prefixItems", where, "it must be a list"), pool.never();
  for (size_t i = 0; list != nullptr && i < list->get_array().size(); ++i) {
    prefix.push_back(values(list->get_array()[i], fmt::format("{}/prefixItems/{}", where, i)));
  }
  // A list of items is complete unless `items` says what follows.
  const Json* more = schema.if_contains("items");
  const ExprId item = more != nullptr ? values(*more, where + "/items") : list != nullptr ? pool.never() : text.value();
  Graph graph;
  std::vector<int32_t> points = {0};
  const auto size = static_cast<int64_t>(prefix.size());
  for (int64_t i = 0; i < size && (max == kNoBound || i < max); ++i) {
    points.push_back(graph.add_point());
    const ExprId value = prefix[static_cast<size_t>(i)];
    graph.add(points.end()[-2], i == 0 ? value : pool.join({text.comma, value}), points.back());
  }
  for (size_t i = 0; i < points.size(); ++i)
    if (static_cast<int64_t>(i) >= min) graph.add(points[i], pool.empty(), 1);
  const int64_t left = max == kNoBound ? kNoBound : max - size, needed = std::max<int64_t>(min - size, 1);
  if (max == kNoBound || left > 0) {
    const ExprId next = pool.join({text.comma, item});
    const int64_t rest = left == kNoBound ? kNoBound : left - 1;
    const ExprId first = size == 0 ? item : next;
    graph.add(points.back(), pool.join({first, pool.repeat(next, needed - 1, rest)}), 1);
  }
  return text.in_brackets(pool.graph(std::move(graph)));
}

}  // namespace moesaic::grammar
