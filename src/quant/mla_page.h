// Cache formats of DeepSeek-V3.2's kernels on GPUs, byte for byte: FP8 latents (FlashMLA's "FP8 with scale") and FP8
// indexer keys (DeepGEMM's kv_cache_cast_to_fp8).
//
//   latent entry  656 bytes a token: 512 E4M3 (4 tiles of 128), 4 float32 multipliers of the tiles, 64 bf16 of k_pe
//   indexer page  132 bytes a token, not interleaved: 128 E4M3 of each of its tokens, then a float32 multiplier of each
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "quant/bf16.h"
#include "quant/fp8.h"

namespace moesaic {

constexpr int64_t kLatentDim = 512, kLatentTile = 128, kLatentTiles = kLatentDim / kLatentTile, kLatentRope = 64;
constexpr int64_t kLatentScalesAt = kLatentDim, kLatentRopeAt = kLatentScalesAt + 4 * kLatentTiles;
constexpr int64_t kLatentEntryBytes = kLatentRopeAt + 2 * kLatentRope;
constexpr int64_t kIndexDim = 128;
constexpr int64_t kIndexEntryBytes = kIndexDim + 4;
static_assert(kLatentEntryBytes == 656 && kIndexEntryBytes == 132);

// The least power of two that is at least `scale` (positive and finite).
inline float power_of_two_above(float scale) {
  int exponent;
  const float fraction = std::frexp(scale, &exponent);  // scale = fraction * 2^exponent, fraction in [0.5, 1)
  return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

inline float largest_magnitude(std::span<const float> x) {
  float amax = 0;
  for (float v : x) amax = std::max(amax, std::abs(v));
  return amax;
}

inline void encode_e4m3(std::span<const float> x, float scale, std::byte* out) {
  std::transform(x.begin(), x.end(), out, [&](float v) { return static_cast<std::byte>(float_to_e4m3(v / scale)); });
}
inline void decode_e4m3(const std::byte* codes, float scale, std::span<float> out) {
  for (float& v : out) v = e4m3_to_float(static_cast<uint8_t>(*codes++)) * scale;
}

// latent[512] and k_pe[64] of one token to its 656 bytes. A tile's multiplier is amax / 448, at least 1e-4, raised to a
// power of two.
inline void encode_latent(std::span<const float, kLatentDim> latent, std::span<const float, kLatentRope> k_pe,
                          std::byte* entry) {
  for (int64_t tile = 0; tile < kLatentTiles; ++tile) {
    const auto x = latent.subspan(static_cast<size_t>(tile * kLatentTile), kLatentTile);
    const float scale = power_of_two_above(std::max(largest_magnitude(x) / kE4m3Max, 1e-4f));
    encode_e4m3(x, scale, entry + tile * kLatentTile);
    std::memcpy(entry + kLatentScalesAt + 4 * tile, &scale, 4);
  }
  for (size_t i = 0; i < k_pe.size(); ++i) {
    const uint16_t half = float_to_bf16(k_pe[i]);
    std::memcpy(entry + kLatentRopeAt + 2 * static_cast<int64_t>(i), &half, 2);
  }
}

// The values attention computes with: E4M3 times multiplier, rounded to bf16, and k_pe.
inline void decode_latent(const std::byte* entry, std::span<float, kLatentDim> latent,
                          std::span<float, kLatentRope> k_pe) {
  for (int64_t tile = 0; tile < kLatentTiles; ++tile) {
    float scale;
    std::memcpy(&scale, entry + kLatentScalesAt + 4 * tile, 4);
    decode_e4m3(entry + tile * kLatentTile, scale,
                latent.subspan(static_cast<size_t>(tile * kLatentTile), kLatentTile));
  }
  for (float& v : latent) v = bf16_to_float(float_to_bf16(v));
  for (size_t i = 0; i < k_pe.size(); ++i) {
    uint16_t half;
    std::memcpy(&half, entry + kLatentRopeAt + 2 * static_cast<int64_t>(i), 2);
    k_pe[i] = bf16_to_float(half);
  }
}

// How the multiplier of an indexer key is rounded.
enum class IndexScale : uint8_t {
  exact,         // max(amax, 1e-4) / 448
  power_of_two,  // the same, raised to a power of two: what DeepSeek's checkpoints ask for (scale_fmt "ue8m0")
};

// key[128] of token `row` of a page of `page_tokens` tokens. Writes its 128 codes and its multiplier.
inline void encode_index_key(std::span<const float, kIndexDim> key, IndexScale rounding, std::byte* page,
                             int64_t page_tokens, int64_t row) {
  float scale = std::max(largest_magnitude(key), 1e-4f) / kE4m3Max;
  if (rounding == IndexScale::power_of_two) scale = power_of_two_above(scale);
  encode_e4m3(key, scale, page + row * kIndexDim);
  std::memcpy(page + page_tokens * kIndexDim + row * 4, &scale, 4);
}

inline void decode_index_key(const std::byte* page, int64_t page_tokens, int64_t row, std::span<float, kIndexDim> key) {
  float scale;
  std::memcpy(&scale, page + page_tokens * kIndexDim + row * 4, 4);
  decode_e4m3(page + row * kIndexDim, scale, key);
}

}  // namespace moesaic
