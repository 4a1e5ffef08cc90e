#include "text/jinja_operators.h"

#include <algorithm>
#include <cmath>

namespace moesaic::jinja {
namespace {

[[noreturn]] void fail_overflow() {
  fail_render("an integer became larger than 127 bits");
}

[[noreturn]] void fail_operands(std::string_view op, const Value& a, const Value& b) {
  fail_render("unsupported operand type(s) for {}: '{}' and '{}'", op, type_name(a), type_name(b));
}

Int floor_divide(Int a, Int b) {
  if (b == 0) fail_render("integer division or modulo by zero");
  if (b == -1) {
    Int negated;
    if (__builtin_sub_overflow(Int{0}, a, &negated)) fail_overflow();
    return negated;
  }
  const Int quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Int floor_modulo(Int a, Int b) {
  if (b == 0) fail_render("integer division or modulo by zero");
  if (b == -1) return 0;
  const Int rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Int power(Int base, Int exponent) {
  Int result = 1;
  while (true) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_overflow();
    exponent >>= 1;
    if (exponent == 0) return result;
    if (__builtin_mul_overflow(base, base, &base)) fail_overflow();
  }
}

double modulo(double a, double b) {
  if (b == 0) fail_render("float modulo by zero");
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

double floor_divide(double a, double b) {
  if (b == 0) fail_render("float floor division by zero");
  const double quotient = (a - modulo(a, b)) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

double power(double a, double b) {
  if (a == 0 && b < 0) fail_render("0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b))
    fail_render("a negative number has no real power {}", b);
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) fail_render("the result of ** is too large");
  return result;
}

Value integer_arithmetic(std::string_view op, Int a, Int b) {
  Int result = 0;
  if (op == "+" && !__builtin_add_overflow(a, b, &result)) return result;
  if (op == "-" && !__builtin_sub_overflow(a, b, &result)) return result;
  if (op == "*" && !__builtin_mul_overflow(a, b, &result)) return result;
  if (op == "//") return floor_divide(a, b);
  if (op == "%") return floor_modulo(a, b);
  if (op == "/") {
    if (b == 0) fail_render("division by zero");
    return static_cast<double>(a) / static_cast<double>(b);
  }
  if (op == "**") return b < 0 ? Value(power(static_cast<double>(a), static_cast<double>(b))) : Value(power(a, b));
  fail_overflow();
}

Value arithmetic(std::string_view op, const Value& x, const Value& y) {
  if (const auto i = as_integer(x), j = as_integer(y); i && j) return integer_arithmetic(op, *i, *j);
  const double a = *as_double(x), b = *as_double(y);
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "//") return floor_divide(a, b);
  if (op == "%") return modulo(a, b);
  if (op == "**") return power(a, b);
  if (b == 0) fail_render("float division by zero");
  return a / b;
}

Value join_texts(const Str& a, const Str& b, Meter& meter) {
  Text out = b.markup && !a.markup ? escape_html(*a.text) : *a.text;
  const Text right = a.markup && !b.markup ? escape_html(*b.text) : *b.text;
  meter.text(out.size() + right.size());
  out += right;
  return make_text(std::move(out), a.markup || b.markup);
}

bool is_list_or_tuple(const Value& value) {
  const Sequence* s = value.sequence();
  return s != nullptr &&
         (s->kind == SequenceKind::list || s->kind == SequenceKind::tuple || s->kind == SequenceKind::group);
}

Value join_lists(const Value& a, const Value& b, Meter& meter) {
  const Sequence &x = *a.sequence(), &y = *b.sequence();
  const bool lists = x.kind == SequenceKind::list;
  if (lists != (y.kind == SequenceKind::list)) fail_operands("+", a, b);
  meter.items(x.items.size() + y.items.size());
  std::vector<Value> items = x.items;
  items.insert(items.end(), y.items.begin(), y.items.end());
  return make_sequence(std::move(items), lists ? SequenceKind::list : SequenceKind::tuple, x.input && y.input);
}

Value repeat(const Value& value, Int count, Meter& meter) {
  const Int length = static_cast<Int>(*length_of(value));
  const Int capped = std::clamp<Int>(count, 0, Int{1} << 40);
  const auto total = static_cast<size_t>(std::min<Int>(length * capped, Int{1} << 62));
  if (const Str* s = value.get<Str>()) {
    meter.text(total);
    Text out;
    out.reserve(total);
    for (Int i = 0; i < capped && length > 0; ++i) out += *s->text;
    return make_text(std::move(out), s->markup);
  }
  meter.items(total);
  std::vector<Value> items;
  for (Int i = 0; i < capped && length > 0; ++i)
    items.insert(items.end(), value.sequence()->items.begin(), value.sequence()->items.end());
  return make_sequence(std::move(items), value.sequence()->kind);
}

}  // namespace

void require_defined(const Value& value) {
  if (const Undefined* u = value.get<Undefined>()) fail_render("{}", *u->message);
}

Int require_integer(const Value& value, std::string_view what) {
  require_defined(value);
  const std::optional<Int> i = as_integer(value);
  if (!i) fail_render("{} must be an integer, not {}", what, type_name(value));
  return *i;
}

Value binary(std::string_view op, const Value& a, const Value& b, Meter& meter) {
  const Str *x = a.get<Str>(), *y = b.get<Str>();
  if (op == "%" && x != nullptr) return make_text(format_percent(*x->text, b, meter, x->markup), x->markup);
  require_defined(a);
  require_defined(b);
  if (is_number(a) && is_number(b)) return arithmetic(op, a, b);
  if (op == "+" && x != nullptr && y != nullptr) return join_texts(*x, *y, meter);
  if (op == "+" && is_list_or_tuple(a) && is_list_or_tuple(b)) return join_lists(a, b, meter);
  const auto repeatable = [](const Value& v) { return v.is<Str>() || is_list_or_tuple(v); };
  if (op == "*" && repeatable(a) && as_integer(b)) return repeat(a, *as_integer(b), meter);
  if (op == "*" && repeatable(b) && as_integer(a)) return repeat(b, *as_integer(a), meter);
  if (op == "+" && x != nullptr) fail_render("can only concatenate str (not \"{}\") to str", type_name(b));
  fail_operands(op, a, b);
}

Value negate(const Value& a, std::string_view op) {
  require_defined(a);
  if (const double* d = a.get<double>()) return op == "-" ? -*d : *d;
  const std::optional<Int> i = as_integer(a);
  if (!i) fail_render("bad operand type for unary {}: '{}'", op, type_name(a));
  return op == "-" ? integer_arithmetic("-", 0, *i) : Value(*i);
}

bool contains(const Value& container, const Value& item, Meter& meter) {
  meter.step();
  if (const Text* text = container.text()) {
    const Text* part = item.text();
    if (part == nullptr) fail_render("'in <string>' requires string as left operand, not {}", type_name(item));
    meter.step(static_cast<int64_t>((text->size() + part->size()) / 32));
    return find_text(*text, *part) != Text::npos;
  }
  if (const Sequence* s = container.sequence())
    return std::any_of(s->items.begin(), s->items.end(), [&](const Value& v) { return equal(v, item, meter); });
  if (const Dict* d = container.dict()) {
    if (!is_hashable(item)) fail_render("unhashable type: '{}'", type_name(item));
    return dict_find(*d, item, meter) != nullptr;
  }
  if (const auto* it = container.get<std::shared_ptr<Iterator>>()) {
    while ((*it)->next < (*it)->items.size())
      if (equal((*it)->items[(*it)->next++], item, meter)) return true;
    return false;
  }
  if (container.is<Undefined>()) return false;
  fail_render("argument of type '{}' is not iterable", type_name(container));
}

bool compare_values(std::string_view op, const Value& a, const Value& b, Meter& meter) {
  if (op == "==") return equal(a, b, meter);
  if (op == "!=") return !equal(a, b, meter);
  if (op == "in") return contains(b, a, meter);
  if (op == "not in") return !contains(b, a, meter);
  const std::optional<double> x = as_double(a), y = as_double(b);
  if (x && y && (std::isnan(*x) || std::isnan(*y))) return false;
  const int sign = order(a, b, meter, op == "<" ? "<" : op == "<=" ? "<=" : op == ">" ? ">" : ">=");
  return op == "<" ? sign < 0 : op == "<=" ? sign <= 0 : op == ">" ? sign > 0 : sign >= 0;
}

}  // namespace moesaic::jinja
