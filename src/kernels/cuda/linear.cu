// The kernels of linear and grouped_linear: which of the products in linear.cuh serves a step.
#include <algorithm>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/linear.cuh"

namespace moesaic::cuda {
namespace {

LinearCall shape_of(const OpDesc& desc, const Bounds& now) {
  const OperandDesc& w = desc.in(1);
  LinearCall call{};
  call.groups = static_cast<int>(desc.op == Op::grouped_linear ? desc.attrs.integer(Attr::groups) : 1);
  call.T = static_cast<int>(rows_of(desc.out(0), now));
  call.N = static_cast<int>(w.type.dim(0).factor / call.groups);
  call.K = static_cast<int>(w.type.dim(1).factor);
  call.stored = stored_as(w);
  return call;
}

LinearCall call_of(const OpDesc& desc, const Args& args) {
  LinearCall call = shape_of(desc, args.now);
  call.x = args.input<float>(0);
  call.w = stored_matrix(desc.in(1), args.in[1]);
  call.bias = desc.inputs.size() > 2 ? args.input<float>(2) : nullptr;
  call.y = args.output<float>(0);
  return call;
}

void launch_exact(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const LinearCall call = call_of(desc, args);
  if (call.stored == Stored::f32 && gemv_serves(call)) return linear_gemv(call, stream);
  linear_exact(call, stream);
}

const char* refuse_bf16(const OpDesc& desc, const DeviceInfo& device) {
  const OperandDesc& w = desc.in(1);
  if (desc.precision == Precision::float32) return "x is rounded to bf16";
  if (stored_as(w) == Stored::f32) return "weights kept in f32 are multiplied in float32";
  if (w.type.dim(1).factor % 32 != 0) return "K must be a multiple of 32";
  if (w.format == Format::fp8 && w.scale_cols % 64 != 0) return "an fp8 scale must cover a multiple of 64 columns";
  return refuse_types(desc, device);
}

int64_t workspace_bf16(const OpDesc& desc, const DeviceInfo&) {
  const LinearCall call = shape_of(desc, desc.bounds);
  return std::max(stream_workspace(call.T, call), call.T > kStreamedRows ? gemm_workspace(call.T, call) : 0);
}

void launch_bf16(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const LinearCall call = call_of(desc, args);
  if (gemv_serves(call)) return linear_gemv(call, stream);
  if (call.T <= kStreamedRows) return linear_stream(call, workspace, stream);
  gemm_bf16(call, gemm_tiling(call.T, call.N, call.K, call.groups), workspace, stream);
}

void launch_bf16_together(std::span<const OpDesc* const> descs, std::span<const Args> args, std::byte* workspace,
                          Stream& stream) {
  std::vector<LinearCall> calls;
  for (size_t i = 0; i < descs.size(); ++i) calls.push_back(call_of(*descs[i], args[i]));
  if (gemv_serves_together(calls)) return linear_gemv_together(calls, stream);
  for (size_t i = 0; i < descs.size(); ++i) launch_bf16(*descs[i], args[i], workspace, stream);
}

}  // namespace

const Kernel kLinearBf16{.name = "linear.bf16.cuda",
                         .op = Op::linear,
                         .backend = Backend::cuda,
                         .refuse = refuse_bf16,
                         .workspace_bytes = workspace_bf16,
                         .launch = launch_bf16,
                         .launch_together = launch_bf16_together};
const Kernel kGroupedLinearBf16{.name = "grouped_linear.bf16.cuda",
                                .op = Op::grouped_linear,
                                .backend = Backend::cuda,
                                .refuse = refuse_bf16,
                                .workspace_bytes = workspace_bf16,
                                .launch = launch_bf16};
const Kernel kLinear{
    .name = "linear.cuda", .op = Op::linear, .backend = Backend::cuda, .refuse = refuse_types, .launch = launch_exact};
const Kernel kGroupedLinear{.name = "grouped_linear.cuda",
                            .op = Op::grouped_linear,
                            .backend = Backend::cuda,
                            .refuse = refuse_types,
                            .launch = launch_exact};

}  // namespace moesaic::cuda
