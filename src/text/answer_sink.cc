#include "text/answer_sink.h"

#include <random>

#include "base/error.h"

namespace moesaic {
namespace {

std::string fresh_call_id() {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::random_device random;
  std::string id = "call_";
  for (int word = 0; word < 3; ++word) {
    uint32_t bits = random();
    for (int digit = 0; digit < 8; ++digit, bits >>= 4) id += kDigits[bits & 15];
  }
  return id;
}

// The inside of a JSON string, byte by byte.
std::string escaped(unsigned char c) {
  switch (c) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\b': return "\\b";
    case '\f': return "\\f";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: break;
  }
  return c < 0x20 ? fmt::format("\\u{:04x}", c) : std::string(1, static_cast<char>(c));
}

std::optional<Json> parse_value(std::string_view text) {
  try {
    return parse_json(text, "a value");
  } catch (const Error&) {
    return std::nullopt;
  }
}

const char* json_type(const Json& value) {
  switch (value.kind()) {
    case boost::json::kind::null: return "null";
    case boost::json::kind::bool_: return "boolean";
    case boost::json::kind::string: return "string";
    case boost::json::kind::array: return "array";
    case boost::json::kind::object: return "object";
    default: return "number";
  }
}

// The types that a schema names, by itself or through its alternatives.
void add_types(const Json& schema, std::set<std::string, std::less<>>& types, int depth = 0) {
  const JsonObject* object = schema.if_object();
  if (object == nullptr || depth > 8) return;
  if (const Json* type = object->if_contains("type")) {
    if (type->is_string()) types.emplace(std::string_view(type->get_string()));
    if (const JsonArray* list = type->if_array())
      for (const Json& t : *list)
        if (t.is_string()) types.emplace(std::string_view(t.get_string()));
  }
  if (const Json* constant = object->if_contains("const")) types.emplace(json_type(*constant));
  if (const Json* values = object->if_contains("enum"); values != nullptr && values->is_array())
    for (const Json& v : values->get_array()) types.emplace(json_type(v));
  for (const char* key : {"anyOf", "oneOf", "allOf"})
    if (const Json* list = object->if_contains(key); list != nullptr && list->is_array())
      for (const Json& alternative : list->get_array()) add_types(alternative, types, depth + 1);
}

const JsonObject* object_at(const JsonObject* object, std::string_view key) {
  const Json* value = object == nullptr ? nullptr : object->if_contains(key);
  return value == nullptr ? nullptr : value->if_object();
}

}  // namespace

