// The golden checkpoints of the families: every layer against Hugging Face's float32 values, and invariances of the
// runtime.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cache/cache_pool.h"
#include "engine/taps.h"
#include "support/golden_values.h"

namespace moesaic {
namespace {

using Ids = std::vector<std::vector<int32_t>>;

// Families with cases of no other kind here.
constexpr const char* kExactFamilies[] = {"qwen3_moe", "deepseek_v3", "deepseek_v3-fp8", "kimi_k3", "kimi_k3-grouped"};

LoadOptions options_for(const std::string& model, Backend backend, Precision precision, const Ids& ids) {
  LoadOptions options;
  options.model = golden(model);
  options.backend = backend;
  options.precision = precision;
  options.progress = false;
  options.threads = 2;
  return forward_limits(options, static_cast<int64_t>(ids.size()), static_cast<int64_t>(ids[0].size()));
}

struct GoldenCase {
  const char* model;
  Backend backend;
  Precision precision;
  double bound;
};

class Golden : public testing::TestWithParam<GoldenCase> {};

TEST_P(Golden, EveryLayerIsWithinItsBound) {
  const GoldenCase c = GetParam();
  const TensorMap reference = read_tensors(golden(c.model) + "/golden.safetensors");
  const Ids ids = golden_input_ids(reference);
  LoadedModel loaded = load_model(options_for(c.model, c.backend, c.precision, ids));
  const Forward forward_pass = forward(loaded, ids);
  size_t compared = 0;
  for (const auto& [name, tap] : forward_pass.named) {
    ASSERT_TRUE(reference.contains(name)) << name;
    const double difference = relative_l2(tap.values, to_doubles(reference.at(name)));
    EXPECT_LE(difference, c.bound) << name;
    ++compared;
  }
  const auto is_compared = [](const auto& item) { return item.first.starts_with("hidden.") || item.first == "logits"; };
  EXPECT_EQ(compared, static_cast<size_t>(std::count_if(reference.begin(), reference.end(), is_compared)));
}

INSTANTIATE_TEST_SUITE_P(GptOss, Golden,
                         testing::Values(GoldenCase{"gpt_oss-mxfp4", Backend::ref, Precision::float32, 1e-5},
                                         GoldenCase{"gpt_oss-bf16", Backend::ref, Precision::float32, 1e-5},
                                         GoldenCase{"gpt_oss-mxfp4", Backend::cpu, Precision::float32, 1e-5},
                                         GoldenCase{"gpt_oss-bf16", Backend::cpu, Precision::float32, 1e-5},
                                         GoldenCase{"gpt_oss-mxfp4", Backend::cpu, Precision::fast, 3e-2},
                                         GoldenCase{"gpt_oss-bf16", Backend::cpu, Precision::fast, 3e-2}));

INSTANTIATE_TEST_SUITE_P(Families, Golden, testing::ValuesIn([] {
                           std::vector<GoldenCase> cases;
                           for (const char* name : kExactFamilies)
                             for (Backend backend : {Backend::ref, Backend::cpu})
                               cases.push_back({name, backend, Precision::float32, 1e-5});
                           return cases;
                         }()));
INSTANTIATE_TEST_SUITE_P(KimiLinear, Golden,
                         testing::Values(GoldenCase{"kimi_linear", Backend::ref, Precision::float32, 1e-5},
                                         GoldenCase{"kimi_linear", Backend::cpu, Precision::float32, 1e-5},
                                         GoldenCase{"kimi_linear", Backend::cpu, Precision::fast, 1e-5}));

// Logits of every token of one sequence, cut into steps of the given lengths; the last step takes what is left. Steps
// of one token run on the decode plan where `decode` says so.
std::vector<float> logits_in_chunks(LoadedModel& loaded, const std::vector<int32_t>& tokens,
                                    const std::vector<int64_t>& chunks, bool decode) {
  CachePool pool(loaded.blocks, loaded.compiled.cache.block_stride, loaded.slots, loaded.compiled.cache.slot_stride);
  SequenceCache cache;
  const int64_t total = static_cast<int64_t>(tokens.size());
  EXPECT_TRUE(pool.open(cache, total));
  Batch batch(loaded.compiled.prefill.limits, loaded.compiled.decode.limits, loaded.max_blocks());
  std::vector<float> out;
  for (int64_t start = 0, i = 0; start < total; ++i) {
    const int64_t wish = i < static_cast<int64_t>(chunks.size()) ? chunks[static_cast<size_t>(i)] : total;
    const int64_t count = std::min(wish, total - start);
    const Plan& plan = decode && count == 1 ? loaded.compiled.decode : loaded.compiled.prefill;
    batch.clear();
    batch.add({tokens.data() + start, static_cast<size_t>(count)}, start, cache.blocks, cache.slot, count);
    run(plan, loaded.compiled.cache, loaded.memory(), batch.view(), loaded.device->stream());
    const float* rows = reinterpret_cast<const float*>(logits(plan, loaded.memory()));
    out.insert(out.end(), rows, rows + count * plan.vocab);
    start += count;
  }
  return out;
}

class Invariance : public testing::TestWithParam<std::tuple<const char*, Precision>> {
 protected:
  void SetUp() override {
    const auto [model, precision] = GetParam();
    ids_ = golden_input_ids(read_tensors(golden(model) + "/golden.safetensors"));
    loaded_ = load_model(options_for(model, Backend::cpu, precision, ids_));
  }
  Ids ids_;
  LoadedModel loaded_;
};

TEST_P(Invariance, ChunkedPrefillAndDecodeGiveTheSameBits) {
  const std::vector<float> whole = logits_in_chunks(loaded_, ids_[0], {}, false);
  for (int64_t cut = 1; cut < static_cast<int64_t>(ids_[0].size()); ++cut)  // at every boundary
    EXPECT_EQ(logits_in_chunks(loaded_, ids_[0], {cut}, false), whole) << cut;
  const std::vector<int64_t> ones(ids_[0].size(), 1), sevens(ids_[0].size(), 7);
  EXPECT_EQ(logits_in_chunks(loaded_, ids_[0], ones, false), whole) << "token by token on the prefill plan";
  EXPECT_EQ(logits_in_chunks(loaded_, ids_[0], ones, true), whole) << "token by token on the decode plan";
  EXPECT_EQ(logits_in_chunks(loaded_, ids_[0], sevens, false), whole);
}

TEST_P(Invariance, BatchOfSequencesEqualsEachAlone) {
  CachePool pool(loaded_.blocks, 1, loaded_.slots, 1);
  Batch batch(loaded_.compiled.prefill.limits, loaded_.compiled.decode.limits, loaded_.max_blocks());
  std::vector<SequenceCache> caches(2);
  const std::vector<int32_t> shorter(ids_[1].begin(), ids_[1].begin() + 23);
  ASSERT_TRUE(pool.open(caches[0], static_cast<int64_t>(ids_[0].size())) && pool.open(caches[1], 23));
  batch.add(ids_[0], 0, caches[0].blocks, caches[0].slot, static_cast<int64_t>(ids_[0].size()));
  batch.add(shorter, 0, caches[1].blocks, caches[1].slot, 23);
  const Plan& plan = loaded_.compiled.prefill;
  run(plan, loaded_.compiled.cache, loaded_.memory(), batch.view(), loaded_.device->stream());
  const float* rows = reinterpret_cast<const float*>(logits(plan, loaded_.memory()));
  const std::vector<float> together(rows, rows + batch.rows() * plan.vocab);
  std::vector<float> alone = logits_in_chunks(loaded_, ids_[0], {}, false);
  const std::vector<float> second = logits_in_chunks(loaded_, shorter, {}, false);
  alone.insert(alone.end(), second.begin(), second.end());
  EXPECT_EQ(together, alone);
}

// Logits of tokens [begin, end) of a sequence whose first `begin` are in the cache.
std::vector<float> feed(LoadedModel& loaded, const SequenceCache& cache, const std::vector<int32_t>& tokens,
                        int64_t begin, int64_t end) {
  const Plan& plan = loaded.compiled.prefill;
  Batch batch(plan.limits, loaded.compiled.decode.limits, loaded.max_blocks());
  batch.add({tokens.data() + begin, static_cast<size_t>(end - begin)}, begin, cache.blocks, cache.slot, end - begin);
  run(plan, loaded.compiled.cache, loaded.memory(), batch.view(), loaded.device->stream());
  const float* rows = reinterpret_cast<const float*>(logits(plan, loaded.memory()));
  return {rows, rows + (end - begin) * plan.vocab};
}

// Everything the cache holds of one sequence, blocks and state, becomes another's.
void copy_cache(LoadedModel& loaded, const SequenceCache& from, const SequenceCache& to) {
  const CacheMap& map = loaded.compiled.cache;
  for (size_t b = 0; b < from.blocks.size(); ++b)
    std::copy_n(loaded.cache_blocks.data() + from.blocks[b] * map.block_stride, map.block_stride,
                loaded.cache_blocks.data() + to.blocks[b] * map.block_stride);
  std::copy_n(loaded.cache_slots.data() + from.slot * map.slot_stride, map.slot_stride,
              loaded.cache_slots.data() + to.slot * map.slot_stride);
}

// The sequence goes on with other tokens after the copy, which must not reach the copy.
TEST_P(Invariance, FC039_CopiedCacheResumes) {
  const std::vector<int32_t>& tokens = ids_[0];
  const auto length = static_cast<int64_t>(tokens.size());
  const std::vector<float> whole = logits_in_chunks(loaded_, tokens, {}, false);
  CachePool pool(loaded_.blocks, 1, loaded_.slots, 1);
  SequenceCache first, second;
  ASSERT_TRUE(pool.open(first, length) && pool.open(second, length));
  for (int64_t cut : {int64_t{1}, int64_t{2}, int64_t{17}, std::min<int64_t>(length - 1, 64), length - 1}) {
    std::vector<float> got = feed(loaded_, first, tokens, 0, cut);
    copy_cache(loaded_, first, second);
    feed(loaded_, first, {tokens.rbegin(), tokens.rend()}, cut, length);
    const std::vector<float> rest = feed(loaded_, second, tokens, cut, length);
    got.insert(got.end(), rest.begin(), rest.end());
    EXPECT_EQ(got, whole) << cut;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Invariance,
                         testing::Combine(testing::ValuesIn(kExactFamilies), testing::Values(Precision::float32)));
// Their golden values need the reference's way with ties: dsa_golden_test.cc.
INSTANTIATE_TEST_SUITE_P(SparseAttention, Invariance,
                         testing::Combine(testing::Values("deepseek_v32", "glm_moe_dsa"),
                                          testing::Values(Precision::float32)));
INSTANTIATE_TEST_SUITE_P(KimiLinear, Invariance,
                         testing::Combine(testing::Values("kimi_linear"), testing::Values(Precision::float32)));
INSTANTIATE_TEST_SUITE_P(GptOss, Invariance,
                         testing::Combine(testing::Values("gpt_oss-mxfp4", "gpt_oss-bf16"),
                                          testing::Values(Precision::float32, Precision::fast)));

TEST(Passes, LeaveTheResultAlone) {
  const Ids ids = {golden_input_ids(read_tensors(golden("gpt_oss-mxfp4") + "/golden.safetensors"))[0]};
  LoadOptions options = options_for("gpt_oss-mxfp4", Backend::ref, Precision::float32, ids);
  LoadedModel all = load_model(options);
  const std::vector<double> want = forward(all, ids).named.back().second.values;
  const std::vector<std::set<std::string>> skips = {{"fuse_add_norm"},
                                                    {"fuse_expert_swiglu"},
                                                    {"fuse_add_norm", "fuse_expert_swiglu"},
                                                    {"expand_moe", "fuse_expert_swiglu", "fuse_add_norm"}};
  for (const auto& skip : skips) {
    options.skip_passes = skip;
    LoadedModel some = load_model(options);
    EXPECT_LE(relative_l2(forward(some, ids).named.back().second.values, want), 1e-13) << *skip.begin();
  }
}

}  // namespace
}  // namespace moesaic
