// Tests: what may follow `is`.
#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"

namespace moesaic::jinja {
namespace {

using Test = bool (*)(Interpreter&, const Value&, const Arguments&);

// The one argument; Python's operators, which some tests are, do not take it by a name.
const Value& only(const Arguments& arguments, std::string_view test, std::string_view parameter = "") {
  if (parameter.empty() && !arguments.keywords.empty()) fail_render("{}() takes no keyword arguments", test);
  return *bind(arguments, test, {parameter}, 1)[0];
}

// As Python's %, which formats where the left side is a string.
bool leaves(const Value& v, const Value& divisor, Int rest, Interpreter& in) {
  return equal(binary("%", v, divisor, in.meter()), rest, in.meter());
}

bool is_same(Interpreter& in, const Value& a, const Value& b) {
  if (const Sequence* s = a.sequence()) return s == b.sequence();
  if (const Dict* d = a.dict()) return d == b.dict();
  if (a.is<Undefined>()) return false;  // each use of a name that is not there is another object
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

#define MOESAIC_SIMPLE_TEST(name, condition)                                         \
  {                                                                                  \
    name, []([[maybe_unused]] Interpreter& in, const Value& v, const Arguments& a) { \
      bind(a, name, {});                                                             \
      return condition;                                                              \
    }                                                                                \
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
    MOESAIC_SIMPLE_TEST("odd", leaves(v, Int{2}, 1, in)),
    MOESAIC_SIMPLE_TEST("even", leaves(v, Int{2}, 0, in)),
    MOESAIC_SIMPLE_TEST("lower", has_case(in, v, false)),
    MOESAIC_SIMPLE_TEST("upper", has_case(in, v, true)),
    MOESAIC_SIMPLE_TEST("filter", v.text() != nullptr && has_filter(encode_utf8(*v.text()))),
    MOESAIC_SIMPLE_TEST("test", v.text() != nullptr && has_test(encode_utf8(*v.text()))),
    {"in", [](Interpreter& in, const Value& v,
              const Arguments& a) { return compare_values("in", v, only(a, "in", "seq"), in.meter()); }},
    {"divisibleby", [](Interpreter& in, const Value& v,
                       const Arguments& a) { return leaves(v, only(a, "divisibleby", "num"), 0, in); }},
    {"sameas",
     [](Interpreter& in, const Value& v, const Arguments& a) { return is_same(in, v, only(a, "sameas", "other")); }},
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
