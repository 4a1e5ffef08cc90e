#include "text/harmony.h"

namespace moesaic {

bool HarmonyParser::speaks(const Tokenizer& tokenizer) {
  for (const char* marker : {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"})
    if (!tokenizer.token_to_id(marker)) return false;
  return true;
}

HarmonyParser::HarmonyParser(const Tokenizer& tokenizer) : text_(tokenizer, true) {
  const auto id = [&](const char* marker) { return tokenizer.token_to_id(marker).value_or(-1); };
  start_ = id("<|start|>"), channel_ = id("<|channel|>"), message_ = id("<|message|>"), end_ = id("<|end|>");
  return_ = id("<|return|>"), call_ = id("<|call|>"), constrain_ = id("<|constrain|>");
}

HarmonyParser::Delta HarmonyParser::push(int32_t id) {
  if (id == start_ || id == channel_ || id == constrain_) {
    Delta delta = flush();
    part_ = Part::header;
    naming_ = id == channel_;
    if (id != constrain_) channel_name_.clear();
    return delta;
  }
  if (id == message_ || id == end_ || id == return_ || id == call_) {
    Delta delta = flush();
    part_ = id == message_ ? Part::body : Part::start;
    naming_ = false;
    return delta;
  }
  if (part_ == Part::start) part_ = Part::body;  // an answer without a header
  return route(text_.push(id));
}

HarmonyParser::Delta HarmonyParser::flush() {
  return route(text_.flush());
}

HarmonyParser::Delta HarmonyParser::route(std::string text) {
  if (part_ == Part::header) {
    if (naming_) channel_name_ += text;
    return {};
  }
  // The name may be followed by a recipient: "analysis to=...".
  const bool reasoning = channel_name_.substr(0, channel_name_.find(' ')) == "analysis";
  return reasoning ? Delta{.content = {}, .reasoning = std::move(text)}
                   : Delta{.content = std::move(text), .reasoning = {}};
}

}  // namespace moesaic
