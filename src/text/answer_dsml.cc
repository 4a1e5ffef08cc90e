#include "text/answer_machines.h"

namespace moesaic {
namespace {

enum : unsigned char { kDsml = 0xF7 };
constexpr AnswerMarker kMarkers[] = {{kThink, "<think>"}, {kEndThink, "</think>"}, {kDsml, "｜DSML｜"}};

bool names_block(std::string_view name) {
  return name == "tool_calls" || name == "function_calls";
}

}  // namespace

std::span<const AnswerMarker> DsmlMachine::markers(bool tools) {
  return std::span(kMarkers).first(tools ? 3 : 2);
}

void DsmlMachine::feed(AnswerSink& sink, unsigned char c) {
  if (in_tag) return feed_tag(sink, c);
  if (c == kDsml) {
    if (pending.empty()) return sink.error();
    closing = pending == "</";
    pending = {};
    in_tag = true, quoted = false;
    tag.clear();
  } else if (c == '/' && pending == "<") {
    pending = "</";
  } else {
    for (const char p : std::exchange(pending, {})) plain(sink, static_cast<unsigned char>(p));
    if (c == '<') pending = "<";
    else plain(sink, c);
  }
}

void DsmlMachine::feed_tag(AnswerSink& sink, unsigned char c) {
  const bool ended = c == '>' && !quoted;
  if (ended) {
    in_tag = false;
    return closing ? close(sink) : open(sink);
  }
  if (!is_marker(c) && c != '\n' && tag.size() < kMaxHeaderBytes) {
    quoted ^= c == '"';
    tag += static_cast<char>(c);
    return;
  }
  in_tag = false;  // no tag after all
  sink.error();
  for (const char t : tag) plain(sink, static_cast<unsigned char>(t));
  feed(sink, c);
}

// A byte that belongs to no tag.
void DsmlMachine::plain(AnswerSink& sink, unsigned char c) {
  if (is_marker(c)) {
    if (!sink.in_argument()) return sink.think_marker(c);
    for (const char t : std::string_view(c == kThink ? "<think>" : "</think>"))
      sink.value(static_cast<unsigned char>(t));
  } else if (sink.in_argument()) {
    sink.value(c);
  } else if (sink.in_call() && (raw || c == '{')) {
    raw = true;  // arguments as one JSON object instead of parameters
    sink.raw(c);
  } else if (!(sink.in_call() || block) || !is_json_space(c)) {
    sink.text(c);
  }
}

void DsmlMachine::open(AnswerSink& sink) {
  const std::string_view name = tag_name(tag);
  if (names_block(name)) {
    end_call(sink);
    sink.drop_newlines();
    block = true;
  } else if (name == "invoke") {
    end_call(sink);
    const auto tool = tag_attribute(tag, "name");
    if (tool && !tool->empty()) sink.begin_call(*tool);
    else sink.error();
  } else if (name == "parameter" && sink.in_call() && !raw) {
    parameter(sink);
  } else {
    sink.error();
  }
}

void DsmlMachine::parameter(AnswerSink& sink) {
  if (sink.in_argument()) sink.error();
  const auto key = tag_attribute(tag, "name"), text = tag_attribute(tag, "string");
  if (!key) return sink.error();
  ValueType type = ValueType::json;
  if (text == "true") type = ValueType::text;
  else if (text != "false") type = sink.declared_type(*key);
  sink.begin_argument(*key, type);
}

void DsmlMachine::close(AnswerSink& sink) {
  const std::string_view name = tag_name(tag);
  if (name == "parameter" && sink.in_argument()) {
    sink.end_argument();
  } else if (name == "invoke" && sink.in_call()) {
    if (sink.in_argument()) sink.error();
    sink.end_call();
    raw = false;
  } else if (names_block(name) && block) {
    end_call(sink);
    block = false;
  } else {
    sink.error();
  }
}

// The end of a call whose own end is missing.
void DsmlMachine::end_call(AnswerSink& sink) {
  if (sink.in_call()) sink.error();
  sink.end_call();
  raw = false;
}

void DsmlMachine::finish(AnswerSink& sink) {
  // Within a call it would have become markup.
  if (!sink.in_call() && !block) sink.text(pending);
}

}  // namespace moesaic
