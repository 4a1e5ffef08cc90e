// Speculative decoding: a prediction layer drafts tokens, the model computes them all in one step, and those that it
// would have chosen itself stay. Greedy output is exactly that of plain decoding; sampled output has its distribution.
//
// Rejected drafts leave keys in the caches behind the sequence's end. Caches are addressed by position, no query reads
// past its own, and the next step writes those positions anew, so nothing is taken back. That would not hold for state
// of constant size: models with a prediction layer have none (DraftModel checks its own).
#pragma once

#include <span>
#include <vector>

#include "base/function_ref.h"
#include "engine/sequence.h"
#include "runtime/loaded_model.h"

namespace moesaic {

// Row `row` of logits [., vocab] as f32: a row in f64 (reference backend) is narrowed in place, at its own start. Once
// per row and step.
std::span<float> logits_row(std::byte* rows, int64_t row, int64_t vocab, DType activation);

// Chooses the token at `position`, and as long as it is the next draft also the one after it. `row_of(j)` gives the
// logits after j accepted drafts. Fills `out` and returns how many tokens there are, 1 to drafts.size() + 1: all but
// the last were drafted. One whose status is not ok ends them. The state has counted the tokens. A filter holds for one
// token alone: a sequence that has one is not drafted for.
int64_t sample_with_drafts(function_ref<std::span<float>(int64_t)> row_of, std::span<const DraftToken> drafts,
                           const SamplingParams& params, SamplerState& state, int64_t position,
                           std::span<SampledToken> out, const TokenFilter& filter = {});

// What the model just computed of a sequence: `tokens` of its tokens from position `start` on, whose hidden states
// begin at row `row` of the step's. Rejected drafts are not among them.
struct ComputedTokens {
  Sequence* sequence = nullptr;
  int64_t start = 0, tokens = 0, row = 0;
};

class Drafter {
 public:
  // The model must have been loaded with its prediction layer, and outlives the drafter.
  explicit Drafter(LoadedModel& model);

  // After each step of the model, while its hidden states (`plan`'s output) are valid: brings the prediction layer's
  // cache up to date, and gives every sequence that generates new Sequence::drafts, as many as it may still use.
  void draft(const Plan& plan, std::span<const ComputedTokens> computed);

 private:
  void start(const Plan& plan, std::span<const ComputedTokens> computed);
  void next();
  void take_drafts();
  int64_t wanted(const Sequence& sequence) const;
  void keep(Sequence& sequence, int32_t id, std::span<const float> logits);

  LoadedModel& model_;
  DraftModel& layer_;
  const int64_t count_;  // drafts at a time
  Batch batch_;
  std::vector<Sequence*> in_batch_;  // sequences with logits in the batch, in order
  std::vector<int32_t> drafted_;     // for each, -1 for none
  std::vector<float> logits_;        // [sequences, count_, vocab]: what sampled drafts were drawn from
};

}  // namespace moesaic
