// CompletionRequest: the body of POST /v1/completions, checked.
#pragma once

#include <variant>

#include "server/answer_options.h"

namespace moesaic {

constexpr size_t kMaxPrompts = 1024;
constexpr int64_t kDefaultCompletionTokens = 16;

struct CompletionRequest {
  AnswerOptions answer;
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts;  // at least one
  bool echo = false, add_special_tokens = true;
  bool score_only = false;  // max_tokens is 0: the prompt alone, echoed
};

CompletionRequest read_completion_request(const JsonObject& body, const ModelFacts& facts, ApiError& error);

// A list of token ids in [0, vocab).
std::vector<int32_t> read_token_ids(const JsonArray& ids, int64_t vocab, const std::string& param, ApiError& error);

}  // namespace moesaic
