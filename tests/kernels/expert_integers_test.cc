// MXFP4 expert products of small whole numbers, which every sum holds exactly: each kernel must give the exact result,
// whatever the number of tokens, the shape's tails and the way tokens spread over experts.
#include <gtest/gtest.h>

#include "kernels/kernel_harness.h"

namespace moesaic {
namespace {

constexpr int64_t kExperts = 4, kTopK = 2;

enum class Spread { even, one_expert, one_empty };  // over all; most in one; none in the last

std::vector<int32_t> ids_of(Rng& rng, int64_t tokens, Spread spread) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto experts = static_cast<int32_t>(spread == Spread::one_empty ? kExperts - 1 : kExperts);
    const auto first = static_cast<int32_t>(spread == Spread::one_expert ? 2 : rng.below(experts));
    const bool spread_out = spread != Spread::one_expert || t % 16 == 0;
    const int32_t step = spread_out ? 1 + static_cast<int32_t>(rng.below(experts - 1)) : 1;
    ids.push_back(first), ids.push_back((first + step) % experts);
  }
  return ids;
}

TestOperand whole_numbers(Rng& rng, int64_t rows, int64_t K) {
  std::vector<double> values(static_cast<size_t>(rows * K));
  for (double& v : values) v = static_cast<double>(rng.below(5) - 2);
  return value_operand({Symbol::T, K}, std::move(values));
}

KernelCase product(Rng& rng, int64_t tokens, int64_t N, int64_t K, Spread spread, bool quantised) {
  const Bounds now{tokens, 0};
  const Values sorted =
      reference(make_case("", Op::dispatch, {{Attr::experts, static_cast<double>(kExperts)}},
                          {integer_operand({Symbol::T, kTopK}, ids_of(rng, tokens, spread))}, now))[0];
  constexpr uint8_t kScales[] = {127, 128};
  TestOperand x = whole_numbers(rng, tokens, K);
  if (quantised) x = quantized_operand(x);
  KernelCase test =
      make_case(fmt::format("T={} N={} K={} spread={} quantised={}", tokens, N, K, static_cast<int>(spread), quantised),
                Op::expert_linear, {{Attr::gather, 1}},
                {x, integer_operand({Dim(Symbol::T, kTopK)}, {sorted[0].begin(), sorted[0].end()}),
                 integer_operand({kExperts + 1}, {sorted[1].begin(), sorted[1].end()}),
                 mxfp4_operand(rng, WeightKind::experts, {kExperts, N, K}, kScales)},
                now);
  test.desc.precision = quantised ? Precision::fp8 : Precision::fast;
  test.tolerance = {};
  test.magnitude = [](const KernelCase& given, size_t step) {  // not used without a tolerance
    const Bounds& now_ = given.steps[step].now;
    return Values{std::vector<double>(static_cast<size_t>(given.desc.out(0).type.bytes(now_)) / sizeof(float))};
  };
  return test;
}

class ExpertIntegers : public testing::TestWithParam<bool> {};  // quantised activations

TEST_P(ExpertIntegers, AreExact) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
#ifdef MOESAIC_CUDA_IS_EMULATED
  const std::vector<int64_t> counts = {0, 1, 9, 31, 33, 130, 257};
#else
  const std::vector<int64_t> counts = {0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 512, 4097};
#endif
  Rng rng = fresh_rng();
  for (const Kernel* kernel : registry_of(Backend::cuda).kernels()) {
    if (std::string_view(kernel->name) != "expert_linear.mxfp4.cuda") continue;
    for (int64_t tokens : counts)
      for (auto [N, K] : {std::pair<int64_t, int64_t>{64, 128}, {208, 288}, {48, 32}})
        for (Spread spread : {Spread::even, Spread::one_expert, Spread::one_empty}) {
          if (tokens > 300 && (N != 64 || spread == Spread::one_empty)) continue;  // the reference is slow
          const KernelCase test = product(rng, tokens, N, K, spread, GetParam());
          ASSERT_EQ(refusal(*kernel, test), nullptr) << test.name;
          expect_matches(*kernel, test);
        }
  }
}

INSTANTIATE_TEST_SUITE_P(, ExpertIntegers, testing::Bool());

}  // namespace
}  // namespace moesaic
