// Number formats on the device: beside those of quant/, which serve both sides, what a GPU does another way.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "quant/bf16.h"
#include "quant/fp8.h"

namespace moesaic::cuda {

// Two as one register: `low` in the low half, as matrix-unit fragments want them.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
#ifdef MOESAIC_EMULATED_CUDA
  return static_cast<unsigned>(float_to_bf16(high)) << 16 | float_to_bf16(low);
#else
  unsigned packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#endif
}

// Four as bytes of E4M3, the first lowest: to nearest, ties to even, saturating.
__device__ __forceinline__ unsigned pack_e4m3(float a, float b, float c, float d) {
#ifdef MOESAIC_EMULATED_CUDA
  return float_to_e4m3(a) | static_cast<unsigned>(float_to_e4m3(b)) << 8 |
         static_cast<unsigned>(float_to_e4m3(c)) << 16 | static_cast<unsigned>(float_to_e4m3(d)) << 24;
#else
  unsigned short low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return static_cast<unsigned>(high) << 16 | low;
#endif
}

// 2^(code - 127); 255 is NaN.
__device__ __forceinline__ float e8m0_to_f32(uint8_t code) {
  return code == 0     ? __uint_as_float(0x00400000u)
         : code == 255 ? __uint_as_float(0x7FC00000u)
                       : __uint_as_float(static_cast<unsigned>(code) << 23);
}

// E2M1 without the table of quant/fp4.h, the low four bits of `code`: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
__device__ __forceinline__ float e2m1_to_f32(unsigned code) {
  const unsigned sign = (code & 8) << 28, exponent = code >> 1 & 3, mantissa = code & 1;
  if (exponent == 0) return __uint_as_float(sign | (mantissa != 0 ? 0x3F000000u : 0));
  return __uint_as_float(sign | (exponent + 126) << 23 | mantissa << 22);
}

// Unsigned integers in the order of the floats; -0 and 0 tie. NaNs are the caller's.
__device__ __forceinline__ unsigned order_key(float x) {
  const unsigned bits = __float_as_uint(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Elements of caches: float, or bf16 as uint16_t.
__device__ __forceinline__ float load_element(const float* p) {
  return *p;
}
__device__ __forceinline__ float load_element(const uint16_t* p) {
  return bf16_to_float(*p);
}
__device__ __forceinline__ void store_element(float* p, float x) {
  *p = x;
}
__device__ __forceinline__ void store_element(uint16_t* p, float x) {
  *p = float_to_bf16(x);
}
// x as it comes back from a cache of elements T.
template <typename T>
__device__ __forceinline__ float through(float x) {
  T stored;
  store_element(&stored, x);
  return load_element(&stored);
}

}  // namespace moesaic::cuda
