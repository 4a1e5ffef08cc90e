// Answers of an engine: everything that its completions said.
#pragma once

#include <gtest/gtest.h>

#include "moesaic/engine.h"

namespace moesaic {

struct Answer {
  std::vector<int32_t> ids;
  std::vector<float> logprobs, gaps;                        // of each token
  std::vector<std::vector<std::pair<int32_t, float>>> top;  // its alternatives
  std::string text;
  Status status;
  FinishReason reason = FinishReason::none;
  Usage usage;
};

inline Answer drain(Completion& completion) {
  Answer answer;
  while (auto chunk = completion.next()) {
    answer.text += chunk->text;
    for (const GeneratedToken& token : chunk->tokens) {
      answer.ids.push_back(token.id);
      answer.logprobs.push_back(token.logprob);
      answer.gaps.push_back(token.gap);
      answer.top.push_back(token.top);
    }
  }
  answer.status = completion.status();
  answer.reason = completion.finish_reason();
  answer.usage = completion.usage();
  return answer;
}

inline std::vector<Answer> ask_together(Engine& engine, const std::vector<Request>& requests) {
  std::vector<Completion> completions;
  for (const Request& request : requests) {
    auto completion = engine.submit(request);
    EXPECT_TRUE(completion.ok()) << completion.status().message();
    if (completion.ok()) completions.push_back(std::move(*completion));
  }
  std::vector<Answer> answers;
  for (Completion& completion : completions) answers.push_back(drain(completion));
  answers.resize(requests.size());
  return answers;
}

inline Answer ask(Engine& engine, Request request) {
  return ask_together(engine, {std::move(request)})[0];
}

}  // namespace moesaic
