// Random sequences for ops that keep a state per sequence, and the steps that feed them to a kernel in chunks.
#pragma once

#include "kernels/attention_steps.h"

namespace moesaic {

struct StateData {
  std::vector<int64_t> widths;  // of the inputs that have a row per token
  struct Sequence {
    int64_t length = 0;
    std::vector<std::vector<double>> inputs;  // [length, width] each
    int32_t slot = 0;
  };
  std::vector<Sequence> sequences;
  std::vector<TestOperand> weights;  // inputs after those
  int64_t cache_slots = 0;
};

// Normal numbers; slots are dealt at random from some to spare.
StateData random_state_data(Rng& rng, const std::vector<int64_t>& widths, const std::vector<int64_t>& lengths);

// All sequences in one step; each alone, `chunk` tokens at a time; all together, the i-th chunk + i tokens at a time.
std::vector<std::vector<Chunk>> whole(const StateData& data);
std::vector<std::vector<Chunk>> in_chunks(const StateData& data, int64_t chunk);
std::vector<std::vector<Chunk>> together(const StateData& data, int64_t chunk);

KernelStep state_step(const StateData& data, const std::vector<Chunk>& chunks);
KernelCase state_case(const std::string& name, Op op, const Attrs& attrs, const StateData& data,
                      const std::vector<std::vector<Chunk>>& steps);
// Rows [length, width] of each sequence after all steps.
std::vector<std::vector<float>> state_outputs(const KernelRun& run, const StateData& data,
                                              const std::vector<std::vector<Chunk>>& steps);

// q, k, v, log decays between `strongest` and 0, and b of random sequences for kda.
struct KdaSize {
  int64_t heads, D, V;
};
StateData random_kda(Rng& rng, const KdaSize& size, const std::vector<int64_t>& lengths, double strongest);
Attrs kda_attrs(const KdaSize& size);

}  // namespace moesaic
