#include "grammar/decimal.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace moesaic::grammar {
namespace {

ExprId digit(Pool& pool, char first, char last) {
  return first > last ? pool.never() : pool.byte(static_cast<uint8_t>(first), static_cast<uint8_t>(last));
}

ExprId digits(Pool& pool, int64_t min, int64_t max) {
  return pool.repeat(pool.byte('0', '9'), min, max);
}

// Both have the same length, low <= high.
ExprId same_length(Pool& pool, std::string_view low, std::string_view high) {
  const auto count = static_cast<int64_t>(low.size());
  if (low.find_first_not_of('0') == std::string_view::npos && high.find_first_not_of('9') == std::string_view::npos)
    return digits(pool, count, count);
  const std::string_view low_rest = low.substr(1), high_rest = high.substr(1);
  if (low[0] == high[0]) return pool.join({digit(pool, low[0], low[0]), same_length(pool, low_rest, high_rest)});
  const std::string nines(low_rest.size(), '9'), zeros(low_rest.size(), '0');
  return pool.choice({pool.join({digit(pool, low[0], low[0]), same_length(pool, low_rest, nines)}),
                      pool.join({digit(pool, static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1)),
                                 digits(pool, count - 1, count - 1)}),
                      pool.join({digit(pool, high[0], high[0]), same_length(pool, zeros, high_rest)})});
}

int compare_digits(std::string_view a, std::string_view b) {  // whole numbers without leading zeros
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  const int order = a.compare(b);
  return (order > 0) - (order < 0);
}

// Whole numbers from low to high, neither negative.
ExprId between(Pool& pool, const std::string& low, const std::string& high) {
  std::vector<ExprId> choices;
  if (compare_digits(low, high) > 0) return pool.never();
  for (size_t length = low.size(); length <= high.size(); ++length) {
    const std::string least = length == 1 ? "0" : "1" + std::string(length - 1, '0');
    choices.push_back(
        same_length(pool, length == low.size() ? low : least, length == high.size() ? high : std::string(length, '9')));
  }
  return pool.choice(std::move(choices));
}

std::string plus_one(std::string digits_of) {
  for (size_t i = digits_of.size(); i-- > 0;) {
    if (digits_of[i] != '9') return ++digits_of[i], digits_of;
    digits_of[i] = '0';
  }
  return "1" + digits_of;
}

std::string minus_one(std::string digits_of) {  // of a positive number
  for (size_t i = digits_of.size(); i-- > 0;) {
    if (digits_of[i] != '0') {
      --digits_of[i];
      break;
    }
    digits_of[i] = '9';
  }
  const size_t first = digits_of.find_first_not_of('0');
  return first == std::string::npos ? "0" : digits_of.substr(first);
}

struct Limits {  // of magnitudes; nothing: none
  std::optional<Bound> low, high;
  std::optional<int> places;
};

// A range of numbers, as magnitudes of its negative or its other half; nothing where that half is empty.
std::optional<Limits> half(const Range& range, bool negative) {
  Limits out{range.low, range.high, range.places};
  if (negative) std::swap(out.low, out.high);
  for (std::optional<Bound>* bound : {&out.low, &out.high}) {
    if (!*bound) continue;
    Decimal& value = (*bound)->value;
    const bool outside = value.negative != negative && !value.zero();
    if (outside && bound == &out.high) return std::nullopt;
    if (outside) bound->reset();
    else value.negative = false;
  }
  if (negative && !out.low) out.low = Bound{{}, true};  // zero has no sign
  if (negative && out.low->value.zero()) out.low->exclusive = true;
  return out;
}

