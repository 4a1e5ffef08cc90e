// ChatFormat: how a family writes its answers (reasoning, text, tool calls), known from the checkpoint without flags.
#pragma once

#include <span>

#include "base/json.h"
#include "moesaic/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace moesaic {

enum class ChatFormat : uint8_t {
  plain,        // text alone
  think,        // <think>...</think>, then text (Qwen3, Kimi-Linear and others without tools of their own)
  harmony,      // gpt-oss
  deepseek_v3,  // R1, V3: function<sep>NAME and a fenced JSON block
  deepseek_v31,
  deepseek_v32,  // DSML, block function_calls
  deepseek_v4,   // DSML, block tool_calls
  kimi_k2,       // and K2.5
  kimi_k3,       // XTML
  glm,           // 4.5 to 5
};

// From the markers that the tokenizer knows and config.json's model_type.
ChatFormat detect_chat_format(const Tokenizer& tokenizer, std::string_view model_type);
const char* chat_format_name(ChatFormat format);

// Sets the variables with which the family's template controls thinking, where `kwargs` does not set them already.
// `effort`: none, minimal, low, medium, high, xhigh or max.
void apply_reasoning_effort(ChatFormat format, std::string_view effort, JsonObject& kwargs);

// The prompt of a conversation, for families that publish an encoder instead of a template; nothing for the others.
bool has_encoder(ChatFormat format);
std::optional<Result<std::vector<RenderedSegment>>> encode_natively(ChatFormat format, const ChatInput& input);

// What the caller wants enforced in an answer.
struct AnswerShape {
  std::optional<GrammarSource> content;  // of the final text; none: any text
  Json tools;                            // array as in the chat completions API, or null
  // none: no calls; otherwise at least one call, and nothing but calls after the reasoning: of any tool (required), or
  // of `tool` alone.
  bool calls_required = false;
  std::string tool;
  bool parallel = true;  // more than one call
};
// The grammar (docs/grammars.md) of a whole answer in this format, reasoning included: content and calls are
// constrained, reasoning is free. `prompt`: its end says whether the answer begins inside the reasoning.
Result<GrammarSource> answer_grammar(ChatFormat format, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                     const AnswerShape& shape);

struct AnswerDelta {
  std::string content, reasoning;
  std::vector<ToolCallDelta> tool_calls;
};

// Takes an answer apart, token by token; the sum of all deltas does not depend on where tokens are cut. Works on ids
// where markers are special tokens: text that merely looks like one is text. Never fails: what is malformed comes out
// as content and is counted.
class AnswerParser {
 public:
  // `prompt`: its end says whether the answer begins inside the reasoning. `tools`: array as in the chat completions
  // API, or null: markup of calls is then content where the format leaves a choice. The tokenizer outlives it.
  AnswerParser(ChatFormat format, const Tokenizer& tokenizer, std::span<const int32_t> prompt, const Json& tools);
  ~AnswerParser();
  AnswerParser(AnswerParser&&) noexcept;

  void push(int32_t token, AnswerDelta& out);
  void flush(AnswerDelta& out);  // the end of the answer

  // Of the token pushed last: whether it belongs to the reasoning; whether it is no part of what is said, but of a
  // marker or of the name of a channel or tool.
  bool in_reasoning() const;
  bool in_markup() const;
  int calls() const;   // begun so far
  int errors() const;  // malformed places so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moesaic
