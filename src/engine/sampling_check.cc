#include "engine/sampling_check.h"

#include <fmt/format.h>

#include <cmath>

namespace moesaic {
namespace {

Status out_of_range(const char* name, auto found, const std::string& accepted) {
  return {StatusCode::invalid_argument, fmt::format("{} is {}; it must be {}", name, found, accepted), name};
}

// NaN fails both comparisons, so it is refused too.
Status check_within(const char* name, float value, float low, float high) {
  if (value >= low && value <= high) return {};
  return out_of_range(name, value, fmt::format("a number in [{}, {}]", low, high));
}

Status check_positive(const char* name, float value) {
  if (value > 0 && std::isfinite(value)) return {};
  return out_of_range(name, value, "a finite number above 0");
}

Status check_filters(const SamplingParams& params) {
  if (!(params.top_p > 0 && params.top_p <= 1)) return out_of_range("top_p", params.top_p, "a number in (0, 1]");
  if (params.top_k < -1) return out_of_range("top_k", params.top_k, "at least 1, or 0 or -1 for no limit");
  return check_within("min_p", params.min_p, 0, 1);
}

Status check_penalties(const SamplingParams& params) {
  if (Status s = check_positive("repetition_penalty", params.repetition_penalty); !s.ok()) return s;
  if (Status s = check_within("presence_penalty", params.presence_penalty, -kMaxPenalty, kMaxPenalty); !s.ok())
    return s;
  return check_within("frequency_penalty", params.frequency_penalty, -kMaxPenalty, kMaxPenalty);
}

Status check_bias(const SamplingParams& params, int64_t vocab) {
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < 0 || id >= vocab) {
      const auto message = fmt::format("logit_bias names token {}; token ids are 0 to {}", id, vocab - 1);
      return {StatusCode::invalid_argument, message, "logit_bias"};
    }
    if (Status s = check_within("logit_bias", bias, -kMaxLogitBias, kMaxLogitBias); !s.ok()) return s;
  }
  return {};
}

}  // namespace

Status check_sampling(const SamplingParams& params, int64_t vocab) {
  if (Status s = check_within("temperature", params.temperature, 0, kMaxTemperature); !s.ok()) return s;
  if (Status s = check_filters(params); !s.ok()) return s;
  if (Status s = check_penalties(params); !s.ok()) return s;
  if (Status s = check_bias(params, vocab); !s.ok()) return s;
  if (params.logprobs >= -1 && params.logprobs <= kMaxLogprobs) return {};
  return out_of_range("logprobs", params.logprobs, fmt::format("0 to {}, or -1 for none", kMaxLogprobs));
}

}  // namespace moesaic
