// Nothing is allocated per step after warm-up: counted over all threads while steps run.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "cache/cache_pool.h"
#include "engine/sampler.h"
#include "runtime/loaded_model.h"
#include "support/checkpoint.h"

namespace {
std::atomic<int64_t> allocations{0};
}

void* operator new(size_t size) {
  ++allocations;
  if (void* data = std::malloc(size == 0 ? 1 : size)) return data;
  throw std::bad_alloc();
}
void operator delete(void* data) noexcept {
  std::free(data);
}
void operator delete(void* data, size_t) noexcept {
  std::free(data);
}

namespace moesaic {
namespace {

void expect_no_allocations(const std::string& model, Precision precision) {
  LoadOptions options;
  options.model = model;
  options.precision = precision;
  options.threads = 2;
  options.max_sequences = 4;
  options.prefill_tokens = 64;
  options.progress = false;
  LoadedModel loaded = load_model(options);
  CachePool pool(loaded.blocks, loaded.compiled.cache.block_stride, loaded.slots, loaded.compiled.cache.slot_stride);
  Batch batch(loaded.compiled.prefill.limits, loaded.compiled.decode.limits, loaded.max_blocks());
  SequenceCache cache;
  ASSERT_TRUE(pool.open(cache, 200));
  const SamplingParams sampling{.temperature = 0.8f, .top_p = 0.9f, .top_k = 40, .repetition_penalty = 1.1f, .seed = 1};
  SamplerState state(sampling, {}, loaded.model.vocab);
  std::vector<int32_t> tokens(50, 17);
  tokens.reserve(200);
  const auto step = [&](const Plan& plan, int64_t start) {
    batch.clear();
    batch.add({tokens.data() + start, tokens.size() - static_cast<size_t>(start)}, start, cache.blocks, cache.slot, 1);
    run(plan, loaded.compiled.cache, loaded.memory(), batch.view(), loaded.device->stream());
    auto* row = reinterpret_cast<float*>(logits(plan, loaded.memory()));
    const SampledToken token =
        sample({row, static_cast<size_t>(plan.vocab)}, sampling, state, static_cast<int64_t>(tokens.size()));
    state.append(token.id);
    tokens.push_back(token.id);
  };
  step(loaded.compiled.prefill, 0);
  step(loaded.compiled.decode, 50);  // warm-up
  const int64_t before = allocations;
  for (int i = 0; i < 40; ++i) step(loaded.compiled.decode, static_cast<int64_t>(tokens.size()) - 1);
  step(loaded.compiled.prefill, 40);  // a prefill step: recomputes the last tokens
  EXPECT_EQ(allocations - before, 0);
  int* volatile counted = new int;  // the count does count
  delete counted;
  EXPECT_EQ(allocations - before, 1);
}

TEST(Allocation, NonePerStep) {
  for (const std::string& model : {demo_model(), golden("deepseek_v4")})
    for (Precision precision : {Precision::fast, Precision::float32}) expect_no_allocations(model, precision);
}

}  // namespace
}  // namespace moesaic
