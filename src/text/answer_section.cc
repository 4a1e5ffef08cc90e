#include "text/answer_machines.h"

namespace moesaic {
namespace {

enum : unsigned char {
  kSection = 0xF7,
  kEndSection = 0xF8,
  kCall = 0xF9,
  kArguments = 0xFA,  // DeepSeek: the separator
  kEndCall = 0xFB
};
constexpr AnswerMarker kKimi[] = {{kThink, "<think>"},
                                  {kEndThink, "</think>"},
                                  {kSection, "<|tool_calls_section_begin|>"},
                                  {kSection, "<|tool_call_section_begin|>"},  // the model writes this at times
                                  {kEndSection, "<|tool_calls_section_end|>"},
                                  {kEndSection, "<|tool_call_section_end|>"},
                                  {kCall, "<|tool_call_begin|>"},
                                  {kArguments, "<|tool_call_argument_begin|>"},
                                  {kEndCall, "<|tool_call_end|>"}};
constexpr AnswerMarker kDeepseek[] = {{kThink, "<think>"},
                                      {kEndThink, "</think>"},
                                      {kSection, "<｜tool▁calls▁begin｜>"},
                                      {kEndSection, "<｜tool▁calls▁end｜>"},
                                      {kCall, "<｜tool▁call▁begin｜>"},
                                      {kArguments, "<｜tool▁sep｜>"},
                                      {kEndCall, "<｜tool▁call▁end｜>"}};

// A tool's name: what the API allows in one, or at least no markup.
bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= 256 && name.find_first_of(" \n\t\"{}<>") == std::string_view::npos;
}

}  // namespace

std::span<const AnswerMarker> SectionMachine::markers(Style style) {
  if (style == Style::kimi) return kKimi;
  return kDeepseek;
}

void SectionMachine::feed(AnswerSink& sink, unsigned char c) {
  if (is_marker(c)) return marker(sink, c);
  switch (part) {
    case Part::text: return sink.text(c);
    case Part::header: header += static_cast<char>(c); break;
    case Part::name:  // V3: up to the end of the line; arguments right after the separator are V3.1's
      if (c == '{' && trim_spaces(header).empty())
        header = "function", begin_arguments(sink, Part::arguments), feed(sink, c);
      else if (c == '\n' && !trim_spaces(header).empty()) begin_arguments(sink, Part::fence);
      else header += static_cast<char>(c);
      break;
    case Part::fence:  // "```json\n", or the arguments without a fence
      if (c == '{') part = Part::arguments, argument(sink, c);
      else if (c == '`') fenced = true;
      break;
    case Part::arguments: return argument(sink, c);
  }
  if (header.size() > kMaxHeaderBytes) end_call(sink, false);
}

void SectionMachine::marker(AnswerSink& sink, unsigned char c) {
  switch (c) {
    case kThink:
    case kEndThink:
      if (part == Part::arguments) return argument_text(sink, c == kThink ? "<think>" : "</think>");
      if (part != Part::text) end_call(sink, false);
      return sink.think_marker(c);
    case kSection:
      if (part != Part::text) end_call(sink, false);
      return sink.drop_newlines();
    case kCall:
      if (part != Part::text) end_call(sink, false);
      sink.drop_newlines();
      part = Part::header;
      return;
    case kArguments:
      if (part != Part::header) return sink.error();
      if (style == Style::deepseek && trim_spaces(header) == "function") header.clear(), part = Part::name;
      else begin_arguments(sink, Part::arguments);
      return;
    case kEndCall: return part == Part::text ? sink.error() : end_call(sink, true);
    default:  // the end of the section
      if (part != Part::text) end_call(sink, false);
      sink.drop_newlines();
  }
}

bool SectionMachine::begin_call(AnswerSink& sink) {
  const std::string id(trim_spaces(header));
  std::string_view name = id;
  if (style == Style::kimi) {  // functions.NAME:INDEX is also the id, which the next prompt has to repeat
    if (name.starts_with("functions.")) name.remove_prefix(10);
    name = name.substr(0, name.rfind(':'));
  }
  if (!is_name(name)) return false;
  sink.begin_call(name, style == Style::kimi ? id : "");
  header.clear();
  return true;
}

void SectionMachine::begin_arguments(AnswerSink& sink, Part next) {
  if (begin_call(sink)) part = next;
  else end_call(sink, false);
}

void SectionMachine::argument(AnswerSink& sink, unsigned char c) {
  // A fence at the very end belongs to the markup.
  if (fenced && (c == '`' || is_json_space(c))) {
    held += static_cast<char>(c);
    return;
  }
  sink.raw(held);
  held.clear();
  sink.raw(c);
}

void SectionMachine::argument_text(AnswerSink& sink, std::string_view text) {
  for (const char c : text) argument(sink, static_cast<unsigned char>(c));
}

void SectionMachine::end_call(AnswerSink& sink, bool proper) {
  if (part == Part::header || part == Part::name) {
    // The arguments' marker is missing: a call without arguments where there is a name, or else text.
    const bool named = proper && style == Style::kimi && header.find("functions.") != std::string::npos;
    if (!named || !begin_call(sink)) sink.text(header);
    proper = false;
  }
  if (!proper) sink.error();
  sink.end_call();
  part = Part::text;
  header.clear(), held.clear();
  fenced = false;
}

void SectionMachine::finish(AnswerSink&) {}

}  // namespace moesaic
