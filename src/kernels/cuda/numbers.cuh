// Number formats on the device: what quant/ holds for the host.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.cuh"

namespace moesaic::cuda {

__device__ __forceinline__ float bf16_to_f32(uint16_t bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}
// To nearest, ties to even; NaN stays NaN.
__device__ __forceinline__ uint16_t f32_to_bf16(float x) {
  const unsigned bits = __float_as_uint(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
// Two as one register: `low` in the low half, as matrix-unit fragments want them.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
#ifdef MOESAIC_EMULATED_CUDA
  return static_cast<unsigned>(f32_to_bf16(high)) << 16 | f32_to_bf16(low);
#else
  unsigned packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#endif
}

__device__ __forceinline__ float f16_to_f32(uint16_t bits) {
  const unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 31) return __uint_as_float(sign | 0x7F800000u | mantissa << 13);
  if (exponent == 0) {
    const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -tiny : tiny;
  }
  return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

// E4M3 (no infinities; 0x7F is NaN).
__device__ __forceinline__ float e4m3_to_f32(uint8_t code) {
  const unsigned sign = (code & 0x80u) << 24, exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return __uint_as_float(0x7FC00000u);
  if (exponent == 0) {
    const float tiny = static_cast<float>(mantissa) * 0x1p-9f;
    return sign != 0 ? -tiny : tiny;
  }
  return __uint_as_float(sign | (exponent + 120) << 23 | mantissa << 20);
}

// 2^(code - 127); 255 is NaN.
__device__ __forceinline__ float e8m0_to_f32(uint8_t code) {
  return code == 0     ? __uint_as_float(0x00400000u)
         : code == 255 ? __uint_as_float(0x7FC00000u)
                       : __uint_as_float(static_cast<unsigned>(code) << 23);
}

// E2M1, the low four bits of `code`: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
__device__ __forceinline__ float e2m1_to_f32(unsigned code) {
  const unsigned sign = (code & 8) << 28, exponent = code >> 1 & 3, mantissa = code & 1;
  if (exponent == 0) return __uint_as_float(sign | (mantissa != 0 ? 0x3F000000u : 0));
  return __uint_as_float(sign | (exponent + 126) << 23 | mantissa << 22);
}

// Elements of caches: float, or bf16 as uint16_t.
__device__ __forceinline__ float load_element(const float* p) {
  return *p;
}
__device__ __forceinline__ float load_element(const uint16_t* p) {
  return bf16_to_f32(*p);
}
__device__ __forceinline__ void store_element(float* p, float x) {
  *p = x;
}
__device__ __forceinline__ void store_element(uint16_t* p, float x) {
  *p = f32_to_bf16(x);
}
// x as it comes back from a cache of elements T.
template <typename T>
__device__ __forceinline__ float through(float x) {
  T stored;
  store_element(&stored, x);
  return load_element(&stored);
}

}  // namespace moesaic::cuda