std::string_view trim_spaces(std::string_view text) {
  while (!text.empty() && is_json_space(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && is_json_space(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

void AnswerSink::emit(std::string_view bytes) {
  if (bytes.empty()) return;
  (reasoning_ ? out_->reasoning : out_->content) += bytes;
  any_text_ = true;
}

// Content waits only where tools may be called, or before anything else: a stop string may end with a newline.
bool AnswerSink::waits(unsigned char c) const {
  if (exact_) return false;
  if (after_call_) return is_json_space(c);
  return c == '\n' && (skipping_ || reasoning_ || !any_text_ || !tools_.is_null());
}

void AnswerSink::text(unsigned char c) {
  said_ = true;
  if (waits(c)) {
    if (!skipping_) held_ += static_cast<char>(c);
    return;
  }
  skipping_ = after_call_ = false;
  release();
  const char byte = static_cast<char>(c);
  emit({&byte, 1});
}

void AnswerSink::text(std::string_view bytes) {
  for (const char c : bytes) text(static_cast<unsigned char>(c));
}

void AnswerSink::release() {
  emit(held_);
  held_.clear();
}

void AnswerSink::turn(bool reasoning) {
  held_.clear();
  reasoning_ = reasoning;
  skipping_ = !exact_;
}

void AnswerSink::think_marker(unsigned char c) {
  const bool begins = c == kThink;
  if (begins != reasoning_ && (!begins || !think_letters_ || !any_text_)) return turn(begins);
  if (think_letters_) return text(begins ? "<think>" : "</think>");
  error();
}

void AnswerSink::begin_call(std::string_view name, std::string_view id) {
  end_call();
  held_.clear();
  in_call_ = true;
  name_ = name;
  any_arguments_ = false;
  keys_.clear();
  out_->tool_calls.push_back(
      {.index = calls_++, .id = id.empty() ? fresh_call_id() : std::string(id), .name = name_, .arguments = {}});
}

void AnswerSink::arguments(std::string_view bytes) {
  if (bytes.empty()) return;
  any_arguments_ = true;
  std::vector<ToolCallDelta>& deltas = out_->tool_calls;
  // The delta that carries the name stays alone.
  const bool extend = !deltas.empty() && deltas.back().index == calls_ - 1 && deltas.back().name.empty();
  if (!extend) deltas.push_back({.index = calls_ - 1, .id = {}, .name = {}, .arguments = {}});
  deltas.back().arguments += bytes;
}

void AnswerSink::raw(unsigned char c) {
  said_ = true;
  if (!keys_.empty()) return;  // the arguments are there already
  if (is_json_space(c)) {
    if (any_arguments_) raw_held_ += static_cast<char>(c);
    return;
  }
  arguments(raw_held_);
  raw_held_.clear();
  const char byte = static_cast<char>(c);
  arguments({&byte, 1});
}

void AnswerSink::raw(std::string_view bytes) {
  for (const char c : bytes) raw(static_cast<unsigned char>(c));
}

void AnswerSink::end_call() {
  if (!in_call_) return;
  end_argument();
  if (!keys_.empty()) arguments("}");
  if (!any_arguments_) arguments("{}");
  raw_held_.clear();
  in_call_ = false;
  after_call_ = true;
}

bool AnswerSink::begin_argument(std::string_view key, ValueType type) {
  end_argument();
  repeated_ = keys_.contains(key) || (keys_.empty() && any_arguments_);
  in_argument_ = true;
  type_ = type;
  value_.clear();
  if (repeated_) {
    error();
    return false;
  }
  arguments((keys_.empty() ? "{" : ", ") + json_quote(key) + ": " + (type == ValueType::text ? "\"" : ""));
  keys_.emplace(key);
  key_ = key;
  return true;
}

void AnswerSink::value(unsigned char c) {
  said_ = true;
  if (repeated_) return;
  if (type_ == ValueType::text) arguments(escaped(c));
  else value_ += static_cast<char>(c);
}

std::string AnswerSink::value_as_json() const {
  const std::string_view trimmed = trim_spaces(value_);
  const std::optional<Json> parsed = parse_value(trimmed);
  if (!parsed) return json_quote(value_);
  if (type_ == ValueType::json) return std::string(trimmed);
  std::set<std::string, std::less<>> types;
  if (const JsonObject* schema = property(key_)) add_types(*schema, types);
  const std::string type = json_type(*parsed);
  const bool listed = types.contains(type) || (type == "number" && types.contains("integer"));
  return listed && type != "string" ? std::string(trimmed) : json_quote(value_);
}

void AnswerSink::end_argument() {
  if (!in_argument_) return;
  in_argument_ = false;
  if (repeated_) return;
  arguments(type_ == ValueType::text ? "\"" : value_as_json());
}

const JsonObject* AnswerSink::property(std::string_view key) const {
  const JsonArray* tools = tools_.if_array();
  if (tools == nullptr) return nullptr;
  for (const Json& tool : *tools) {
    const JsonObject* function = object_at(tool.if_object(), "function");
    const Json* name = function == nullptr ? nullptr : function->if_contains("name");
    if (name == nullptr || !name->is_string() || name->get_string() != name_) continue;
    return object_at(object_at(object_at(function, "parameters"), "properties"), key);
  }
  return nullptr;
}

ValueType AnswerSink::declared_type(std::string_view key) const {
  const JsonObject* schema = property(key);
  if (schema == nullptr) return ValueType::json;
  std::set<std::string, std::less<>> types;
  add_types(*schema, types);
  if (!types.contains("string")) return ValueType::json;
  return types.size() == 1 ? ValueType::text : ValueType::choice;
}

void AnswerSink::finish() {
  if (in_argument_ && type_ != ValueType::text && !repeated_) arguments(trim_spaces(value_));
  if (!after_call_) release();
  held_.clear();
}

}  // namespace moesaic
