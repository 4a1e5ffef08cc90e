// Arithmetic, comparison and membership with Python's rules.
#pragma once

#include <string_view>

#include "text/jinja_value.h"

namespace moesaic::jinja {

// `op` is one of + - * / // % **.
Value binary(std::string_view op, const Value& a, const Value& b, Meter& meter);
Value negate(const Value& a, std::string_view op);  // op: - or +
bool contains(const Value& container, const Value& item, Meter& meter);
// `op` is one of == != < <= > >= in not in.
bool compare_values(std::string_view op, const Value& a, const Value& b, Meter& meter);

// `text % arguments` and text.format(...).
Text format_percent(TextView format, const Value& arguments, Meter& meter, bool escape = false);
Text format_braces(TextView format, const Arguments& arguments, Meter& meter);

// Fails with the message of an undefined value; otherwise does nothing.
void require_defined(const Value& value);
// A slice bound or count: an int or bool; fails naming `what` otherwise.
Int require_integer(const Value& value, std::string_view what);

}  // namespace moesaic::jinja
