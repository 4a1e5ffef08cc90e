// Sums of several values at once over lanes of a warp: each exchange halves the values that a lane keeps, so N values
// over N lanes take about 2 N shuffles instead of N log N. The order of every sum is that of a butterfly.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace moesaic::cuda {

// sum + a * b, rounded once on a GPU; in two steps where a fused operation would be a call.
__device__ __forceinline__ float add_product(float sum, float a, float b) {
#ifdef MOESAIC_EMULATED_CUDA
  return sum + a * b;
#else
  return fmaf(a, b, sum);
#endif
}

// x[i] of lane ^ bits.
template <int N>
__device__ __forceinline__ void swap_lanes(float (&x)[N], int bits) {
#ifdef MOESAIC_EMULATED_CUDA
  struct All {
    float x[N];
  } all;
  std::copy_n(x, N, all.x);
  all = __shfl_xor_sync(kAllLanes, all, bits);
  std::copy_n(all.x, N, x);
#else
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = __shfl_xor_sync(kAllLanes, x[i], bits);
#endif
}

// Adds the values of lane ^ bit, a power of two. The lane with the bit clear keeps the first half of the sums, the
// other one the second half, in kept[0 .. N / 2).
template <int N>
__device__ __forceinline__ void fold_half(const float (&x)[N], int bit, float (&kept)[N / 2]) {
  const bool upper = (static_cast<int>(threadIdx.x) & bit) != 0;
  float sent[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    sent[i] = upper ? x[i] : x[i + N / 2];
    kept[i] = upper ? x[i + N / 2] : x[i];
  }
  swap_lanes(sent, bit);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) kept[i] += sent[i];
}

// Every x[i] folded over all lanes of the warp, as a butterfly from lanes 16 apart to neighbours; every lane gets the
// results. `fold` is commutative.
template <int N, typename Fold>
__device__ __forceinline__ void warp_folds(float (&x)[N], Fold fold) {
#ifdef MOESAIC_EMULATED_CUDA
  struct All {
    float x[N];
  } all, lanes[kWarp];
  std::copy_n(x, N, all.x);
  emulated_cuda::fold(kAllLanes, all, [&, lane = 1](const All& first, const All& other) mutable {
    if (lane == 1) lanes[0] = first;
    lanes[lane++] = other;
    return first;
  });
  for (int d = 16; d > 0; d /= 2)
    for (int lane = 0; lane < d; ++lane)
      for (int i = 0; i < N; ++i) lanes[lane].x[i] = fold(lanes[lane].x[i], lanes[lane + d].x[i]);
  std::copy_n(lanes[0].x, N, x);
#else
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    float other[N];
#pragma unroll
    for (int i = 0; i < N; ++i) other[i] = __shfl_xor_sync(kAllLanes, x[i], d);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = fold(x[i], other[i]);
  }
#endif
}
template <int N>
__device__ __forceinline__ void warp_sums(float (&x)[N]) {
  warp_folds(x, [](float a, float b) { return a + b; });
}
template <int N>
__device__ __forceinline__ void warp_maxima(float (&x)[N]) {
  warp_folds(x, [](float a, float b) { return fmaxf(a, b); });
}

}  // namespace moesaic::cuda
