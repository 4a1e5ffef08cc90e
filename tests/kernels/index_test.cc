// The indexer's choice: order, ties, short contexts, near-ties, NaN, hashing; and which pairs it rotates.
#include "kernels/cpu/index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "ir/rope.h"
#include "kernels/cpu/cpu.h"
#include "kernels/large_pool.h"
#include "kernels/paged_steps.h"
#include "kernels/ref/ref.h"

namespace moesaic {
namespace {

using Steps = std::vector<std::vector<Chunk>>;
using Choices = std::vector<std::vector<int32_t>>;
constexpr double kScale = 0.125;

KernelRun run_index(const Kernel& kernel, const IndexSize& size, const PagedData& data, const Steps& steps,
                    int threads = 3, uint8_t fill = 0xFF) {
  const KernelCase test = paged_case("", Op::index_topk, index_attrs(size, kScale), data, steps);
  EXPECT_EQ(refusal(kernel, test), nullptr);
  KernelRun run = run_kernel(kernel, test, fill, threads);
  EXPECT_EQ(run.violation, "");
  return run;
}

Choices choose(const IndexSize& size, const PagedData& data, const Steps& steps, int threads = 3, uint8_t fill = 0xFF) {
  const Kernel& kernel = size.hash_bits > 0 ? cpu::kIndexHash : cpu::kIndexTopk;
  return paged_outputs<int32_t>(run_index(kernel, size, data, steps, threads, fill), data, steps);
}

std::vector<int32_t> row_of(const std::vector<int32_t>& rows, int64_t t, int64_t top_k) {
  return {rows.begin() + t * top_k, rows.begin() + (t + 1) * top_k};
}

// Score of one visible position in float64.
double score(const IndexSize& size, const std::vector<std::vector<double>>& inputs, int64_t t, int64_t position) {
  double total = 0;
  for (int64_t h = 0; h < size.heads; ++h) {
    double dot = 0;
    for (int64_t d = 0; d < size.D; ++d)
      dot += inputs[0][static_cast<size_t>((t * size.heads + h) * size.D + d)] *
             inputs[1][static_cast<size_t>(position * size.D + d)];
    total += inputs[2][static_cast<size_t>(t * size.heads + h)] * std::max(0.0, dot * kScale);
  }
  return total;
}

TEST(Index, TopCandidatesKeepsExactlyTheBest) {
  Rng rng = fresh_rng();
  for (int round = 0; round < 200; ++round) {
    const int64_t top_k = 1 + rng.below(40), n = rng.below(700);
    std::vector<uint64_t> memory(static_cast<size_t>(cpu::TopCandidates::capacity(top_k))), all;
    cpu::TopCandidates top(memory.data(), top_k);
    for (int64_t p = 0; p < n; ++p) {
      const double kind = rng.uniform();
      const float value = kind < 0.1   ? NAN
                          : kind < 0.2 ? -INFINITY
                          : kind < 0.3 ? (p % 2 == 0 ? 0.0f : -0.0f)
                                       : static_cast<float>(rng.below(9) - 4);
      all.push_back(cpu::candidate(value, p));
      top.add(all.back());
    }
    std::sort(all.begin(), all.end(), std::greater<>());
    all.resize(std::min(all.size(), static_cast<size_t>(top_k)));
    std::vector<uint64_t> best(top.best().begin(), top.best().end());
    std::sort(best.begin(), best.end(), std::greater<>());
    EXPECT_EQ(best, all);
  }
  EXPECT_GT(cpu::candidate(-INFINITY, 9), cpu::candidate(NAN, 0));
  EXPECT_GT(cpu::candidate(-0.0f, 3), cpu::candidate(0.0f, 4));
  EXPECT_EQ(cpu::candidate_position(cpu::candidate(-2.5f, 123456789)), 123456789);
}

TEST(Index, BatchesAndChunksDoNotMatter) {
  Rng rng = fresh_rng();
  for (const IndexSize& size : {IndexSize{20, 32, 24}, {4, 32, 24, 128}}) {
    const PagedData data = random_paged(rng, index_widths(size), {5, 200, 1, 64, 131});
    const Choices alone = choose(size, data, in_chunks(data, 1000));
    for (int64_t chunk : {1, 13, 64, 1000})
      EXPECT_EQ(choose(size, data, together(data, chunk), static_cast<int>(chunk % 4) + 1), alone) << chunk;
    for (int64_t chunk : {1, 3, 65, 199}) EXPECT_EQ(choose(size, data, in_chunks(data, chunk)), alone) << chunk;
  }
}

TEST(Index, SplitsDoNotMatter) {
  Rng rng = fresh_rng();
  const IndexSize size{4, 16, 50};
  const PagedData data = integer_paged(rng, index_widths(size), {1500});
  const Choices whole = choose(size, data, in_chunks(data, 1500));
  EXPECT_EQ(choose(size, data, {{{0, 0, 1499}}, {{0, 1499, 1500}}}), whole);
  EXPECT_EQ(choose(size, data, {{{0, 0, 1490}}, {{0, 1490, 1500}}}, 1), whole);
}

// Random reals: the float32 kernel may break a near-tie of the float64 scores the other way. So its choice is compared
// by score: whatever it takes instead is within the error of a score of what it leaves.
TEST(Index, NearTiesAreJudgedByScore) {
  Rng rng = fresh_rng();
  const IndexSize size{8, 64, 32};
  const PagedData data = random_paged(rng, index_widths(size), {400});
  const Choices got = choose(size, data, in_chunks(data, 400));
  for (int64_t t = 0; t < 400; ++t) {
    const std::vector<int32_t> row = row_of(got[0], t, size.top_k);
    const std::set<int32_t> chosen(row.begin(), std::find(row.begin(), row.end(), -1));
    ASSERT_EQ(std::ssize(chosen), std::min<int64_t>(size.top_k, t + 1));
    double worst_in = INFINITY, best_out = -INFINITY, magnitude = 0;
    for (int64_t p = 0; p <= t; ++p) {
      const double s = score(size, data.inputs[0], t, p);
      magnitude = std::max(magnitude, std::abs(s));
      (chosen.contains(static_cast<int32_t>(p)) ? worst_in = std::min(worst_in, s) : best_out = std::max(best_out, s));
    }
    // 64 + 8 roundings of terms that are a few times the largest score.
    EXPECT_GE(worst_in, best_out - 400 * kUnit * magnitude) << "token " << t;
  }
}

TEST(Index, FC029_ContextShorterThanTopK) {
  Rng rng = fresh_rng();
  const IndexSize size{4, 32, 8};
  const PagedData data = random_paged(rng, index_widths(size), {12});
  Steps steps{{{0, 0, 3}}};
  for (int64_t t = 3; t < 12; ++t) steps.push_back({{0, t, t + 1}});
  for (int threads : {1, 3}) {
    const std::vector<int32_t> rows = choose(size, data, steps, threads, 0x7F)[0];
    for (int64_t t = 0; t < 8; ++t) {
      std::vector<int32_t> want(8, -1);
      for (int64_t p = 0; p <= t; ++p) want[static_cast<size_t>(p)] = static_cast<int32_t>(p);
      EXPECT_EQ(row_of(rows, t, 8), want) << "query " << t;
    }
    std::vector<double> scores;
    for (int64_t p = 0; p < 9; ++p) scores.push_back(score(size, data.inputs[0], 8, p));
    const auto dropped = static_cast<int32_t>(std::min_element(scores.begin(), scores.end()) - scores.begin());
    std::vector<int32_t> want;
    for (int32_t p = 0; p < 9; ++p)
      if (p != dropped) want.push_back(p);
    EXPECT_EQ(row_of(rows, 8, 8), want) << "the ninth key is the first time one is dropped";
  }
}

TEST(Index, FC029_ShortContextsEqualDenseAttention) {
  Rng rng = fresh_rng();
  const IndexSize size{4, 32, 64};
  const LatentSize latents{4, 32, 16};
  const PagedData keys = random_paged(rng, index_widths(size), {64});
  PagedData rows = random_paged(rng, latent_widths(latents), {64});
  rows.places = keys.places;
  const auto attend = [&] {
    const KernelCase test = paged_case("", Op::mla_attend, latent_attrs(latents, 0.2), rows, in_chunks(rows, 10));
    return paged_outputs<float>(run_kernel(cpu::kMlaAttend, test), rows, in_chunks(rows, 10));
  };
  const auto dense = attend();
  rows.positions = choose(size, keys, in_chunks(keys, 10));
  rows.chosen = size.top_k;
  EXPECT_EQ(attend(), dense);
}

TEST(Index, NanSortsLastAndGivesNoInvalidIndex) {
  Rng rng = fresh_rng();
  for (const IndexSize& size : {IndexSize{4, 32, 8}, {4, 32, 8, 64}}) {
    PagedData data = random_paged(rng, index_widths(size), {100});
    for (size_t bad : {0u, 7u, 40u}) data.inputs[0][1][bad * 32 + 5] = NAN;
    const std::vector<int32_t> rows = choose(size, data, in_chunks(data, 100))[0];
    for (int64_t t = 0; t < 100; ++t) {
      const std::vector<int32_t> row = row_of(rows, t, 8);
      const auto end = std::find(row.begin(), row.end(), -1);
      EXPECT_EQ(end - row.begin(), std::min<int64_t>(8, t + 1));
      EXPECT_TRUE(std::is_sorted(row.begin(), end) && std::adjacent_find(row.begin(), end) == end);
      EXPECT_TRUE(std::all_of(row.begin(), end, [&](int32_t p) { return p >= 0 && p <= t; }));
      if (t < 10) continue;  // enough others
      for (int32_t bad : {0, 7, 40}) EXPECT_EQ(std::count(row.begin(), end, bad), 0) << "token " << t;
    }
    data.inputs[0][0][50 * 4 * 32] = NAN;  // a query whose every score is NaN: the lowest positions
    const std::vector<int32_t> row = row_of(choose(size, data, in_chunks(data, 100))[0], 50, 8);
    EXPECT_EQ(row, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  }
}

TEST(Index, FC030_SequenceBeyondTwoGigabytes) {
  Rng rng = fresh_rng();
  const LargePool pool;
  ASSERT_TRUE(pool.mapped());
  for (const IndexSize& size : {IndexSize{4, 32, 8}, {4, 32, 8, 64}}) {
    PagedData data = random_paged(rng, index_widths(size), {150});
    const auto run_at = [&](std::vector<int32_t> blocks) {
      data.places.sequences[0].blocks = std::move(blocks);
      const KernelCase test = paged_case("", Op::index_topk, index_attrs(size, kScale), data, in_chunks(data, 150));
      return run_in_pool(size.hash_bits > 0 ? cpu::kIndexHash : cpu::kIndexTopk, test, pool);
    };
    const std::vector<std::byte> low = run_at({0, 1, 2});
    EXPECT_EQ(run_at({2143, 2142, 6300}), low);
  }
}

// Share of the exact choice that the hash finds for the last `queries` tokens of a sequence.
double recall(const IndexSize& exact, int64_t bits, const PagedData& data, int64_t queries) {
  IndexSize hashed = exact;
  hashed.hash_bits = bits;
  const int64_t length = data.places.sequences[0].length;
  const Choices want = choose(exact, data, in_chunks(data, length)),
                got = choose(hashed, data, in_chunks(data, length));
  int64_t found = 0;
  for (int64_t t = length - queries; t < length; ++t) {
    const std::vector<int32_t> a = row_of(want[0], t, exact.top_k), b = row_of(got[0], t, exact.top_k);
    std::vector<int32_t> both;
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
    found += std::ssize(both);
  }
  return static_cast<double>(found) / static_cast<double>(queries * exact.top_k);
}

// Normal queries and keys, which is hard: nothing stands out. Chance would find top_k / length = 0.0625.
TEST(Index, HashFindsMostOfTheExactChoice) {
  Rng rng = fresh_rng();
  const IndexSize size{4, 64, 64};
  PagedData data = random_paged(rng, index_widths(size), {1024});
  for (double& w : data.inputs[0][2]) w = std::abs(w);
  double before = 0.15;
  for (int64_t bits : {64, 256, 1024}) {
    const double share = recall(size, bits, data, 64);
    fmt::print("recall with {} bits: {:.3f}\n", bits, share);
    EXPECT_GT(share, before) << bits;
    before = share;
  }
  EXPECT_GT(before, 0.6);
}

TEST(Index, HashRecallOfPlantedKeys) {
  Rng rng = fresh_rng();
  const IndexSize size{4, 64, 16};
  PagedData data = random_paged(rng, index_widths(size), {1024});
  auto& inputs = data.inputs[0];
  for (double& w : inputs[2]) w = std::abs(w) + 0.5;
  for (int64_t t = 960; t < 1024; ++t)  // head 0 of these looks for one of 64 groups of 15 keys
    for (int64_t d = 0; d < 64; ++d)
      inputs[0][static_cast<size_t>(t * 256 + d)] = 6 * inputs[1][static_cast<size_t>((t - 960) * 64 + d)];
  for (int64_t p = 64; p < 960; ++p)
    for (int64_t d = 0; d < 64; ++d)
      inputs[1][static_cast<size_t>(p * 64 + d)] = static_cast<double>(static_cast<float>(
          inputs[1][static_cast<size_t>(p % 64 * 64 + d)] + 0.5 * inputs[1][static_cast<size_t>(p * 64 + d)]));
  const double share = recall(size, 256, data, 64);
  fmt::print("recall of planted keys with 256 bits: {:.3f}\n", share);
  EXPECT_GT(share, 0.9);
}

// ---- rotation: the indexer's pairs and those of the attention of the same model

std::vector<float> rotated(const Kernel& kernel, bool interleaved) {
  RopeConfig config;
  TestBatch batch;
  batch.positions = {1};
  const KernelCase table = make_case("", Op::rope_table, config.attrs(4), {}, {1, 0}, batch);
  const TestOperand turns = value_operand({Symbol::T, 2, 2}, reference(table)[0][0]);
  Attrs attrs{{Attr::heads, 1}, {Attr::head_dim, 4}};
  if (interleaved) attrs.set(Attr::interleaved, 1);
  const KernelCase test = make_case("", Op::rope, attrs, {value_operand({Symbol::T, 4}, {1, 2, 3, 4}), turns}, {1, 0});
  if (refusal(kernel, test) != nullptr) return {};
  const KernelRun run = run_kernel(kernel, test);
  if (kernel.backend == Backend::cpu) return {run.floats(0).begin(), run.floats(0).end()};
  const std::vector<double> values = reference(test)[0][0];
  return {values.begin(), values.end()};
}

TEST(Index, FC028_HalfSplitIndexerInterleavedAttention) {
  constexpr float kHalf[] = {-1.98411065f, 1.95990067f, 2.46237790f, 4.01979967f};
  constexpr float kPairs[] = {-1.14263966f, 1.92207560f, 2.95985067f, 4.02979950f};
  for (bool interleaved : {false, true}) {
    int tested = 0;
    for (Backend backend : {Backend::ref, Backend::cpu}) {
      for (const Kernel* kernel : registry_of(backend).kernels()) {
        if (kernel->op != Op::rope) continue;
        const std::vector<float> got = rotated(*kernel, interleaved);
        if (got.empty()) continue;
        ++tested;
        for (size_t i = 0; i < 4; ++i)
          EXPECT_NEAR(got[i], interleaved ? kPairs[i] : kHalf[i], 1e-6) << kernel->name << i;
      }
    }
    EXPECT_GE(tested, 2);
  }
}

}  // namespace
}  // namespace moesaic
