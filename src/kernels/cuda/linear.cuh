// What the kernels of linear and grouped_linear share. Group g: y[t, g N + n] = x[t, g K ..] . w[g N + n, ..] +
// bias[n]; linear has one group.
#pragma once

#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/stored_matrix.cuh"

namespace moesaic::cuda {

// The operands of a launch, device pointers: x [T, groups * K], w [groups * N, K], y [T, groups * N].
struct LinearCall {
  const float* x;
  StoredMatrix w;
  const float* bias;  // [N], null: none
  float* y;
  int T, N, K, groups;
  Stored stored;

  __host__ __device__ int64_t x_stride() const { return static_cast<int64_t>(groups) * K; }
  __host__ __device__ int64_t y_stride() const { return static_cast<int64_t>(groups) * N; }
};

inline constexpr int kMultiprocessors = 132;  // of an H200: how work is cut, and so the order of sums, follows it

// linear_exact.cu: float32 arithmetic, any format and shape.
void linear_exact(const LinearCall& call, Stream& stream);

// linear_gemv.cu: up to 4 rows of x, float32 arithmetic, weights in f32, bf16, f16 or fp8 as they are. x is rounded to
// bf16 unless the weights are f32.
bool gemv_serves(const LinearCall& call);
void linear_gemv(const LinearCall& call, Stream& stream);
// 2 to kMostTogether products of one x, of one group each, in one launch: matrices of one K and one format, f32 not
// among them, all with a bias or none. Sums may be ordered otherwise than by linear_gemv for each.
bool gemv_serves_together(std::span<const LinearCall> calls);
void linear_gemv_together(std::span<const LinearCall> calls, Stream& stream);

// The rest rounds x to bf16 for the matrix units; K must be a multiple of 32 and an fp8 scale's columns of 64.
// linear_stream.cu: reads the weights once for up to 64 rows of x; fp8 codes are exact and scaled in float32, elements
// of f16, int4 and mxfp4 are rounded to bf16.
inline constexpr int kStreamedRows = 64;
void linear_stream(const LinearCall& call, std::byte* workspace, Stream& stream);
int64_t stream_workspace(int64_t T, const LinearCall& call);

// out[T, groups * K] = x in bf16, K a multiple of 8.
void round_rows(const LinearCall& call, uint16_t* out, Stream& stream);

// gemm_bf16.cu: for many rows; elements of every format are rounded to bf16. Tiles of 128 rows of x by `columns` rows
// of w, 128 or 256; each product is cut into `splits` ranges of K.
struct GemmTiling {
  int columns, splits;
};
GemmTiling gemm_tiling(int64_t T, int64_t N, int64_t K, int64_t groups);
int64_t gemm_workspace(int64_t T, const LinearCall& call, const GemmTiling& tiling);
// Of every step up to T rows.
int64_t gemm_workspace(int64_t T, const LinearCall& call);
void gemm_bf16(const LinearCall& call, const GemmTiling& tiling, std::byte* workspace, Stream& stream);

}  // namespace moesaic::cuda
