// What routing and experts must do in particular: experts without tokens, no tokens at all, NaN logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu.h"
#include "kernels/kernel_harness.h"

namespace moesaic {
namespace {

// bf16 NaN everywhere except in expert `keep`: whoever reads the others shows it.
TestOperand poisoned_weights(Rng& rng, int64_t experts, int64_t N, int64_t K, int64_t keep) {
  TestOperand weight = weight_operand(rng, WeightKind::experts, {experts, N, K}, DType::bf16, 0.2);
  const int64_t bytes = N * K * 2;
  for (int64_t e = 0; e < experts; ++e)
    if (e != keep) std::fill_n(weight.stored.begin() + e * bytes, bytes, std::byte{0xFF});
  return weight;
}

void expect_poison_unread(const Kernel& kernel, Rng& rng, int64_t tokens) {
  const int32_t n = static_cast<int32_t>(tokens);
  std::vector<int32_t> rows(static_cast<size_t>(tokens)), offsets(9, 0);
  for (int32_t t = 0; t < n; ++t) rows[static_cast<size_t>(t)] = t;
  std::fill(offsets.begin() + 6, offsets.end(), n);
  KernelCase test = make_case(fmt::format("all {} tokens to expert 5", tokens), kernel.op,
                              {{Attr::gather, 1}, {Attr::limit, 7}, {Attr::alpha, 1.702}},
                              {normal_operand(rng, {Symbol::T, 64}, {tokens, 0}), integer_operand({Symbol::T}, rows),
                               integer_operand({9}, offsets), poisoned_weights(rng, 8, 32, 64, 5)},
                              {tokens, 0});
  if (refusal(kernel, test) != nullptr) return;
  test.tolerance = {.ulps = 64, .absolute = 1e-4};  // the values are checked closely elsewhere: here NaN is the point
  expect_matches(kernel, test);
}

TEST(ExpertCases, FC025_ExpertsWithoutTokensAreNeverRead) {
  Rng rng = fresh_rng();
  for (const Kernel* kernel : registry_of(Backend::cpu).kernels()) {
    if (kernel->op != Op::expert_linear && kernel->op != Op::expert_swiglu) continue;
    expect_poison_unread(*kernel, rng, 3);
    expect_poison_unread(*kernel, rng, 0);
  }
}

TEST(ExpertCases, FC025_DispatchOfNoTokens) {
  const KernelRun run = run_kernel(
      cpu::kDispatch, make_case("", Op::dispatch, {{Attr::experts, 8}}, {integer_operand({Symbol::T, 2}, {})}, {0, 0}));
  EXPECT_EQ(run.violation, "");
  const auto* offsets = reinterpret_cast<const int32_t*>(run.outputs[0][1].data());
  EXPECT_TRUE(std::all_of(offsets, offsets + 9, [](int32_t o) { return o == 0; }));
}

TEST(ExpertCases, NanLogitsGiveValidIdsAndNanWeights) {
  std::vector<double> logits(3 * 8, 1.0);
  std::fill_n(logits.begin(), 8, NAN);
  logits[8 + 6] = NAN;
  const KernelRun run = run_kernel(
      cpu::kRoute, make_case("", Op::route, {{Attr::top_k, 3}}, {value_operand({Symbol::T, 8}, logits)}, {3, 0}));
  const auto* ids = reinterpret_cast<const int32_t*>(run.outputs[0][1].data());
  EXPECT_EQ(std::vector<int32_t>(ids, ids + 9), (std::vector<int32_t>{0, 1, 2, 6, 0, 1, 0, 1, 2}));
  const auto weights = run.floats(0);
  for (size_t j = 0; j < 6; ++j) EXPECT_TRUE(std::isnan(weights[j]));
  for (size_t j = 6; j < 9; ++j) EXPECT_EQ(weights[j], 1.0f / 3);
}

}  // namespace
}  // namespace moesaic
