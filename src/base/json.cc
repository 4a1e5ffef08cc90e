#include "base/json.h"

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/mapped_file.h"

namespace moesaic {
namespace {

namespace bj = boost::json;

// Builds the value as Boost's own parser does, with two differences: numbers are rounded correctly (Boost 1.81 may be
// off by one unit in the last place), and the first key repeated within one object is remembered when asked.
class ValueBuilder {
 public:
  static constexpr size_t max_object_size = JsonObject::max_size();
  static constexpr size_t max_array_size = JsonArray::max_size();
  static constexpr size_t max_key_size = bj::string::max_size();
  static constexpr size_t max_string_size = bj::string::max_size();

  explicit ValueBuilder(bool unique_keys) : unique_keys_(unique_keys) {}

  Json release() { return stack_.release(); }
  const std::optional<std::string>& duplicate() const { return duplicate_; }

  bool on_document_begin(bj::error_code&) { return stack_.reset(), true; }
  bool on_document_end(bj::error_code&) { return true; }
  bool on_object_begin(bj::error_code&) { return open_.emplace_back(), true; }
  bool on_object_end(size_t members, bj::error_code&) {
    std::vector<std::string>& keys = open_.back();
    std::sort(keys.begin(), keys.end());
    const auto twin = std::adjacent_find(keys.begin(), keys.end());
    if (twin != keys.end() && !duplicate_) duplicate_ = *twin;
    open_.pop_back();
    return stack_.push_object(members), true;
  }
  bool on_array_begin(bj::error_code&) { return true; }
  bool on_array_end(size_t items, bj::error_code&) { return stack_.push_array(items), true; }
  bool on_key_part(bj::string_view part, size_t, bj::error_code&) {
    if (unique_keys_) key_ += part;
    return stack_.push_chars(part), true;
  }
  bool on_key(bj::string_view part, size_t, bj::error_code&) {
    if (unique_keys_) open_.back().push_back(std::move(key_ += part));
    key_.clear();
    return stack_.push_key(part), true;
  }
  bool on_string_part(bj::string_view part, size_t, bj::error_code&) { return stack_.push_chars(part), true; }
  bool on_string(bj::string_view part, size_t, bj::error_code&) { return stack_.push_string(part), true; }
  bool on_number_part(bj::string_view part, bj::error_code&) { return number_ += part, true; }
  bool on_int64(int64_t value, bj::string_view, bj::error_code&) {
    number_.clear();
    return stack_.push_int64(value), true;
  }
  bool on_uint64(uint64_t value, bj::string_view, bj::error_code&) {
    number_.clear();
    return stack_.push_uint64(value), true;
  }
  // from_chars leaves Boost's `value` alone where it is right already: beyond the range, infinite or 0.
  bool on_double(double value, bj::string_view part, bj::error_code&) {
    number_ += part;
    std::from_chars(number_.data(), number_.data() + number_.size(), value);
    number_.clear();
    return stack_.push_double(value), true;
  }
  bool on_bool(bool value, bj::error_code&) { return stack_.push_bool(value), true; }
  bool on_null(bj::error_code&) { return stack_.push_null(), true; }
  bool on_comment_part(bj::string_view, bj::error_code&) { return true; }
  bool on_comment(bj::string_view, bj::error_code&) { return true; }

 private:
  const bool unique_keys_;
  bj::value_stack stack_;
  std::vector<std::vector<std::string>> open_;  // keys of the objects being read
  std::string key_, number_;
  std::optional<std::string> duplicate_;
};

// Replaces NaN, Infinity and -Infinity outside strings by numbers that Boost reads (NaN becomes null).
std::string replace_python_constants(std::string_view text) {
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    if (in_string && text[i] == '\\' && i + 1 < text.size()) {
      out += text[i++];
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && rest.starts_with("NaN")) {
      out += "null", i += 2;
      continue;
    } else if (!in_string && rest.starts_with("Infinity")) {
      out += "1e999", i += 7;
      continue;
    }
    out += text[i];
  }
  return out;
}

const Json& require(const JsonObject& object, std::string_view key, const std::string& where) {
  const Json* value = json_find(object, key);
  if (value == nullptr) fail_data(where, "\"{}\" is missing", key);
  return *value;
}

[[noreturn]] void fail_type(std::string_view key, const Json& value, const char* expected, const std::string& where) {
  fail_data(where, "\"{}\" is {}; expected {}", key, write_json(value).substr(0, 80), expected);
}

int64_t to_int(const Json& value, std::string_view key, const std::string& where) {
  if (value.is_int64()) return value.get_int64();
  if (value.is_double()) {
    const double d = value.get_double();
    if (d == std::floor(d) && std::abs(d) < 9e15) return static_cast<int64_t>(d);
  }
  fail_type(key, value, "an integer", where);
}

double to_number(const Json& value, std::string_view key, const std::string& where) {
  if (value.is_number()) return value.to_number<double>();
  fail_type(key, value, "a number", where);
}

// Appends one code point starting at text[i] as \uXXXX escapes; returns its length in bytes.
size_t escape_code_point(std::string& out, std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[i + k]); };
  const unsigned char lead = byte(0);
  const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (i + length > text.size()) return fmt::format_to(std::back_inserter(out), "\\ufffd"), text.size() - i;
  uint32_t code = length == 1 ? lead : lead & (0xFFu >> (length + 1));
  for (size_t k = 1; k < length; ++k) code = code << 6 | (byte(k) & 0x3Fu);
  if (code < 0x10000) {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", code);
  } else {
    code -= 0x10000;
    fmt::format_to(std::back_inserter(out), "\\u{:04x}\\u{:04x}", 0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF));
  }
  return length;
}

