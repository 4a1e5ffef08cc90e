// What the kernels of expert_linear and expert_swiglu share: the operands, which expert a block works for, and the
// gated activation. Rows are sorted by expert; offsets [E + 1], on the device, say where each expert's begin.
#pragma once

#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "quant/quantized_row.h"

namespace moesaic::cuda {

// The operands of a launch, device pointers. weight [E, N, K], matrix_bytes each; bias [E, N] or null.
struct ExpertCall {
  const float* x;
  const int* rows;  // row of x for each routed row; null: the row itself
  const int* offsets;
  const std::byte* weight;
  int64_t matrix_bytes;
  const float* bias;
  float* y;
  int E, N, K;
  bool quantized;  // x holds FP8 rows (quant/quantized_row.h)
  bool swiglu;     // y[r, i] = activation of products 2i (gate) and 2i+1 (up), else y[r, n] = product n
  float limit, alpha;

  __device__ int64_t width() const { return swiglu ? N / 2 : N; }
  __device__ const float* x_row(int64_t r) const { return x + (rows != nullptr ? rows[r] : r) * K; }
  __device__ const std::byte* quantized_row(int64_t r) const {
    return reinterpret_cast<const std::byte*>(x) + (rows != nullptr ? rows[r] : r) * quantized_width(K);
  }
};

// The e-th expert that has rows, counted from 0; E where there are fewer. All lanes of a warp call it.
__device__ __forceinline__ int expert_with_rows(const int* offsets, int E, int e) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int begin = 0; begin < E; begin += kWarp) {
    const int i = begin + lane;
    unsigned found =
        __ballot_sync(kAllLanes, static_cast<int>(i < E && offsets[min(i, E - 1) + 1] > offsets[min(i, E - 1)]));
    const int count = __popc(found);
    if (e >= count) {
      e -= count;
      continue;
    }
    for (; e > 0; --e) found &= found - 1;
    return begin + __ffs(static_cast<int>(found)) - 1;
  }
  return E;
}

// Blocks that cover every expert with rows, whatever the routing: a grid dimension of R routed rows.
inline int64_t experts_reached(int64_t E, int64_t R) {
  return E < R ? E : R;
}

// Biases of rows n and n + 1 of expert e, n even; zeros past the end and where there are none.
__device__ __forceinline__ float2 bias_pair(const ExpertCall& call, int e, int n) {
  if (call.bias == nullptr || n >= call.N) return make_float2(0, 0);
  const float* bias = call.bias + static_cast<int64_t>(e) * call.N + n;
  return make_float2(bias[0], n + 1 < call.N ? bias[1] : 0.0f);
}
// Writes what rows n and n + 1 give for routed row r, n even.
__device__ __forceinline__ void write_pair(const ExpertCall& call, int n, int64_t r, float first, float second) {
  float* y = call.y + r * call.width() + (call.swiglu ? n / 2 : n);
  if (call.swiglu) *y = clamped_swiglu(first, second, call.limit, call.alpha);
  else if (call.N % 2 == 0) *reinterpret_cast<float2*>(y) = make_float2(first, second);
  else if (n + 1 < call.N) y[0] = first, y[1] = second;
  else y[0] = first;
}

// Bytes of one row_major matrix [N, K] of the weight.
inline int64_t expert_matrix_bytes(const OperandDesc& weight) {
  const int64_t N = weight.type.dim(1).factor, K = weight.type.dim(2).factor;
  switch (weight.format) {
    case Format::plain: return N * K * dtype_bytes(weight.stored);
    case Format::mxfp4: return N * K / 2 + N * K / 32;
    case Format::int4: return N * K / 2 + N * K / 32 * 2;
    case Format::fp8: break;
  }
  return ceil_div(N * K, int64_t{4}) * 4 + ceil_div(N, weight.scale_rows) * ceil_div(K, weight.scale_cols) * 4;
}

inline ExpertCall expert_call(const OpDesc& desc, const Args& args) {
  ExpertCall call{};
  call.x = args.input<float>(0);
  call.rows = desc.attrs.integer(Attr::gather) != 0 ? args.input<int>(1) : nullptr;
  call.offsets = args.input<int>(2);
  call.weight = args.in[3];
  call.matrix_bytes = expert_matrix_bytes(desc.in(3));
  call.bias = desc.inputs.size() > 4 ? args.input<float>(4) : nullptr;
  call.y = args.output<float>(0);
  call.E = static_cast<int>(desc.in(3).type.dim(0).factor);
  call.N = static_cast<int>(desc.in(3).type.dim(1).factor);
  call.K = static_cast<int>(desc.in(3).type.dim(2).factor);
  call.quantized = desc.in(0).type.dtype == DType::e4m3;
  call.swiglu = desc.op == Op::expert_swiglu;
  if (!call.swiglu) return call;
  call.limit = desc.attrs.real(Attr::limit);
  call.alpha = desc.attrs.real(Attr::alpha);
  return call;
}

// Routed rows of the step.
inline int64_t routed_rows(const OpDesc& desc, const Args& args) {
  return args.now.of(desc.out(0).type.dim(0));
}

}  // namespace moesaic::cuda
