// What a load test sends: prompts, lengths and arrival times, drawn from a seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moesaic {

struct PlannedRequest {
  double start = 0;  // seconds after the test begins
  std::string prompt;
  int64_t prompt_tokens = 0;  // wanted; what the server counts is what is reported
  int64_t output_tokens = 0;
};

// Seconds at which `count` requests start. Gaps are gamma-distributed with shape `burstiness` (1: exponential, a
// Poisson process; less: bursts; more: even) and mean 1/rate, then scaled so that the last one starts at count/rate:
// the rate offered is the rate asked for. An infinite rate starts all at 0.
std::vector<double> arrival_times(int64_t count, double rate, double burstiness, uint64_t seed);

// How long a text is in the server's tokens: tokens = fixed + per_word * words (+ what a chat template adds).
struct TokenScale {
  double fixed = 0, per_word = 1;
  int64_t words_for(int64_t tokens) const;  // at least 1
};

struct RandomTraffic {
  int64_t count = 1000;
  int64_t input_tokens = 1024, output_tokens = 128;
  double range_ratio = 0;     // lengths are uniform in [1 - ratio, 1 + ratio] of those above
  int64_t prefix_tokens = 0;  // the same words begin every prompt, before its own input_tokens
  uint64_t seed = 0;
};

// `words` short English words, drawn from the seed.
std::string random_words(int64_t words, uint64_t seed, uint64_t stream);
std::vector<PlannedRequest> random_traffic(const RandomTraffic& traffic, const TokenScale& scale);

// Conversations of a ShareGPT file, [{"conversations": [{"value": ...}, {"value": ...}]}]: the first turn is the
// prompt, the second says how long the answer is unless `output_tokens` does; texts are counted at four characters a
// token. Very short and very long ones are left out, as in other benchmarks; the rest is shuffled, and repeated when
// there are fewer than `count`. Throws Error(data_loss) for a file of another form or without usable conversations.
std::vector<PlannedRequest> sharegpt_traffic(const std::string& path, int64_t count, int64_t output_tokens,
                                             uint64_t seed);

}  // namespace moesaic
