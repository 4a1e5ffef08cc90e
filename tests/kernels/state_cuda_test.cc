// The CUDA kernels that keep state per sequence: a token gives the same bits however its sequence is cut into steps and
// whatever else is in them. And widths of real models, whose kernels differ from those of the cases in kernel_cases().
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/deepseek_v4_steps.h"

namespace moesaic {
namespace {

// The CUDA kernels of an op.
std::vector<const Kernel*> cuda_kernels(Op op) {
  std::vector<const Kernel*> found;
  for (const Kernel* kernel : registry_of(Backend::cuda).kernels())
    if (kernel->op == op) found.push_back(kernel);
  return found;
}
const Kernel& cuda_kernel(Op op) {
  return *cuda_kernels(op).back();  // the exact one stands last
}
void expect_all_match(KernelCase test) {
  test.desc.precision = test.desc.cache_dtype == DType::bf16 ? Precision::fast : Precision::float32;
  for (const Kernel* kernel : cuda_kernels(test.desc.op))
    if (refusal(*kernel, test) == nullptr) expect_matches(*kernel, test);
}

// A case whose sequences are run whole, in small pieces of different sizes, and together with others.
template <typename Data>
std::vector<std::vector<std::vector<Chunk>>> cuts(const Data& data) {
  return {in_chunks(data, 1000), in_chunks(data, 1), in_chunks(data, 9), together(data, 1), together(data, 20)};
}

void expect_same_bits(Op op, const StateData& data, const Attrs& attrs) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  std::vector<std::vector<float>> want;
  for (const auto& steps : cuts(data)) {
    const auto got = state_outputs(run_kernel(cuda_kernel(op), state_case("", op, attrs, data, steps)), data, steps);
    if (want.empty()) want = got;
    EXPECT_TRUE(got == want) << op_info(op).name << " in " << steps.size() << " steps";
  }
}

TEST(StateCuda, ShortConvHasTheSameBitsHoweverASequenceIsCut) {
  Rng rng = fresh_rng();
  for (auto [channels, width] : {std::pair<int64_t, int64_t>{64, 4}, {13, 3}, {8, 8}}) {
    // Enough tokens for tiles of several tokens, and sequences that end before a filter's length.
    StateData data = random_state_data(rng, {channels}, {600, 1, 2, 3, 17});
    data.weights = {vector_operand(rng, {channels, 1, width}, 0.6)};
    expect_same_bits(Op::short_conv, data, {{Attr::cache, 0}});
  }
}

TEST(StateCuda, KdaHasTheSameBitsHoweverASequenceIsCut) {
  Rng rng = fresh_rng();
  for (const KdaSize& size : {KdaSize{2, 128, 40}, {1, 16, 7}})
    expect_same_bits(Op::kda, random_kda(rng, size, {37, 1, 8}, -5), kda_attrs(size));
}

TEST(StateCuda, CompressHasTheSameBitsHoweverASequenceIsCut) {
  Rng rng = fresh_rng();
  for (const CompressSize& size : {CompressSize{4, true, 32}, {32, false, 16}})
    expect_same_bits(Op::compress, random_compress(rng, size, {70, 3, 33}), compress_attrs(size));
}

// Each sequence's rows of the output, put together from the steps.
std::vector<std::vector<float>> entry_outputs(const Kernel& kernel, const EntryData& data,
                                              const std::vector<std::vector<Chunk>>& steps) {
  const KernelRun run = run_kernel(kernel, entry_case("", data, steps));
  const int64_t width = data.size.heads * data.size.D;
  std::vector<std::vector<float>> out(data.sequences.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    auto from = run.floats(i).begin();
    for (const Chunk& chunk : steps[i]) {
      const int64_t count = (chunk.end - chunk.begin) * width;
      out[chunk.sequence].insert(out[chunk.sequence].end(), from, from + count);
      from += count;
    }
  }
  return out;
}

void expect_same_bits(const Kernel& kernel, const EntryData& data) {
  std::vector<std::vector<float>> want;
  for (const auto& steps : cuts(data.places)) {
    const auto got = entry_outputs(kernel, data, steps);
    if (want.empty()) want = got;
    EXPECT_TRUE(got == want) << kernel.name << ", " << data.size.heads << " heads in " << steps.size() << " steps";
  }
}

TEST(StateCuda, EntryAttendHasTheSameBitsHoweverASequenceIsCut) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  Rng rng = fresh_rng();
  for (EntrySize size : {EntrySize{5, 16, 30, 4}, {2, 32, 5, 2, 6}}) {
    for (DType cache : {DType::f32, DType::bf16}) {
      size.cache = cache;
      const EntryData data = random_entries(rng, size, {70, 1, 33});
      if (cache == DType::f32) expect_same_bits(cuda_kernel(Op::entry_attend), data);
      for (const Kernel* kernel : cuda_kernels(Op::entry_attend))
        if (cache == DType::bf16) expect_same_bits(*kernel, data);
    }
  }
}

