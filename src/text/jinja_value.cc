#include "text/jinja_value.h"

#include <algorithm>

namespace moesaic::jinja {
namespace {

int nesting(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  if (depth >= kMaxNesting) fail_render("the template nests lists deeper than {} levels", kMaxNesting);
  return depth + 1;
}

bool is_tuple(const Sequence& s) {
  return s.kind == SequenceKind::tuple || s.kind == SequenceKind::group;
}

bool equal_sequences(const Sequence& a, const Sequence& b, Meter& meter) {
  if (a.kind != b.kind && !(is_tuple(a) && is_tuple(b))) return false;
  if (a.items.size() != b.items.size() || a.kind == SequenceKind::values) return &a == &b;
  for (size_t i = 0; i < a.items.size(); ++i)
    if (!equal(a.items[i], b.items[i], meter)) return false;
  return true;
}

bool equal_dicts(const Dict& a, const Dict& b, Meter& meter) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = dict_find(b, key, meter);
    if (other == nullptr || !equal(value, *other, meter)) return false;
  }
  return true;
}

int order_sequences(const Sequence& a, const Sequence& b, Meter& meter, const char* op) {
  for (size_t i = 0; i < std::min(a.items.size(), b.items.size()); ++i)
    if (!equal(a.items[i], b.items[i], meter)) return order(a.items[i], b.items[i], meter, op);
  return a.items.size() == b.items.size() ? 0 : a.items.size() < b.items.size() ? -1 : 1;
}

const char* sequence_type(SequenceKind kind) {
  switch (kind) {
    case SequenceKind::list: return "list";
    case SequenceKind::tuple: return "tuple";
    case SequenceKind::group: return "_GroupTuple";
    case SequenceKind::range: return "range";
    case SequenceKind::keys: return "dict_keys";
    case SequenceKind::values: return "dict_values";
    case SequenceKind::items: return "dict_items";
  }
  return "list";
}

}  // namespace

void Meter::text(size_t n) {
  grow(0, n);
}

void Meter::grow(size_t size, size_t added) {
  if (size + added > limits_.text) fail_render("the template made a string longer than {} characters", limits_.text);
  if ((created_ += static_cast<int64_t>(added)) > limits_.created)
    fail_render("the template made more than {} characters of text", limits_.created);
  step(static_cast<int64_t>(added / 64));
}

void Meter::items(size_t n) {
  if (n > limits_.items) fail_render("the template made a list of more than {} items", limits_.items);
  step(static_cast<int64_t>(n));
}

Value make_undefined(std::string message) {
  return Undefined{std::make_shared<const std::string>(std::move(message))};
}

Value make_text(Text text, bool markup) {
  return Str{std::make_shared<const Text>(std::move(text)), markup};
}

Value make_sequence(std::vector<Value> items, SequenceKind kind, bool input) {
  auto sequence = std::make_shared<Sequence>();
  sequence->depth = nesting(items);
  sequence->items = std::move(items);
  sequence->kind = kind;
  sequence->input = input;
  return SequencePtr(std::move(sequence));
}

Value make_iterator(std::vector<Value> items) {
  auto iterator = std::make_shared<Iterator>();
  iterator->depth = nesting(items);
  iterator->items = std::move(items);
  return iterator;
}

Value make_range(Int start, Int stop, Int step, Meter& meter) {
  constexpr Int kMaxRange = 100000;  // jinja2's sandbox has the same limit
  if (step == 0) fail_render("range() arg 3 must not be zero");
  const Int span = step > 0 ? stop - start : start - stop, stride = step > 0 ? step : -step;
  const Int count = span <= 0 ? 0 : (span - 1) / stride + 1;
  if (count > kMaxRange) fail_render("range of {} items is too big; the limit is 100000", int_to_string(count));
  meter.items(static_cast<size_t>(count));
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = SequenceKind::range;
  for (Int i = 0; i < count; ++i) sequence->items.emplace_back(start + i * step);
  sequence->start = start, sequence->stop = stop, sequence->step = step;
  return SequencePtr(std::move(sequence));
}

