// Answers of /v1/chat/completions: one object, or the frames of a stream.
#pragma once

#include "server/answer.h"

namespace moesaic {

struct ChatView {
  AnswerView answer;
  std::string reasoning_field = "reasoning_content";  // or reasoning, or both
  bool include_reasoning = true;
  bool named_tool = false;     // tool_choice named a tool: a call ends with `stop`, as OpenAI has it
  bool parallel_calls = true;  // false: calls after the first are left out
};

// The fields of a finished choice: {"index", "message", "logprobs", "finish_reason", "stop_reason"}.
JsonObject chat_choice(size_t index, const CollectedChoice& choice, const ChatView& view);
JsonObject chat_completion(const std::vector<CollectedChoice>& choices, const ChatView& view);

// The frames of a stream, appended to `out`. For each choice: one with the role, any number with content, reasoning and
// calls of tools, one with the reason why it ended; then, where wanted, one with the usage; then [DONE].
class ChatStream {
 public:
  ChatStream(ChatView view, size_t choices);

  void start(std::string& out);
  void chunk(size_t choice, const Chunk& chunk, std::string& out);
  void finish(size_t choice, const ChoiceEnd& end, std::string& out);
  void end(std::string& out);
  void fail(const ApiError& error, std::string& out);

 private:
  struct Choice {
    std::vector<GeneratedToken> pending;  // not yet shown: their text is held back
    bool calls = false;
    int64_t tokens = 0;
    Usage usage;
  };
  void delta(size_t choice, std::string_view delta, std::string& out);
  void call_deltas(size_t choice, const ToolCallDelta& call, std::string& out);
  void frame(std::string_view choice, std::string& out);
  std::string running_usage() const;
  std::string shown_tokens(Choice& choice);

  ChatView view_;
  std::string head_;  // a frame up to its choices
  std::vector<Choice> choices_;
};

// What a pump feeds.
AnswerSink chat_sink(ChatView view, size_t choices, bool stream);

}  // namespace moesaic
