// The inner loops of gemm.h, one set for each instruction set: a tile is a few rows of activations times a few blocks
// of 16 weight rows.
#pragma once

#include <bit>
#include <limits>

#include "kernels/cpu/gemm.h"

namespace moesaic {

constexpr int kMaxTileRows = 8;
constexpr int32_t kOrdinaryLow = std::bit_cast<int32_t>(0x1p-40f), kOrdinaryHigh = std::bit_cast<int32_t>(0x1p41f);
constexpr uint8_t kScaledLow = 127 - 30, kScaledHigh = 127 + 20;

struct F32Tile {
  const std::byte* w;  // `blocks` blocks of 16 rows, block_bytes apart
  int64_t block_bytes;
  GemmFormat format;
  int64_t k_count;  // a multiple of 32 for mxfp4
  const float* x[kMaxTileRows];
  int rows, blocks;
  // All of x is 0 or in [2^-40, 2^41), and K <= 2^20. While MXFP4 scale bytes are in [kScaledLow, kScaledHigh], that is
  // scales 2^-30 to 2^20, products are multiples of 2^-94 and sums are below 2^85. So sums divided by any such scale
  // are multiples of 2^-114 and below 2^115: neither they nor the sums themselves are ever subnormal or infinite,
  // rounding commutes with the division, and a kernel may keep the divided sums.
  bool ordinary;
  bool resume;        // continue the sums in y instead of starting at 0
  const float* bias;  // of the first row of w; null for none, and while sums are unfinished
  float* y;           // y[row * y_stride + 16 * block + lane]
  int64_t y_stride;
};

struct Q8Tile {
  const std::byte* w;  // one block of 16 rows
  int64_t block_bytes;
  int64_t groups;  // K / 32
  const Q8Group* x[kMaxTileRows];
  int rows;
  const float* bias;
  float* y;
  int64_t y_stride;
};

struct GemmKernels {
  int f32_rows, q8_rows;             // most rows per tile
  int mx_direct_rows;                // with more rows than that, mxfp4 is widened to f32 panels first
  int f32_blocks[kMaxTileRows + 1];  // best blocks per f32_tile, by rows; a tile has that many or 1
  void (*f32_tile)(const F32Tile& tile);
  void (*q8_tile)(const Q8Tile& tile);
  // Converts k_count columns of one mxfp4 block to f32 [k_count][16].
  void (*widen_mxfp4)(const std::byte* block, int64_t k_count, float* out);
  // F32Tile::ordinary for one row, K a multiple of 32; null when f32_tile does not look at it.
  bool (*ordinary)(const float* x, int64_t K);
  void (*quantize)(const float* x, int64_t groups, Q8Group* out);
};

// How a group of 32 activations is quantised; the same at every level.
struct Q8Scale {
  bool finite;
  float inverse;  // q = round(x * inverse)
  float half_d;
};

// `amax_bits`: the largest of the 32 magnitudes as bits, so that infinity and NaN are above every finite value.
inline Q8Scale q8_scale(int32_t amax_bits) {
  const float amax = std::bit_cast<float>(amax_bits);
  if (amax_bits >= 0x7F800000) return {false, 0.0f, std::numeric_limits<float>::quiet_NaN()};
  const float inverse = amax > 0 ? 127.0f / amax : 0.0f;
  return {true, inverse <= std::numeric_limits<float>::max() ? inverse : 0.0f, 0.5f * (amax / 127.0f)};
}

extern const GemmKernels kGemmScalar, kGemmAvx2, kGemmAvx512;

}  // namespace moesaic
