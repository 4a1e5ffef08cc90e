// What chat and text completions have in common of a request's parameters.
#pragma once

#include <span>

#include "server/api.h"
#include "server/structured_fields.h"
#include "text/chat_format.h"

namespace moesaic {

constexpr size_t kMaxStopStrings = 16;

// What the reading of requests must know of the model and the server.
struct ModelFacts {
  const ApiOptions& options;
  int64_t vocab = 0, max_model_len = 0;
  bool vision = false;
  ChatFormat format = ChatFormat::plain;
  SamplingParams default_sampling = {};
};

struct AnswerOptions {
  std::string model;  // as the answer names it
  std::string id;     // the caller's; empty: none
  bool stream = false, include_usage = false, continuous_usage = false;
  int n = 1;
  Request request = {};  // all but the prompt and max_new_tokens
  std::optional<int64_t> max_tokens;
  ParamNames names;
  std::optional<StructuredOutput> structured;
  bool prompt_logprobs = false;  // the caller asked for them as such, not for an echo's
  bool return_token_ids = false, tokens_as_ids = false, timings = false;
};

// The fields of both endpoints, logprobs excepted. Sampling parameters that are absent are those of the model's
// generation_config.json, or OpenAI's with --generation-config none.
AnswerOptions read_answer_options(const Fields& body, const ModelFacts& facts);

// The value of an integer field with alternatives, within [0, options.max_logprobs]; -1: absent.
int read_logprobs(const Fields& body, std::string_view key, const ModelFacts& facts);

// `model`, where it is given and served, else the first name. 404 model_not_found.
std::string read_model(const Fields& body, const ApiOptions& options);

// One log line about the fields that are not in `known`.
void log_unknown_fields(const JsonObject& body, std::span<const std::string_view> known, std::string_view endpoint);

}  // namespace moesaic
