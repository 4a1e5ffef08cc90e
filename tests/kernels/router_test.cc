// Routers whose choice and weights are apart: FC-022, FC-023, FC-024, on the reference and the CPU kernels.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/kernel.h"

namespace moesaic {
namespace {

struct Chosen {
  std::vector<int32_t> ids;
  std::vector<double> weights;
};

const Kernel& kernel_for(const OpDesc& desc, Backend backend) {
  for (const Kernel* kernel : registry_of(backend).kernels())
    if (kernel->op == desc.op && (kernel->refuse == nullptr || kernel->refuse(desc, {}) == nullptr)) return *kernel;
  CHECK(false, "no kernel");
  std::abort();
}

template <typename T>
Chosen route_as(const std::vector<double>& logits, const std::vector<double>& bias, Attrs attrs, Backend backend,
                DType dtype) {
  const auto E = static_cast<int64_t>(logits.size()), k = attrs.integer(Attr::top_k);
  OpDesc desc;
  desc.op = Op::route;
  desc.attrs = attrs;
  desc.bounds = {1, 1};
  desc.inputs = {{.type = {dtype, {Symbol::T, E}}}};
  if (!bias.empty()) desc.inputs.push_back({.type = {dtype, {E}}, .is_weight = true, .stored = dtype});
  desc.outputs = {{.type = {dtype, {Symbol::T, k}}}, {.type = {DType::i32, {Symbol::T, k}}}};
  std::vector<T> in(logits.begin(), logits.end()), b(bias.begin(), bias.end()), weights(static_cast<size_t>(k));
  std::vector<int32_t> ids(static_cast<size_t>(k));
  std::byte* inputs[] = {reinterpret_cast<std::byte*>(in.data()), reinterpret_cast<std::byte*>(b.data())};
  std::byte* outputs[] = {reinterpret_cast<std::byte*>(weights.data()), reinterpret_cast<std::byte*>(ids.data())};
  ThreadPool pool(1);
  Stream stream{&pool};
  std::vector<std::byte> workspace(1 << 16);
  Args args;
  args.in = {inputs, desc.inputs.size()};
  args.out = outputs;
  args.now = {1, 1};
  kernel_for(desc, backend).launch(desc, args, workspace.data(), stream);
  return {ids, {weights.begin(), weights.end()}};
}

void expect_route(const std::vector<double>& logits, const std::vector<double>& bias, const Attrs& attrs,
                  const std::vector<int32_t>& ids, const std::vector<double>& weights) {
  for (Backend backend : {Backend::ref, Backend::cpu}) {
    const Chosen got = backend == Backend::ref ? route_as<double>(logits, bias, attrs, backend, DType::f64)
                                               : route_as<float>(logits, bias, attrs, backend, DType::f32);
    EXPECT_EQ(got.ids, ids) << backend_name(backend);
    for (size_t i = 0; i < weights.size(); ++i)
      EXPECT_NEAR(got.weights[i], weights[i], 1e-6 * weights[i]) << backend_name(backend);
  }
}

Attrs scored(Scoring scoring, int64_t k, double scale) {
  return {{Attr::top_k, static_cast<double>(k)},
          {Attr::scoring, static_cast<double>(scoring)},
          {Attr::normalize, 1},
          {Attr::routed_scale, scale}};
}

TEST(Router, FC022_CorrectionBiasSelectsButDoesNotWeight) {
  expect_route({2, 1, 0, -1}, {0, 0, 0.5, 0.9}, scored(Scoring::sigmoid, 2, 2.5), {3, 2}, {0.87438852, 1.62561148});
}

TEST(Router, FC023_GroupsScoreTheirTwoBest) {
  Attrs attrs = scored(Scoring::sigmoid, 2, 1);
  attrs.set(Attr::groups, 4);
  attrs.set(Attr::top_groups, 1);
  expect_route({3, -3, 1, 0.9, -1, -1.2, 0, 0}, std::vector<double>(8, -0.9), attrs, {2, 3}, {0.50697259, 0.49302741});
}

TEST(Router, FC024_SqrtSoftplus) {
  const Attrs one{{Attr::top_k, 1}, {Attr::scoring, static_cast<double>(Scoring::sqrt_softplus)}, {Attr::normalize, 0}};
  expect_route({4, 0, 1, -1}, {0, 0.6, 0, 0}, one, {0}, {2.00453235});
  expect_route({4, 0, 1, -1}, {0, 0.6, 0, 0}, scored(Scoring::sqrt_softplus, 2, 1.5), {0, 1}, {1.05981895, 0.44018105});
}

TEST(Router, SoftmaxOverAllWithAndWithoutNormalisation) {
  const double total = std::exp(1.0) + std::exp(2.0) + 1;
  Attrs attrs = scored(Scoring::softmax, 2, 1);
  expect_route({1, 2, 0}, {}, attrs, {1, 0},
               {std::exp(2.0) / (std::exp(2.0) + std::exp(1.0)), std::exp(1.0) / (std::exp(2.0) + std::exp(1.0))});
  attrs.set(Attr::normalize, 0);
  expect_route({1, 2, 0}, {}, attrs, {1, 0}, {std::exp(2.0) / total, std::exp(1.0) / total});
}

}  // namespace
}  // namespace moesaic
