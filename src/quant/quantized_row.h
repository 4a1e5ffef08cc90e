// Rows of activations as FP8: what the op `quantize` makes and products of MXFP4 experts read.
//
// A row of K floats becomes its E4M3 codes, K rounded up to 128 with zeros; a float32 scale for every 128, a power of
// two (as UE8M0 would hold) that brings the largest to 128 .. 256; and zeros up to a multiple of 16 bytes. A group that
// holds an infinity or a NaN has a NaN for its scale.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "quant/fp8.h"

namespace moesaic {

constexpr int64_t kQuantizedGroup = 128;

constexpr int64_t quantized_groups(int64_t K) {
  return (K + kQuantizedGroup - 1) / kQuantizedGroup;
}
// Bytes of a row, and where its scales begin.
constexpr int64_t quantized_scales_at(int64_t K) {
  return quantized_groups(K) * kQuantizedGroup;
}
constexpr int64_t quantized_width(int64_t K) {
  return (quantized_scales_at(K) + quantized_groups(K) * 4 + 15) / 16 * 16;
}

// The exponent field of 2^7 times the scale, from the bits of the group's largest magnitude.
constexpr uint32_t quantized_exponent(uint32_t largest) {
  const uint32_t exponent = largest >> 23;
  return exponent < 8 ? 8 : exponent > 254 ? 254 : exponent;
}
constexpr uint32_t quantized_scale_bits(uint32_t largest) {
  return largest >= 0x7F800000u ? 0x7FC00000u : (quantized_exponent(largest) - 7) << 23;
}
constexpr uint32_t quantized_inverse_bits(uint32_t largest) {
  return (261 - quantized_exponent(largest)) << 23;
}

inline void quantize_row(const float* x, int64_t K, std::byte* out) {
  std::memset(out, 0, static_cast<size_t>(quantized_width(K)));
  for (int64_t g = 0; g < quantized_groups(K); ++g) {
    const int64_t begin = g * kQuantizedGroup, end = std::min(K, begin + kQuantizedGroup);
    uint32_t largest = 0;
    for (int64_t k = begin; k < end; ++k) largest = std::max(largest, std::bit_cast<uint32_t>(x[k]) & 0x7FFFFFFFu);
    const float inverse = std::bit_cast<float>(quantized_inverse_bits(largest));
    for (int64_t k = begin; k < end; ++k) out[k] = static_cast<std::byte>(float_to_e4m3(x[k] * inverse));
    const uint32_t scale = quantized_scale_bits(largest);
    std::memcpy(out + quantized_scales_at(K) + g * 4, &scale, 4);
  }
}

inline void dequantize_row(const std::byte* row, int64_t K, float* out) {
  for (int64_t k = 0; k < K; ++k) {
    float scale;
    std::memcpy(&scale, row + quantized_scales_at(K) + k / kQuantizedGroup * 4, 4);
    out[k] = e4m3_to_float(static_cast<uint8_t>(row[k])) * scale;
  }
}

}  // namespace moesaic