class Writer {
 public:
  explicit Writer(const JsonFormat& format) : format_(format) {}

  void write(const Json& value, int depth) {
    if (const JsonObject* object = value.if_object()) return write_object(*object, depth);
    if (const JsonArray* array = value.if_array()) return write_array(*array, depth);
    if (value.is_string()) out += json_quote(value.get_string(), format_.ensure_ascii);
    else if (value.is_bool()) out += value.get_bool() ? "true" : "false";
    else if (value.is_int64()) out += std::to_string(value.get_int64());
    else if (value.is_uint64()) out += std::to_string(value.get_uint64());
    else if (value.is_double()) out += python_float(value.get_double());
    else out += "null";
  }

  std::string out;

 private:
  void newline(int depth) {
    if (format_.indent >= 0) out.append("\n").append(static_cast<size_t>(format_.indent * depth), ' ');
  }
  void separate(bool first, int depth) {
    if (!first) out += format_.indent >= 0 || format_.compact ? "," : ", ";
    newline(depth);
  }
  void write_array(const JsonArray& array, int depth) {
    out += '[';
    bool first = true;
    for (const Json& item : array) {
      separate(first, depth + 1);
      first = false;
      write(item, depth + 1);
    }
    if (!first) newline(depth);
    out += ']';
  }
  void write_object(const JsonObject& object, int depth) {
    std::vector<const JsonObject::value_type*> items;
    for (const auto& item : object) items.push_back(&item);
    if (format_.sort_keys) std::sort(items.begin(), items.end(), [](auto* a, auto* b) { return a->key() < b->key(); });
    out += '{';
    bool first = true;
    for (const auto* item : items) {
      separate(first, depth + 1);
      first = false;
      out += json_quote(item->key(), format_.ensure_ascii);
      out += format_.compact && format_.indent < 0 ? ":" : ": ";
      write(item->value(), depth + 1);
    }
    if (!first) newline(depth);
    out += '}';
  }

  const JsonFormat format_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& where, const JsonOptions& options) {
  std::string patched;
  if (options.python_constants) {
    patched = replace_python_constants(text);
    text = patched;
  }
  bj::parse_options parse_options;
  parse_options.max_depth = static_cast<size_t>(options.max_depth);
  bj::basic_parser<ValueBuilder> parser(parse_options, options.unique_keys);
  bj::error_code error;
  const size_t read = parser.write_some(false, text.data(), text.size(), error);
  if (error == bj::error::incomplete) fail_data(where, "is not valid JSON: it ends early, after {} bytes", text.size());
  if (error) fail_data(where, "is not valid JSON at byte {}: {}", read, error.message());
  const std::string_view rest = text.substr(read);
  if (rest.find_first_not_of(" \t\r\n") != std::string_view::npos)
    fail_data(where, "has text after its JSON value at byte {}", read);
  if (const std::optional<std::string>& key = parser.handler().duplicate())
    fail_data(where, "duplicate key {}; expected each name once", json_quote(*key));
  return parser.handler().release();
}

Json read_json_file(const std::string& path, const JsonOptions& options) {
  return parse_json(read_text_file(path), path, options);
}

const Json* json_find(const JsonObject& object, std::string_view key) {
  const Json* value = object.if_contains(key);
  return value != nullptr && !value->is_null() ? value : nullptr;
}

const JsonObject& json_object(const Json& value, const std::string& where) {
  if (!value.is_object()) fail_data(where, "is {}; expected a JSON object", write_json(value).substr(0, 80));
  return value.get_object();
}

int64_t json_int(const JsonObject& object, std::string_view key, const std::string& where) {
  return to_int(require(object, key, where), key, where);
}

int64_t json_int(const JsonObject& object, std::string_view key, const std::string& where, int64_t fallback) {
  const Json* value = json_find(object, key);
  return value != nullptr ? to_int(*value, key, where) : fallback;
}

double json_number(const JsonObject& object, std::string_view key, const std::string& where) {
  return to_number(require(object, key, where), key, where);
}

double json_number(const JsonObject& object, std::string_view key, const std::string& where, double fallback) {
  const Json* value = json_find(object, key);
  return value != nullptr ? to_number(*value, key, where) : fallback;
}

bool json_bool(const JsonObject& object, std::string_view key, const std::string& where, bool fallback) {
  const Json* value = json_find(object, key);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) fail_type(key, *value, "true or false", where);
  return value->get_bool();
}

std::string json_string(const JsonObject& object, std::string_view key, const std::string& where) {
  const Json& value = require(object, key, where);
  if (!value.is_string()) fail_type(key, value, "a string", where);
  return std::string(value.get_string());
}

std::string json_string(const JsonObject& object, std::string_view key, const std::string& where,
                        std::string_view fallback) {
  return json_find(object, key) != nullptr ? json_string(object, key, where) : std::string(fallback);
}

std::string json_quote(std::string_view text, bool ensure_ascii) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c == '"' || c == '\\') out += '\\', out += text[i++];
    else if (c == '\n') out += "\\n", ++i;
    else if (c == '\r') out += "\\r", ++i;
    else if (c == '\t') out += "\\t", ++i;
    else if (c == '\b') out += "\\b", ++i;
    else if (c == '\f') out += "\\f", ++i;
    else if (c < 0x20 || (ensure_ascii && c >= 0x7F)) i += escape_code_point(out, text, i);
    else out += text[i++];
  }
  return out += '"';
}

std::string python_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  std::string text = fmt::format("{}", value);  // shortest digits that read back, as Python's repr
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string write_json(const Json& value, const JsonFormat& format) {
  Writer writer(format);
  writer.write(value, 0);
  return std::move(writer.out);
}

}  // namespace moesaic
