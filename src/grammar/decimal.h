// Ranges of decimal numbers as expressions over their digits.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "grammar/expr.h"

namespace moesaic::grammar {

// Digits that numbers without closer bounds may have, so that an answer cannot count for ever, and so that every
// reader gets them right: whole numbers fit 64 bits.
inline constexpr int kWholeDigits = 18;
inline constexpr int kFractionDigits = 15;
// Digits in all of a number in a range: a double tells them apart, so a reader's comparison agrees with ours.
inline constexpr int kExactDigits = 15;

struct Decimal {
  bool negative = false;
  std::string whole = "0";    // without leading zeros
  std::string fraction = {};  // without trailing zeros

  bool zero() const { return whole == "0" && fraction.empty(); }
};
// Of a JSON number; exact as Python writes the number.
Decimal to_decimal(const Json& number);
int compare(const Decimal& a, const Decimal& b);  // -1, 0 or 1

struct Bound {
  Decimal value;
  bool exclusive = false;
};
struct Range {
  std::optional<Bound> low, high;
  std::optional<int> places = {};  // most digits of a fraction
};

// JSON numbers in the range, without exponent where there is a bound. Never is the answer where there is none.
ExprId whole_numbers(Pool& pool, const Range& range);
ExprId decimal_numbers(Pool& pool, const Range& range);

}  // namespace moesaic::grammar
