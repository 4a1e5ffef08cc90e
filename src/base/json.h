// Reading JSON (Boost.JSON behind a short interface) and writing it (Python-compatible).
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

using Json = boost::json::value;
using JsonObject = boost::json::object;
using JsonArray = boost::json::array;

struct JsonOptions {
  bool python_constants = false;  // accept NaN, Infinity and -Infinity outside strings (some config.json files)
  bool unique_keys = false;       // a repeated key in one object is an error (safetensors headers)
  int max_depth = 64;
};

// Throws Error(data_loss) naming `where` and the byte offset when the text is not one JSON value in valid UTF-8.
Json parse_json(std::string_view text, const std::string& where, const JsonOptions& options = {});
Json read_json_file(const std::string& path, const JsonOptions& options = {});

// Typed look-ups in an object. The plain form throws Error(data_loss) naming `where` and the key when the key is
// missing or of another type; the form with a fallback treats missing and null alike. Integers may be written 8.0.
int64_t json_int(const JsonObject& object, std::string_view key, const std::string& where);
int64_t json_int(const JsonObject& object, std::string_view key, const std::string& where, int64_t fallback);
double json_number(const JsonObject& object, std::string_view key, const std::string& where);
double json_number(const JsonObject& object, std::string_view key, const std::string& where, double fallback);
bool json_bool(const JsonObject& object, std::string_view key, const std::string& where, bool fallback);
std::string json_string(const JsonObject& object, std::string_view key, const std::string& where);
std::string json_string(const JsonObject& object, std::string_view key, const std::string& where,
                        std::string_view fallback);
// The value of `key`, or null when it is missing or JSON null.
const Json* json_find(const JsonObject& object, std::string_view key);
const JsonObject& json_object(const Json& value, const std::string& where);

struct JsonFormat {
  int indent = -1;  // -1: one line with ", " and ": " as Python's json.dumps
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool compact = false;  // "," and ":" without spaces (one-line form only)
};

// Text as Python's json.dumps writes it: 2.5, 1e-06, 1e+16, NaN, "\u00e9" only with ensure_ascii.
std::string write_json(const Json& value, const JsonFormat& format = {});

// A double as Python's repr writes it, for example 2.0, 1e-06.
std::string python_float(double value);
// A quoted JSON string.
std::string json_quote(std::string_view text, bool ensure_ascii = false);

}  // namespace moesaic
