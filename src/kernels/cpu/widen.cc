#include "kernels/cpu/widen.h"

#include <algorithm>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/products.h"
#include "quant/bf16.h"
#include "quant/fp8.h"

namespace moesaic::cpu {
namespace {

int64_t ceil(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t rows_of_matrix(const OperandDesc& w) {
  return w.type.dim(-2).factor;
}
int64_t width_of_matrix(const OperandDesc& w) {
  return w.type.dim(-1).factor;
}

int64_t code_bytes(const OperandDesc& w) {
  const int64_t n = rows_of_matrix(w) * width_of_matrix(w);
  return w.format == Format::fp8 ? ceil(n, 4) * 4 : n / 2;
}

int64_t scale_bytes(const OperandDesc& w) {
  const int64_t N = rows_of_matrix(w), K = width_of_matrix(w);
  return w.format == Format::fp8 ? 4 * ceil(N, w.scale_rows) * ceil(K, w.scale_cols) : 2 * (N * K / kMxGroup);
}

float element(const WideMatrix& m, const std::byte* scales, int64_t row, int64_t k) {
  const OperandDesc& w = *m.weight;
  const int64_t K = width_of_matrix(w), i = row * K + k;
  if (w.format == Format::fp8) {
    const int64_t block = row / w.scale_rows * ceil(K, w.scale_cols) + k / w.scale_cols;
    return e4m3_to_float(static_cast<uint8_t>(m.data[i])) * reinterpret_cast<const float*>(scales)[block];
  }
  const int code = static_cast<uint8_t>(m.data[i / 2]) >> (i % 2 * 4) & 15;
  return static_cast<float>(code - 8) * bf16_to_float(reinterpret_cast<const uint16_t*>(scales)[i / kMxGroup]);
}

// Products of one 16-row block of a matrix with rows of x.
struct Block {
  WideMatrix matrix;
  int64_t first, rows;
};

void multiply(const Block& block, const GemmRows& x, const float* bias, float* y, int64_t stride, std::byte* scratch) {
  const int64_t K = width_of_matrix(*block.matrix.weight);
  widen_rows(block.matrix, block.first, block.rows, reinterpret_cast<float*>(scratch));
  gemm_f32(gemm_kernels(cpu_isa()), {scratch, GemmFormat::f32, block.rows, K}, 0, block.rows, x,
           bias != nullptr ? bias + block.first : nullptr, y + block.first, stride, scratch + panel_bytes(K));
}

int64_t thread_bytes(int64_t K) {
  return panel_bytes(K) + scratch_bytes(K);
}

template <int kInput>
const char* refuse(const OpDesc& desc, const DeviceInfo&) {
  return is_widened_format(desc.in(kInput)) ? nullptr : "weight is neither FP8 with block scales nor INT4";
}

template <int kInput>
int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo& device) {
  return device.threads * thread_bytes(width_of_matrix(desc.in(kInput)));
}

void linear(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const OperandDesc& w = desc.in(1);
  const int64_t N = rows_of_matrix(w), K = width_of_matrix(w), M = args.now.of(desc.in(0).type.dim(0));
  const GemmRows x{args.input<float>(0), K, nullptr, M};
  const float* bias = desc.inputs.size() > 2 ? args.input<float>(2) : nullptr;
  if (M == 0) return;
  stream.pool->run(ceil(N, 16), [&](int64_t b, int thread) {
    const Block block{wide_matrix(w, args.in[1], 0), b * 16, std::min<int64_t>(16, N - b * 16)};
    multiply(block, x, bias, args.output<float>(0), N, workspace + thread * thread_bytes(K));
  });
}

void expert_linear(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const OperandDesc& w = desc.in(3);
  const int64_t E = w.type.dim(0).factor, N = rows_of_matrix(w), K = width_of_matrix(w), blocks = ceil(N, 16);
  const int32_t *rows = args.input<int32_t>(1), *offsets = args.input<int32_t>(2);
  const bool gather = desc.attrs.integer(Attr::gather) != 0;
  stream.pool->run(E * blocks, [&](int64_t i, int thread) {
    const int64_t e = i / blocks, b = i % blocks, begin = offsets[e], count = offsets[e + 1] - begin;
    if (count == 0) return;
    const GemmRows x{args.input<float>(0) + (gather ? 0 : begin * K), K, gather ? rows + begin : nullptr, count};
    const float* bias = desc.inputs.size() > 4 ? args.input<float>(4) + e * N : nullptr;
    const Block block{wide_matrix(w, args.in[3], e), b * 16, std::min<int64_t>(16, N - b * 16)};
    multiply(block, x, bias, args.output<float>(0) + begin * N, N, workspace + thread * thread_bytes(K));
  });
}

}  // namespace

bool is_widened_format(const OperandDesc& weight) {
  return weight.format == Format::fp8 || weight.format == Format::int4;
}

WideMatrix wide_matrix(const OperandDesc& weight, const std::byte* data, int64_t e) {
  return {&weight, data + e * (code_bytes(weight) + scale_bytes(weight))};
}

void widen_rows(const WideMatrix& matrix, int64_t first, int64_t rows, float* panel) {
  const int64_t K = width_of_matrix(*matrix.weight);
  const std::byte* scales = matrix.data + code_bytes(*matrix.weight);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < K; ++k) panel[rows == 16 ? k * 16 + r : r * K + k] = element(matrix, scales, first + r, k);
}

const Kernel kLinearWiden{.name = "linear.widen.cpu",
                          .op = Op::linear,
                          .backend = Backend::cpu,
                          .refuse = refuse<1>,
                          .workspace_bytes = workspace_bytes<1>,
                          .launch = linear};
const Kernel kExpertLinearWiden{.name = "expert_linear.widen.cpu",
                                .op = Op::expert_linear,
                                .backend = Backend::cpu,
                                .refuse = refuse<3>,
                                .workspace_bytes = workspace_bytes<3>,
                                .launch = expert_linear};

}  // namespace moesaic::cpu
