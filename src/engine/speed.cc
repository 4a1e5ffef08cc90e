#include "engine/speed.h"

#include <algorithm>
#include <chrono>

#include "base/rng.h"

namespace moesaic {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int64_t runs(int repetitions, bool profile) {
  return 1 + repetitions + (profile ? 1 : 0);
}

// A warm-up that also counts the work, then the repetitions that are timed. `once` takes a timer or null.
template <typename Once>
SpeedResult repeat(Device& device, int64_t tokens, int64_t steps, int repetitions, bool profile, Once once) {
  SpeedResult result;
  result.tokens = tokens, result.steps = steps;
  StepTimer warm_up(device);
  once(&warm_up);
  result.work = warm_up.total();
  for (int i = 0; i < repetitions; ++i) result.seconds.push_back(once(nullptr));
  if (!profile) return result;
  StepTimer timer(device, false);  // counting would disturb the times
  once(&timer);
  result.profile = timer.rows();
  result.spans = timer.spans();
  for (StepTimer::Row& row : result.profile) row.work = warm_up.work_of(row.op);
  return result;
}

}  // namespace

SpeedMeter::SpeedMeter(LoadedModel& loaded, Progress& progress, uint64_t seed)
    : loaded_(loaded),
      progress_(progress),
      pool_(loaded.blocks, loaded.compiled.cache.block_stride, loaded.slots, loaded.compiled.cache.slot_stride),
      batch_(loaded.compiled.prefill.limits, loaded.compiled.decode.limits, loaded.max_blocks()),
      tokens_(static_cast<size_t>(loaded.slots * loaded.max_model_len)) {
  if (loaded.steps != nullptr) loaded.steps->warm_up(loaded.compiled.decode);
  Rng rng(seed);
  for (int32_t& token : tokens_) token = static_cast<int32_t>(rng.below(loaded.model.vocab));
}

std::span<const int32_t> SpeedMeter::tokens(int64_t sequence, int64_t begin, int64_t count) const {
  return std::span(tokens_).subspan(static_cast<size_t>(sequence * loaded_.max_model_len + begin),
                                    static_cast<size_t>(count));
}

void SpeedMeter::open(int64_t sequences, int64_t count) {
  CHECK(count <= loaded_.max_model_len && sequences <= loaded_.slots, "{} sequences of {} tokens", sequences, count);
  sequences_.resize(static_cast<size_t>(sequences));
  for (SequenceCache& sequence : sequences_) CHECK(pool_.open(sequence, count), "no room for {} tokens", count);
}

void SpeedMeter::close() {
  for (SequenceCache& sequence : sequences_) pool_.close(sequence);
}

void SpeedMeter::step(const Plan& plan, StepTimer* timer) {
  const BatchView view = batch_.view();
  if (timer == nullptr && loaded_.steps != nullptr) {  // as an engine does, whose sampling cannot be left out
    samples_.resize(static_cast<size_t>(view.rows));
    for (size_t i = 0; i < samples_.size(); ++i) samples_[i].slot = static_cast<int32_t>(i);
    loaded_.steps->run(plan, view, samples_);
    return;
  }
  const auto record = [&](const Step& s, const Args& args) { timer->record(s, args); };
  const StepHook hook(record);
  if (timer != nullptr) timer->start();
  loaded_.run_step(plan, view, timer != nullptr ? &hook : nullptr);
}

double SpeedMeter::prefill(int64_t sequence, int64_t length, StepTimer* timer) {
  const SequenceCache& cache = sequences_[static_cast<size_t>(sequence)];
  const int64_t chunk = loaded_.compiled.prefill.limits.tokens;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t begin = 0; begin < length; begin += chunk) {
    const int64_t count = std::min(chunk, length - begin);
    batch_.clear();
    batch_.add(tokens(sequence, begin, count), begin, cache.blocks, cache.slot, begin + count == length ? 1 : 0);
    step(loaded_.compiled.prefill, timer);
    progress_.advance(count);
  }
  loaded_.device->synchronize();
  return seconds_since(start);
}

double SpeedMeter::decode(int64_t depth, int64_t count, StepTimer* timer) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t position = depth; position < depth + count; ++position) {
    batch_.clear();
    for (size_t s = 0; s < sequences_.size(); ++s)
      batch_.add(tokens(static_cast<int64_t>(s), position, 1), position, sequences_[s].blocks, sequences_[s].slot, 1);
    step(loaded_.compiled.decode, timer);
    progress_.advance(batch_.sequences());
  }
  loaded_.device->synchronize();
  return seconds_since(start);
}

SpeedResult SpeedMeter::prompt(int64_t length, int repetitions, bool profile) {
  const int64_t chunk = loaded_.compiled.prefill.limits.tokens;
  open(1, length);
  SpeedResult result = repeat(*loaded_.device, length, (length + chunk - 1) / chunk, repetitions, profile,
                              [&](StepTimer* timer) { return prefill(0, length, timer); });
  close();
  return result;
}

SpeedResult SpeedMeter::generate(int64_t batch, int64_t depth, int64_t count, int repetitions, bool profile) {
  open(batch, depth + count);
  for (int64_t s = 0; s < batch; ++s) prefill(s, depth, nullptr);
  // Later blocks are written anew by each repetition; the slots (rings, recurrent state) go back to what they were.
  Device& device = *loaded_.device;
  const Buffer& slots = loaded_.cache_slots;
  const Buffer state = device.allocate_host(slots.bytes(), "sequence state on the host");
  device.download(state.data(), slots.data(), slots.bytes());
  SpeedResult result = repeat(device, batch * count, count, repetitions, profile, [&](StepTimer* timer) {
    device.upload(slots.data(), state.data(), slots.bytes());
    device.synchronize();
    return decode(depth, count, timer);
  });
  close();
  return result;
}

int64_t SpeedMeter::prompt_progress(int64_t length, int repetitions, bool profile) {
  return length * runs(repetitions, profile);
}

int64_t SpeedMeter::generate_progress(int64_t batch, int64_t depth, int64_t count, int repetitions, bool profile) {
  return batch * (depth + count * runs(repetitions, profile));
}

}  // namespace moesaic
