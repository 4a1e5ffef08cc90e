// linear on packed dense weights (layout rows16): bf16, f16 or f32 weights, f32 activations, f32 sums over ascending k.
#include <algorithm>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/products.h"

namespace moesaic::cpu {
namespace {

const char* refuse(const OpDesc& desc, const DeviceInfo&) {
  const OperandDesc& w = desc.in(1);
  if (w.format == Format::mxfp4) return nullptr;
  if (w.format != Format::plain) return "weight is not plain elements or MXFP4";
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

}  // namespace

const Kernel kLinear{.name = "linear.cpu",
                     .op = Op::linear,
                     .backend = Backend::cpu,
                     .refuse = refuse,
                     .layout = packed_weight<1>,
                     .workspace_bytes = workspace_bytes,
                     .launch = launch};

}  // namespace moesaic::cpu
