// SpeedMeter's counts of work against counts made from the weights and positions alone.
#include "engine/speed.h"

#include <gtest/gtest.h>

#include "base/fresh_rng.h"
#include "engine/machine_limits.h"

namespace moesaic {
namespace {

// tests/golden/gpt_oss-mxfp4: its config.json.
constexpr int64_t kExperts = 8, kTopK = 3, kHeads = 8, kHeadDim = 16, kKvHeads = 2, kWindow = 8, kLayers = 4;

LoadedModel load(Precision precision, int64_t sequences, int64_t length, int64_t prefill_tokens = 16,
                 DType cache = DType::f32) {
  LoadOptions options;
  options.model = MOESAIC_SOURCE_DIR "/tests/golden/gpt_oss-mxfp4";
  options.precision = precision;
  options.dummy_weights = true;
  options.threads = 2;
  options.cache_dtype = cache;
  options.max_sequences = sequences;
  options.max_model_len = length;
  options.prefill_tokens = prefill_tokens;
  options.progress = false;
  return load_model(options);
}

bool of_experts(const WeightSlot& slot) {
  return slot.spec.name.find("experts") != std::string::npos;
}

// Bytes that one token reads: one row of the embedding, top_k of the experts, everything else.
double decode_weight_bytes(const LoadedModel& loaded) {
  double bytes = 0;
  for (const WeightSlot& slot : loaded.compiled.weights.slots) {
    const double share = slot.spec.kind == WeightKind::embedding ? 1.0 / static_cast<double>(loaded.model.vocab)
                         : of_experts(slot)                      ? static_cast<double>(kTopK) / kExperts
                                                                 : 1;
    bytes += static_cast<double>(slot.bytes) * share;
  }
  return bytes;
}

// Positions that the tokens begin .. end - 1 see in all layers: even layers slide.
int64_t visible(int64_t begin, int64_t end) {
  int64_t pairs = 0;
  for (int64_t p = begin; p < end; ++p)
    for (int64_t layer = 0; layer < kLayers; ++layer) pairs += layer % 2 == 0 ? std::min(p + 1, kWindow) : p + 1;
  return pairs;
}

TEST(SpeedMeter, CountsWhatOneTokenReads) {
  Rng rng = fresh_rng();
  for (Precision precision : {Precision::float32, Precision::fast}) {
    const int64_t depth = rng.below(40), count = 1 + rng.below(9);
    const DType cache = precision == Precision::fast ? DType::bf16 : DType::f32;
    LoadedModel loaded = load(precision, 1, depth + count, 16, cache);
    Progress none("", 1, ProgressUnit::items, false);
    const SpeedResult result = SpeedMeter(loaded, none).generate(1, depth, count, 2, false);
    EXPECT_EQ(result.tokens, count);
    EXPECT_EQ(result.steps, count);
    EXPECT_EQ(result.seconds.size(), 2u);
    EXPECT_TRUE(result.profile.empty());
    EXPECT_NEAR(result.work.weight_bytes / static_cast<double>(count) / decode_weight_bytes(loaded), 1, 1e-9);
    const int64_t entry_bytes = 2 * kKvHeads * kHeadDim * dtype_bytes(cache);
    EXPECT_EQ(result.work.cache_bytes, static_cast<double>(visible(depth, depth + count) * entry_bytes));
    EXPECT_EQ(result.work.experts_reached, kTopK * kLayers * count);
    EXPECT_EQ(result.work.routings, kLayers * count);
  }
}

TEST(SpeedMeter, BatchReachesMoreExpertsButNotAllTwice) {
  LoadedModel loaded = load(Precision::float32, 6, 20);
  Progress none("", 1, ProgressUnit::items, false);
  SpeedMeter meter(loaded, none);
  const SpeedResult one = meter.generate(1, 4, 8, 1, false), six = meter.generate(6, 4, 8, 1, false);
  EXPECT_EQ(six.tokens, 48);
  EXPECT_EQ(six.steps, 8);
  EXPECT_EQ(six.work.cache_bytes, 6 * one.work.cache_bytes);
  EXPECT_GT(six.work.experts_reached, one.work.experts_reached);
  EXPECT_LE(six.work.experts_reached, kExperts * six.work.routings);
  EXPECT_GT(six.work.weight_bytes, one.work.weight_bytes);
  double all = 0;
  for (const WeightSlot& slot : loaded.compiled.weights.slots) all += static_cast<double>(slot.bytes);
  EXPECT_LE(six.work.weight_bytes, 8 * all);
}

TEST(SpeedMeter, CountsThePromptsOperations) {
  Rng rng = fresh_rng();
  const int64_t T = 20 + rng.below(60);
  LoadedModel loaded = load(Precision::float32, 1, T);
  Progress none("", 1, ProgressUnit::items, false);
  const SpeedResult result = SpeedMeter(loaded, none).prompt(T, 1, true);
  double want = 4.0 * static_cast<double>(kHeads * kHeadDim * visible(0, T));
  for (const WeightSlot& slot : loaded.compiled.weights.slots) {
    if (slot.spec.kind != WeightKind::matrix && slot.spec.kind != WeightKind::experts) continue;
    const int64_t rows = slot.spec.name == "lm_head.weight" ? 1 : T;
    const double elements = static_cast<double>(slot.spec.shape.elements());
    want += 2 * static_cast<double>(rows) * elements *
            (slot.spec.kind == WeightKind::experts ? static_cast<double>(kTopK) / kExperts : 1);
  }
  EXPECT_GE(result.work.flops, want);
  EXPECT_LE(result.work.flops, want * 1.05);  // norms, sums and rotations are counted too
  EXPECT_EQ(result.steps, (T + 15) / 16);
  int64_t attention = 0;
  for (const StepTimer::Row& row : result.profile) attention += row.op == Op::gqa ? row.calls : 0;
  EXPECT_EQ(attention, kLayers * result.steps);
}

TEST(SpeedMeter, ProgressAddsUp) {
  EXPECT_EQ(SpeedMeter::prompt_progress(100, 3, false), 400);
  EXPECT_EQ(SpeedMeter::prompt_progress(100, 3, true), 500);
  EXPECT_EQ(SpeedMeter::generate_progress(2, 10, 5, 3, false), 2 * (10 + 20));
}

TEST(MachineLimits, LargestProduct) {
  const LoadedModel loaded = load(Precision::float32, 1, 64, 64);
  const ProductShape shape = largest_product(loaded.compiled.prefill, 64);
  EXPECT_EQ(shape.M, 64);
  EXPECT_EQ(shape.N, 128);  // gate and up of three experts: 64 * 3 rows, more than any other product
  EXPECT_EQ(shape.K, 96);
  ThreadPool pool(1);
  EXPECT_GT(measure_product(pool, {5, 100, 33}), 0);
}

}  // namespace
}  // namespace moesaic
