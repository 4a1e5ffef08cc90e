// The CUDA router where the other backends' cases do not go: real sizes, biases, tables, NaN and infinities.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/kernel_harness.h"

namespace moesaic {
namespace {

struct Router {
  int64_t experts, top_k, groups, kept;
};

double number(int64_t n) {
  return static_cast<double>(n);
}

Attrs attrs_of(const Router& r, Scoring scoring, bool normalize) {
  Attrs attrs{{Attr::top_k, number(r.top_k)}, {Attr::routed_scale, 2.5}, {Attr::normalize, normalize ? 1.0 : 0.0}};
  if (scoring != Scoring::softmax_chosen) attrs.set(Attr::scoring, number(static_cast<int>(scoring)));
  if (r.groups > 1) attrs.set(Attr::groups, number(r.groups)), attrs.set(Attr::top_groups, number(r.kept));
  return attrs;
}

// A few neighbouring values, so that many tie.
TestOperand coarse_logits(Rng& rng, int64_t tokens, int64_t experts) {
  TestOperand logits = normal_operand(rng, {Symbol::T, experts}, {tokens, 0}, 2);
  for (double& v : logits.values) v = std::round(v * 4) / 4;
  return logits;
}

void expect_all_match(const KernelCase& test) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  int accepted = 0;
  for (const Kernel* kernel : registry_of(Backend::cuda).kernels()) {
    if (kernel->op != test.desc.op || refusal(*kernel, test) != nullptr) continue;
    ++accepted;
    expect_matches(*kernel, test);
  }
  EXPECT_GT(accepted, 0);
}

KernelCase route_case(const Router& r, Scoring scoring, std::vector<TestOperand> inputs, int64_t tokens,
                      TestBatch batch = {}) {
  KernelCase test = make_case(fmt::format("E={} scoring={}", r.experts, static_cast<int>(scoring)), Op::route,
                              attrs_of(r, scoring, tokens % 2 == 0), std::move(inputs), {tokens, 0}, std::move(batch));
  test.tolerance = {.ulps = 100 + 2 * number(r.experts)};  // e^x of exponents up to 40, sums over experts and chosen
  test.magnitude = [](const KernelCase& c, size_t step) {  // of NaN inputs it would be NaN, and so would the bound
    Values none = reference(c)[step];
    for (std::vector<double>& v : none) std::fill(v.begin(), v.end(), 0.0);
    return none;
  };
  return test;
}

constexpr Scoring kScorings[] = {Scoring::softmax_chosen, Scoring::softmax, Scoring::sigmoid, Scoring::sqrt_softplus};

TEST(RouteCuda, ChoosesAmongUpTo1024Experts) {
  Rng rng = fresh_rng();
  for (const Router& r : {Router{100, 3, 1, 1},
                          {129, 8, 1, 1},
                          {256, 8, 1, 1},
                          {384, 8, 1, 1},
                          {511, 22, 1, 1},
                          {1000, 32, 1, 1},
                          {1024, 16, 1, 1}})
    for (Scoring scoring : kScorings) expect_all_match(route_case(r, scoring, {coarse_logits(rng, 6, r.experts)}, 6));
}

// Random biases keep group scores apart, whose exact ties float32 would break otherwise.
TEST(RouteCuda, BiasAndGroupsDecideTheChoiceAlone) {
  Rng rng = fresh_rng();
  for (const Router& r : {Router{256, 8, 8, 4},
                          {160, 6, 8, 3},
                          {60, 4, 20, 7},
                          {128, 5, 64, 9},
                          {64, 4, 64, 6},
                          {384, 8, 1, 1},
                          {40, 30, 8, 2}})
    for (Scoring scoring : {Scoring::softmax, Scoring::sigmoid, Scoring::sqrt_softplus})
      expect_all_match(
          route_case(r, scoring, {coarse_logits(rng, 5, r.experts), vector_operand(rng, {r.experts}, 0.5)}, 5));
}

TEST(RouteCuda, TakesIdsFromTheTokensTable) {
  Rng rng = fresh_rng();
  const Router r{256, 6, 1, 1};
  TestOperand table = random_ids(rng, 20, r.top_k, r.experts, Skew::even);
  table.desc.type = {DType::i32, {20, r.top_k}};
  table.desc.is_weight = true, table.desc.kind = WeightKind::vector, table.desc.stored = DType::f32;
  TestBatch batch;
  for (int t = 0; t < 9; ++t) batch.token_ids.push_back(static_cast<int32_t>(rng.below(20)));
  for (Scoring scoring : {Scoring::softmax, Scoring::sigmoid, Scoring::sqrt_softplus})
    expect_all_match(route_case(r, scoring, {coarse_logits(rng, 9, r.experts), table}, 9, batch));
}

// A NaN ranks as -inf: a token of NaN alone gets the first experts, and NaN weights.
TEST(RouteCuda, NanRanksAsMinusInfinity) {
  Rng rng = fresh_rng();
  const Router r{40, 5, 1, 1};
  for (Scoring scoring : kScorings) {
    TestOperand logits = coarse_logits(rng, 6, r.experts);
    const auto row = [&](int64_t t) { return logits.values.begin() + t * r.experts; };
    std::fill_n(row(0), r.experts, NAN);
    for (int64_t e = 0; e < r.experts; e += 3) row(1)[e] = NAN;
    for (int64_t e = 0; e + 2 < r.experts; ++e) row(2)[e] = e % 2 == 0 ? NAN : -INFINITY;
    std::fill_n(row(3), r.experts - 2, -INFINITY);
    for (int64_t e = 0; e < r.experts; ++e) row(4)[e] = e % 2 == 0 ? -0.0 : 0.0;
    row(5)[7] = NAN;
    expect_all_match(route_case(r, scoring, {std::move(logits)}, 6));
  }
}

TEST(RouteCuda, RefusesWhatAWarpCannotHold) {
  Rng rng = fresh_rng();
  for (const Router& r : {Router{1025, 4, 1, 1}, {64, 33, 1, 1}}) {
    const KernelCase test = route_case(r, Scoring::sigmoid, {coarse_logits(rng, 1, r.experts)}, 1);
    for (const Kernel* kernel : registry_of(Backend::cuda).kernels())
      if (kernel->op == Op::route) {
        EXPECT_NE(refusal(*kernel, test), nullptr) << kernel->name;
      }
  }
}

}  // namespace
}  // namespace moesaic
