// Sixteen float lanes at each instruction set, with one meaning: every operation below gives the same bits at every
// level, so a loop written on them does too. Additions across lanes use one fixed tree.
//
// A file that wants a loop at all levels puts it in an .inc file, written on `Lanes` with LANES_FN before each
// function, and includes for_each_isa.inc, which compiles it in the namespaces scalar, avx2 and avx512.
//
// A function that takes or returns Lanes by value must be LANES_INLINE: where g++ 12 calls one it puts a vzeroupper
// before the return, which clears 12 of the 16 lanes of an AVX-512 struct.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "quant/bf16.h"

#define LANES_INLINE __attribute__((always_inline))
#define MOESAIC_LANES_AVX2 __attribute__((target("avx2,fma,f16c")))
#define MOESAIC_LANES_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")))

namespace moesaic::cpu {

constexpr int kLanes = 16;
constexpr float kRoundMagic = 0x1.8p23f;  // x + magic - magic rounds |x| < 2^22 to an integer, ties to even

namespace scalar {

struct Lanes {
  float v[kLanes];

  static Lanes set1(float x) {
    Lanes r;
    for (float& lane : r.v) lane = x;
    return r;
  }
  static Lanes load(const float* p) {
    Lanes r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
  }
  static Lanes load(const uint16_t* bf16) {
    Lanes r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = bf16_to_float(bf16[i]);
    return r;
  }
  void store(float* p) const { std::memcpy(p, v, sizeof v); }
};

inline Lanes add(Lanes a, const Lanes& b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] += b.v[i];
  return a;
}
inline Lanes sub(Lanes a, const Lanes& b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] -= b.v[i];
  return a;
}
inline Lanes mul(Lanes a, const Lanes& b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] *= b.v[i];
  return a;
}
inline Lanes div(Lanes a, const Lanes& b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] /= b.v[i];
  return a;
}
// a * b + c with one rounding.
inline Lanes fma(const Lanes& a, const Lanes& b, Lanes c) {
  for (int i = 0; i < kLanes; ++i) c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
  return c;
}
// The larger or smaller; `b` when either is NaN.
inline Lanes max(const Lanes& a, Lanes b) {
  for (int i = 0; i < kLanes; ++i) b.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return b;
}
inline Lanes min(const Lanes& a, Lanes b) {
  for (int i = 0; i < kLanes; ++i) b.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return b;
}
// Lanes [0, n) of a, the others of b.
inline Lanes first(const Lanes& a, int64_t n, Lanes b) {
  for (int64_t i = 0; i < std::min<int64_t>(n, kLanes); ++i) b.v[i] = a.v[i];
  return b;
}
// p * 2^k, where t is k + kRoundMagic and -252 <= k <= 254; two steps, for results that are subnormal or overflow.
inline Lanes scale_by(Lanes p, const Lanes& t) {
  for (int i = 0; i < kLanes; ++i) {
    const int32_t k = std::bit_cast<int32_t>(t.v[i]) - std::bit_cast<int32_t>(kRoundMagic), half = k >> 1;
    p.v[i] *= std::bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
    p.v[i] *= std::bit_cast<float>(static_cast<uint32_t>(k - half + 127) << 23);
  }
  return p;
}
inline float sum(const Lanes& a) {
  float s[8];
  for (int i = 0; i < 8; ++i) s[i] = a.v[i] + a.v[i + 8];
  for (int n = 4; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) s[i] += s[i + n];
  return s[0];
}
inline float largest(const Lanes& a) {
  float s[8];
  for (int i = 0; i < 8; ++i) s[i] = a.v[i] > a.v[i + 8] ? a.v[i] : a.v[i + 8];
  for (int n = 4; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) s[i] = s[i] > s[i + n] ? s[i] : s[i + n];
  return s[0];
}
// 32 floats p[0..31]: the even ones and the odd ones.
inline void load_pairs(const float* p, Lanes& even, Lanes& odd) {
  for (int i = 0; i < kLanes; ++i) even.v[i] = p[2 * i], odd.v[i] = p[2 * i + 1];
}

}  // namespace scalar

#define LANES_OP MOESAIC_LANES_AVX2 __attribute__((always_inline)) inline
namespace avx2 {

struct Lanes {
  __m256 low, high;

  LANES_OP static Lanes set1(float x) {
    const __m256 v = _mm256_set1_ps(x);
    return {v, v};
  }
  LANES_OP static Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  LANES_OP static __m256 widen(const uint16_t* bf16) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bf16));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  LANES_OP static Lanes load(const uint16_t* bf16) { return {widen(bf16), widen(bf16 + 8)}; }
  LANES_OP void store(float* p) const {
    _mm256_storeu_ps(p, low);
    _mm256_storeu_ps(p + 8, high);
  }
};

