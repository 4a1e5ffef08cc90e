// MXFP4 codes as A fragments of bf16 matrix products. Lane 4g + q of a warp holds group q (32 codes, 16 bytes, one
// scale) of a 128-wide piece of K, of two rows; a word of eight codes gives four registers, code i low and code i + 4
// high.
//
// Order of K within a piece that this makes: step j = 0 .. 7 of 16 has, at 2q, 2q+1, elements 32q + 8(j/2) + 2(j%2) +
// {0, 4}, and at 8+2q, 9+2q the elements after those; the other operand is stored in that order.
#pragma once

#include "kernels/cuda/stored_matrix.cuh"

namespace moesaic::cuda {

constexpr int kPiece = 128;  // elements of K: four groups

// Weights are 2^-64 of what they are and activations 2^64, so that every product is itself: bf16 then holds codes times
// scales of 2^-62 .. 2^127 exactly, and activations below 2^63.
constexpr float kActivationFactor = 0x1p64f;
constexpr int kScaleBias = 62;  // scale byte E stands for exponent field E + 62: codes below come as 2^-126 of theirs
constexpr unsigned kLargest = 192;  // scale byte whose factor is the largest power of two of bf16

__device__ __forceinline__ unsigned multiply_bf16x2(unsigned a, unsigned b) {
#ifdef MOESAIC_EMULATED_CUDA
  const auto half = [](unsigned x, unsigned y) {
    return static_cast<unsigned>(float_to_bf16(__uint_as_float(x << 16) * __uint_as_float(y << 16)));
  };
  return half(a >> 16, b >> 16) << 16 | half(a & 0xFFFF, b & 0xFFFF);
#else
  unsigned product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
#endif
}

// The factor of a group as a pair of bf16, for scale bytes up to kLargest; what is above it, for the others.
__device__ __forceinline__ unsigned group_factor(unsigned scale) {
  return (min(scale, kLargest) + kScaleBias) * 0x00800080u;
}
__device__ __forceinline__ unsigned excess_factor(unsigned scale) {
  return (max(scale, kLargest) - kLargest + 127) * 0x00800080u;
}

// t[i] = codes i (low) and i + 4 (high) of `word` times `factor`. The magnitude of a code goes to the lowest bits of
// the exponent and the highest of the mantissa, which is 2^-126 of its value, subnormal 0.5 included; its sign to
// bit 15. One multiplication by 2^a + 2^b moves both, and the other bits it makes are masked out.
__device__ __forceinline__ void decode_word(unsigned word, unsigned factor, unsigned (&t)[4]) {
  constexpr unsigned kEven = 0x000F000Fu, kOdd = 0x00F000F0u, kKept = 0x81C081C0u;
  const unsigned rest = word >> 8;
  t[0] = multiply_bf16x2((word & kEven) * 0x1040u & kKept, factor);
  t[1] = multiply_bf16x2((word & kOdd) * 0x0104u & kKept, factor);
  t[2] = multiply_bf16x2((rest & kEven) * 0x1040u & kKept, factor);
  t[3] = multiply_bf16x2((rest & kOdd) * 0x0104u & kKept, factor);
}

__device__ __forceinline__ void multiply_word(unsigned (&t)[4], unsigned factor) {
#pragma unroll
  for (int i = 0; i < 4; ++i) t[i] = multiply_bf16x2(t[i], factor);
}

// Eight neighbouring activations (a word's) as bf16 pairs in the order of decode_word.
__device__ __forceinline__ uint4 activation_word(const float* x) {
  const float4 a = *reinterpret_cast<const float4*>(x), b = *reinterpret_cast<const float4*>(x + 4);
  const auto pair = [](float low, float high) { return pack_bf16(low * kActivationFactor, high * kActivationFactor); };
  return make_uint4(pair(a.x, b.x), pair(a.y, b.y), pair(a.z, b.z), pair(a.w, b.w));
}

// Brings what is at p into the L2 cache.
__device__ __forceinline__ void prefetch([[maybe_unused]] const std::byte* p) {
#ifndef MOESAIC_EMULATED_CUDA
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

// A lane's share of a piece: one group each of two rows.
struct PieceShare {
  uint4 codes[2];
  unsigned scales[2];

  __device__ unsigned word(int row, int i) const {
    const uint4& c = codes[row];
    return i == 0 ? c.x : i == 1 ? c.y : i == 2 ? c.z : c.w;
  }
};

}  // namespace moesaic::cuda
