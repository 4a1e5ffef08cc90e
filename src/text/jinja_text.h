// Template strings: sequences of Unicode code points in which every code point remembers whether it came from user
// input. Slicing, splitting, replacing and joining carry that mark along without further work.
#pragma once

#include <string>
#include <string_view>

namespace moesaic::jinja {

// One element is a code point; bit 31 is set when the text came from a message, a tool or a caller's argument.
// Comparisons must ignore the mark, so use same(), compare() and find_text() instead of the operators.
using Text = std::u32string;
using TextView = std::u32string_view;

constexpr char32_t kInputMark = 0x80000000;
constexpr char32_t code_point(char32_t c) {
  return c & ~kInputMark;
}
constexpr char32_t mark_of(char32_t c) {
  return c & kInputMark;
}

// Invalid UTF-8 becomes U+FFFD, one per bad byte.
Text decode_utf8(std::string_view bytes, bool input = false);
std::string encode_utf8(TextView text);

bool same(TextView a, TextView b);
int compare(TextView a, TextView b);  // by code point: negative, 0 or positive
bool starts_with(TextView text, TextView prefix);
bool ends_with(TextView text, TextView suffix);
// Index of the first or last match in text[from, to), or npos. Linear time whatever the texts are.
size_t find_text(TextView text, TextView part, size_t from = 0);
size_t rfind_text(TextView text, TextView part);

// Character classes as Python's str methods have them.
bool is_space(char32_t c);
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_printable(char32_t c);
bool is_identifier_start(char32_t c);
bool is_identifier_part(char32_t c);

Text to_lower(TextView text);
Text to_upper(TextView text);
Text capitalize(TextView text);
Text title_case(TextView text);  // Python's str.title, not jinja's filter of that name
Text swap_case(TextView text);

enum class Side { left, right, both };
// Removes the code points of `chars` (white space when null) from the ends.
TextView strip(TextView text, Side side, const TextView* chars = nullptr);

// The text as Python's repr writes it: quoted, with control characters escaped.
Text quote_python(TextView text);
// Replaces & < > ' " as markupsafe does.
Text escape_html(TextView text);

}  // namespace moesaic::jinja
