// What attention on latents must do in particular: folding, choices, chunks, batches, large caches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu.h"
#include "kernels/large_pool.h"
#include "kernels/paged_steps.h"

namespace moesaic {
namespace {

using Steps = std::vector<std::vector<Chunk>>;
constexpr LatentSize kLatents{20, 48, 16};

std::vector<std::vector<float>> attend(const PagedData& data, const Steps& steps, DType cache = DType::f32,
                                       int threads = 3) {
  const KernelCase test = paged_case("", Op::mla_attend, latent_attrs(kLatents, 0.1), data, steps, cache, {1, 2});
  const KernelRun run = run_kernel(cpu::kMlaAttend, test, 0xFF, threads);
  EXPECT_EQ(run.violation, "");
  return paged_outputs<float>(run, data, steps);
}

// ---- folding: keys and values of every head, or queries on latents

class Folding : public testing::TestWithParam<int64_t> {  // positions chosen per token; 0: all
 protected:
  static constexpr int64_t kHeads = 3, kNope = 16, kRope = 8, kV = 24, kL = 32;
  using Evaluate = TestOperand (*)(const KernelCase&);

  void SetUp() override {
    Rng rng = fresh_rng();
    data_ = random_paged(rng, {kHeads * (kNope + kRope), kL, kRope}, {70, 3});
    if (GetParam() > 0) choose_positions(rng, data_, GetParam());
    kv_b_ = weight_operand(rng, WeightKind::matrix, {kHeads * (kNope + kV), kL}, DType::bf16, 0.3);
    step_ = paged_steps(data_, together(data_, 100))[0];
  }
  KernelCase whole(Op op, std::vector<TestOperand> inputs) const {
    KernelCase test = make_case("", op, attrs_, std::move(inputs), step_.now, step_.batch);
    test.cache_blocks = data_.places.cache_blocks;
    return test;
  }
  std::vector<double> expanded() const {
    std::vector<TestOperand> inputs = step_.inputs;
    inputs.insert(inputs.begin() + 3, kv_b_);
    return reference(whole(Op::mla, inputs))[0][0];
  }
  std::vector<double> folded(Evaluate evaluate) const {
    std::vector<TestOperand> inputs = step_.inputs;
    inputs[0] = evaluate(whole(Op::mla_absorb, {inputs[0], kv_b_}));
    return evaluate(whole(Op::mla_up, {evaluate(whole(Op::mla_attend, inputs)), kv_b_})).values;
  }