ExprId whole_half(Pool& pool, const Limits& limits, bool negative) {
  std::string low = "0", high(kWholeDigits, '9');
  if (limits.low) {
    low = limits.low->value.whole;
    if (limits.low->exclusive || !limits.low->value.fraction.empty()) low = plus_one(low);
  }
  if (limits.high) {
    const Bound& bound = *limits.high;
    if (bound.exclusive && bound.value.fraction.empty()) {
      if (bound.value.zero()) return pool.never();
      high = minus_one(bound.value.whole);
    } else {
      high = bound.value.whole;
    }
  }
  // Beyond what fits 64 bits only numbers that a bound asks for.
  const std::string most = std::max(low.size(), size_t{kWholeDigits}) > kWholeDigits ? std::string(low.size(), '9')
                                                                                     : std::string(kWholeDigits, '9');
  if (compare_digits(high, most) > 0) high = most;
  return pool.join({negative ? pool.byte('-', '-') : pool.empty(), between(pool, low, high)});
}

// Fraction digits with a value between the bounds. The text without digits is apart: it has no point either.
struct Fraction {
  bool none = false;
  ExprId some = 0;
};

struct FractionBounds {
  std::optional<std::string_view> low, high;  // digits, zeros follow
  bool low_exclusive = false, high_exclusive = false;
};

Fraction fraction(Pool& pool, FractionBounds bounds, int places) {
  if (bounds.low && bounds.low->empty() && !bounds.low_exclusive) bounds.low.reset();
  Fraction out;
  out.none = !bounds.low && (!bounds.high || !bounds.high->empty() || !bounds.high_exclusive);
  if (places <= 0) return out.some = pool.never(), out;
  if (!bounds.low && !bounds.high) return out.some = digits(pool, 1, places), out;
  const auto first = [](std::string_view s) { return s.empty() ? '0' : s[0]; };
  const auto rest = [](std::string_view s) { return s.empty() ? s : s.substr(1); };
  std::vector<ExprId> choices;
  const auto add = [&](char d, const FractionBounds& further) {
    const Fraction below = fraction(pool, further, places - 1);
    const ExprId after = below.none ? pool.optional(below.some) : below.some;
    choices.push_back(pool.join({digit(pool, d, d), after}));
  };
  const char low = bounds.low ? first(*bounds.low) : '0', high = bounds.high ? first(*bounds.high) : '9';
  FractionBounds lower{{}, {}, bounds.low_exclusive, false}, upper{{}, {}, false, bounds.high_exclusive};
  if (bounds.low) lower.low = rest(*bounds.low);
  if (bounds.high) upper.high = rest(*bounds.high);
  if (bounds.low && bounds.high && low == high) {
    add(low, {lower.low, upper.high, bounds.low_exclusive, bounds.high_exclusive});
  } else if (low <= high) {
    if (bounds.low) add(low, lower);
    if (bounds.high) add(high, upper);
    choices.push_back(pool.join(
        {digit(pool, static_cast<char>(low + (bounds.low ? 1 : 0)), static_cast<char>(high - (bounds.high ? 1 : 0))),
         digits(pool, 0, places - 1)}));
  }
  out.some = pool.choice(std::move(choices));
  return out;
}

ExprId with_point(Pool& pool, const Fraction& digits_of) {
  const ExprId some = pool.join({pool.byte('.', '.'), digits_of.some});
  return digits_of.none ? pool.optional(some) : some;
}

