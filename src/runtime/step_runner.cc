#include "runtime/step_runner.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic {
namespace {

// Decode batches are padded to the next of these.
constexpr int64_t kBuckets[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256};

int64_t rows_of(const Compiled& compiled) {
  return std::max(compiled.prefill.limits.rows, compiled.decode.limits.rows);
}

}  // namespace

StepRunner::StepRunner(Device& device, const Compiled& compiled, const Memory& memory, int64_t max_blocks,
                       int64_t blocks, int64_t slots, int64_t valid_vocab, int64_t image_width)
    : device_(device),
      cache_(compiled.cache),
      decode_limits_(compiled.decode.limits),
      memory_(memory),
      valid_vocab_(valid_vocab),
      prefill_inputs_(device, compiled.prefill.limits, max_blocks, static_cast<int32_t>(blocks),
                      static_cast<int32_t>(slots), image_width),
      decode_inputs_(device, compiled.decode.limits, max_blocks, static_cast<int32_t>(blocks),
                     static_cast<int32_t>(slots), 0) {
  const int64_t bytes = rows_of(compiled) * static_cast<int64_t>(sizeof(SampledRow));
  sampled_ = device.allocate(bytes, "sampled tokens");
  next_tokens_ = device.allocate((slots + 1) * static_cast<int64_t>(sizeof(int32_t)), "sampled tokens");
  sample_workspace_ = device.allocate(sample_workspace_bytes(rows_of(compiled)), "the sampler's workspace");
  for (Ring& ring : ring_) {
    ring.rows = device.allocate_host(bytes, "sampled tokens on the host");
    ring.done = device.make_mark();
  }
}

void StepRunner::warm_up(const Plan& decode) {
  const int64_t most = bucket(decode_limits_.sequences);
  for (int64_t size : kBuckets)
    if (size < most) recording(decode, size);
  recording(decode, most);
  device_.synchronize();
}

// The largest step is a bucket too.
int64_t StepRunner::bucket(int64_t sequences) const {
  const int64_t most = std::min({decode_limits_.sequences, decode_limits_.tokens, decode_limits_.rows});
  const auto* next = std::lower_bound(std::begin(kBuckets), std::end(kBuckets), sequences);
  return next == std::end(kBuckets) ? most : std::min(*next, most);
}

// One token of each sequence, with logits, and no images.
bool StepRunner::captured(const Plan& plan, const BatchView& batch) {
  return plan.phase == Phase::decode && batch.tokens == batch.sequences && batch.rows == batch.tokens &&
         batch.image_rows == nullptr && batch.hidden == nullptr;
}

Recording& StepRunner::recording(const Plan& plan, int64_t size) {
  std::unique_ptr<Recording>& known = recordings_[size];
  if (known != nullptr) return *known;
  // The eager run brings every kernel onto the device, which capturing cannot.
  BatchView padding = decode_inputs_.upload({.max_blocks = decode_inputs_.view(0).max_blocks}, size);
  padding.image_rows = nullptr;
  launch(plan, padding, nullptr);
  sample(plan, size);
  device_.synchronize();
  known = device_.record([&] {
    launch(plan, padding, nullptr);
    sample(plan, size);
  });
  return *known;
}

void StepRunner::launch(const Plan& plan, const BatchView& there, const StepHook* hook) {
  StepInputs& in = inputs(plan);
  feed_on_gpu(in.token_ids(), there.state_slots, there.sequence_offsets,
              reinterpret_cast<const int32_t*>(next_tokens_.data()), there.sequences, device_.stream());
  moesaic::run(plan, cache_, memory_, there, device_.stream(), hook);
}

void StepRunner::sample(const Plan& plan, int64_t rows) {
  if (rows == 0) return;
  sample_on_gpu(reinterpret_cast<const float*>(logits(plan, memory_)), rows, plan.vocab, valid_vocab_,
                inputs(plan).samples(), reinterpret_cast<SampledRow*>(sampled_.data()),
                reinterpret_cast<int32_t*>(next_tokens_.data()), sample_workspace_.data(), device_.stream());
}

StepResult StepRunner::run(const Plan& plan, const BatchView& batch, std::span<const SampleRow> samples) {
  CHECK(static_cast<int64_t>(samples.size()) == batch.rows, "{} samples for {} rows", samples.size(), batch.rows);
  if (captured(plan, batch)) {
    const int64_t size = bucket(batch.sequences);
    Recording& graph = recording(plan, size);
    decode_inputs_.upload(batch, size, samples);
    graph.replay();
  } else {
    const BatchView there = inputs(plan).upload(batch, 0, samples);
    launch(plan, there, nullptr);
    sample(plan, batch.rows);
  }
  Ring& ring = ring_[static_cast<size_t>(turn_)];
  turn_ = (turn_ + 1) % kStepsInFlight;
  if (batch.rows > 0)
    device_.download(ring.rows.data(), sampled_.data(), batch.rows * static_cast<int64_t>(sizeof(SampledRow)));
  ring.done->record();
  return {reinterpret_cast<const SampledRow*>(ring.rows.data()), ring.done.get()};
}

void StepRunner::run(const Plan& plan, const BatchView& batch, const StepHook* hook) {
  const BatchView there = inputs(plan).upload(batch);
  if (hook == nullptr) return launch(plan, there, nullptr);
  const auto with_host_batch = [&](const Step& step, Args args) {
    args.batch = &batch;
    (*hook)(step, args);
  };
  const StepHook wrapped(with_host_batch);
  launch(plan, there, &wrapped);
}

}  // namespace moesaic