// Fewer than 17 tokens, of which each has its blocks, and more.
TEST(StateCuda, EntryAttendAtWidthsOfRealModels) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  Rng rng = fresh_rng();
  for (EntrySize size : {EntrySize{18, 512, 20, 4, 8}, {3, 320, 40, 2}}) {
    for (DType cache : {DType::f32, DType::bf16}) {
      size.cache = cache;
      const EntryData data = random_entries(rng, size, {90, 30});
      const std::vector<std::vector<Chunk>> steps{
          {{0, 0, 60}, {1, 0, 20}}, {{0, 60, 61}, {1, 20, 29}}, {{0, 61, 90}}, {{1, 29, 30}}};
      expect_all_match(entry_case(dtype_name(cache).data(), data, steps));
    }
  }
}

TEST(StateCuda, KdaAtOtherWidths) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  Rng rng = fresh_rng();
  for (const KdaSize& size : {KdaSize{2, 128, 128}, {1, 256, 36}, {2, 50, 33}, {1, 200, 8}}) {
    const StateData data = random_kda(rng, size, {19, 9}, -5);
    for (const auto& steps : {whole(data), in_chunks(data, 1), together(data, 3)}) {
      KernelCase test = state_case(fmt::format("D={} V={}", size.D, size.V), Op::kda, kda_attrs(size), data, steps);
      // As in kda_cases(): 19 tokens, each an error of 2 D + 42 units of a state that 19 values of at most 6 feed.
      const auto D = static_cast<double>(size.D);
      test.tolerance = {.per_magnitude = (19 * (2 * D + 42) + D + 13) * kUnit};
      test.magnitude = [D, values = data.widths[2]](const KernelCase& c, size_t step) {
        return Values{
            std::vector<double>(static_cast<size_t>(c.steps[step].now.tokens * values), 19 * 6 / std::sqrt(D))};
      };
      expect_matches(cuda_kernel(Op::kda), test);
    }
  }
}

TEST(StateCuda, CompressAtOddWidths) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  Rng rng = fresh_rng();
  for (const CompressSize& size : {CompressSize{3, true, 7}, {5, false, 520}}) {
    const StateData data = random_compress(rng, size, {40, 2, 11});
    for (const auto& steps : {whole(data), in_chunks(data, 1), together(data, 4)}) {
      KernelCase test = state_case("", Op::compress, compress_attrs(size), data, steps);
      test.tolerance = {.per_magnitude = 2 * (3 * 16 + 3 + 8 + 2) * kUnit, .absolute = 0x1p-140};
      test.magnitude = [](const KernelCase& c, size_t step) {
        KernelCase copy = c;
        for (KernelStep& s : copy.steps)
          for (double& v : s.inputs[0].values) v = std::abs(v);
        return reference(copy)[step];
      };
      expect_matches(cuda_kernel(Op::compress), test);
    }
  }
}

// Rows that do not fit into shared memory are read twice.
TEST(StateCuda, HcHeadOfLongRows) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  Rng rng = fresh_rng();
  const Bounds now{2, 0};
  KernelCase test =
      make_case("", Op::hc_head, {{Attr::streams, 4}, {Attr::eps, 1e-6}, {Attr::hc_eps, 1e-6}},
                {normal_operand(rng, {Symbol::T, 4 * 13000}, now), normal_operand(rng, {Symbol::T, 4}, now),
                 vector_operand(rng, {4}), vector_operand(rng, {1}, 0.2, 1)},
                now);
  // The mean square of 52000 from 512 running sums of 102, halved; an argument below 30; then 5 terms and the sigmoid.
  test.tolerance = {.per_magnitude = (30 * (102 / 2 + 12) + 8 + 5) * kUnit};
  test.magnitude = [](const KernelCase& c, size_t) {
    std::vector<double> sums(2 * 13000, 0.0);
    for (size_t i = 0; i < sums.size(); ++i)
      for (size_t j = 0; j < 4; ++j)
        sums[i] += 1.001 * std::abs(c.steps[0].inputs[0].values[(i / 13000 * 4 + j) * 13000 + i % 13000]);
    return Values{sums};
  };
  expect_matches(cuda_kernel(Op::hc_head), test);
}

}  // namespace
}  // namespace moesaic
