#include "text/answer_machines.h"

namespace moesaic {
namespace {

enum : unsigned char { kOpen = 0xF7, kClose = 0xF8, kSeparator = 0xF9, kEndOfMessage = 0xFA };
constexpr AnswerMarker kMarkers[] = {
    {kOpen, "<|open|>"}, {kClose, "<|close|>"}, {kSeparator, "<|sep|>"}, {kEndOfMessage, "<|end_of_msg|>"}};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

std::optional<std::string> attribute(std::string_view header, std::string_view name) {
  std::optional<std::string> value = tag_attribute(header, name);
  if (value) replace_all(*value, "&quot;", "\""), replace_all(*value, "&amp;", "&");
  return value;
}

}  // namespace

std::span<const AnswerMarker> XtmlMachine::markers() {
  return kMarkers;
}

void XtmlMachine::feed(AnswerSink& sink, unsigned char c) {
  if (in_header) return header_byte(sink, c);
  if (c == kOpen || c == kClose) {
    in_header = true, closing = c == kClose;
    header.clear();
  } else if (is_marker(c)) {
    if (c == kSeparator || sink.in_call()) sink.error();
  } else {
    text(sink, c);
  }
}

void XtmlMachine::header_byte(AnswerSink& sink, unsigned char c) {
  if (c == kSeparator) {
    in_header = false;
    return closing ? close(sink) : open(sink);
  }
  if (!is_marker(c) && header.size() < kMaxHeaderBytes) {
    header += static_cast<char>(c);
    return;
  }
  in_header = false;  // no element after all
  sink.error();
  for (const char h : header) text(sink, static_cast<unsigned char>(h));
  feed(sink, c);
}

void XtmlMachine::text(AnswerSink& sink, unsigned char c) {
  if (sink.in_argument()) sink.value(c);
  else if (raw) sink.raw(c);
  else if (!outside || !is_json_space(c)) sink.text(c), outside = false;
}

void XtmlMachine::open(AnswerSink& sink) {
  const std::string_view name = tag_name(header);
  if (name == "argument" || name == "json") return open_argument(sink);
  if (sink.in_call()) sink.error();  // its end is missing
  sink.end_call();
  raw = false;
  outside = name != "think" && name != "response";
  if (name == "think") {
    sink.turn(true);
  } else if (name == "response" || name == "tools") {  // also where the end of `think` is missing
    sink.turn(false);
  } else if (name == "call") {
    const auto tool = attribute(header, "tool");
    if (tool && !tool->empty()) sink.begin_call(*tool);
    else sink.error();
  } else if (name != "message") {
    sink.error();
  }
}

void XtmlMachine::open_argument(AnswerSink& sink) {
  if (!sink.in_call() || raw) return sink.error();
  if (tag_name(header) == "json") {  // all arguments at once
    sink.end_argument();
    raw = true;
    return;
  }
  if (sink.in_argument()) sink.error();
  const auto key = attribute(header, "key"), type = attribute(header, "type");
  if (!key) return sink.error();
  sink.begin_argument(*key, !type || type == "string" ? ValueType::text : ValueType::json);
}

void XtmlMachine::close(AnswerSink& sink) {
  const std::string_view name = tag_name(header);
  if (name == "argument" || name == "json") {
    if (!sink.in_argument() && !raw) sink.error();
    sink.end_argument();
  } else if (name == "call" || name == "tools" || name == "message") {
    if (sink.in_call() && (name != "call" || sink.in_argument())) sink.error();
    sink.end_call();
  } else if (name == "think") {
    sink.turn(false);
  } else if (name != "response") {
    sink.error();
  }
  if (name != "argument") raw = false;
  outside = true;
}

void XtmlMachine::finish(AnswerSink&) {}

}  // namespace moesaic