  PagedData data_;
  TestOperand kv_b_;
  KernelStep step_;
  const Attrs attrs_{{Attr::heads, kHeads}, {Attr::nope_dim, kNope}, {Attr::rope_dim, kRope},
                     {Attr::v_dim, kV},     {Attr::scale, 0.2},      {Attr::cache, 0}};
};

TestOperand on_ref(const KernelCase& test) {
  return value_operand(test.desc.out(0).type.dims, reference(test)[0][0]);
}

TestOperand on_cpu(const KernelCase& test) {
  const Op op = test.desc.op;
  const KernelRun run = run_kernel(op == Op::mla_absorb   ? cpu::kMlaAbsorb
                                   : op == Op::mla_attend ? cpu::kMlaAttend
                                                          : cpu::kMlaUp,
                                   test);
  EXPECT_EQ(run.violation, "");
  const std::span<const float> rows = run.floats(0);
  return value_operand(test.desc.out(0).type.dims, {rows.begin(), rows.end()});
}

double relative_l2(const std::vector<double>& got, const std::vector<double>& want) {
  double difference = 0, square = 0;
  for (size_t i = 0; i < want.size(); ++i)
    difference += (got[i] - want[i]) * (got[i] - want[i]), square += want[i] * want[i];
  return std::sqrt(difference / square);
}

TEST_P(Folding, GivesWhatTheDefinitionGives) {
  const std::vector<double> want = expanded();
  EXPECT_LE(relative_l2(folded(on_ref), want), 1e-13);
  EXPECT_LE(relative_l2(folded(on_cpu), want), 2e-6);
}

INSTANTIATE_TEST_SUITE_P(Mla, Folding, testing::Values(0, 9));

// ---- bits

PagedData random_latents(Rng& rng, const std::vector<int64_t>& lengths, int64_t chosen = 0) {
  PagedData data = random_paged(rng, latent_widths(kLatents), lengths);
  if (chosen > 0) choose_positions(rng, data, chosen);
  return data;
}

TEST(Mla, ChoosingEveryPositionGivesTheBitsOfNoChoice) {
  Rng rng = fresh_rng();
  for (DType cache : {DType::f32, DType::bf16}) {
    PagedData data = random_latents(rng, {200, 7});
    const auto dense = attend(data, together(data, 64), cache);
    choose_all(data);
    EXPECT_EQ(attend(data, together(data, 64), cache), dense);
  }
}

TEST(Mla, BatchesAndChunksDoNotMatter) {
  Rng rng = fresh_rng();
  for (DType cache : {DType::f32, DType::bf16}) {
    for (int64_t chosen : {0, 70}) {
      const PagedData data = random_latents(rng, {5, 200, 1, 64, 131}, chosen);
      const auto alone = attend(data, in_chunks(data, 1000), cache);
      for (int64_t chunk : {1, 13, 64, 1000})
        EXPECT_EQ(attend(data, together(data, chunk), cache, static_cast<int>(chunk % 4) + 1), alone) << chunk;
      for (int64_t chunk : {1, 3, 65, 199}) EXPECT_EQ(attend(data, in_chunks(data, chunk), cache), alone) << chunk;
    }
  }
}

// Several splits, alone (each a task) and in a long chunk (all in one task).
TEST(Mla, SplitsDoNotMatter) {
  Rng rng = fresh_rng();
  const PagedData data = random_latents(rng, {1100});
  const auto whole = attend(data, in_chunks(data, 1100));
  EXPECT_EQ(attend(data, {{{0, 0, 1090}}, {{0, 1090, 1091}}, {{0, 1091, 1100}}}), whole);
  EXPECT_EQ(attend(data, {{{0, 0, 1099}}, {{0, 1099, 1100}}}, DType::f32, 1), whole);
}

TEST(Mla, AnEmptyChoiceGivesZeros) {
  Rng rng = fresh_rng();
  PagedData data = random_latents(rng, {6});
  data.chosen = 3;
  data.positions = {{0, -1, -1, -1, -1, -1, 2, -1, 5, 9, -1, -1, 4, 2, -1, 1000000, -5, 5}};
  const auto got = attend(data, in_chunks(data, 6))[0];
  const auto row = [&](int64_t t) {
    const auto width = kLatents.heads * kLatents.L;
    return std::vector<float>(got.begin() + t * width, got.begin() + (t + 1) * width);
  };
  const std::vector<float> zeros(static_cast<size_t>(kLatents.heads * kLatents.L), 0.0f);
  EXPECT_EQ(row(1), zeros);
  EXPECT_EQ(row(3), zeros) << "position 9 lies after token 3";
  EXPECT_NE(row(5), zeros) << "its own position";
  for (int64_t l = 0; l < kLatents.L; ++l)  // one key: its latent, whatever the scores
    EXPECT_EQ(row(0)[static_cast<size_t>(l)], static_cast<float>(data.inputs[0][1][static_cast<size_t>(l)]));
}

TEST(Mla, FC030_SequenceBeyondTwoGigabytes) {
  Rng rng = fresh_rng();
  PagedData data = random_latents(rng, {150});
  const LargePool pool;
  ASSERT_TRUE(pool.mapped());
  const auto run_at = [&](std::vector<int32_t> blocks) {
    data.places.sequences[0].blocks = std::move(blocks);
    const KernelCase test = paged_case("", Op::mla_attend, latent_attrs(kLatents, 0.1), data, in_chunks(data, 150));
    return run_in_pool(cpu::kMlaAttend, test, pool);
  };
  const std::vector<std::byte> low = run_at({0, 1, 2});
  EXPECT_EQ(run_at({2143, 2142, 6300}), low);
}

TEST(Mla, NanInOneSequenceStaysThere) {
  Rng rng = fresh_rng();
  PagedData data = random_latents(rng, {40, 40});
  const auto clean = attend(data, together(data, 40));
  data.inputs[0][1][3] = NAN;
  const auto got = attend(data, together(data, 40));
  EXPECT_TRUE(std::isnan(got[0][0]));
  EXPECT_EQ(got[1], clean[1]);
}

}  // namespace
}  // namespace moesaic
