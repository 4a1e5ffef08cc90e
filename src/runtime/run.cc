#include "runtime/run.h"

#include <array>

namespace moesaic {
namespace {

constexpr size_t kMaxOperands = 16;

CacheView cache_view(const Step& step, const CacheMap& map, const Memory& memory) {
  if (step.cache < 0) return {};
  const CacheMap::Layer& layer = map.layers[static_cast<size_t>(step.cache)];
  return {.blocks = memory.cache_blocks + layer.block_offset,
          .block_stride = map.block_stride,
          .slots = memory.cache_slots + layer.slot_offset,
          .slot_stride = map.slot_stride};
}

void resolve(const std::vector<Place>& places, const Memory& memory, std::array<std::byte*, kMaxOperands>& out) {
  CHECK(places.size() <= kMaxOperands);
  for (size_t i = 0; i < places.size(); ++i)
    out[i] = (places[i].region == Region::weights ? memory.weights : memory.activations) + places[i].offset;
}

// A step's operands at their addresses.
struct Resolved {
  std::array<std::byte*, kMaxOperands> in, out;
  Args args;

  void resolve_step(const Step& step, const CacheMap& cache, const Memory& memory, const BatchView& batch) {
    resolve(step.inputs, memory, in);
    resolve(step.outputs, memory, out);
    args.in = {in.data(), step.inputs.size()};
    args.out = {out.data(), step.outputs.size()};
    args.now = {batch.tokens, batch.rows};
    args.batch = &batch;
    args.cache = cache_view(step, cache, memory);
  }
};

void launch_together(std::span<const Step> steps, const CacheMap& cache, const Memory& memory, const BatchView& batch,
                     Stream& stream) {
  std::array<Resolved, kMostTogether> resolved;
  std::array<const OpDesc*, kMostTogether> descs;
  std::array<Args, kMostTogether> args;
  for (size_t i = 0; i < steps.size(); ++i) {
    resolved[i].resolve_step(steps[i], cache, memory, batch);
    args[i] = resolved[i].args;
    descs[i] = &steps[i].desc;
  }
  steps[0].kernel->launch_together({descs.data(), steps.size()}, {args.data(), steps.size()}, memory.workspace, stream);
}

}  // namespace

void run(const Plan& plan, const CacheMap& cache, const Memory& memory, const BatchView& batch, Stream& stream,
         const StepHook* hook) {
  CHECK(
      batch.tokens <= plan.limits.tokens && batch.rows <= plan.limits.rows && batch.sequences <= plan.limits.sequences,
      "a step of {} tokens, {} rows, {} sequences", batch.tokens, batch.rows, batch.sequences);
  Resolved now;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    const auto together = static_cast<size_t>(step.together);
    if (hook == nullptr && together > 1) {
      launch_together(std::span(plan.steps).subspan(i, together), cache, memory, batch, stream);
      i += together - 1;
      continue;
    }
    now.resolve_step(step, cache, memory, batch);
    step.kernel->launch(step.desc, now.args, memory.workspace, stream);
    if (hook != nullptr) (*hook)(step, now.args);
  }
}

}  // namespace moesaic
