// Answers of /v1/completions: one object, or the frames of a stream.
#pragma once

#include "server/answer.h"

namespace moesaic {

struct CompletionView {
  AnswerView answer;  // prompt_ids are needed where echo is
  bool echo = false;
  std::vector<std::string> prompt_texts = {};  // of each prompt, where echo is
};

JsonObject text_completion(const std::vector<CollectedChoice>& choices, const CompletionView& view);

// The frames of a stream, appended to `out`: texts (an echoed prompt is the first), one with the reason for each
// choice, the usage where wanted, [DONE].
class CompletionFrames {
 public:
  CompletionFrames(CompletionView view, size_t choices);

  void chunk(size_t choice, const Chunk& chunk, std::string& out);
  void finish(size_t choice, const ChoiceEnd& end, std::string& out);
  void end(std::string& out);
  void fail(const ApiError& error, std::string& out);

 private:
  struct Choice {
    bool echoed = false;
    int64_t tokens = 0;
    bool pending = false;  // logprobs or ids of tokens whose text is held back
    std::optional<TextLogprobs> logprobs;
    std::vector<GeneratedToken> ids;
    Usage usage;
  };
  void echo(size_t choice, const Chunk& chunk, std::string& out);
  void text(size_t choice, std::string_view text, std::string& out);
  void frame(std::string_view choice, std::string& out);

  CompletionView view_;
  std::string head_;
  std::vector<Choice> choices_;
};

AnswerSink completion_sink(CompletionView view, size_t choices, bool stream);

}  // namespace moesaic
