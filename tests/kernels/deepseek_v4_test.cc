// Compressed history: what a token sees, and that chunks, batches and threads do not matter.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu.h"
#include "kernels/deepseek_v4_steps.h"
#include "kernels/paged_steps.h"

namespace moesaic {
namespace {

// Each sequence's rows of the output, put together from the steps.
std::vector<std::vector<float>> entry_outputs(const EntryData& data, const std::vector<std::vector<Chunk>>& steps,
                                              int threads) {
  const KernelRun run = run_kernel(cpu::kEntryAttend, entry_case("", data, steps), 0xFF, threads);
  EXPECT_EQ(run.violation, "");
  const int64_t width = data.size.heads * data.size.D;
  std::vector<std::vector<float>> out(data.sequences.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    auto from = run.floats(i).begin();
    for (const Chunk& chunk : steps[i]) {
      out[chunk.sequence].insert(out[chunk.sequence].end(), from, from + (chunk.end - chunk.begin) * width);
      from += (chunk.end - chunk.begin) * width;
    }
  }
  return out;
}

TEST(EntryAttend, ChunksAndBatchesDoNotMatter) {
  Rng rng = fresh_rng();
  for (EntrySize size : {EntrySize{4, 32, 8, 0}, {4, 32, 8, 4, 5}, {4, 16, 100, 16}, {2, 16, 64, 128}}) {
    for (DType cache : {DType::f32, DType::bf16}) {
      size.cache = cache;
      const EntryData data = random_entries(rng, size, {300, 131, 3, 64});
      const auto whole = entry_outputs(data, in_chunks(data.places, 1000), 3);
      for (int64_t chunk : {1, 3, 4, 5, 63, 64, 127, 129})
        EXPECT_EQ(entry_outputs(data, in_chunks(data.places, chunk), static_cast<int>(chunk % 3) + 1), whole) << chunk;
      for (int64_t chunk : {1, 13, 1000})
        EXPECT_EQ(entry_outputs(data, together(data.places, chunk), 2), whole) << chunk;
    }
  }
}

// Equal logits: the mean of the values seen, with a sink that weighs as much as `sink_keys` keys. Values of the window
// are 1, of entries 100 + their index.
double mean_seen(const std::vector<float>& out, const EntrySize& size, int64_t t) {
  return static_cast<double>(out[static_cast<size_t>(t * size.heads * size.D)]);
}

TEST(EntryAttend, EntryIsVisibleToTheTokenThatClosesIt) {
  Rng rng = fresh_rng();
  for (int64_t ratio : {4, 16, 128}) {
    const EntrySize size{.heads = 1, .D = 16, .window = 8, .ratio = ratio};
    EntryData data = random_entries(rng, size, {400});
    EntryData::Sequence& s = data.sequences[0];
    std::fill(s.q.begin(), s.q.end(), 0.0), std::fill(s.kv.begin(), s.kv.end(), 1.0);
    for (size_t i = 0; i < s.entries.size(); ++i)
      s.entries[i] = 100.0 + static_cast<double>(static_cast<int64_t>(i) / 16 / ratio);
    data.sinks.values = {0.0};  // weighs as much as one key
    for (int64_t chunk : {1, 7, 1000}) {
      const std::vector<float> out = entry_outputs(data, in_chunks(data.places, chunk), 2)[0];
      for (int64_t t = 0; t < 400; ++t) {
        const double recent = static_cast<double>(std::min<int64_t>(t + 1, 8)),
                     n = static_cast<double>((t + 1) / ratio);
        EXPECT_NEAR(mean_seen(out, size, t), (recent + 100 * n + n * (n - 1) / 2) / (recent + n + 1), 1e-3)
            << ratio << " " << t;
      }
    }
  }
}

std::vector<std::vector<float>> compressed(const StateData& data, const CompressSize& size,
                                           const std::vector<std::vector<Chunk>>& steps, int threads) {
  const KernelRun run =
      run_kernel(cpu::kCompress, state_case("", Op::compress, compress_attrs(size), data, steps), 0xFF, threads);
  EXPECT_EQ(run.violation, "");
  return state_outputs(run, data, steps);
}

TEST(Compress, ChunksAndBatchesDoNotMatter) {
  Rng rng = fresh_rng();
  for (const CompressSize& size : {CompressSize{4, true, 32}, {16, false, 32}, {128, false, 16}}) {
    const StateData data = random_compress(rng, size, {300, 3, 129, 64});
    const auto want = compressed(data, size, whole(data), 3);
    for (int64_t chunk : {1, 3, 4, 5, 7, 63, 127, 128, 129})
      EXPECT_EQ(compressed(data, size, in_chunks(data, chunk), static_cast<int>(chunk % 3) + 1), want)
          << size.ratio << " " << chunk;
    for (int64_t chunk : {1, 13})
      EXPECT_EQ(compressed(data, size, together(data, chunk), 2), want) << size.ratio << " " << chunk;
  }
}

// Equal gates: the mean of the window before (first half of channels) and of this one (second half), where there is
// one.
TEST(Compress, FirstHalfOfTheChannelsFeedsTheNextWindow) {
  Rng rng = fresh_rng();
  const CompressSize size{4, true, 16};
  StateData data = random_compress(rng, size, {12});
  std::vector<std::vector<double>>& in = data.sequences[0].inputs;
  std::fill(in[1].begin(), in[1].end(), 0.0);
  std::fill(data.weights[0].values.begin(), data.weights[0].values.end(), 0.0);
  for (size_t i = 0; i < in[0].size(); ++i) in[0][i] = static_cast<double>(i / 32) + (i % 32 < 16 ? 1000 : 0);
  const std::vector<float> out = compressed(data, size, in_chunks(data, 3), 2)[0];
  for (size_t t = 0; t < 12; ++t) {
    const double own = static_cast<double>(t) - 1.5, want = t < 4 ? own : (own + 1000 + own - 4) / 2;
    EXPECT_NEAR(static_cast<double>(out[t * 16 + 5]), (t + 1) % 4 == 0 ? want : 0.0, 1e-3) << t;
  }
}

// Integer inputs make every score exact, so that the choice must agree, ties included.
TEST(IndexTopk, ChoosesCompressedEntries) {
  Rng rng = fresh_rng();
  const IndexSize size{.heads = 4, .D = 16, .top_k = 6};
  Attrs attrs = index_attrs(size, 0.5);
  attrs.set(Attr::ratio, 4);
  for (DType cache : {DType::f32, DType::bf16}) {
    const PagedData data = integer_paged(rng, index_widths(size), {300, 3, 131, 64});
    const auto run = [&](const std::vector<std::vector<Chunk>>& steps, const Kernel& kernel) {
      return paged_outputs<int32_t>(run_kernel(kernel, paged_case("", Op::index_topk, attrs, data, steps, cache, {1})),
                                    data, steps);
    };
    const auto kernels = registry_of(Backend::ref).kernels();
    const Kernel& exact =
        **std::find_if(kernels.begin(), kernels.end(), [](const Kernel* k) { return k->op == Op::index_topk; });
    const auto want = run(in_chunks(data, 1000), exact);
    for (int64_t t = 0; t < 40; ++t)  // all that are visible, until there are more than top_k
      EXPECT_EQ(std::count_if(want[0].begin() + t * 6, want[0].begin() + (t + 1) * 6, [](int32_t e) { return e >= 0; }),
                std::min<int64_t>(6, (t + 1) / 4))
          << t;
    for (int64_t chunk : {1, 3, 5, 64, 1000}) EXPECT_EQ(run(in_chunks(data, chunk), cpu::kIndexTopk), want) << chunk;
    EXPECT_EQ(run(together(data, 30), cpu::kIndexTopk), want);
  }
}

// The angles of an entry are those of its window's first token.
TEST(RopeTable, TurnsEntriesByTheirFirstToken) {
  Attrs plain{{Attr::theta, 10000}, {Attr::head_dim, 16}, {Attr::attention_factor, 1}}, entries = plain;
  entries.set(Attr::ratio, 4);
  TestBatch batch, first;
  for (int32_t p = 0; p < 19; ++p) batch.positions.push_back(p), first.positions.push_back(p / 4 * 4);
  for (const Kernel* kernel : {&cpu::kRopeTable}) {
    const KernelRun got = run_kernel(*kernel, make_case("", Op::rope_table, entries, {}, {19, 0}, batch));
    const KernelRun want = run_kernel(*kernel, make_case("", Op::rope_table, plain, {}, {19, 0}, first));
    EXPECT_EQ(got.outputs, want.outputs);
  }
  const KernelCase test = make_case("", Op::rope_table, entries, {}, {19, 0}, batch);
  EXPECT_EQ(reference(test)[0], reference(make_case("", Op::rope_table, plain, {}, {19, 0}, first))[0]);
}

struct RoutedValues {
  std::vector<double> weights;
  std::vector<int32_t> ids;
};
// The router of DeepSeek-V4 on the logits and bias of FC-024, by one kernel.
RoutedValues route_fc024(const Kernel& kernel, double top_k, bool normalize, double scale) {
  TestOperand bias = vector_operand(*std::make_unique<Rng>(1), {4});
  bias.values = {0, static_cast<double>(0.6f), 0, 0};
  const Attrs attrs{{Attr::top_k, top_k},
                    {Attr::scoring, static_cast<double>(Scoring::sqrt_softplus)},
                    {Attr::normalize, normalize ? 1.0 : 0.0},
                    {Attr::routed_scale, scale}};
  const KernelCase test =
      make_case("", Op::route, attrs, {value_operand({Symbol::T, 4}, {4, 0, 1, -1}), std::move(bias)}, {1, 0});
  const KernelRun run = run_kernel(kernel, test);
  RoutedValues out;
  const auto k = static_cast<size_t>(top_k);
  for (size_t i = 0; i < k; ++i) {
    const std::byte* weights = run.outputs[0][0].data();
    out.weights.push_back(kernel.backend == Backend::ref
                              ? reinterpret_cast<const double*>(weights)[i]
                              : static_cast<double>(reinterpret_cast<const float*>(weights)[i]));
    out.ids.push_back(reinterpret_cast<const int32_t*>(run.outputs[0][1].data())[i]);
  }
  return out;
}

TEST(Route, FC024_SqrtSoftplusScoring) {
  for (Backend backend : {Backend::ref, Backend::cpu}) {
    for (const Kernel* kernel : registry_of(backend).kernels()) {
      if (kernel->op != Op::route || kernel == &cpu::kRoute) continue;
      EXPECT_EQ(route_fc024(*kernel, 1, true, 1).ids, std::vector<int32_t>{0}) << kernel->name;
      const RoutedValues two = route_fc024(*kernel, 2, true, 1.5);
      EXPECT_EQ(two.ids, (std::vector<int32_t>{0, 1})) << kernel->name;
      EXPECT_NEAR(two.weights[0], 1.05981895, 2e-7);
      EXPECT_NEAR(two.weights[1], 0.44018105, 2e-7);
      const RoutedValues all = route_fc024(*kernel, 4, false, 1);
      constexpr double kScores[] = {2.00453235, 0.83255461, 1.14597630, 0.55969785};
      for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(all.weights[i], kScores[all.ids[i]], 3e-7) << kernel->name;
    }
  }
}

}  // namespace
}  // namespace moesaic
