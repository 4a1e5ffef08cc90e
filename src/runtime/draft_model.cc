#include "runtime/draft_model.h"

namespace moesaic {

DraftModel::DraftModel(const Graph& graph, const CompileOptions& options, int64_t blocks, Device& device)
    : compiled_(compile(graph, options)),
      weights_(device.allocate(compiled_.weights.bytes, "the prediction layer's weights")),
      workspace_(device.allocate(compiled_.workspace_bytes(), "the prediction layer's workspace")),
      cache_(device.allocate(blocks * compiled_.cache.block_stride, "the prediction layer's key-value cache")),
      activations_{device.allocate(compiled_.activation_bytes(), "the prediction layer's activations"),
                   device.allocate(compiled_.decode.activation_bytes, "the prediction layer's activations")},
      plan_(&compiled_.prefill) {
  CHECK(compiled_.cache.slot_stride == 0, "a prediction layer with state per sequence");
}

Memory DraftModel::memory() const {
  return {weights_.data(), activations_[turn_].data(), workspace_.data(), cache_.data(), nullptr};
}

void DraftModel::run_on(const Plan& plan, BatchView batch, const std::byte* hidden, Stream& stream) {
  plan_ = &plan;
  batch.hidden = hidden;
  run(plan, compiled_.cache, memory(), batch, stream);
}

void DraftModel::start(BatchView batch, const std::byte* hidden, Stream& stream) {
  turn_ = 0;
  run_on(compiled_.prefill, batch, hidden, stream);
}

void DraftModel::next(BatchView batch, Stream& stream) {
  const std::byte* hidden = hidden_states(*plan_, memory());
  turn_ = 1 - turn_;
  run_on(compiled_.decode, batch, hidden, stream);
}

}  // namespace moesaic
