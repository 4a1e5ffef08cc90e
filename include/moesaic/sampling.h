// SamplingParams: how the next token is chosen from the logits. Part of the public API.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace moesaic {

constexpr int kMaxLogprobs = 20;             // most alternatives reported per token
constexpr float kGreedyTemperature = 1e-5f;  // below this the best token is taken and the filters are ignored
constexpr float kMaxTemperature = 2.0f;
constexpr float kMaxPenalty = 2.0f;      // of presence and frequency, either sign
constexpr float kMaxLogitBias = 100.0f;  // either sign

// Applied in the order of vLLM: logit_bias, repetition_penalty, frequency_penalty, presence_penalty, temperature, then
// the filters top_k, top_p, min_p (the order of Hugging Face transformers).
struct SamplingParams {
  float temperature = 1;         // [0, 2]; below kGreedyTemperature the best token is taken
  float top_p = 1;               // (0, 1]: the fewest best tokens whose probability reaches top_p; 1 is off
  int top_k = 0;                 // the top_k best tokens; 0 or -1 is off
  float min_p = 0;               // [0, 1]: tokens at least min_p times as probable as the best; 0 is off
  float repetition_penalty = 1;  // > 0; over prompt and output: positive logits are divided, negative multiplied
  float presence_penalty = 0;    // [-2, 2]; subtracted once for every token in the output
  float frequency_penalty = 0;   // [-2, 2]; subtracted per occurrence in the output
  std::optional<uint64_t> seed = std::nullopt;  // without one, each sequence draws its own when it is created
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // token id in [0, vocabulary), addend in [-100, 100]
  int logprobs = -1;  // alternatives wanted per token, 0 to kMaxLogprobs; -1 is none
};

}  // namespace moesaic
