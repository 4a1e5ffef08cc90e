// linear in float32 arithmetic (products and sums are fused by nvcc): a streaming kernel for few rows of x, and tiles
// through shared memory for many. A sum's order depends on the shape and on which of the two runs, not on the values or
// the other rows.
#include "kernels/cuda/linear.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kRows = 2;  // of w, per warp

// x[k .. k+7] or, where rows are not whole eights, what is left of them and zeros.
template <bool kWhole>
__device__ __forceinline__ void load_x(const float* x, int k, int K, float (&v)[8]) {
  if constexpr (kWhole) {
    const float4 a = *reinterpret_cast<const float4*>(x + k), b = *reinterpret_cast<const float4*>(x + k + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = k + i < K ? x[k + i] : 0;
  }
}
template <Stored kStored, bool kWhole>
__device__ __forceinline__ void load_w(const StoredMatrix& m, int64_t row, int k, float (&v)[8]) {
  if constexpr (kWhole) {
    load_eight<kStored>(m, row, k, v);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = k + i < m.K ? element_at<kStored>(m, row, k + i) : 0;
  }
}

// Sums of kCount values (a power of two) over the lanes of a warp: each round a lane hands half of its values to its
// partner, so that lane l ends up with the total of value l / (32 / kCount).
template <int kCount>
__device__ __forceinline__ float warp_sums(float (&v)[kCount], int lane) {
  int d = kWarp / 2;
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2, d /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const bool upper = (lane & d) != 0;
      const float mine = upper ? v[i + half] : v[i], other = upper ? v[i] : v[i + half];
      v[i] = mine + __shfl_xor_sync(kAllLanes, other, d);
    }
  }
#pragma unroll
  for (; d > 0; d /= 2) v[0] += __shfl_xor_sync(kAllLanes, v[0], d);
  return v[0];
}

// A warp multiplies two rows of w by kTokens rows of x, over every parts-th 256 columns; `parts` warps share two rows
// and their sums are added in order. Grid: row pairs, groups, rows of x.
template <Stored kStored, bool kWhole, int kTokens>
__global__ void __launch_bounds__(kThreads) few_rows_kernel(LinearCall call, int parts) {
  after_previous();
  __shared__ float partial[kWarps][kRows * kTokens];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int pairs = kWarps / parts, group = static_cast<int>(blockIdx.y),
            token = static_cast<int>(blockIdx.z) * kTokens;
  const int first = static_cast<int>(blockIdx.x) * pairs * kRows, row = first + warp / parts * kRows;
  const float* x = call.x + static_cast<int64_t>(group) * call.K;
  float sum[kTokens * kRows] = {};
  for (int k = (warp % parts * kWarp + lane) * 8; k < call.K; k += parts * kWarp * 8) {
    float w[kRows][8];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      load_w<kStored, kWhole>(call.w, static_cast<int64_t>(group) * call.N + min(row + r, call.N - 1), k, w[r]);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float v[8];
      load_x<kWhole>(x + min(token + t, call.T - 1) * call.x_stride(), k, call.K, v);
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[t * kRows + r] += w[r][i] * v[i];
    }
  }
  const float total_here = warp_sums(sum, lane);
  constexpr int kShare = kWarp / (kTokens * kRows);  // lanes with the same total
  if (lane % kShare == 0) partial[warp][lane / kShare] = total_here;
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x), pair = i / (kRows * kTokens), at = i % (kRows * kTokens);
  const int n = first + pair * kRows + at % kRows, t = token + at / kRows;
  if (pair >= pairs || n >= call.N || t >= call.T) return;
  float total = call.bias != nullptr ? call.bias[n] : 0;
  for (int p = 0; p < parts; ++p) total += partial[pair * parts + p][at];
  call.y[t * call.y_stride() + static_cast<int64_t>(group) * call.N + n] = total;
}

constexpr int kTile = 64, kDepth = 32;  // of x and w; columns at a time

