// Filters over lists, dicts and anything that can be walked.
#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"

namespace moesaic::jinja {
namespace {

// What the attribute argument of map, sort and the like selects: "a.b" looks up a and then b, digits are indices.
class AttributePath {
 public:
  explicit AttributePath(const Value* attribute, const Value* fallback = nullptr) : fallback_(fallback) {
    if (attribute == nullptr || attribute->is<None>()) return;
    if (attribute->text() == nullptr) {
      parts_.emplace_back(require_integer(*attribute, "an attribute"));
      return;
    }
    TextView rest = *attribute->text();
    while (true) {
      const size_t dot = find_text(rest, U".");
      parts_.push_back(part(rest.substr(0, dot)));
      if (dot == TextView::npos) break;
      rest = rest.substr(dot + 1);
    }
  }

  Value operator()(Interpreter& in, Value item) const {
    for (const Value& part : parts_) {
      item = in.get_item(item, part);
      if (fallback_ != nullptr && !fallback_->is<None>() && item.is<Undefined>()) item = *fallback_;
    }
    return item;
  }

 private:
  static Value part(TextView text) {
    Int number = 0;
    const bool digits = !text.empty() && text.size() < 18 && std::all_of(text.begin(), text.end(), [](char32_t c) {
      return code_point(c) >= '0' && code_point(c) <= '9';
    });
    if (!digits) return make_text(Text(text));
    for (const char32_t c : text) number = number * 10 + static_cast<Int>(code_point(c) - '0');
    return number;
  }

