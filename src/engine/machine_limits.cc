#include "engine/machine_limits.h"

#include <algorithm>
#include <chrono>

#include "base/rng.h"
#include "kernels/cpu/gemm.h"

namespace moesaic {
namespace {

constexpr double kSeconds = 0.3;

// The weight [.., N, K] of an op that is a matrix product, or null.
const OperandDesc* product_weight(const OpDesc& desc) {
  if (desc.op == Op::linear) return &desc.in(1);
  return desc.op == Op::expert_linear || desc.op == Op::expert_swiglu ? &desc.in(3) : nullptr;
}

std::vector<float> random_floats(int64_t count, Rng& rng) {
  std::vector<float> out(static_cast<size_t>(count));
  for (float& value : out) value = static_cast<float>(rng.uniform(-1, 1));
  return out;
}

}  // namespace

ProductShape largest_product(const Plan& plan, int64_t tokens) {
  ProductShape shape{tokens, kMaxProductRows, kMaxProductRows};
  double most = 0;
  for (const Step& step : plan.steps) {
    const OperandDesc* weight = product_weight(step.desc);
    const double flops = op_cost(step.desc, {tokens, 1}).flops;
    if (weight == nullptr || flops <= most) continue;
    most = flops;
    shape = {tokens, std::min(kMaxProductRows, weight->type.dim(-2).factor), weight->type.dim(-1).factor};
  }
  return shape;
}

double measure_product(ThreadPool& pool, const ProductShape& shape) {
  using Clock = std::chrono::steady_clock;
  const auto [M, N, K] = shape;
  const GemmKernels& kernels = gemm_kernels(cpu_isa());
  Rng rng(1);
  // Packed float32 weights are a permutation of floats: any floats will do.
  const auto weights = random_floats(gemm_matrix_bytes(GemmFormat::f32, N, K) / 4, rng), x = random_floats(M * K, rng);
  std::vector<float> y(static_cast<size_t>(M * N));
  const size_t scratch_bytes = gemm_scratch_bytes(K);
  std::vector<std::byte> scratch(scratch_bytes * static_cast<size_t>(pool.threads()));
  const GemmMatrix matrix{reinterpret_cast<const std::byte*>(weights.data()), GemmFormat::f32, N, K};
  const GemmRows rows{x.data(), K, nullptr, M};
  const int64_t chunk = std::clamp<int64_t>(N / 1024 * 64, 64, 256);  // about 16 chunks or more
  std::vector<double> times;
  for (const auto begin = Clock::now();
       times.size() < 4 || Clock::now() - begin < std::chrono::duration<double>(kSeconds);) {
    const auto start = Clock::now();
    pool.run((N + chunk - 1) / chunk, [&](int64_t i, int thread) {
      gemm_f32(kernels, matrix, i * chunk, std::min(N, (i + 1) * chunk), rows, nullptr, y.data(), N,
               scratch.data() + scratch_bytes * static_cast<size_t>(thread));
    });
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(times.begin() + 1, times.end());  // the first was the warm-up
  return 2.0 * static_cast<double>(M * N) * static_cast<double>(K) / times[1 + (times.size() - 1) / 2];
}

}  // namespace moesaic
