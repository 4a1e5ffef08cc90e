// DraftModel: a compiled multi-token prediction layer with weights, cache and memory of its own. It guesses the token
// after the next, and then, one step at a time, further ones from its own hidden states. Its cache has as many blocks
// as the model's, under the same numbers.
#pragma once

#include <array>
#include <span>

#include "compile/compile.h"
#include "runtime/run.h"

namespace moesaic {

class DraftModel {
 public:
  // Compiles the graph of Model::mtp and allocates. `options.prefill` limits start(), `options.decode` next().
  DraftModel(const Graph& graph, const CompileOptions& options, int64_t blocks, Device& device);

  const WeightMap& weight_map() const { return compiled_.weights; }
  const Buffer& weights() const { return weights_; }  // filled by whoever made this
  int64_t cache_bytes() const { return cache_.bytes(); }
  const Limits& start_limits() const { return compiled_.prefill.limits; }
  const Limits& next_limits() const { return compiled_.decode.limits; }

  // A step at the positions of one that the model just ran, on the tokens that follow each; the batch's hidden rows
  // number rows of `hidden`, the model's output of that name.
  void start(BatchView batch, const std::byte* hidden, Stream& stream);
  // A step one position on; hidden rows number the rows with logits of the step before.
  void next(BatchView batch, Stream& stream);
  // Of the last step, [rows, vocab] in the activation type.
  std::byte* logits() const { return moesaic::logits(*plan_, memory()); }

 private:
  void run_on(const Plan& plan, BatchView batch, const std::byte* hidden, Stream& stream);
  Memory memory() const;

  Compiled compiled_;
  Buffer weights_, workspace_, cache_;
  // A step reads hidden states that the one before left, so they take turns.
  std::array<Buffer, 2> activations_;
  size_t turn_ = 0;             // whose activations hold the last step's
  const Plan* plan_ = nullptr;  // of the last step
};

}  // namespace moesaic
