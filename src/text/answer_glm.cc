#include "text/answer_machines.h"

namespace moesaic {
namespace {

enum : unsigned char { kCall = 0xF7, kEndCall = 0xF8, kKey = 0xF9, kEndKey = 0xFA, kValue = 0xFB, kEndValue = 0xFC };
constexpr AnswerMarker kMarkers[] = {{kThink, "<think>"},        {kEndThink, "</think>"},    {kCall, "<tool_call>"},
                                     {kEndCall, "</tool_call>"}, {kKey, "<arg_key>"},        {kEndKey, "</arg_key>"},
                                     {kValue, "<arg_value>"},    {kEndValue, "</arg_value>"}};

std::string_view text_of(unsigned char marker) {
  for (const AnswerMarker& m : kMarkers)
    if (m.byte == marker) return m.text;
  return {};
}

}  // namespace

std::span<const AnswerMarker> GlmMachine::markers(bool tools) {
  return std::span(kMarkers).first(tools ? 8 : 2);
}

void GlmMachine::feed(AnswerSink& sink, unsigned char c) {
  if (is_marker(c)) return marker(sink, c);
  switch (part) {
    case Part::text: return sink.text(c);
    case Part::name:
    case Part::key: buffer += static_cast<char>(c); break;
    case Part::value: return sink.value(c);
    case Part::between:
      if (!is_json_space(c)) sink.text(c);
      break;
  }
  if (buffer.size() <= kMaxHeaderBytes) return;
  sink.error();
  sink.end_call();
  sink.text(std::exchange(buffer, {}));
  part = Part::text;
}

void GlmMachine::marker(AnswerSink& sink, unsigned char c) {
  if (c == kThink || c == kEndThink) {
    if (part == Part::text) return sink.think_marker(c);
    if (part == Part::value)
      for (const char t : text_of(c)) sink.value(static_cast<unsigned char>(t));
    else sink.error();
    return;
  }
  if (c == kCall) {
    if (part != Part::text) sink.error(), sink.end_call();
    sink.drop_newlines();
    buffer.clear();
    part = Part::name;
    return;
  }
  if (part == Part::text || (part == Part::name && !begin_call(sink))) return sink.error();
  switch (c) {
    case kEndCall:
      if (part == Part::key || part == Part::value) sink.error();
      sink.end_call();
      part = Part::text;
      return;
    case kKey:
      if (part != Part::between) sink.error();
      sink.end_argument();
      buffer.clear();
      part = Part::key;
      return;
    case kValue: return begin_value(sink);
    case kEndValue:
      if (part != Part::value) return sink.error();
      sink.end_argument();
      part = Part::between;
      return;
    default: return;  // the end of a key: its value begins next
  }
}

// A call of nothing is text from here on, without its markup.
bool GlmMachine::begin_call(AnswerSink& sink) {
  const std::string name(trim_spaces(std::exchange(buffer, {})));
  part = name.empty() ? Part::text : Part::between;
  if (!name.empty()) sink.begin_call(name);
  return !name.empty();
}

void GlmMachine::begin_value(AnswerSink& sink) {
  const std::string_view key = trim_spaces(buffer);
  if (part != Part::key || key.empty()) return sink.error();
  sink.begin_argument(key, sink.declared_type(key));
  part = Part::value;
  buffer.clear();
}

void GlmMachine::finish(AnswerSink&) {}

}  // namespace moesaic
