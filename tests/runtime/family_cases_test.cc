// FC-026 for every family: rows beyond a batch's own never reach the experts or another row.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "cache/cache_pool.h"
#include "engine/taps.h"
#include "support/golden_values.h"

namespace moesaic {
namespace {

constexpr int64_t kRows = 8, kUsed = 5;  // room in a step, and what the batch fills

struct StepResult {
  std::vector<float> logits;
  std::vector<int32_t> routed;  // rows that each dispatch or moe counted, summed over its experts
  int64_t top_k = 0;
};

void fill(Buffer& buffer, uint32_t pattern) {
  for (int64_t i = 0; i + 4 <= buffer.bytes(); i += 4) std::memcpy(buffer.data() + i, &pattern, 4);
}

// Five of eight rows: one sequence's tokens on the prefill plan, or a token of each of five on the decode plan. All
// memory that a step may read and has not written holds `pattern`.
StepResult run_poisoned(LoadedModel& loaded, bool decode, uint32_t pattern) {
  const Plan& plan = decode ? loaded.compiled.decode : loaded.compiled.prefill;
  fill(loaded.activations, pattern), fill(loaded.workspace, pattern), fill(loaded.cache_blocks, pattern),
      fill(loaded.cache_slots, pattern);
  CachePool pool(loaded.blocks, loaded.compiled.cache.block_stride, loaded.slots, loaded.compiled.cache.slot_stride);
  Batch batch(loaded.compiled.prefill.limits, loaded.compiled.decode.limits, loaded.max_blocks());
  const std::vector<int32_t> tokens = {5, 17, 90, 4, 33};
  std::vector<SequenceCache> caches(decode ? kUsed : 1);
  for (size_t i = 0; i < caches.size(); ++i) {
    EXPECT_TRUE(pool.open(caches[i], kUsed));
    const std::span<const int32_t> own = decode ? std::span(tokens).subspan(i, 1) : std::span(tokens);
    batch.add(own, 0, caches[i].blocks, caches[i].slot, std::ssize(own));
  }
  StepResult result;
  const auto count = [&](const Step& step, const Args& args) {
    if (step.desc.op != Op::dispatch) return;
    const int64_t experts = step.desc.attrs.integer(Attr::experts);
    result.top_k = step.desc.in(0).type.dim(1).factor;
    result.routed.push_back(args.output<int32_t>(1)[experts] - args.output<int32_t>(1)[0]);
  };
  const StepHook hook(count);
  run(plan, loaded.compiled.cache, loaded.memory(), batch.view(), loaded.device->stream(), &hook);
  const auto* rows = reinterpret_cast<const float*>(logits(plan, loaded.memory()));
  result.logits.assign(rows, rows + kUsed * plan.vocab);
  return result;
}

class FamilyCases : public testing::TestWithParam<const char*> {};

TEST_P(FamilyCases, FC026_RowsBeyondTheBatchReachNoExpert) {
  LoadOptions options;
  options.model = golden(GetParam());
  options.backend = Backend::cpu;
  options.precision = Precision::float32;
  options.progress = false;
  options.threads = 2;
  options.max_sequences = options.max_model_len = options.prefill_tokens = options.prefill_rows = kRows;
  LoadedModel loaded = load_model(options);
  for (bool decode : {false, true}) {
    const StepResult zeros = run_poisoned(loaded, decode, 0);
    ASSERT_FALSE(zeros.routed.empty());
    for (uint32_t pattern : {0xFFFFFFFFu, 0x7149F2CAu}) {  // NaN; 1e30
      const StepResult poisoned = run_poisoned(loaded, decode, pattern);
      EXPECT_EQ(poisoned.logits, zeros.logits) << (decode ? "decode" : "prefill");
      for (int32_t routed : poisoned.routed) EXPECT_EQ(routed, kUsed * poisoned.top_k);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyCases, testing::ValuesIn(kGoldenModels), golden_test_name);

}  // namespace
}  // namespace moesaic