Value make_dict(std::vector<std::pair<Value, Value>> entries, Meter& meter, bool input) {
  meter.items(entries.size());
  auto dict = std::make_shared<Dict>();
  int depth = 0;
  for (auto& [key, value] : entries) {
    if (!is_hashable(key)) fail_render("unhashable type: '{}'", type_name(key));
    depth = std::max({depth, depth_of(key), depth_of(value)});
    // A caller's JSON object has unique keys already; comparing them all would be quadratic.
    const Value* present = input ? nullptr : dict_find(*dict, key, meter);
    if (present != nullptr) *const_cast<Value*>(present) = std::move(value);
    else dict->entries.emplace_back(std::move(key), std::move(value));
  }
  if (depth >= kMaxNesting) fail_render("the template nests dicts deeper than {} levels", kMaxNesting);
  dict->depth = depth + 1;
  dict->input = input;
  return DictPtr(std::move(dict));
}

int depth_of(const Value& value) {
  if (const Sequence* s = value.sequence()) return s->depth;
  if (const Dict* d = value.dict()) return d->depth;
  if (const auto* it = value.get<std::shared_ptr<Iterator>>()) return (*it)->depth;
  if (const auto* c = value.get<std::shared_ptr<const Callable>>()) return depth_of((*c)->self);
  return 0;
}

const Value* dict_find(const Dict& dict, const Value& key, Meter& meter) {
  if (const Text* text = key.text()) return dict_find(dict, *text, meter);
  for (const auto& [k, v] : dict.entries)
    if (equal(k, key, meter)) return &v;
  return nullptr;
}

const Value* dict_find(const Dict& dict, TextView key, Meter& meter) {
  meter.step(static_cast<int64_t>(dict.entries.size() / 16));
  for (const auto& [k, v] : dict.entries) {
    const Text* text = k.text();
    if (text != nullptr && same(*text, key)) return &v;
  }
  return nullptr;
}

const char* type_name(const Value& value) {
  struct Names {
    const char* operator()(const Undefined&) const { return "Undefined"; }
    const char* operator()(None) const { return "NoneType"; }
    const char* operator()(bool) const { return "bool"; }
    const char* operator()(Int) const { return "int"; }
    const char* operator()(double) const { return "float"; }
    const char* operator()(const Str& s) const { return s.markup ? "Markup" : "str"; }
    const char* operator()(const SequencePtr& s) const { return sequence_type(s->kind); }
    const char* operator()(const DictPtr&) const { return "dict"; }
    const char* operator()(const std::shared_ptr<Iterator>&) const { return "generator"; }
    const char* operator()(Namespace*) const { return "Namespace"; }
    const char* operator()(const std::shared_ptr<Loop>&) const { return "LoopContext"; }
    const char* operator()(const std::shared_ptr<const Callable>& c) const {
      return c->kind == Callable::Kind::macro || c->kind == Callable::Kind::caller ? "Macro" : "function";
    }
  };
  return std::visit(Names{}, value.data());
}

std::string describe_type(const Value& value) {
  return value.is<None>() ? "None" : fmt::format("{} object", type_name(value));
}

bool truth(const Value& value) {
  if (value.is<Undefined>() || value.is<None>()) return false;
  if (const bool* b = value.get<bool>()) return *b;
  if (const Int* i = value.get<Int>()) return *i != 0;
  if (const double* d = value.get<double>()) return *d != 0;
  if (value.is<std::shared_ptr<Iterator>>() || value.is<std::shared_ptr<Loop>>()) return true;
  const std::optional<size_t> length = length_of(value);
  return !length || *length > 0;
}

bool is_number(const Value& value) {
  return value.is<bool>() || value.is<Int>() || value.is<double>();
}

bool is_hashable(const Value& value) {
  if (value.is<DictPtr>()) return false;
  const Sequence* s = value.sequence();
  if (s == nullptr) return true;
  if (s->kind == SequenceKind::range) return true;
  return is_tuple(*s) && std::all_of(s->items.begin(), s->items.end(), is_hashable);
}

std::optional<Int> as_integer(const Value& value) {
  if (const Int* i = value.get<Int>()) return *i;
  if (const bool* b = value.get<bool>()) return Int{*b};
  return std::nullopt;
}

std::optional<double> as_double(const Value& value) {
  if (const double* d = value.get<double>()) return *d;
  const std::optional<Int> i = as_integer(value);
  return i ? std::optional(static_cast<double>(*i)) : std::nullopt;
}

