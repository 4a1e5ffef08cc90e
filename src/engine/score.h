// Scorer: the log-likelihood of given tokens. For `moesaic eval`.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "cache/cache_pool.h"
#include "runtime/loaded_model.h"

namespace moesaic {

// Logits of one step stay within this, whatever the vocabulary: longer texts go through the cache in chunks.
constexpr int64_t kScoreLogitsBytes = int64_t{256} << 20;

// LoadOptions for scoring texts of up to `targets` tokens that have a predecessor, one text at a time. Throws
// Error(invalid_argument) when the context is shorter than that. `chunk` tokens are computed in one step; 0: as many
// as kScoreLogitsBytes allows, at most 512.
LoadOptions score_limits(LoadOptions options, int64_t targets, int64_t chunk = 0);

// Sum over tokens of p (ln p - ln q), in nats, of the distributions softmax(p) and softmax(q) of logits [vocab].
double kl_divergence(std::span<const double> p, std::span<const double> q);

// ln softmax(logits)[target], summed in double.
double log_softmax_at(std::span<const float> logits, int64_t target);
double log_softmax_at(std::span<const double> logits, int64_t target);

class Scorer {
 public:
  // The model must have been loaded with score_limits(); it outlives the scorer.
  explicit Scorer(LoadedModel& loaded);

  // The natural logarithm of the probability of each token after the first, given those before it: tokens.size() - 1
  // values, valid until the next call. Throws Error(internal) when a logit row is not finite.
  // `each` is given the logits [vocab] behind every value as they come: after the i-th of the tokens.
  using EachRow = std::function<void(int64_t i, std::span<const double> logits)>;
  std::span<const double> score(std::span<const int32_t> tokens, const EachRow& each = {});

 private:
  // Scores tokens[begin + 1 .. begin + count] from one step on tokens[begin ..].
  void score_chunk(std::span<const int32_t> tokens, int64_t begin, int64_t count, const EachRow& each);

  LoadedModel& loaded_;
  CachePool pool_;
  SequenceCache cache_;  // of the text being scored
  Batch batch_;
  Buffer host_;  // logits of a chunk
  std::vector<double> log_probabilities_;
  std::vector<double> row_;
};

}  // namespace moesaic
