// Tiles of bf16 rows in shared memory that copies of 16 bytes fill and matrix units read, both without bank conflicts.
#pragma once

#include "kernels/cuda/mma.cuh"

namespace moesaic::cuda::swizzled {

// Where the 16 bytes of chunk `chunk` of row `row` lie, in elements: the chunks of every 128 bytes are turned by the
// row, so that eight rows of a matrix lie in different banks. stride % 64 == 0.
__device__ __forceinline__ int at(int row, int chunk, int stride) {
  return row * stride + ((chunk & ~7) | ((chunk ^ row) & 7)) * 8;
}
__host__ __device__ __forceinline__ int padded(int width) {
  return ceil_div(width, 64) * 64;
}

// The a fragment of rows [row, row + 16) and channels [16 k, 16 k + 16), and for two neighbouring k the b fragments of
// the columns [row, row + 8), both stored [row][channel].
__device__ __forceinline__ void load_rows16(unsigned (&a)[4], const uint16_t* from, int row, int k, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, m = lane / 8;
  load_matrices(a, from + at(row + (m & 1) * 8 + lane % 8, 2 * k + m / 2, stride));
}
__device__ __forceinline__ void load_columns8(unsigned (&b)[4], const uint16_t* from, int row, int k, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_matrices(b, from + at(row + lane % 8, 2 * k + lane / 8, stride));
}
// The b fragments of the channels [16 n, 16 n + 8) and the eight after them, over rows [16 k, 16 k + 16).
__device__ __forceinline__ void load_values(unsigned (&b)[4], const uint16_t* from, int k, int n, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, m = lane / 8;
  load_matrices_transposed(b, from + at(16 * k + (m & 1) * 8 + lane % 8, 2 * n + m / 2, stride));
}

}  // namespace moesaic::cuda::swizzled
