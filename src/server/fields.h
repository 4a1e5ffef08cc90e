// Fields: typed reading of a request's JSON. The first error sticks, with the path of its field; whatever is read after
// it does not matter, so that readers need no error handling of their own.
#pragma once

#include <limits>
#include <optional>

#include "server/error_body.h"

namespace moesaic {

struct Range {
  double low, high;
  bool above_low = false;  // low itself is excluded
};

// What a value is, for messages: "a string", "null".
const char* json_kind(const Json& value);

// The text's beginning, cut between characters, for messages.
std::string clipped(std::string_view text, size_t bytes = 80);

struct Fields {
  const JsonObject& object;
  std::string path;  // of the object, empty for the body
  ApiError& error;

  std::string at(std::string_view key) const;  // path of a field
  // Null counts as absent, here and in all of these.
  const Json* find(std::string_view key) const { return json_find(object, key); }

  bool boolean(std::string_view key, bool fallback) const;
  // Integers may be written 8.0.
  std::optional<int64_t> integer(std::string_view key, int64_t low = std::numeric_limits<int64_t>::min(),
                                 int64_t high = std::numeric_limits<int64_t>::max()) const;
  std::optional<double> number(std::string_view key, Range range) const;
  std::optional<std::string> string(std::string_view key) const;
  const JsonObject* object_at(std::string_view key) const;
  const JsonArray* array_at(std::string_view key) const;

  void wrong_type(std::string_view key, const Json& value, std::string_view expected) const;
  void invalid(std::string_view key, std::string message) const;
};

// An integer without fraction and within 64 bits.
std::optional<int64_t> whole_number(const Json& value);

// The object in a request's body. Its errors: invalid_json (nested deeper than 64, too); unsupported_media_type;
// invalid_value for NaN and Infinity, which JSON does not have and Python's clients send.
std::optional<JsonObject> parse_body(const http::Request& request, ApiError& error);

}  // namespace moesaic
