#include "base/error.h"
#include "text/answer_machines.h"

namespace moesaic {
namespace {

enum : unsigned char { kCall = 0xF7, kEndCall = 0xF8 };
constexpr AnswerMarker kMarkers[] = {
    {kThink, "<think>"}, {kEndThink, "</think>"}, {kCall, "<tool_call>"}, {kEndCall, "</tool_call>"}};

// {"name": ..., "arguments": ...}; false when it is something else.
bool report_call(AnswerSink& sink, std::string_view text) {
  try {
    const Json value = parse_json(trim_spaces(text), "a call");
    const JsonObject* object = value.if_object();
    const Json* name = object == nullptr ? nullptr : object->if_contains("name");
    if (name == nullptr || !name->is_string() || name->get_string().empty()) return false;
    sink.begin_call(name->get_string());
    const Json* arguments = json_find(*object, "arguments");
    if (arguments != nullptr)
      sink.raw(arguments->is_string() ? std::string(arguments->get_string()) : write_json(*arguments));
    sink.end_call();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// NAME of `{"name": "NAME", "arguments":`; none when `head` is anything else.
std::optional<std::string> name_before_arguments(std::string_view head) {
  if (!trim_spaces(head).ends_with(':')) return std::nullopt;
  try {
    const Json value = parse_json(std::string(head) + "{}}", "a call");
    const JsonObject* object = value.if_object();
    if (object == nullptr || object->size() != 2 || (object->begin() + 1)->key() != "arguments") return std::nullopt;
    const Json* name = object->if_contains("name");
    if (name == nullptr || !name->is_string() || name->get_string().empty()) return std::nullopt;
    return std::string(name->get_string());
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::span<const AnswerMarker> ThinkMachine::markers(bool tools) {
  return std::span(kMarkers).first(tools ? 4 : 2);
}

void ThinkMachine::feed(AnswerSink& sink, unsigned char c) {
  if (in_call && !is_marker(c)) {
    feed_call(sink, c);
  } else if (c == kCall) {
    if (in_call) end_call(sink, false);
    sink.drop_newlines();
    in_call = true;
  } else if (c == kEndCall) {
    in_call ? end_call(sink, true) : sink.error();
  } else if (in_call) {
    for (const char t : std::string_view(c == kThink ? "<think>" : "</think>"))
      feed_call(sink, static_cast<unsigned char>(t));
  } else if (is_marker(c)) {
    sink.think_marker(c);
  } else {
    sink.text(c);
  }
}

void ThinkMachine::feed_call(AnswerSink& sink, unsigned char c) {
  if (depth > 0) return argument(sink, c);
  if (depth == 0) return;  // the brace around name and arguments
  if (c == '{') {
    if (const auto name = name_before_arguments(call)) {
      sink.begin_call(*name);
      depth = 0;
      return argument(sink, c);
    }
  }
  call += static_cast<char>(c);
}

// Follows the brackets, to know where the arguments end.
void ThinkMachine::argument(AnswerSink& sink, unsigned char c) {
  sink.raw(c);
  if (quoted) {
    if (escaped) escaped = false;
    else if (c == '\\') escaped = true;
    else if (c == '"') quoted = false;
    return;
  }
  quoted = c == '"';
  if (c == '{' || c == '[') ++depth;
  if (c == '}' || c == ']') --depth;
}

void ThinkMachine::end_call(AnswerSink& sink, bool proper) {
  if (depth >= 0) {
    if (depth > 0) sink.error();
    sink.end_call();
  } else if (!report_call(sink, call)) {
    sink.error();
    if (proper) sink.text(call);  // not a call; cut short it would be markup
  }
  if (!proper && depth == 0) sink.error();
  in_call = quoted = escaped = false;
  depth = -1;
  call.clear();
}

// A call that was not streamed is reported if it is whole.
void ThinkMachine::finish(AnswerSink& sink) {
  if (in_call && depth < 0 && !report_call(sink, call)) sink.error();
}

}  // namespace moesaic
