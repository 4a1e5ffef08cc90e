// expert_linear and expert_swiglu of MXFP4 weights on the matrix units: activations rounded to bf16, weights exact,
// sums in float32. With few rows per expert the packed weights are streamed once; with many they are expanded in
// registers as the operand of warpgroup products. Sums of the two differ in order, so a token's bits depend on which
// one a step uses.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/experts_mxfp4.cuh"

namespace moesaic::cuda {
namespace {

constexpr int64_t kDecodeRows = 16;  // routed rows per expert, on average, up to which weights are streamed

bool decodes(int64_t E, int64_t R) {
  return R <= kDecodeRows * E;
}

int64_t rows_at(const OpDesc& desc, const Bounds& bounds) {
  return bounds.of(desc.out(0).type.dim(0));
}

const char* refuse(const OpDesc& desc, const DeviceInfo& device) {
  if (desc.precision == Precision::float32) return "rounds activations to bf16; float32 was asked for";
  const OperandDesc& w = desc.in(3);
  if (w.format != Format::mxfp4) return "expert weights are not MXFP4";
  if (expert_matrix_bytes(w) % 16 != 0 && w.type.dim(0).factor > 1)
    return "matrices of the experts do not begin at multiples of 16 bytes";
  if (w.type.dim(0).factor > 2048) return "more than 2048 experts";
  if (w.type.dim(2).factor > 11264) return "more than 11264 input channels do not fit into shared memory";
  return desc.in(0).type.dtype == DType::e4m3 ? nullptr : refuse_types(desc, device);
}

int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo&) {
  const int64_t E = desc.in(3).type.dim(0).factor, R = rows_at(desc, desc.bounds);
  if (decodes(E, R)) return 0;
  const int64_t N = desc.in(3).type.dim(1).factor, K = desc.in(3).type.dim(2).factor;
  return desc.in(0).type.dtype == DType::e4m3 ? mxfp4_fp8_workspace(E, N, K, R) : mxfp4_prefill_workspace(E, K, R);
}

void experts(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const ExpertCall call = expert_call(desc, args);
  const int64_t R = rows_at(desc, args.now);
  if (R == 0) return;
  if (decodes(call.E, R)) launch_mxfp4_decode(call, R, args.now.tokens, stream);
  else if (call.quantized) launch_mxfp4_fp8(call, R, workspace, stream);
  else launch_mxfp4_prefill(call, R, workspace, stream);
}

}  // namespace

const Kernel kExpertLinearMxfp4{.name = "expert_linear.mxfp4.cuda",
                                .op = Op::expert_linear,
                                .backend = Backend::cuda,
                                .refuse = refuse,
                                .workspace_bytes = workspace_bytes,
                                .launch = experts};
const Kernel kExpertSwigluMxfp4{.name = "expert_swiglu.mxfp4.cuda",
                                .op = Op::expert_swiglu,
                                .backend = Backend::cuda,
                                .refuse = refuse,
                                .workspace_bytes = workspace_bytes,
                                .launch = experts};

}  // namespace moesaic::cuda
