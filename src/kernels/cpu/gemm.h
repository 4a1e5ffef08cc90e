// Matrix products of packed weights [N, K] (weights/layout.h) with f32 activations [M, K], on the CPU.
//
// The value of an output element depends on its row of weights and its row of activations alone: not on M, the split of
// the rows over threads, the blocking, or the instruction set. Each element is one sum over ascending k, and SIMD lanes
// are output rows. Two modes:
//
//   f32  acc = fma(w[n][k], x[m][k], acc) for k = 0 .. K-1 from 0, where w is the weight converted exactly;
//        y = acc + bias[n].
//   q8   MXFP4 weights; activations as int8 per group of 32 k. isum = sum over the group of (2 * code value) * q,
//        exact in int32; acc = fma(float(isum), scale_w * (0.5f * d), acc) over ascending groups; y = acc + bias[n].
//
// Nothing here allocates or starts threads. Non-finite activations give non-finite outputs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"
#include "quant/fp4.h"

namespace moesaic {

enum class GemmFormat { f32, bf16, f16, mxfp4 };

// One packed matrix, as pack_dense or pack_mxfp4 wrote it. MXFP4 needs K % 32 == 0.
struct GemmMatrix {
  const std::byte* data;
  GemmFormat format;
  int64_t N, K;
};
int64_t gemm_matrix_bytes(GemmFormat format, int64_t N, int64_t K);

// Activations: row m is x + (gather != nullptr ? gather[m] : m) * stride, K floats.
struct GemmRows {
  const float* x;
  int64_t stride;
  const int32_t* gather;
  int64_t M;
};

// One quantised group of 32 activations.
struct Q8Group {
  float half_d;    // 0.5f * d, d = amax / 127; NaN when one of the 32 is not finite
  int32_t offset;  // -12 * sum(q): kernels multiply by the unsigned 2 * value + 12
  int8_t q[kMxGroup];
};
static_assert(sizeof(Q8Group) == 40);

// Quantised activations: row m starts at groups + (gather != nullptr ? gather[m] : m) * (K / 32).
struct Q8Rows {
  const Q8Group* groups;
  const int32_t* gather;
  int64_t M;
};

struct GemmKernels;  // the functions of one instruction set
const GemmKernels& gemm_kernels(Isa isa);

// Bytes of scratch that gemm_f32 and gemm_q8 need for matrices with this K, per thread.
size_t gemm_scratch_bytes(int64_t K);

// y[m * y_stride + n] for m in [0, M), n in [row_begin, row_end); nothing else is written. row_begin is a multiple of
// 16, row_end a multiple of 16 or N. `bias` is null or f32[N]. Threads may split N by such ranges, each with its own
// `scratch`; rows of y must not overlap x.
void gemm_f32(const GemmKernels& kernels, const GemmMatrix& w, int64_t row_begin, int64_t row_end, const GemmRows& x,
              const float* bias, float* y, int64_t y_stride, std::byte* scratch);
void gemm_q8(const GemmKernels& kernels, const GemmMatrix& w, int64_t row_begin, int64_t row_end, const Q8Rows& x,
             const float* bias, float* y, int64_t y_stride, std::byte* scratch);

constexpr size_t q8_bytes(int64_t M, int64_t K) {
  return sizeof(Q8Group) * static_cast<size_t>(M * (K / kMxGroup));
}

// Quantises rows [row_begin, row_end) of x [.., K] to out + row * K/32: q = round_half_even(x * (127 / amax)). A group
// whose 127 / amax overflows (amax below 4e-37) becomes zeros.
void quantize_q8(const GemmKernels& kernels, const float* x, int64_t stride, int64_t row_begin, int64_t row_end,
                 int64_t K, Q8Group* out);

}  // namespace moesaic
