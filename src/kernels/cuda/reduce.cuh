// Sums and maxima over a warp and over a block. Every thread of the block takes part; the order of a sum is fixed.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace moesaic::cuda {

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(kAllLanes, x, d);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, d));
  return x;
}

// `scratch`: 32 floats of shared memory. Blocks are whole warps. All threads get the result, and may reuse `scratch`.
template <typename Fold>
__device__ __forceinline__ float block_fold(float x, float identity, float* scratch, Fold fold) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  x = fold(x);
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  x = fold(lane < static_cast<int>(blockDim.x) / kWarp ? scratch[lane] : identity);
  __syncthreads();
  return x;
}
__device__ __forceinline__ float block_sum(float x, float* scratch) {
  return block_fold(x, 0.0f, scratch, [](float v) { return warp_sum(v); });
}
__device__ __forceinline__ float block_max(float x, float* scratch) {
  return block_fold(x, -INFINITY, scratch, [](float v) { return warp_max(v); });
}

// Sum of `value` over the threads before this one; `total` of all. scratch: an int of shared memory per warp, not
// reused before the block's next barrier.
__device__ __forceinline__ int sum_before(int value, int* scratch, int& total) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  int sum = value;
  for (int d = 1; d < kWarp; d *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, d);
    if (lane >= d) sum += other;
  }
  if (lane == kWarp - 1) scratch[warp] = sum;
  __syncthreads();
  total = 0;
  int before = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) {
    if (w < warp) before += scratch[w];
    total += scratch[w];
  }
  return before + sum - value;
}

}  // namespace moesaic::cuda
