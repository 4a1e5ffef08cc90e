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

}  // namespace

std::span<const AnswerMarker> ThinkMachine::markers(bool tools) {
  return std::span(kMarkers).first(tools ? 4 : 2);
}

void ThinkMachine::feed(AnswerSink& sink, unsigned char c) {
  if (in_call && !is_marker(c)) {
    call += static_cast<char>(c);
  } else if (c == kCall) {
    finish(sink);
    in_call = true;
  } else if (c == kEndCall) {
    if (!in_call) return sink.error();
    in_call = false;
    if (!report_call(sink, call)) sink.error(), sink.text(call);
    call.clear();
  } else if (in_call) {
    call += c == kThink ? "<think>" : "</think>";
  } else if (is_marker(c)) {
    sink.think_marker(c);
  } else {
    sink.text(c);
  }
}

// A call cut short cannot be reported: its name and arguments are one JSON text.
void ThinkMachine::finish(AnswerSink& sink) {
  if (!in_call) return;
  in_call = false;
  if (!report_call(sink, call)) sink.error();
  call.clear();
}

}  // namespace moesaic
