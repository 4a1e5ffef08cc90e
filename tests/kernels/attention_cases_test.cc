// What attention must do in particular: windows, chunks, sinks, batches, large caches.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention_steps.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu.h"

namespace moesaic {
namespace {

// Equal logits everywhere; the value of position p is p.
AttentionData positions_as_values(int64_t window, int64_t length) {
  Rng rng = fresh_rng();
  AttentionData data = random_attention(
      rng, {.heads = 1, .kv_heads = 1, .D = 16, .window = window, .cache = DType::f32, .sinks = false}, {length});
  AttentionData::Sequence& s = data.sequences[0];
  std::fill(s.q.begin(), s.q.end(), 0.0);
  for (size_t i = 0; i < s.v.size(); ++i) s.v[i] = static_cast<double>(i / 16);
  return data;
}

std::vector<std::vector<float>> outputs(const AttentionData& data, const std::vector<std::vector<Chunk>>& steps,
                                        int threads = 3) {
  const KernelRun run = run_kernel(cpu::kGqa, attention_case("", data, steps), 0xFF, threads);
  EXPECT_EQ(run.violation, "");
  return attention_outputs(run, data, steps);
}

TEST(AttentionCases, FC031_WindowCountsTheCurrentKey) {
  for (int64_t chunk : {1, 7, 200}) {
    const AttentionData small = positions_as_values(3, 6), large = positions_as_values(128, 129);
    EXPECT_EQ(outputs(small, in_chunks(small, chunk))[0][5 * 16], 4.0f);
    const std::vector<float> got = outputs(large, in_chunks(large, chunk))[0];
    EXPECT_EQ(got[127 * 16], 63.5f);
    EXPECT_EQ(got[128 * 16 + 15], 64.5f);
  }
}

TEST(AttentionCases, FC032_PromptLongerThanTheWindow) {
  constexpr float kWant[] = {0, 0.5, 1, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5};
  const AttentionData data = positions_as_values(4, 10);
  for (int64_t chunk : {1, 3, 4, 7, 10}) {
    const std::vector<float> got = outputs(data, in_chunks(data, chunk))[0];
    for (size_t p = 0; p < 10; ++p) EXPECT_EQ(got[p * 16 + 3], kWant[p]) << "chunk " << chunk << " position " << p;
  }
}

// Scaled logits [0, ln 2] and values [1, 4] at the second token.
AttentionData two_keys(bool sinks, double sink) {
  Rng rng = fresh_rng();
  AttentionData data = random_attention(
      rng, {.heads = 1, .kv_heads = 1, .D = 16, .window = 0, .cache = DType::f32, .sinks = sinks, .scale = 1}, {2});
  AttentionData::Sequence& s = data.sequences[0];
  for (auto* values : {&s.q, &s.k, &s.v}) std::fill(values->begin(), values->end(), 0.0);
  s.k[16] = 1, s.q[16] = static_cast<double>(std::log(2.0f));
  std::fill_n(s.v.begin(), 16, 1.0), std::fill_n(s.v.begin() + 16, 16, 4.0);
  if (sinks) data.sinks.values = {static_cast<double>(static_cast<float>(sink))};
  return data;
}

float second_token(const AttentionData& data) {
  return outputs(data, in_chunks(data, 2))[0][16];
}

TEST(AttentionCases, FC033_SinkEntersTheDenominatorOnly) {
  EXPECT_NEAR(second_token(two_keys(true, 0)), 2.25, 1e-6);
  EXPECT_NEAR(second_token(two_keys(false, 0)), 3.0, 1e-6);
}

TEST(AttentionCases, FC034_ExtremeSinks) {
  EXPECT_NEAR(second_token(two_keys(true, 100)), 0, 1e-37);
  EXPECT_NEAR(second_token(two_keys(true, -1e30)), 3.0, 1e-6);
}

// The states of a head with the keys [begin, end) of two_keys().
void two_key_state(Isa isa, int64_t begin, int64_t end, float* state) {
  float q[16] = {std::log(2.0f)}, scratch[cpu::attention_scratch_floats(1, 16)];
  alignas(64) std::byte keys[64 * 16 * 4] = {}, values[64 * 16 * 4] = {};
  const cpu::KvLayout layout{1, 16, 64, DType::f32};
  for (int64_t p = begin; p < end; ++p) {
    float k[16] = {static_cast<float>(p)}, v[16];
    std::fill_n(v, 16, p == 0 ? 1.0f : 4.0f);
    append_row(layout, keys, values, p - begin, k, v);
  }
  cpu::clear(cpu::SoftmaxState::at(state, 1), 1, 16);
  if (begin == end) return;
  attend_block(isa, {q, 1, 16, 1.0f, keys, values, 64, end - begin, DType::f32}, cpu::SoftmaxState::at(state, 1),
               scratch);
}

TEST(AttentionCases, FC034_SinkCountsOnceInAnySplit) {
  constexpr int64_t kState = cpu::SoftmaxState::floats(1, 16);
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (isa > cpu_isa()) continue;
    const auto merged = [&](std::vector<std::pair<int64_t, int64_t>> splits, float sink) {
      std::vector<float> states(splits.size() * kState), out(16);
      for (size_t s = 0; s < splits.size(); ++s)
        two_key_state(isa, splits[s].first, splits[s].second, states.data() + s * kState);
      cpu::merge_splits(isa, states.data(), std::ssize(splits), &sink, 1, 16, out.data());
      return out[7];
    };
    EXPECT_NEAR(merged({{0, 2}}, 0), 2.25, 1e-6);
    EXPECT_NEAR(merged({{0, 1}, {1, 2}}, 0), 2.25, 1e-6);
    EXPECT_NEAR(merged({{0, 1}, {1, 2}, {2, 2}}, 0), 2.25, 1e-6);
    EXPECT_NEAR(merged({{0, 1}, {1, 2}}, 100), 0, 1e-37);
    EXPECT_NEAR(merged({{0, 1}, {1, 2}}, -1e30f), 3.0, 1e-6);
    EXPECT_EQ(merged({{2, 2}}, 0.5f), 0.0f);
  }
}

std::vector<AttentionShape> all_shapes() {
  std::vector<AttentionShape> shapes;
  for (int64_t window : {0, 4, 16, 72, 128})
    for (DType cache : {DType::f32, DType::bf16})
      for (int64_t kv_heads : {1, 4})
        shapes.push_back({.heads = 12, .kv_heads = kv_heads, .D = 32, .window = window, .cache = cache});
  return shapes;
}

std::string describe(const AttentionShape& shape) {
  return fmt::format("window {} cache {} kv_heads {}", shape.window, dtype_name(shape.cache), shape.kv_heads);
}

TEST(AttentionCases, BatchGivesEachSequenceItsOwnBits) {
  Rng rng = fresh_rng();
  for (const AttentionShape& shape : all_shapes()) {
    const AttentionData data = random_attention(rng, shape, {5, 200, 1, 64, 131, 17});
    const auto alone = outputs(data, in_chunks(data, 1000));
    EXPECT_EQ(outputs(data, together(data, 1000)), alone) << describe(shape);
    EXPECT_EQ(outputs(data, together(data, 13)), alone) << describe(shape);
    EXPECT_EQ(outputs(data, together(data, 1), 1), alone) << describe(shape);
  }
}

TEST(AttentionCases, ChunksDoNotMatter) {
  Rng rng = fresh_rng();
  for (const AttentionShape& shape : all_shapes()) {
    const AttentionData data = random_attention(rng, shape, {300});
    const auto whole = outputs(data, in_chunks(data, 300));
    for (int64_t chunk : {1, 3, 4, 7, 10, 64, 129, 299})
      EXPECT_EQ(outputs(data, in_chunks(data, chunk), static_cast<int>(chunk % 4) + 1), whole)
          << describe(shape) << " chunk " << chunk;
  }
}

// Several splits, decoded alone (each split a task) and in a long chunk (all splits in one task).
TEST(AttentionCases, SplitsDoNotMatter) {
  Rng rng = fresh_rng();
  for (int64_t window : {0, 1024}) {
    const AttentionData data = random_attention(rng, {.heads = 4, .kv_heads = 1, .D = 16, .window = window}, {2100});
    const auto whole = outputs(data, in_chunks(data, 2100));
    EXPECT_EQ(outputs(data, {{{0, 0, 2000}}, {{0, 2000, 2032}}, {{0, 2032, 2033}}, {{0, 2033, 2100}}}), whole);
    EXPECT_EQ(outputs(data, {{{0, 0, 2050}}, {{0, 2050, 2099}}, {{0, 2099, 2100}}}, 1), whole);
  }
}

TEST(AttentionCases, FC030_CacheOffsetsAre64Bit) {
  const CacheView view{nullptr, 1002240, nullptr, 1002240};
  for (auto of : {&CacheView::block, &CacheView::slot}) {
    EXPECT_EQ((view.*of)(2142) - (view.*of)(0), 2146798080);
    EXPECT_EQ((view.*of)(2143) - (view.*of)(0), 2147800320);
  }
}

// A reserved range of 6 GB, of which only the blocks in use are ever touched.
struct LargePool {
  static constexpr int64_t kBytes = int64_t{6} << 30;
  std::byte* data = static_cast<std::byte*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ~LargePool() { munmap(data, kBytes); }
};

std::vector<float> attend_at(const AttentionData& data, const LargePool& pool) {
  KernelCase test = attention_case("", data, in_chunks(data, 1000));
  KernelStep& step = test.steps[0];
  std::vector<std::vector<float>> inputs;
  for (const TestOperand& input : step.inputs) inputs.emplace_back(input.values.begin(), input.values.end());
  std::vector<float> out(step.inputs[0].values.size());
  std::vector<std::byte*> in, outs{reinterpret_cast<std::byte*>(out.data())};
  for (std::vector<float>& input : inputs) in.push_back(reinterpret_cast<std::byte*>(input.data()));
  ThreadPool threads(2);
  Stream stream{&threads};
  DeviceInfo device;
  device.threads = 2;
  std::vector<std::byte> workspace(static_cast<size_t>(cpu::kGqa.workspace_bytes(test.desc, device)));
  const BatchView batch = step.batch.view();
  const Args args{in, outs, step.now, &batch, {pool.data, 1002240, pool.data, 1002240}};
  cpu::kGqa.launch(test.desc, args, workspace.data(), stream);
  return out;
}

TEST(AttentionCases, FC030_SequenceBeyondTwoGigabytes) {
  Rng rng = fresh_rng();
  for (int64_t window : {0, 100}) {
    AttentionData data = random_attention(rng, {.window = window}, {150});
    const LargePool pool;
    ASSERT_NE(pool.data, MAP_FAILED);
    data.sequences[0].blocks = {0, 1, 2}, data.sequences[0].slot = 3;
    const std::vector<float> low = attend_at(data, pool);
    data.sequences[0].blocks = {2143, 2142, 6300}, data.sequences[0].slot = 5000;
    EXPECT_EQ(attend_at(data, pool), low);
    EXPECT_TRUE(std::all_of(low.begin(), low.end(), [](float x) { return std::isfinite(x); }));
  }
}

TEST(AttentionCases, NanInOneSequenceStaysThere) {
  Rng rng = fresh_rng();
  for (int64_t window : {0, 16}) {
    AttentionData data = random_attention(rng, {.window = window}, {40, 40});
    const auto clean = outputs(data, together(data, 40));
    data.sequences[0].k[3] = NAN;
    const auto got = outputs(data, together(data, 40));
    EXPECT_TRUE(std::isnan(got[0][0]));
    EXPECT_EQ(got[1], clean[1]);
  }
}

}  // namespace
}  // namespace moesaic
