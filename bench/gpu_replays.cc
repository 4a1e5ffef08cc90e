// gpu_replays MODEL COUNT: whether a captured decode step gives the same bits each time it is launched.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "cache/cache_pool.h"
#include "runtime/loaded_model.h"

namespace moesaic {
namespace {

constexpr int64_t kSequences = 4, kDepth = 70;

LoadedModel load(const char* directory) {
  LoadOptions options;
  options.model = directory;
  options.backend = Backend::cuda;
  options.max_sequences = kSequences;
  options.max_model_len = 128;
  options.progress = false;
  return load_model(options);
}

std::vector<std::byte> copy_of(LoadedModel& loaded, std::byte* data, int64_t bytes) {
  Buffer scratch;
  const std::byte* host = on_host(*loaded.device, data, bytes, scratch);
  return {host, host + bytes};
}

int replay(const char* directory, int count) {
  LoadedModel loaded = load(directory);
  CachePool pool(loaded.blocks, loaded.compiled.cache.block_stride, loaded.slots, loaded.compiled.cache.slot_stride);
  Batch batch(loaded.compiled.prefill.limits, loaded.compiled.decode.limits, loaded.max_blocks());
  std::vector<SequenceCache> caches(kSequences);
  std::vector<int32_t> tokens(kDepth + 1);
  std::iota(tokens.begin(), tokens.end(), 1);
  for (SequenceCache& cache : caches) {
    CHECK(pool.open(cache, kDepth + 1));
    batch.clear();
    batch.add(std::span(tokens).first(kDepth), 0, cache.blocks, cache.slot, 0);
    loaded.run_step(loaded.compiled.prefill, batch.view());
  }
  batch.clear();
  for (SequenceCache& cache : caches) batch.add({&tokens.back(), 1}, kDepth, cache.blocks, cache.slot, 1);
  const Buffer& slots = loaded.cache_slots;
  const Buffer state = loaded.device->allocate_host(slots.bytes(), "sequence state");
  loaded.device->download(state.data(), slots.data(), slots.bytes());
  std::vector<SampleRow> samples(kSequences);
  for (size_t i = 0; i < samples.size(); ++i) samples[i].slot = static_cast<int32_t>(i);
  const Plan& plan = loaded.compiled.decode;
  std::vector<std::byte> first;
  int different = 0;
  for (int i = 0; i < count; ++i) {
    loaded.device->upload(slots.data(), state.data(), slots.bytes());
    loaded.steps->run(plan, batch.view(), samples).done->wait();
    const auto logits_now = copy_of(loaded, logits(plan, loaded.memory()), kSequences * plan.vocab * 4);
    if (i == 0) first = logits_now;
    different += logits_now != first ? 1 : 0;
  }
  fmt::print("{} replays, {} with other bits\n", count, different);
  return different == 0 ? 0 : 1;
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  try {
    if (argc != 3) return fmt::print(stderr, "gpu_replays MODEL COUNT\n"), 2;
    return moesaic::replay(argv[1], std::atoi(argv[2]));
  } catch (const moesaic::Error& error) {
    return fmt::print(stderr, "gpu_replays: {}\n", error.what()), 1;
  }
}
