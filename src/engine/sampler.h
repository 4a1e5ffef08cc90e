// The sampler: one token from one row of logits. Nothing here allocates after a SamplerState is built (an error's
// message excepted), and no function knows of a batch, so a result cannot depend on its neighbours.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/sample.h"
#include "moesaic/sampling.h"
#include "moesaic/status.h"

namespace moesaic {

// What one sequence remembers between tokens: its seed and, if biases or penalties are set, how often each token
// occurred. It lives as long as the sequence: after a preemption it continues, recomputed tokens are not appended
// again.
class SamplerState {
 public:
  // `prompt` is counted for the repetition penalty. Ids outside [0, valid_vocab), the ids that the tokenizer knows, are
  // never sampled, counted or biased. `choice` numbers the n answers to one request. Without params.seed one is drawn.
  SamplerState(const SamplingParams& params, std::span<const int32_t> prompt, int64_t valid_vocab, uint32_t choice = 0);

  // Counts an output token. The engine calls it for every token that joins the output; sample() does not.
  void append(int32_t token);

  uint64_t seed() const { return seed_; }
  uint32_t choice() const { return choice_; }
  int64_t valid_vocab() const { return valid_vocab_; }

  // One token whose logit changes before temperature.
  struct Entry {
    int32_t id = 0;
    int32_t output_count = 0;
    bool seen = false;  // in prompt or output
    float bias = 0;
    float raw = 0;  // the logit before the last adjust_logits()
  };
  std::span<Entry> entries() { return entries_; }
  const Entry* find(int32_t token) const;

 private:
  Entry* entry(int32_t token);

  uint64_t seed_;
  uint32_t choice_;
  int64_t valid_vocab_;
  std::vector<int32_t> entry_of_;  // [valid_vocab] index into entries_, -1 for none; empty: nothing is ever adjusted
  std::vector<Entry> entries_;     // capacity valid_vocab
};

struct TokenLogprob {
  int32_t id = -1;
  float logprob = 0;
};

struct SampledToken {
  Status status;  // internal: the logits hold NaN or +inf, or nothing but -inf; the other fields are then unset
  int32_t id = -1;
  float logprob = 0;  // log-softmax of the raw logits of the valid ids, before biases, penalties and temperature
  float gap = 0;      // best minus second best logit, before temperature: a small one is a near-tie; +inf if alone
  int top_count = 0;  // min(params.logprobs, valid ids), or 0
  std::array<TokenLogprob, kMaxLogprobs> top;  // best raw log-probabilities, best first, equal ones by id
};

// A token that was guessed for a position, and the logits that it was drawn from (unused by greedy sampling).
struct DraftToken {
  int32_t id = -1;
  std::span<const float> logits;
};

// Tokens that must not be chosen now, whatever their logits.
struct TokenFilter {
  std::span<const uint32_t> allowed = {};  // bit t % 32 of word t / 32 for each token t that may be; empty: all
  std::span<const int32_t> banned = {};

  bool active() const { return !allowed.empty() || !banned.empty(); }
  void apply(std::span<float> logits) const;  // the others become -inf
};

// Chooses a token. `logits` is [vocab] f32 and is left with biases and penalties applied; rows from
// state.valid_vocab() on are ignored. `position` is the index in the sequence that the token will take; the draw
// depends on (seed, choice, position) only. Of equal logits the lowest id counts as best. Thread rule: one call per
// state. With a draft the token is the draft's exactly when the draft is accepted; greedy sampling gives what it gives
// without one, and the others the same distribution (verify_draft).
SampledToken sample(std::span<float> logits, const SamplingParams& params, SamplerState& state, int64_t position,
                    const DraftToken* draft = nullptr, const TokenFilter& filter = {});

// What `token` would have scored: id, logprob and alternatives, as sample() reports them. `logits` stays as it is.
SampledToken score_token(std::span<const float> logits, int32_t token, int logprobs, int64_t valid_vocab);

// Guesses the token at `position` from a prediction layer's logits [vocab]: the best, or a draw after temperature,
// top_k, top_p and min_p (biases and penalties are the model's business). -1: the logits are not finite, no guess.
int32_t draft_token(std::span<const float> logits, const SamplingParams& params, const SamplerState& state,
                    int64_t position);

// The uniform number in [0, 1) that a position's token is drawn with, for samplers on a device; and such a one's
// result.
double draw_of(const SamplerState& state, int64_t position);
SampledToken sampled_on_device(const SampledRow& row, int64_t position);

// The first stage of sample(): logit bias, repetition, frequency and presence penalty, in this order, in place.
void adjust_logits(std::span<float> logits, const SamplingParams& params, SamplerState& state);

// The second stage: the distribution a token is drawn from, as a view of the adjusted logits and a rule to read them.
struct Distribution {
  std::span<const float> logits;
  float best = 0;         // the largest logit, finite
  float temperature = 1;  // > 0
  float min_p = 0;
  // Tokens after (cut_logit, cut_id) in the order "larger logit first, then lower id" have weight 0.
  float cut_logit = -std::numeric_limits<float>::infinity();
  int32_t cut_id = std::numeric_limits<int32_t>::max();

  // Unnormalised probability, 1 for the best token.
  float weight(int32_t id) const;
  double total() const;  // of all weights
  // The token at quantile u in [0, 1) of the cumulative distribution over ids; -1 if no weight is positive.
  int32_t draw(double u) const;
};

// Applies temperature, then top_k, top_p, min_p. `best` is the largest of `logits`, which hold no NaN or +inf.
Distribution filter(std::span<const float> logits, float best, const SamplingParams& params);

// Speculative sampling (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1): a draft drawn from q becomes a token of
// distribution p. It is accepted with probability min(1, p/q), else the token is drawn from max(p - q, 0) normalised,
// which never gives the draft. u and v are independent uniform numbers in [0, 1).
int32_t verify_draft(const Distribution& p, const Distribution& q, int32_t draft, double u, double v);

}  // namespace moesaic