  std::vector<Value> parts_;
  const Value* fallback_;
};

// Texts compare in lower case unless the filter is told otherwise.
Value sort_key(Interpreter& in, const Value& value, bool case_sensitive) {
  if (case_sensitive || value.text() == nullptr) return value;
  return in.text_value(to_lower(*value.text()));
}

std::vector<Value> sorted(Interpreter& in, const std::vector<Value>& items, const std::vector<Value>& keys,
                          bool reverse) {
  const std::vector<size_t> order_of = stable_order(items.size(), [&](size_t a, size_t b) {
    return reverse ? order(keys[b], keys[a], in.meter()) < 0 : order(keys[a], keys[b], in.meter()) < 0;
  });
  std::vector<Value> out;
  for (const size_t i : order_of) out.push_back(items[i]);
  return out;
}

Value length(Interpreter&, const Value& v, const Arguments& a) {
  bind(a, "length", {});
  const std::optional<size_t> n = length_of(v);
  if (!n) fail_render("object of type '{}' has no len()", type_name(v));
  return *n;
}

Value default_value(Interpreter&, const Value& v, const Arguments& arguments) {
  const std::vector<const Value*> a = bind(arguments, "default", {"default_value", "boolean"});
  if (!v.is<Undefined>() && !(flag(a[1]) && !truth(v))) return v;
  return a[0] != nullptr ? *a[0] : make_text({});
}

Value join(Interpreter& in, const Value& v, const Arguments& arguments) {
  const std::vector<const Value*> a = bind(arguments, "join", {"d", "attribute"});
  const Text separator = a[0] != nullptr ? to_text(*a[0], in.meter()) : Text();
  const AttributePath attribute(a[1]);
  Text out;
  bool first = true;
  for (const Value& item : in.list_of(v)) {
    const Text piece = to_text(attribute(in, item), in.meter());
    in.meter().grow(out.size(), piece.size() + separator.size());
    if (!std::exchange(first, false)) out += separator;
    out += piece;
  }
  return make_text(std::move(out));
}

Value items(Interpreter& in, const Value& v, const Arguments& a) {
  bind(a, "items", {});
  if (v.is<Undefined>()) return make_iterator({});
  if (v.dict() == nullptr) fail_render("Can only get item pairs from a mapping.");
  return make_iterator(in.list_of(call_method(in, v, "items", {})));
}

Value first(Interpreter& in, const Value& v, const Arguments& a) {
  bind(a, "first", {});
  if (const auto* it = v.get<std::shared_ptr<Iterator>>(); it != nullptr && (*it)->next < (*it)->items.size())
    return (*it)->items[(*it)->next++];
  const std::vector<Value> all = in.list_of(v);
  return all.empty() ? make_undefined("No first item, sequence was empty.") : all.front();
}

Value last(Interpreter& in, const Value& v, const Arguments& a) {
  bind(a, "last", {});
  if (v.is<std::shared_ptr<Iterator>>()) fail_render("'generator' object is not reversible");
  const std::vector<Value> all = in.list_of(v);
  return all.empty() ? make_undefined("No last item, sequence was empty.") : all.back();
}

Value list(Interpreter& in, const Value& v, const Arguments& a) {
  bind(a, "list", {});
  const bool input = v.sequence() != nullptr && v.sequence()->input;
  return make_sequence(in.list_of(v), SequenceKind::list, input);
}

Value reverse(Interpreter& in, const Value& v, const Arguments& a) {
  bind(a, "reverse", {});
  if (const Str* s = v.get<Str>()) return in.text_value(Text(s->text->rbegin(), s->text->rend()), s->markup);
  std::vector<Value> all = in.list_of(v);
  std::reverse(all.begin(), all.end());
  if (v.is<std::shared_ptr<Iterator>>()) return make_sequence(std::move(all));
  return make_iterator(std::move(all));
}

Value map(Interpreter& in, const Value& v, const Arguments& a) {
  std::vector<Value> out;
  if (!truth(v)) return make_iterator({});
  if (a.positional.empty()) {
    const std::vector<const Value*> named = bind(a, "map", {"attribute", "default"});
    if (named[0] == nullptr) fail_render("map requires a filter argument");
    const AttributePath attribute(named[0], named[1]);
    for (const Value& item : in.list_of(v)) out.push_back(attribute(in, item));
    return make_iterator(std::move(out));
  }
  const std::string filter = encode_utf8(text_argument(a.positional[0], "the filter of map"));
  const Arguments rest{{a.positional.begin() + 1, a.positional.end()}, a.keywords};
  for (const Value& item : in.list_of(v)) out.push_back(call_filter(in, filter, item, rest));
  return make_iterator(std::move(out));
}

Value choose(Interpreter& in, const Value& v, const Arguments& a, bool wanted, bool by_attribute) {
  std::vector<Value> out;
  if (!truth(v)) return make_iterator({});
  if (by_attribute && a.positional.empty()) fail_render("Missing parameter for attribute name");
  const AttributePath attribute(by_attribute ? &a.positional[0] : nullptr);
  const size_t at = by_attribute;
  const bool tested = a.positional.size() > at;
  const std::string test = tested ? encode_utf8(text_argument(a.positional[at], "the name of a test")) : "";
  Arguments rest;
  if (tested) rest = {{a.positional.begin() + static_cast<ptrdiff_t>(at) + 1, a.positional.end()}, a.keywords};
  for (const Value& item : in.list_of(v)) {
    const Value selected = attribute(in, item);
    if ((tested ? call_test(in, test, selected, rest) : truth(selected)) == wanted) out.push_back(item);
  }
  return make_iterator(std::move(out));
}

Value dict_sort(Interpreter& in, const Value& v, const Arguments& arguments) {
  const std::vector<const Value*> a = bind(arguments, "dictsort", {"case_sensitive", "by", "reverse"});
  const Text by = a[1] != nullptr ? text_argument(*a[1], "the by of dictsort") : U"key";
  if (!same(by, U"key") && !same(by, U"value")) fail_render("You can only sort by either \"key\" or \"value\"");
  require_defined(v);
  if (v.dict() == nullptr) fail_render("'{}' has no attribute 'items'", describe_type(v));
  const std::vector<Value> pairs = in.list_of(call_method(in, v, "items", {}));
  std::vector<Value> keys;
  for (const Value& pair : pairs) keys.push_back(sort_key(in, pair.sequence()->items[same(by, U"value")], flag(a[0])));
  return in.list_value(sorted(in, pairs, keys, flag(a[2])));
}

Value sort(Interpreter& in, const Value& v, const Arguments& arguments) {
  const std::vector<const Value*> a = bind(arguments, "sort", {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> names;
  if (a[2] != nullptr && a[2]->text() != nullptr)
    names = in.list_of(call_method(in, *a[2], "split", Arguments{{make_text(U",")}, {}}));
  else if (a[2] != nullptr) names.push_back(*a[2]);
  const std::vector<Value> all = in.list_of(v);
  std::vector<Value> keys;
  for (const Value& item : all) {
    std::vector<Value> parts;
    for (const Value& name : names) parts.push_back(sort_key(in, AttributePath(&name)(in, item), flag(a[1])));
    if (names.empty()) parts.push_back(sort_key(in, item, flag(a[1])));
    // A list even of one: equal parts, undefined ones too, are not asked which is less.
    keys.push_back(make_sequence(std::move(parts)));
  }
  return in.list_value(sorted(in, all, keys, flag(a[0])));
}

Value unique(Interpreter& in, const Value& v, const Arguments& arguments) {
  const std::vector<const Value*> a = bind(arguments, "unique", {"case_sensitive", "attribute"});
  const AttributePath attribute(a[1]);
  std::vector<Value> out, seen;
  for (const Value& item : in.list_of(v)) {
    const Value key = sort_key(in, attribute(in, item), flag(a[0]));
    if (!is_hashable(key)) fail_render("unhashable type: '{}'", type_name(key));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& s) { return equal(s, key, in.meter()); })) continue;
    seen.push_back(key);
    out.push_back(item);
  }
  return make_iterator(std::move(out));
}

Value extreme(Interpreter& in, const Value& v, const Arguments& arguments, int sign) {
  const std::vector<const Value*> a = bind(arguments, sign < 0 ? "min" : "max", {"case_sensitive", "attribute"});
  const AttributePath attribute(a[1]);
  const std::vector<Value> all = in.list_of(v);
  if (all.empty()) return make_undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  Value best_key = sort_key(in, attribute(in, all[0]), flag(a[0]));
  for (size_t i = 1; i < all.size(); ++i) {
    Value key = sort_key(in, attribute(in, all[i]), flag(a[0]));
    if (order(key, best_key, in.meter(), sign < 0 ? "<" : ">") * sign <= 0) continue;
    best = i;
    best_key = std::move(key);
  }
  return all[best];
}

Value sum(Interpreter& in, const Value& v, const Arguments& arguments) {
  const std::vector<const Value*> a = bind(arguments, "sum", {"attribute", "start"});
  const AttributePath attribute(a[0]);
  Value total = a[1] != nullptr ? *a[1] : Value(0);
  if (total.is<Str>()) fail_render("sum() can't sum strings");
  for (const Value& item : in.list_of(v)) total = binary("+", total, attribute(in, item), in.meter());
  return total;
}

Value batch(Interpreter& in, const Value& v, const Arguments& arguments) {
  const std::vector<const Value*> a = bind(arguments, "batch", {"linecount", "fill_with"}, 1);
  const Int size = require_integer(*a[0], "the size of a batch");
  std::vector<Value> out, row;
  for (Value& item : in.list_of(v)) {
    if (static_cast<Int>(row.size()) == size) out.push_back(in.list_value(std::exchange(row, {})));
    row.push_back(std::move(item));
  }
  if (!row.empty() && a[1] != nullptr && !a[1]->is<None>() && static_cast<Int>(row.size()) < size) {
    in.meter().items(static_cast<size_t>(std::min<Int>(size, Int{1} << 40)));
    row.resize(static_cast<size_t>(size), *a[1]);
  }
  if (!row.empty()) out.push_back(in.list_value(std::move(row)));
  return make_iterator(std::move(out));
}

Value slice(Interpreter& in, const Value& v, const Arguments& arguments) {
  const std::vector<const Value*> a = bind(arguments, "slice", {"slices", "fill_with"}, 1);
  const Int slices = require_integer(*a[0], "the number of slices");
  const std::vector<Value> all = in.list_of(v);
  if (slices == 0) fail_render("integer division or modulo by zero");
  if (slices < 0) return make_iterator({});
  in.meter().items(static_cast<size_t>(std::min<Int>(slices, Int{1} << 40)));
  const size_t count = static_cast<size_t>(slices), each = all.size() / count, longer = all.size() % count;
  std::vector<Value> out;
  for (size_t i = 0, begin = 0; i < count; ++i) {
    const size_t size = each + (i < longer);
    std::vector<Value> part(all.begin() + static_cast<ptrdiff_t>(begin),
                            all.begin() + static_cast<ptrdiff_t>(begin + size));
    if (a[1] != nullptr && !a[1]->is<None>() && i >= longer) part.push_back(*a[1]);
    out.push_back(in.list_value(std::move(part)));
    begin += size;
  }
  return make_iterator(std::move(out));
}

Value group_by(Interpreter& in, const Value& v, const Arguments& arguments) {
  const std::vector<const Value*> a = bind(arguments, "groupby", {"attribute", "default", "case_sensitive"}, 1);
  const AttributePath attribute(a[0], a[1]);
  const std::vector<Value> all = in.list_of(v);
  std::vector<Value> keys;
  for (const Value& item : all) keys.push_back(sort_key(in, attribute(in, item), flag(a[2])));
  std::vector<Value> out, members;
  Value group_key;
  const auto finish = [&] {
    if (members.empty()) return;
    const Value grouper = attribute(in, members[0]);
    out.push_back(make_sequence({grouper, in.list_value(std::exchange(members, {}))}, SequenceKind::group));
  };
  const std::vector<Value> sorted_items = sorted(in, all, keys, false);
  for (const Value& item : sorted_items) {
    Value key = sort_key(in, attribute(in, item), flag(a[2]));
    if (!members.empty() && !equal(key, group_key, in.meter())) finish();
    group_key = std::move(key);
    members.push_back(item);
  }
  finish();
  return in.list_value(std::move(out));
}

Value attr(Interpreter& in, const Value& v, const Arguments& arguments) {
  const Value& name = *bind(arguments, "attr", {"name"}, 1)[0];
  const std::string attribute = encode_utf8(text_argument(name, "the name of an attribute"));
  const bool own = v.is<Namespace*>() || v.is<std::shared_ptr<Loop>>() || method_kind(v, attribute) != MethodKind::none;
  if (own || v.is<Undefined>()) return in.get_attribute(v, attribute, name);
  return make_undefined(fmt::format("'{}' has no attribute '{}'", describe_type(v), attribute));
}

const FilterEntry kFilters[] = {
    {"length", length},
    {"count", length},
    {"default", default_value},
    {"d", default_value},
    {"join", join},
    {"items", items},
    {"first", first},
    {"last", last},
    {"list", list},
    {"reverse", reverse},
    {"map", map},
    {"select", [](Interpreter& in, const Value& v, const Arguments& a) { return choose(in, v, a, true, false); }},
    {"reject", [](Interpreter& in, const Value& v, const Arguments& a) { return choose(in, v, a, false, false); }},
    {"selectattr", [](Interpreter& in, const Value& v, const Arguments& a) { return choose(in, v, a, true, true); }},
    {"rejectattr", [](Interpreter& in, const Value& v, const Arguments& a) { return choose(in, v, a, false, true); }},
    {"dictsort", dict_sort},
    {"sort", sort},
    {"unique", unique},
    {"sum", sum},
    {"batch", batch},
    {"slice", slice},
    {"min", [](Interpreter& in, const Value& v, const Arguments& a) { return extreme(in, v, a, -1); }},
    {"max", [](Interpreter& in, const Value& v, const Arguments& a) { return extreme(in, v, a, 1); }},
    {"groupby", group_by},
    {"attr", attr}};

const FilterEntry* find_filter(std::string_view name) {
  const FilterEntry* entry = find_list_filter(name);
  return entry != nullptr ? entry : find_text_filter(name);
}

}  // namespace

const FilterEntry* find_list_filter(std::string_view name) {
  for (const FilterEntry& entry : kFilters)
    if (entry.name == name) return &entry;
  return nullptr;
}

bool has_filter(std::string_view name) {
  return find_filter(name) != nullptr;
}

Value call_filter(Interpreter& in, std::string_view name, const Value& operand, const Arguments& arguments) {
  const FilterEntry* entry = find_filter(name);
  if (entry == nullptr) fail_render("unknown filter '{}'", name);
  in.meter().step();
  return entry->function(in, operand, arguments);
}

}  // namespace moesaic::jinja
