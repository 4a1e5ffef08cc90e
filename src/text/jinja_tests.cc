// Tests: what may follow `is`.
#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"

namespace moesaic::jinja {
namespace {

using Test = bool (*)(Interpreter&, const Value&, const Arguments&);

const Value& only(const Arguments& arguments, std::string_view test) {
  return *bind(arguments, test, {"other"}, 1)[0];
}

template <typename Predicate>
bool simple(const Arguments& arguments, const Value& v, Predicate predicate) {
  bind(arguments, "test", {});
  return predicate(v);
}

Int remainder(const Value& v, Int divisor, Interpreter& in) {
  const Value rest = binary("%", v, divisor, in.meter());
  return as_integer(rest) ? *as_integer(rest) : *as_double(rest) == 0 ? 0 : *as_double(rest) == 1 ? 1 : -1;
}

bool is_same(Interpreter& in, const Value& a, const Value& b) {
  if (const Sequence* s = a.sequence()) return s == b.sequence();
  if (const Dict* d = a.dict()) return d == b.dict();
  return a.data().index() == b.data().index() && equal(a, b, in.meter());
}

bool is_callable(const Value& v) {
  return v.is<std::shared_ptr<const Callable>>() || v.is<Undefined>() || v.is<std::shared_ptr<Loop>>();
}

bool is_sequence(const Value& v) {
  const Sequence* s = v.sequence();
  if (s != nullptr)
    return s->kind != SequenceKind::keys && s->kind != SequenceKind::values && s->kind != SequenceKind::items;
  return v.is<Str>() || v.is<DictPtr>() || v.is<Undefined>();
}

bool is_iterable(const Value& v) {
  return length_of(v).has_value() || v.is<std::shared_ptr<Iterator>>() || v.is<std::shared_ptr<Loop>>();
}

bool has_case(Interpreter& in, const Value& v, bool upper) {
  const Text text = to_text(v, in.meter());
  const auto right = upper ? is_upper : is_lower, wrong = upper ? is_lower : is_upper;
  return std::any_of(text.begin(), text.end(), right) && std::none_of(text.begin(), text.end(), wrong);
}

struct Entry {
  std::string_view name;
  Test test;
};

#define MOESAIC_SIMPLE_TEST(name, condition)                             \
  {                                                                      \
    name, [](Interpreter&, const Value& value, const Arguments& a) {     \
      return simple(a, value, [](const Value& v) { return condition; }); \
    }                                                                    \
  }
#define MOESAIC_COMPARE_TEST(name, op)                              \
  {                                                                 \
    name, [](Interpreter& in, const Value& v, const Arguments& a) { \
      return compare_values(op, v, only(a, name), in.meter());      \
    }                                                               \
  }

const Entry kTests[] = {
    MOESAIC_SIMPLE_TEST("defined", !v.is<Undefined>()),
    MOESAIC_SIMPLE_TEST("undefined", v.is<Undefined>()),
    MOESAIC_SIMPLE_TEST("none", v.is<None>()),
    MOESAIC_SIMPLE_TEST("boolean", v.is<bool>()),
    MOESAIC_SIMPLE_TEST("true", v.is<bool>() && *v.get<bool>()),
    MOESAIC_SIMPLE_TEST("false", v.is<bool>() && !*v.get<bool>()),
    MOESAIC_SIMPLE_TEST("integer", v.is<Int>()),
    MOESAIC_SIMPLE_TEST("float", v.is<double>()),
    MOESAIC_SIMPLE_TEST("number", is_number(v)),
    MOESAIC_SIMPLE_TEST("string", v.is<Str>()),
    MOESAIC_SIMPLE_TEST("mapping", v.is<DictPtr>()),
    MOESAIC_SIMPLE_TEST("sequence", is_sequence(v)),
    MOESAIC_SIMPLE_TEST("iterable", is_iterable(v)),
    MOESAIC_SIMPLE_TEST("callable", is_callable(v)),
    MOESAIC_SIMPLE_TEST("escaped", v.is<Str>() && v.get<Str>()->markup),
    MOESAIC_COMPARE_TEST("==", "=="),
    MOESAIC_COMPARE_TEST("eq", "=="),
    MOESAIC_COMPARE_TEST("equalto", "=="),
    MOESAIC_COMPARE_TEST("!=", "!="),
    MOESAIC_COMPARE_TEST("ne", "!="),
    MOESAIC_COMPARE_TEST("<", "<"),
    MOESAIC_COMPARE_TEST("lt", "<"),
    MOESAIC_COMPARE_TEST("lessthan", "<"),
    MOESAIC_COMPARE_TEST("<=", "<="),
    MOESAIC_COMPARE_TEST("le", "<="),
    MOESAIC_COMPARE_TEST(">", ">"),
    MOESAIC_COMPARE_TEST("gt", ">"),
    MOESAIC_COMPARE_TEST("greaterthan", ">"),
    MOESAIC_COMPARE_TEST(">=", ">="),
    MOESAIC_COMPARE_TEST("ge", ">="),
    MOESAIC_COMPARE_TEST("in", "in"),
    {"odd", [](Interpreter& in, const Value& v, const Arguments&) { return remainder(v, 2, in) == 1; }},
    {"even", [](Interpreter& in, const Value& v, const Arguments&) { return remainder(v, 2, in) == 0; }},
    {"divisibleby",
     [](Interpreter& in, const Value& v, const Arguments& a) {
       return remainder(v, require_integer(only(a, "divisibleby"), "the divisor"), in) == 0;
     }},
    {"sameas", [](Interpreter& in, const Value& v, const Arguments& a) { return is_same(in, v, only(a, "sameas")); }},
    {"lower", [](Interpreter& in, const Value& v, const Arguments&) { return has_case(in, v, false); }},
    {"upper", [](Interpreter& in, const Value& v, const Arguments&) { return has_case(in, v, true); }},
    {"filter", [](Interpreter&, const Value& v,
                  const Arguments&) { return v.text() != nullptr && has_filter(encode_utf8(*v.text())); }},
    {"test", [](Interpreter&, const Value& v,
                const Arguments&) { return v.text() != nullptr && has_test(encode_utf8(*v.text())); }},
};

#undef MOESAIC_SIMPLE_TEST
#undef MOESAIC_COMPARE_TEST

const Entry* find_test(std::string_view name) {
  for (const Entry& entry : kTests)
    if (entry.name == name) return &entry;
  return nullptr;
}

}  // namespace

bool has_test(std::string_view name) {
  return find_test(name) != nullptr;
}

bool call_test(Interpreter& in, std::string_view name, const Value& operand, const Arguments& arguments) {
  const Entry* entry = find_test(name);
  if (entry == nullptr) fail_render("unknown test '{}'", name);
  in.meter().step();
  return entry->test(in, operand, arguments);
}

}  // namespace moesaic::jinja
