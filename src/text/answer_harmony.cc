#include "text/answer_machines.h"

namespace moesaic {
namespace {

enum : unsigned char {
  kStart = 0xF7,
  kChannel = 0xF8,
  kMessage = 0xF9,
  kConstrain = 0xFA,
  kEnd = 0xFB,
  kReturn = 0xFC,
  kCall = 0xFD
};
constexpr AnswerMarker kMarkers[] = {
    {kStart, "<|start|>"}, {kChannel, "<|channel|>"}, {kMessage, "<|message|>"}, {kConstrain, "<|constrain|>"},
    {kEnd, "<|end|>"},     {kReturn, "<|return|>"},   {kCall, "<|call|>"}};

std::string_view first_word(std::string_view text) {
  text = trim_spaces(text);
  return text.substr(0, text.find_first_of(" \n\t"));
}

// RECIPIENT of "... to=RECIPIENT ...".
std::string_view recipient_in(std::string_view text) {
  for (size_t at = text.find("to="); at != std::string_view::npos; at = text.find("to=", at + 1))
    if (at == 0 || is_json_space(static_cast<unsigned char>(text[at - 1]))) return first_word(text.substr(at + 3));
  return {};
}

// Tools that the model knows by itself and that nobody here runs: what it says to them is part of its thinking.
bool is_built_in(std::string_view recipient) {
  return recipient == "python" || recipient.starts_with("browser") || recipient.starts_with("container");
}

}  // namespace

std::span<const AnswerMarker> HarmonyMachine::markers() {
  return kMarkers;
}

void HarmonyMachine::feed(AnswerSink& sink, unsigned char c) {
  switch (c) {
    case kStart:
      end_message(sink);
      part = Part::role;
      return;
    case kChannel:
      if (part == Part::body) end_message(sink);
      channel_text.clear();
      part = Part::channel;
      return;
    case kConstrain:
      if (part == Part::body) end_message(sink);
      part = Part::type;
      return;
    case kMessage: return begin_body(sink);
    case kEnd:
    case kReturn:
    case kCall: return end_message(sink);
    default: break;
  }
  if (part == Part::none) begin_body(sink);  // an answer without a header
  if (part == Part::prompted) return prompted(sink, c);
  if (part == Part::role) role_text += static_cast<char>(c);
  else if (part == Part::channel) channel_text += static_cast<char>(c);
  else if (part == Part::body) call ? sink.raw(c) : sink.text(c);
}

// After the role in the prompt: a recipient, or else an answer without a header.
void HarmonyMachine::prompted(AnswerSink& sink, unsigned char c) {
  constexpr std::string_view kTo = " to=";
  role_text += static_cast<char>(c);
  if (role_text.starts_with(kTo) || kTo.starts_with(role_text)) return;
  const std::string text = std::exchange(role_text, {});
  begin_body(sink);
  sink.text(text);
}

void HarmonyMachine::begin_answer() {
  if (part != Part::role) return;
  part = Part::prompted;
  role_text.clear();
}

void HarmonyMachine::begin_body(AnswerSink& sink) {
  if (part == Part::body) end_message(sink);
  part = Part::body;
  const std::string_view channel = first_word(channel_text);
  std::string_view recipient = recipient_in(channel_text);
  if (recipient.empty()) recipient = recipient_in(role_text);
  constexpr std::string_view kFunctions = "functions.";
  const bool function = recipient.starts_with(kFunctions);
  if (function) recipient.remove_prefix(kFunctions.size());
  const bool built_in = !function && is_built_in(recipient);
  call = !recipient.empty() && recipient != "assistant" && recipient != "all" && !built_in;
  if (call) sink.begin_call(recipient);
  else sink.turn(channel == "analysis" || built_in);
}

void HarmonyMachine::end_message(AnswerSink& sink) {
  if (call) sink.end_call();
  call = false;
  part = Part::none;
  role_text.clear(), channel_text.clear();
}

void HarmonyMachine::finish(AnswerSink&) {}

}  // namespace moesaic
