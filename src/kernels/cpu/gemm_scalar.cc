// The scalar level: the definition the SIMD levels must equal bit for bit.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/gemm_tiles.h"
#include "quant/bf16.h"
#include "quant/fp4.h"
#include "weights/layout.h"

namespace moesaic {
namespace {

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// The code of (k, row) in the group at `group`, 0 <= k < 32.
uint8_t code_at(const std::byte* group, int64_t k, int64_t row) {
  const uint8_t byte = static_cast<uint8_t>(group[kBlockRows + k % 16 / 4 * 64 + row * 4 + k % 4]);
  return k < 16 ? byte & 15 : byte >> 4;
}

float weight_at(const std::byte* block, GemmFormat format, int64_t k, int64_t row) {
  const int64_t i = k * kBlockRows + row;
  if (format == GemmFormat::f32) return load<float>(block + i * 4);
  if (format == GemmFormat::bf16) return bf16_to_float(load<uint16_t>(block + i * 2));
  if (format == GemmFormat::f16) return f16_to_float(load<uint16_t>(block + i * 2));
  const std::byte* group = block + k / kMxGroup * kMxBlockGroupBytes;
  return e2m1_to_float(code_at(group, k % kMxGroup, row)) * e8m0_to_float(static_cast<uint8_t>(group[row]));
}

void widen_mxfp4(const std::byte* block, int64_t k_count, float* out) {
  for (int64_t k = 0; k < k_count; ++k)
    for (int64_t row = 0; row < kBlockRows; ++row)
      out[k * kBlockRows + row] = weight_at(block, GemmFormat::mxfp4, k, row);
}

void f32_tile(const F32Tile& t) {
  for (int b = 0; b < t.blocks; ++b) {
    for (int i = 0; i < t.rows; ++i) {
      float* y = t.y + i * t.y_stride + b * kBlockRows;
      for (int64_t row = 0; row < kBlockRows; ++row) {
        float sum = t.resume ? y[row] : 0.0f;
        for (int64_t k = 0; k < t.k_count; ++k)
          sum = std::fma(weight_at(t.w + b * t.block_bytes, t.format, k, row), t.x[i][k], sum);
        y[row] = t.bias != nullptr ? sum + t.bias[b * kBlockRows + row] : sum;
      }
    }
  }
}

void q8_tile(const Q8Tile& t) {
  for (int i = 0; i < t.rows; ++i) {
    for (int64_t row = 0; row < kBlockRows; ++row) {
      float sum = 0;
      for (int64_t g = 0; g < t.groups; ++g) {
        const std::byte* group = t.w + g * kMxBlockGroupBytes;
        const Q8Group& x = t.x[i][g];
        int32_t isum = 0;
        for (int64_t k = 0; k < kMxGroup; ++k) isum += kE2m1Doubled[code_at(group, k, row)] * x.q[k];
        const float scale = e8m0_to_float(static_cast<uint8_t>(group[row])) * x.half_d;
        sum = std::fma(static_cast<float>(isum), scale, sum);
      }
      t.y[i * t.y_stride + row] = t.bias != nullptr ? sum + t.bias[row] : sum;
    }
  }
}

void quantize(const float* x, int64_t groups, Q8Group* out) {
  for (int64_t g = 0; g < groups; ++g, x += kMxGroup) {
    int32_t amax_bits = 0, sum = 0;
    for (int64_t k = 0; k < kMxGroup; ++k) amax_bits = std::max(amax_bits, std::bit_cast<int32_t>(x[k]) & 0x7FFFFFFF);
    const Q8Scale scale = q8_scale(amax_bits);
    for (int64_t k = 0; k < kMxGroup; ++k) {
      out[g].q[k] = scale.finite ? static_cast<int8_t>(std::nearbyint(x[k] * scale.inverse)) : int8_t{0};
      sum += out[g].q[k];
    }
    out[g].half_d = scale.half_d;
    out[g].offset = -12 * sum;
  }
}

}  // namespace

const GemmKernels kGemmScalar{
    .f32_rows = 4,
    .q8_rows = 4,
    .mx_direct_rows = 8,
    .f32_blocks = {1, 1, 1, 1, 1},
    .f32_tile = f32_tile,
    .q8_tile = q8_tile,
    .widen_mxfp4 = widen_mxfp4,
    .ordinary = nullptr,
    .quantize = quantize,
};

}  // namespace moesaic
