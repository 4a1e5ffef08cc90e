// Filters, tests and methods by name.
#pragma once

#include <initializer_list>
#include <string_view>

#include "text/jinja_interpreter.h"

namespace moesaic::jinja {

bool has_filter(std::string_view name);
bool has_test(std::string_view name);
Value call_filter(Interpreter& in, std::string_view name, const Value& operand, const Arguments& arguments);
bool call_test(Interpreter& in, std::string_view name, const Value& operand, const Arguments& arguments);

enum class MethodKind { none, allowed, forbidden };  // forbidden: it would change a list or dict
MethodKind method_kind(const Value& object, std::string_view name);
Value call_method(Interpreter& in, const Value& object, std::string_view name, const Arguments& arguments);
Value call_text_method(Interpreter& in, const Str& self, std::string_view name, const Arguments& arguments);
bool has_text_method(std::string_view name);

// A function's parameters in order; null where no argument was given. Fails on unknown, repeated or missing ones.
std::vector<const Value*> bind(const Arguments& arguments, std::string_view function,
                               std::initializer_list<std::string_view> names, size_t required = 0);
// Typed access to what bind returns; null gives the fallback.
bool flag(const Value* value, bool fallback = false);
Int integer(const Value* value, Int fallback, std::string_view what);
const Text& text_argument(const Value& value, std::string_view what);

struct FilterEntry {
  std::string_view name;
  Value (*function)(Interpreter&, const Value&, const Arguments&);
};
// The filters of jinja_list_filters.cc and jinja_text_filters.cc.
const FilterEntry* find_list_filter(std::string_view name);
const FilterEntry* find_text_filter(std::string_view name);

// Texts split and replaced as Python's str does.
std::vector<TextView> split_lines(TextView text, bool keep_ends = false);
Text replace_text(TextView text, TextView old, TextView fresh, Int count, Meter& meter);

}  // namespace moesaic::jinja
