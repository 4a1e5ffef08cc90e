// FP8 rows (quant/quantized_row.h) as warps write them.
#pragma once

#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/rows.cuh"
#include "quant/quantized_row.h"

namespace moesaic::cuda {

// One group of 128 of a row of K: this lane's four elements from k on, k = 128 * group + 4 * lane, zeros past K.
__device__ __forceinline__ void quantize_group(const Floats<4>& x, int k, int K, std::byte* row) {
  unsigned largest = 0;
#pragma unroll
  for (float v : x.v) largest = max(largest, __float_as_uint(v) & 0x7FFFFFFFu);
  largest = __reduce_max_sync(kAllLanes, largest);
  const float inverse = __uint_as_float(quantized_inverse_bits(largest));
  *reinterpret_cast<unsigned*>(row + k) =
      pack_e4m3(x.v[0] * inverse, x.v[1] * inverse, x.v[2] * inverse, x.v[3] * inverse);
  const int lane = k / 4 % kWarp, group = k / 128, groups = ceil_div(K, 128);
  auto* scales = reinterpret_cast<unsigned*>(row + groups * 128);
  if (lane == 0) scales[group] = quantized_scale_bits(largest);
  const int end = static_cast<int>(quantized_width(K)) / 4 - groups * 32;  // of the row, in words of the scales
  if (group == groups - 1 && group + lane < end && lane > 0) scales[group + lane] = 0;
}

}  // namespace moesaic::cuda
