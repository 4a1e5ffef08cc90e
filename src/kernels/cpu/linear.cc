// linear on packed dense weights (layout rows16): bf16, f16 or f32 weights, f32 activations, f32 sums over ascending k.
// FP8 weights with block scales are widened to f32 sixteen rows at a time, in scratch, for the same product.
#include <algorithm>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/products.h"
#include "quant/fp8.h"

namespace moesaic::cpu {
namespace {

const char* refuse(const OpDesc& desc, const DeviceInfo&) {
  const OperandDesc& w = desc.in(1);
  if (w.format != Format::plain) return "weight is not plain elements";
  if (w.stored != DType::bf16 && w.stored != DType::f16 && w.stored != DType::f32)
    return "weight is not BF16, F16 or F32";
  return nullptr;
}

int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo& device) {
  return device.threads * scratch_bytes(desc.in(1).type.dim(1).factor);
}

void launch(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const int64_t N = desc.in(1).type.dim(0).factor, K = desc.in(1).type.dim(1).factor;
  const int64_t M = args.now.of(desc.in(0).type.dim(0));
  const GemmMatrix w{args.in[1], gemm_format(desc.in(1)), N, K};
  const GemmRows x{args.input<float>(0), K, nullptr, M};
  const float* bias = desc.inputs.size() > 2 ? args.input<float>(2) : nullptr;
  const GemmKernels& kernels = gemm_kernels(cpu_isa());
  const int64_t rows = task_rows(N, gemm_matrix_bytes(w.format, 1, K), stream.pool->threads());
  if (M == 0) return;
  stream.pool->run((N + rows - 1) / rows, [&](int64_t i, int thread) {
    gemm_f32(kernels, w, i * rows, std::min((i + 1) * rows, N), x, bias, args.output<float>(0), N,
             workspace + thread * scratch_bytes(K));
  });
}

const char* refuse_fp8(const OpDesc& desc, const DeviceInfo&) {
  return desc.in(1).format == Format::fp8 ? nullptr : "weight is not FP8 with block scales";
}

int64_t fp8_panel_bytes(int64_t K) {
  return (16 * K * 4 + 255) / 256 * 256;
}

int64_t workspace_bytes_fp8(const OpDesc& desc, const DeviceInfo& device) {
  const int64_t K = desc.in(1).type.dim(1).factor;
  return device.threads * (fp8_panel_bytes(K) + scratch_bytes(K));
}

// Rows [first, first + rows) of an FP8 weight as a packed f32 matrix: [K][16], or row-major for a last, shorter block.
void widen_fp8(const OperandDesc& weight, const std::byte* data, int64_t first, int64_t rows, float* panel) {
  const int64_t N = weight.type.dim(0).factor, K = weight.type.dim(1).factor;
  const int64_t columns = (K + weight.scale_cols - 1) / weight.scale_cols;
  const auto* scales = reinterpret_cast<const float*>(data + (N * K + 3) / 4 * 4);
  for (int64_t r = 0; r < rows; ++r) {
    const float* row_scales = scales + (first + r) / weight.scale_rows * columns;
    for (int64_t k = 0; k < K; ++k) {
      const float value = e4m3_to_float(static_cast<uint8_t>(data[(first + r) * K + k])) * row_scales[k / weight.scale_cols];
      panel[rows == 16 ? k * 16 + r : r * K + k] = value;
    }
  }
}

void launch_fp8(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const int64_t N = desc.in(1).type.dim(0).factor, K = desc.in(1).type.dim(1).factor;
  const int64_t M = args.now.of(desc.in(0).type.dim(0)), blocks = (N + 15) / 16;
  const GemmRows x{args.input<float>(0), K, nullptr, M};
  const GemmKernels& kernels = gemm_kernels(cpu_isa());
  if (M == 0) return;
  stream.pool->run(blocks, [&](int64_t block, int thread) {
    std::byte* scratch = workspace + thread * (fp8_panel_bytes(K) + scratch_bytes(K));
    const int64_t first = block * 16, rows = std::min<int64_t>(16, N - first);
    widen_fp8(desc.in(1), args.in[1], first, rows, reinterpret_cast<float*>(scratch));
    const float* bias = desc.inputs.size() > 2 ? args.input<float>(2) + first : nullptr;
    gemm_f32(kernels, {scratch, GemmFormat::f32, rows, K}, 0, rows, x, bias, args.output<float>(0) + first, N,
             scratch + fp8_panel_bytes(K));
  });
}

}  // namespace

const Kernel kLinearFp8{.name = "linear.fp8.cpu",
                        .op = Op::linear,
                        .backend = Backend::cpu,
                        .refuse = refuse_fp8,
                        .workspace_bytes = workspace_bytes_fp8,
                        .launch = launch_fp8};

const Kernel kLinear{.name = "linear.cpu",
                     .op = Op::linear,
                     .backend = Backend::cpu,
                     .refuse = refuse,
                     .layout = packed_weight<1>,
                     .workspace_bytes = workspace_bytes,
                     .launch = launch};

}  // namespace moesaic::cpu