LANES_OP Lanes add(Lanes a, Lanes b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
LANES_OP Lanes sub(Lanes a, Lanes b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
LANES_OP Lanes mul(Lanes a, Lanes b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
LANES_OP Lanes div(Lanes a, Lanes b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
LANES_OP Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
LANES_OP Lanes max(Lanes a, Lanes b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
LANES_OP Lanes min(Lanes a, Lanes b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
LANES_OP __m256 blend_first(__m256 a, int64_t n, __m256 b) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i keep = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
  return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(keep));
}
LANES_OP Lanes first(Lanes a, int64_t n, Lanes b) {
  return {blend_first(a.low, n, b.low), blend_first(a.high, n - 8, b.high)};
}
LANES_OP __m256 scale_half(__m256 p, __m256 t) {
  const __m256i k = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(_mm256_set1_ps(kRoundMagic)));
  const __m256i half = _mm256_srai_epi32(k, 1), bias = _mm256_set1_epi32(127);
  const __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(k, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}
LANES_OP Lanes scale_by(Lanes p, Lanes t) {
  return {scale_half(p.low, t.low), scale_half(p.high, t.high)};
}
LANES_OP float sum8(__m256 a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
LANES_OP float largest8(__m256 a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
LANES_OP float sum(Lanes a) {
  return sum8(_mm256_add_ps(a.low, a.high));
}
LANES_OP float largest(Lanes a) {
  return largest8(_mm256_max_ps(a.low, a.high));
}
LANES_OP void split_pairs(const float* p, __m256& even, __m256& odd) {
  const __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + 8);
  const __m256 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
  even = _mm256_shuffle_ps(low, high, 0x88);
  odd = _mm256_shuffle_ps(low, high, 0xDD);
}
LANES_OP void load_pairs(const float* p, Lanes& even, Lanes& odd) {
  split_pairs(p, even.low, odd.low);
  split_pairs(p + 16, even.high, odd.high);
}

}  // namespace avx2
#undef LANES_OP

#define LANES_OP MOESAIC_LANES_AVX512 __attribute__((always_inline)) inline
namespace avx512 {

// The zero-masked forms below keep every lane; g++ 12 warns of an uninitialised value inside its own plain ones.
constexpr __mmask16 kAll = 0xFFFF;

struct Lanes {
  __m512 v;

  LANES_OP static Lanes set1(float x) { return {_mm512_set1_ps(x)}; }
  LANES_OP static Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
  LANES_OP static Lanes load(const uint16_t* bf16) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bf16));
    return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, bits), 16))};
  }
  LANES_OP void store(float* p) const { _mm512_storeu_ps(p, v); }
};

LANES_OP Lanes add(Lanes a, Lanes b) {
  return {_mm512_add_ps(a.v, b.v)};
}
LANES_OP Lanes sub(Lanes a, Lanes b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
LANES_OP Lanes mul(Lanes a, Lanes b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
LANES_OP Lanes div(Lanes a, Lanes b) {
  return {_mm512_div_ps(a.v, b.v)};
}
LANES_OP Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
LANES_OP Lanes max(Lanes a, Lanes b) {
  return {_mm512_maskz_max_ps(kAll, a.v, b.v)};
}
LANES_OP Lanes min(Lanes a, Lanes b) {
  return {_mm512_maskz_min_ps(kAll, a.v, b.v)};
}
LANES_OP Lanes first(Lanes a, int64_t n, Lanes b) {
  const auto mask = static_cast<__mmask16>(n >= kLanes ? 0xFFFF : (1u << n) - 1);
  return {_mm512_mask_blend_ps(mask, b.v, a.v)};
}
LANES_OP Lanes scale_by(Lanes p, Lanes t) {
  const __m512i k = _mm512_sub_epi32(_mm512_castps_si512(t.v), _mm512_castps_si512(_mm512_set1_ps(kRoundMagic)));
  const __m512i half = _mm512_maskz_srai_epi32(kAll, k, 1), bias = _mm512_set1_epi32(127);
  const __m512i a = _mm512_maskz_slli_epi32(kAll, _mm512_add_epi32(half, bias), 23);
  const __m512i b = _mm512_maskz_slli_epi32(kAll, _mm512_add_epi32(_mm512_sub_epi32(k, half), bias), 23);
  return {_mm512_mul_ps(_mm512_mul_ps(p.v, _mm512_castsi512_ps(a)), _mm512_castsi512_ps(b))};
}
template <int kHalf>
LANES_OP __m256 half_of(Lanes a) {
  return _mm512_maskz_extractf32x8_ps(static_cast<__mmask8>(kAll), a.v, kHalf);
}
LANES_OP float sum(Lanes a) {
  return avx2::sum8(_mm256_add_ps(half_of<0>(a), half_of<1>(a)));
}
LANES_OP float largest(Lanes a) {
  return avx2::largest8(_mm256_max_ps(half_of<0>(a), half_of<1>(a)));
}
LANES_OP void load_pairs(const float* p, Lanes& even, Lanes& odd) {
  const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16);
  const __m512i index = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even.v = _mm512_permutex2var_ps(a, index, b);
  odd.v = _mm512_permutex2var_ps(a, _mm512_add_epi32(index, _mm512_set1_epi32(1)), b);
}

}  // namespace avx512
#undef LANES_OP

}  // namespace moesaic::cpu
