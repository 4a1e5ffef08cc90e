#include "server/fields.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"

namespace moesaic {
namespace {

std::string shown(const Json& value) {
  return clipped(write_json(value), 60);
}

std::string describe(const Range& range) {
  if (std::isinf(range.high))
    return fmt::format("a finite number {} {}", range.above_low ? "above" : "from", range.low);
  return fmt::format("a number in {}{}, {}]", range.above_low ? '(' : '[', range.low, range.high);
}

bool within(double value, const Range& range) {
  if (!std::isfinite(value) || value > range.high) return false;
  return range.above_low ? value > range.low : value >= range.low;
}

constexpr auto kLow = std::numeric_limits<int64_t>::min(), kHigh = std::numeric_limits<int64_t>::max();

std::string describe(int64_t low, int64_t high) {
  if (low == kLow && high == kHigh) return "an integer of 64 bits";
  if (high == kHigh) return fmt::format("an integer from {}", low);
  return fmt::format("an integer from {} to {}", low, high);
}

// The key before the first NaN or Infinity outside strings; nothing: there is none.
std::optional<std::string> python_constant(std::string_view text) {
  std::string key;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      const size_t begin = ++i;
      while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
      key = clipped(text.substr(begin, std::min(i, text.size()) - begin), 64);
    } else if (text.substr(i).starts_with("NaN") || text.substr(i).starts_with("Infinity")) {
      return key;
    }
  }
  return std::nullopt;
}

bool is_json_with_constants(std::string_view body) {
  try {
    parse_json(body, "", {.python_constants = true});
  } catch (const Error&) {
    return false;
  }
  return true;
}

void report_broken(std::string_view body, const std::string& why, ApiError& error) {
  const auto key = python_constant(body);
  if (key && is_json_with_constants(body))
    return report(error, 400, "invalid_value", *key + " is NaN or Infinity; expected a finite number", *key);
  report(error, 400, "invalid_json", why);
}

}  // namespace

std::string clipped(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  size_t end = bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

const char* json_kind(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  if (value.is_string()) return "a string";
  if (value.is_bool()) return "a boolean";
  return value.is_null() ? "null" : "a number";
}

std::optional<int64_t> whole_number(const Json& value) {
  if (value.is_int64()) return value.get_int64();
  if (!value.is_double()) return std::nullopt;
  const double d = value.get_double();
  if (d != std::floor(d) || std::abs(d) >= 9e15) return std::nullopt;
  return static_cast<int64_t>(d);
}

std::string Fields::at(std::string_view key) const {
  return path.empty() ? std::string(key) : path + "." + std::string(key);
}

void Fields::wrong_type(std::string_view key, const Json& value, std::string_view expected) const {
  report(error, 400, "invalid_type", fmt::format("{} is {}; expected {}", at(key), json_kind(value), expected),
         at(key));
}

void Fields::invalid(std::string_view key, std::string message) const {
  report(error, 400, "invalid_value", std::move(message), at(key));
}

bool Fields::boolean(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (value->is_bool()) return value->get_bool();
  wrong_type(key, *value, "true or false");
  return fallback;
}

std::optional<int64_t> Fields::integer(std::string_view key, int64_t low, int64_t high) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) return wrong_type(key, *value, "an integer"), std::nullopt;
  const auto whole = whole_number(*value);
  if (!whole || *whole < low || *whole > high)
    invalid(key, fmt::format("{} is {}; expected {}", at(key), shown(*value), describe(low, high)));
  return whole;
}

std::optional<double> Fields::number(std::string_view key, Range range) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) return wrong_type(key, *value, "a number"), std::nullopt;
  const double number = value->to_number<double>();
  if (!within(number, range))
    invalid(key, fmt::format("{} is {}; expected {}", at(key), shown(*value), describe(range)));
  return number;
}

std::optional<std::string> Fields::string(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return wrong_type(key, *value, "a string"), std::nullopt;
  return std::string(value->get_string());
}

const JsonObject* Fields::object_at(std::string_view key) const {
  const Json* value = find(key);
  if (value != nullptr && !value->is_object()) wrong_type(key, *value, "an object");
  return value != nullptr ? value->if_object() : nullptr;
}

const JsonArray* Fields::array_at(std::string_view key) const {
  const Json* value = find(key);
  if (value != nullptr && !value->is_array()) wrong_type(key, *value, "an array");
  return value != nullptr ? value->if_array() : nullptr;
}

std::optional<JsonObject> parse_body(const http::Request& request, ApiError& error) {
  try {
    Json body = parse_json(request.body, "the request's body");
    if (body.is_object()) return std::move(body.get_object());
    report(error, 400, "invalid_json", fmt::format("the request's body is {}; expected an object", json_kind(body)));
  } catch (const Error& broken) {
    report_broken(request.body, broken.what(), error);
  }
  return std::nullopt;
}

}  // namespace moesaic
