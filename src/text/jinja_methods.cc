// Methods of dicts, lists and loops, and the reading of arguments.
#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"

namespace moesaic::jinja {
namespace {

constexpr std::string_view kDictMethods[] = {"items", "keys", "values", "get", "copy"};
constexpr std::string_view kDictChanges[] = {"pop", "popitem", "clear", "update", "setdefault"};
constexpr std::string_view kListMethods[] = {"index", "count", "copy"};
constexpr std::string_view kListChanges[] = {"append", "extend", "insert", "remove", "reverse", "sort"};

template <size_t n>
bool has(const std::string_view (&names)[n], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value call_dict_method(Interpreter& in, const Value& self, std::string_view name, const Arguments& arguments) {
  const Dict& dict = *self.dict();
  if (name == "get") {
    const std::vector<const Value*> a = bind(arguments, "get", {"key", "default"}, 1);
    if (!is_hashable(*a[0])) fail_render("unhashable type: '{}'", type_name(*a[0]));
    const Value* found = dict_find(dict, *a[0], in.meter());
    return found != nullptr ? *found : a[1] != nullptr ? *a[1] : Value();
  }
  bind(arguments, name, {});
  if (name == "copy") return self;
  in.meter().items(dict.entries.size());
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries) {
    if (name == "keys") items.push_back(key);
    else if (name == "values") items.push_back(value);
    else items.push_back(make_sequence({key, value}, SequenceKind::tuple, dict.input));
  }
  const SequenceKind kind = name == "keys"     ? SequenceKind::keys
                            : name == "values" ? SequenceKind::values
                                               : SequenceKind::items;
  return make_sequence(std::move(items), kind, dict.input);
}

Value call_list_method(Interpreter& in, const Value& self, std::string_view name, const Arguments& arguments) {
  if (name == "copy") return self;
  const std::vector<Value>& items = self.sequence()->items;
  const std::vector<const Value*> a = bind(arguments, name, {"value"}, 1);
  size_t count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!equal(items[i], *a[0], in.meter())) continue;
    if (name == "index") return i;
    ++count;
  }
  if (name == "index") fail_render("{} is not in the list", encode_utf8(repr(*a[0], in.meter())));
  return count;
}

Value call_loop_method(Interpreter& in, Loop& loop, std::string_view name, const Arguments& arguments) {
  if (name == "cycle") {
    if (arguments.positional.empty()) fail_render("no items for cycling given");
    return arguments.positional[loop.index0 % arguments.positional.size()];
  }
  const std::vector<Value>& now = arguments.positional;
  const bool same_values = loop.has_changed_before && now.size() == loop.last_changed.size() &&
                           std::equal(now.begin(), now.end(), loop.last_changed.begin(),
                                      [&](const Value& x, const Value& y) { return equal(x, y, in.meter()); });
  loop.has_changed_before = true;
  loop.last_changed = now;
  return !same_values;
}

}  // namespace

std::vector<const Value*> bind(const Arguments& arguments, std::string_view function,
                               std::initializer_list<std::string_view> names, size_t required) {
  std::vector<const Value*> bound(names.size(), nullptr);
  if (arguments.positional.size() > names.size())
    fail_render("{}() takes at most {} argument(s), {} given", function, names.size(), arguments.positional.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) bound[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.keywords) {
    const auto at = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (at == names.size()) fail_render("{}() got an unexpected keyword argument '{}'", function, name);
    if (bound[at] != nullptr) fail_render("{}() got multiple values for argument '{}'", function, name);
    bound[at] = &value;
  }
  for (size_t i = 0; i < required; ++i)
    if (bound[i] == nullptr) fail_render("{}() misses its argument '{}'", function, *(names.begin() + i));
  return bound;
}

bool flag(const Value* value, bool fallback) {
  return value != nullptr ? truth(*value) : fallback;
}

Int integer(const Value* value, Int fallback, std::string_view what) {
  return value != nullptr ? require_integer(*value, what) : fallback;
}

const Text& text_argument(const Value& value, std::string_view what) {
  require_defined(value);
  if (value.text() == nullptr) fail_render("{} must be a string, not {}", what, type_name(value));
  return *value.text();
}

MethodKind method_kind(const Value& object, std::string_view name) {
  if (object.is<Str>()) return has_text_method(name) ? MethodKind::allowed : MethodKind::none;
  if (object.is<DictPtr>())
    return has(kDictMethods, name)   ? MethodKind::allowed
           : has(kDictChanges, name) ? MethodKind::forbidden
                                     : MethodKind::none;
  if (object.is<std::shared_ptr<Loop>>())
    return name == "cycle" || name == "changed" ? MethodKind::allowed : MethodKind::none;
  const Sequence* s = object.sequence();
  if (s == nullptr) return MethodKind::none;
  if (s->kind == SequenceKind::list) {
    // jinja2 forbids what changes a list, except pop, which it leaves alone; here nothing can change.
    if (has(kListChanges, name) || name == "pop" || name == "clear") return MethodKind::forbidden;
    return has(kListMethods, name) ? MethodKind::allowed : MethodKind::none;
  }
  const bool ordered =
      s->kind == SequenceKind::tuple || s->kind == SequenceKind::group || s->kind == SequenceKind::range;
  return ordered && (name == "index" || name == "count") ? MethodKind::allowed : MethodKind::none;
}

Value call_method(Interpreter& in, const Value& object, std::string_view name, const Arguments& arguments) {
  if (const Str* s = object.get<Str>()) return call_text_method(in, *s, name, arguments);
  if (object.is<DictPtr>()) return call_dict_method(in, object, name, arguments);
  if (const auto* loop = object.get<std::shared_ptr<Loop>>()) return call_loop_method(in, **loop, name, arguments);
  return call_list_method(in, object, name, arguments);
}

}  // namespace moesaic::jinja
