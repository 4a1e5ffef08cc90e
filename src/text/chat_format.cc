#include "text/chat_format.h"

#include <initializer_list>

namespace moesaic {
namespace {

bool has_tokens(const Tokenizer& tokenizer, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names)
    if (!tokenizer.token_to_id(name)) return false;
  return true;
}

// What the caller wrote wins.
void set_default(JsonObject& kwargs, std::string_view key, Json value) {
  if (!kwargs.contains(key)) kwargs[key] = std::move(value);
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  for (const std::string_view w : words)
    if (w == word) return true;
  return false;
}

}  // namespace

ChatFormat detect_chat_format(const Tokenizer& tokenizer, std::string_view model_type) {
  const auto has = [&](std::initializer_list<std::string_view> names) { return has_tokens(tokenizer, names); };
  if (has({"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"})) return ChatFormat::harmony;
  if (has({"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"})) return ChatFormat::kimi_k3;
  // Kimi-Linear has these too.
  if (has({"<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"})) return ChatFormat::kimi_k2;
  if (model_type.starts_with("deepseek_v4")) return ChatFormat::deepseek_v4;
  // V3.2-Exp shares model_type deepseek_v32, and speaks V3.1's format.
  if (has({"｜DSML｜"})) return ChatFormat::deepseek_v32;
  if (has({"<｜Assistant｜>"}))
    return has({"<｜search▁begin｜>"}) || model_type == "deepseek_v32" ? ChatFormat::deepseek_v31
                                                                       : ChatFormat::deepseek_v3;
  if (has({"[gMASK]", "<|observation|>"}) || has({"<arg_key>", "<arg_value>"})) return ChatFormat::glm;
  if (has({"<think>", "</think>"}) || has({"<tool_call>", "</tool_call>"})) return ChatFormat::think;
  return ChatFormat::plain;
}

const char* chat_format_name(ChatFormat format) {
  switch (format) {
    case ChatFormat::plain: return "plain";
    case ChatFormat::think: return "think";
    case ChatFormat::harmony: return "harmony";
    case ChatFormat::deepseek_v3: return "deepseek_v3";
    case ChatFormat::deepseek_v31: return "deepseek_v31";
    case ChatFormat::deepseek_v32: return "deepseek_v32";
    case ChatFormat::deepseek_v4: return "deepseek_v4";
    case ChatFormat::kimi_k2: return "kimi_k2";
    case ChatFormat::kimi_k3: return "kimi_k3";
    case ChatFormat::glm: return "glm";
  }
  return "unknown";
}

void apply_reasoning_effort(ChatFormat format, std::string_view effort, JsonObject& kwargs) {
  const bool thinks = effort != "none", little = is_one_of(effort, {"none", "minimal", "low"}),
             most = is_one_of(effort, {"xhigh", "max"});
  switch (format) {
    case ChatFormat::plain: return;
    case ChatFormat::think: return set_default(kwargs, "enable_thinking", thinks);
    case ChatFormat::glm:
      set_default(kwargs, "enable_thinking", thinks);
      // GLM-5.2's template has two levels; earlier ones do not ask.
      return set_default(kwargs, "reasoning_effort", most ? "max" : "high");
    case ChatFormat::harmony: {
      const char* level = little ? "low" : effort == "medium" ? "medium" : "high";
      return set_default(kwargs, "reasoning_effort", level);
    }
    case ChatFormat::deepseek_v3:
    case ChatFormat::deepseek_v31:
    case ChatFormat::deepseek_v32:
    case ChatFormat::kimi_k2: return set_default(kwargs, "thinking", thinks);
    case ChatFormat::deepseek_v4:
      set_default(kwargs, "thinking", thinks);
      if (most) set_default(kwargs, "reasoning_effort", "max");
      return;
    case ChatFormat::kimi_k3: return set_default(kwargs, "thinking_effort", little ? "low" : most ? "max" : "high");
  }
}

}  // namespace moesaic
