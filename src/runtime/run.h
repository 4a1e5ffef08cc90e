// run(): executes one step of a plan. Allocates nothing.
#pragma once

#include "base/function_ref.h"
#include "compile/plan.h"

namespace moesaic {

// The five regions a plan's addresses refer to.
struct Memory {
  std::byte* weights = nullptr;
  std::byte* activations = nullptr;
  std::byte* workspace = nullptr;
  std::byte* cache_blocks = nullptr;
  std::byte* cache_slots = nullptr;
};

// Sees a step right after it ran, while its outputs are valid: for `diff` and profiles.
using StepHook = function_ref<void(const Step& step, const Args& args)>;

// Runs every step of `plan` on the batch (within the plan's limits). The logits are then at `logits(plan, memory)`,
// [S, vocab] in the activation type. Throws what kernels throw.
void run(const Plan& plan, const CacheMap& cache, const Memory& memory, const BatchView& batch, Stream& stream,
         const StepHook* hook = nullptr);

inline std::byte* logits(const Plan& plan, const Memory& memory) {
  return memory.activations + plan.logits.offset;
}
// The output "hidden" of a graph that has it, in the activation type: [T, hidden] of a model, [S, hidden] of a
// multi-token prediction layer.
inline const std::byte* hidden_states(const Plan& plan, const Memory& memory) {
  return memory.activations + plan.hidden.offset;
}

}  // namespace moesaic