ExprId decimal_half(Pool& pool, const Limits& limits, bool negative) {
  const Decimal zero;
  const Bound low = limits.low.value_or(Bound{zero, false});
  // Room for fractions below numbers of any size, or the places that the bounds have and some more.
  size_t whole_digits = std::max<size_t>(9, low.value.whole.size());
  if (limits.high) whole_digits = limits.high->value.whole.size();
  size_t places = low.value.fraction.size();
  if (limits.high) places = std::max(places, limits.high->value.fraction.size());
  places = std::max<size_t>(places + 1, 6);
  const auto room = static_cast<size_t>(std::max(0, kExactDigits - static_cast<int>(whole_digits)));
  const int count = std::min(static_cast<int>(std::min(places, room)), limits.places.value_or(kExactDigits));
  const Decimal top{false, std::string(whole_digits, '9'), {}};
  const std::string high = limits.high ? limits.high->value.whole : top.whole;
  const std::string_view low_digits = low.value.fraction;
  std::optional<std::string_view> high_digits;
  if (limits.high) high_digits = limits.high->value.fraction;
  const bool high_exclusive = limits.high && limits.high->exclusive;
  const int order = compare_digits(low.value.whole, high);
  if (order > 0) return pool.never();
  std::vector<ExprId> choices;
  const auto add = [&](ExprId whole, const FractionBounds& bounds) {
    choices.push_back(pool.join({whole, with_point(pool, fraction(pool, bounds, count))}));
  };
  if (order == 0) {
    add(pool.literal(high), {low_digits, high_digits, low.exclusive, high_exclusive});
  } else {
    add(pool.literal(low.value.whole), {low_digits, {}, low.exclusive, false});
    add(pool.literal(high), {{}, high_digits, false, high_exclusive});
    add(between(pool, plus_one(low.value.whole), minus_one(high)), {});
  }
  return pool.join({negative ? pool.byte('-', '-') : pool.empty(), pool.choice(std::move(choices))});
}

ExprId any_whole(Pool& pool) {
  return pool.join(
      {pool.optional(pool.byte('-', '-')),
       pool.choice({pool.byte('0', '0'), pool.join({pool.byte('1', '9'), digits(pool, 0, kWholeDigits - 1)})})});
}

}  // namespace

Decimal to_decimal(const Json& number) {
  std::string text = write_json(number);
  Decimal out;
  if (text[0] == '-') out.negative = true, text.erase(0, 1);
  int64_t exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string::npos) {
    exponent = std::strtoll(text.c_str() + e + 1, nullptr, 10);
    text.resize(e);
  }
  const size_t point = text.find('.');
  std::string whole = text.substr(0, point), rest = point == std::string::npos ? "" : text.substr(point + 1);
  for (; exponent > 0; --exponent) {
    whole += rest.empty() ? '0' : rest[0];
    if (!rest.empty()) rest.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    rest.insert(rest.begin(), whole.empty() ? '0' : whole.back());
    if (!whole.empty()) whole.pop_back();
  }
  while (rest.ends_with('0')) rest.pop_back();
  const size_t first = whole.find_first_not_of('0');
  out.whole = first == std::string::npos ? "0" : whole.substr(first);
  out.fraction = rest;
  if (out.zero()) out.negative = false;
  return out;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  int order = compare_digits(a.whole, b.whole);
  if (order == 0) {
    const int text = a.fraction.compare(b.fraction);
    order = (text > 0) - (text < 0);
  }
  return a.negative ? -order : order;
}

ExprId whole_numbers(Pool& pool, const Range& range) {
  if (!range.low && !range.high) return any_whole(pool);
  std::vector<ExprId> choices;
  for (const bool negative : {false, true})
    if (const auto limits = half(range, negative)) choices.push_back(whole_half(pool, *limits, negative));
  return pool.choice(std::move(choices));
}

ExprId decimal_numbers(Pool& pool, const Range& range) {
  if (!range.low && !range.high && !range.places) {
    const ExprId point = pool.join({pool.byte('.', '.'), digits(pool, 1, kFractionDigits)});
    ByteSet e, sign;
    e.add('e', 'e');
    e.add('E', 'E');
    sign.add('+', '+');
    sign.add('-', '-');
    const ExprId exponent = pool.join({pool.bytes(e), pool.optional(pool.bytes(sign)), digits(pool, 1, 2)});
    return pool.join({any_whole(pool), pool.optional(point), pool.optional(exponent)});
  }
  std::vector<ExprId> choices;
  for (const bool negative : {false, true})
    if (const auto limits = half(range, negative)) choices.push_back(decimal_half(pool, *limits, negative));
  return pool.choice(std::move(choices));
}

}  // namespace moesaic::grammar
