// Arithmetic, comparison and membership with Python's rules.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace moesaic::jinja {

// `op` is one of + - * / // % **.
Value binary(std::string_view op, const Value& a, const Value& b, Meter& meter);
Value negate(const Value& a, std::string_view op);  // op: - or +
bool contains(const Value& container, const Value& item, Meter& meter);
// `op` is one of == != < <= > >= in not in.
bool compare_values(std::string_view op, const Value& a, const Value& b, Meter& meter);

// Indices 0..n-1 sorted by less(i, j), equal ones in their order. Merging keeps to its bounds whatever less answers, so
// an unordered NaN or a comparison that throws is harmless.
template <typename Less>
std::vector<size_t> stable_order(size_t n, Less less) {
  std::vector<size_t> from(n), to(n);
  for (size_t i = 0; i < n; ++i) from[i] = i;
  for (size_t width = 1; width < n; width *= 2) {
    for (size_t begin = 0; begin < n; begin += 2 * width) {
      const auto at = [&](size_t k) { return from.begin() + static_cast<ptrdiff_t>(std::min(k, n)); };
      std::merge(at(begin), at(begin + width), at(begin + width), at(begin + 2 * width),
                 to.begin() + static_cast<ptrdiff_t>(begin), less);
    }
    from.swap(to);
  }
  return from;
}

// `text % arguments` and text.format(...).
Text format_percent(TextView format, const Value& arguments, Meter& meter, bool escape = false);
Text format_braces(TextView format, const Arguments& arguments, Meter& meter);

// Fails with the message of an undefined value; otherwise does nothing.
void require_defined(const Value& value);
// A slice bound or count: an int or bool; fails naming `what` otherwise.
Int require_integer(const Value& value, std::string_view what);

}  // namespace moesaic::jinja