// A block multiplies 64 rows of x by 64 rows of w, a thread 4 by 4; sums go over ascending k. Grid: rows of x, rows of
// w, groups.
template <Stored kStored, bool kWhole>
__global__ void __launch_bounds__(kThreads) many_rows_kernel(LinearCall call) {
  after_previous();
  __shared__ __align__(16) float xs[kDepth][kTile + 4], ws[kDepth][kTile + 4];
  const int thread = static_cast<int>(threadIdx.x), tx = thread % 16 * 4, ty = thread / 16 * 4;
  const int group = static_cast<int>(blockIdx.z);
  const int token = static_cast<int>(blockIdx.x) * kTile, row = static_cast<int>(blockIdx.y) * kTile;
  const int line = thread / 4, column = thread % 4 * 8;  // what this thread loads
  const float* x = call.x + min(token + line, call.T - 1) * call.x_stride() + static_cast<int64_t>(group) * call.K;
  const int64_t w_row = static_cast<int64_t>(group) * call.N + min(row + line, call.N - 1);
  float sum[4][4] = {};
  for (int begin = 0; begin < call.K; begin += kDepth) {
    float v[8] = {}, w[8] = {};
    if (begin + column < call.K) {
      load_x<kWhole>(x, begin + column, call.K, v);
      load_w<kStored, kWhole>(call.w, w_row, begin + column, w);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) xs[column + i][line] = v[i], ws[column + i][line] = w[i];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const float4 a = *reinterpret_cast<const float4*>(&xs[k][ty]), b = *reinterpret_cast<const float4*>(&ws[k][tx]);
      const float from_x[4] = {a.x, a.y, a.z, a.w}, from_w[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int r = 0; r < 4; ++r) sum[t][r] += from_x[t] * from_w[r];
    }
    __syncthreads();
  }
#pragma unroll
  for (int t = 0; t < 4; ++t)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int n = row + tx + r;
      if (token + ty + t < call.T && n < call.N)
        call.y[(token + ty + t) * call.y_stride() + static_cast<int64_t>(group) * call.N + n] =
            sum[t][r] + (call.bias != nullptr ? call.bias[n] : 0);
    }
}

// Warps that share two rows of w: as many as the device has room for.
int parts_of(const LinearCall& call) {
  const int64_t pairs = ceil_div(static_cast<int64_t>(call.N), kRows) * call.groups;
  int parts = kWarps;
  while (parts > 1 && pairs * parts > int64_t{kMultiprocessors} * 48) parts /= 2;
  return parts;
}

template <Stored kStored, bool kWhole, int kTokens>
void launch_few(const LinearCall& call, Stream& stream) {
  const int parts = parts_of(call);
  const dim3 grid(static_cast<unsigned>(ceil_div(call.N, kWarps / parts * kRows)), static_cast<unsigned>(call.groups),
                  static_cast<unsigned>(ceil_div(call.T, kTokens)));
  launch(few_rows_kernel<kStored, kWhole, kTokens>, grid, kThreads, 0, stream, call, parts);
}

}  // namespace

void linear_exact(const LinearCall& call, Stream& stream) {
  // Tiles go through K one after the other: too few of them take long where K is long.
  const int64_t tiles = int64_t{ceil_div(call.T, kTile)} * ceil_div(call.N, kTile) * call.groups;
  const bool few = call.T <= 16 || (tiles < kMultiprocessors && call.K >= 1024);
  const bool whole = in_eights(call.stored, call.w) && reinterpret_cast<uintptr_t>(call.x) % 16 == 0;
  with_format(call.stored, [&](auto format) {
    constexpr Stored kStored = decltype(format)::value;
    if (!few) {
      const dim3 grid(static_cast<unsigned>(ceil_div(call.T, kTile)), static_cast<unsigned>(ceil_div(call.N, kTile)),
                      static_cast<unsigned>(call.groups));
      return launch(whole ? many_rows_kernel<kStored, true> : many_rows_kernel<kStored, false>, grid, kThreads, 0,
                    stream, call);
    }
    if (!whole) return launch_few<kStored, false, 8>(call, stream);
    if (call.T == 1) return launch_few<kStored, true, 1>(call, stream);
    launch_few<kStored, true, 8>(call, stream);
  });
}

}  // namespace moesaic::cuda