bool equal(const Value& a, const Value& b, Meter& meter) {
  meter.step();
  if (const Text* x = a.text()) {
    const Text* y = b.text();
    if (y != nullptr && x->size() == y->size()) meter.step(static_cast<int64_t>(x->size() / 64));
    return y != nullptr && same(*x, *y);
  }
  if (is_number(a) && is_number(b)) {
    if (const auto i = as_integer(a), j = as_integer(b); i && j) return *i == *j;
    return *as_double(a) == *as_double(b);
  }
  if (a.data().index() != b.data().index()) return false;
  if (const Sequence* x = a.sequence()) return equal_sequences(*x, *b.sequence(), meter);
  if (const Dict* x = a.dict()) return equal_dicts(*x, *b.dict(), meter);
  if (const auto* x = a.get<Namespace*>()) return *x == *b.get<Namespace*>();
  if (const auto* x = a.get<std::shared_ptr<Iterator>>()) return *x == *b.get<std::shared_ptr<Iterator>>();
  if (const auto* x = a.get<std::shared_ptr<Loop>>()) return *x == *b.get<std::shared_ptr<Loop>>();
  if (const auto* x = a.get<std::shared_ptr<const Callable>>()) return *x == *b.get<std::shared_ptr<const Callable>>();
  return true;  // none and none, undefined and undefined
}

int order(const Value& a, const Value& b, Meter& meter, const char* op) {
  meter.step();
  if (a.is<Undefined>()) fail_render("{}", *a.get<Undefined>()->message);
  if (b.is<Undefined>()) fail_render("{}", *b.get<Undefined>()->message);
  if (a.text() != nullptr && b.text() != nullptr) return compare(*a.text(), *b.text());
  if (is_number(a) && is_number(b)) {
    if (const auto i = as_integer(a), j = as_integer(b); i && j) return *i < *j ? -1 : *i > *j ? 1 : 0;
    const double x = *as_double(a), y = *as_double(b);
    return x < y ? -1 : x > y ? 1 : 0;
  }
  const Sequence *x = a.sequence(), *y = b.sequence();
  const bool lists = x != nullptr && y != nullptr && x->kind == SequenceKind::list && y->kind == SequenceKind::list;
  if (lists || (x != nullptr && y != nullptr && is_tuple(*x) && is_tuple(*y)))
    return order_sequences(*x, *y, meter, op);
  fail_render("'{}' not supported between instances of '{}' and '{}'", op, type_name(a), type_name(b));
}

std::optional<size_t> length_of(const Value& value) {
  if (const Text* t = value.text()) return t->size();
  if (const Sequence* s = value.sequence()) return s->items.size();
  if (const Dict* d = value.dict()) return d->entries.size();
  if (value.is<Undefined>()) return 0;
  return std::nullopt;
}

Value from_json(const Json& json, bool input, Meter& meter) {
  const DepthGuard guard(meter);
  if (json.is_bool()) return json.get_bool();
  if (json.is_int64()) return Int{json.get_int64()};
  if (json.is_uint64()) return Int{json.get_uint64()};
  if (json.is_double()) return json.get_double();
  if (json.is_string()) return make_text(decode_utf8(json.get_string(), input));
  if (const JsonArray* array = json.if_array()) {
    std::vector<Value> items;
    for (const Json& item : *array) items.push_back(from_json(item, input, meter));
    return make_sequence(std::move(items), SequenceKind::list, input);
  }
  if (const JsonObject* object = json.if_object()) {
    std::vector<std::pair<Value, Value>> entries;
    for (const auto& item : *object)
      entries.emplace_back(make_text(decode_utf8(item.key(), input)), from_json(item.value(), input, meter));
    auto dict = std::make_shared<Dict>();
    for (const auto& entry : entries) dict->depth = std::max(dict->depth, depth_of(entry.second) + 1);
    if (dict->depth > kMaxNesting) fail_render("the input nests deeper than {} levels", kMaxNesting);
    dict->entries = std::move(entries);
    dict->input = input;
    return DictPtr(std::move(dict));
  }
  return None{};
}

}  // namespace moesaic::jinja
