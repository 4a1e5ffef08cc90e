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

}  // namespace

void run(const Plan& plan, const CacheMap& cache, const Memory& memory, const BatchView& batch, Stream& stream,
         const StepHook* hook) {
  CHECK(
      batch.tokens <= plan.limits.tokens && batch.rows <= plan.limits.rows && batch.sequences <= plan.limits.sequences,
      "a step of {} tokens, {} rows, {} sequences", batch.tokens, batch.rows, batch.sequences);
  std::array<std::byte*, kMaxOperands> in, out;
  for (const Step& step : plan.steps) {
    resolve(step.inputs, memory, in);
    resolve(step.outputs, memory, out);
    Args args;
    args.in = {in.data(), step.inputs.size()};
    args.out = {out.data(), step.outputs.size()};
    args.now = {batch.tokens, batch.rows};
    args.batch = &batch;
    args.cache = cache_view(step, cache, memory);
    step.kernel->launch(step.desc, args, memory.workspace, stream);
    if (hook != nullptr) (*hook)(step, args);
  }
}

}  // namespace moesaic
