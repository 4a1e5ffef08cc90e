#include "engine/machine_limits.h"

#include <algorithm>
#include <chrono>

#include "base/rng.h"
#include "kernels/cpu/bandwidth.h"
#include "kernels/cpu/gemm.h"
#include "kernels/gpu_limits.h"

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

double measure_read(Device& device) {
  return device.shares_host_memory() ? measure_read_bandwidth(*device.stream().pool)
                                     : measure_gpu_read_bandwidth(device);
}

namespace {

OperandDesc operand(std::vector<Dim> dims) {
  OperandDesc out;
  out.type = {DType::f32, std::move(dims)};
  return out;
}

// A `linear` with bf16 weights, on the kernel that the engine would use.
double measure_gpu_product(Device& device, const ProductShape& shape) {
  const auto [M, N, K] = shape;
  OpDesc desc;
  desc.op = Op::linear;
  desc.bounds = {M, 1};
  desc.precision = Precision::fast;
  desc.inputs = {operand({Dim(Symbol::T), K}), operand({N, K})};
  desc.outputs = {operand({Dim(Symbol::T), N})};
  desc.inputs[1].is_weight = true;
  desc.inputs[1].kind = WeightKind::matrix;
  desc.inputs[1].stored = DType::bf16;
  const auto kernels = registry_of(device.info().backend).kernels();
  const auto accepts = [&](const Kernel* k) {
    return k->op == Op::linear && (k->refuse == nullptr || k->refuse(desc, device.info()) == nullptr);
  };
  const auto kernel = std::find_if(kernels.begin(), kernels.end(), accepts);
  CHECK(kernel != kernels.end());
  const Buffer x = device.allocate(M * K * 4, "measuring a product"),
               w = device.allocate(N * K * 2, "measuring a product"),
               y = device.allocate(M * N * 4, "measuring a product");
  const Buffer workspace =
      device.allocate((*kernel)->workspace_bytes != nullptr ? (*kernel)->workspace_bytes(desc, device.info()) : 0,
                      "measuring a product");
  std::byte* in[] = {x.data(), w.data()};
  std::byte* out[] = {y.data()};
  const BatchView batch{.tokens = M, .sequences = 1, .rows = 1};
  const Args args{.in = in, .out = out, .now = {M, 1}, .batch = &batch, .cache = {}};
  const double seconds =
      median_gpu_seconds(device, [&] { (*kernel)->launch(desc, args, workspace.data(), device.stream()); });
  return 2.0 * static_cast<double>(M * N) * static_cast<double>(K) / seconds;
}

}  // namespace

void measure_arithmetic(Device& device, const ProductShape& shape, MachineLimits& limits) {
  limits.shape = shape;
  if (!device.shares_host_memory()) {
    limits.product = measure_gpu_product(device, shape);
    return;
  }
  limits.product = measure_product(*device.stream().pool, shape);
  limits.peak = measure_fma_peak(*device.stream().pool, cpu_isa());
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
