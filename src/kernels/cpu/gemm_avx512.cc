// AVX-512 (F, BW, DQ, VL, VNNI): one 512-bit register is one row block's 16 output rows.
#include <immintrin.h>

#include <algorithm>

#include "kernels/cpu/gemm_tiles.h"
#include "weights/layout.h"

#define MOESAIC_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define MOESAIC_AVX512_INLINE MOESAIC_AVX512 __attribute__((always_inline)) inline

namespace moesaic {
namespace {

constexpr int64_t kAheadBytes = 4096;      // how far ahead of the q8 kernel weights are prefetched
constexpr int64_t kDenseAheadBytes = 512;  // the same in each block of a dense matrix

// Columns k of one block as floats; `w` points to 16 elements.
template <GemmFormat kFormat>
MOESAIC_AVX512_INLINE __m512 load_dense(const std::byte* w) {
  if constexpr (kFormat == GemmFormat::f32) {
    return _mm512_loadu_ps(reinterpret_cast<const float*>(w));
  } else {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
    if constexpr (kFormat == GemmFormat::f16) return _mm512_cvtph_ps(bits);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
}

// 16 E8M0 bytes as floats; byte 0 is the subnormal 2^-127, and the only one whose shifted bits are below it.
MOESAIC_AVX512_INLINE __m512 load_scales(const std::byte* scales) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
  return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_slli_epi32(bytes, 23), _mm512_set1_epi32(0x00400000)));
}

MOESAIC_AVX512_INLINE __m512 code_values() {
  return _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
}

// The values, or weights, of the code in bits [kShift, kShift + 4) of each lane. vpermps looks at the low 4 bits alone.
template <int kShift>
MOESAIC_AVX512_INLINE __m512 mx_values(__m512i chunk) {
  const __m512i index = kShift == 0 ? chunk : _mm512_srli_epi32(chunk, kShift);
  return _mm512_permutexvar_ps(index, code_values());
}
template <int kShift>
MOESAIC_AVX512_INLINE __m512 mx_weights(__m512i chunk, __m512 scales) {
  return _mm512_mul_ps(mx_values<kShift>(chunk), scales);
}

template <int kRows, int kBlocks>
MOESAIC_AVX512_INLINE void load_sums(const F32Tile& t, __m512 (&sum)[kBlocks][kRows]) {
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
      sum[b][i] = t.resume ? _mm512_loadu_ps(t.y + i * t.y_stride + b * kBlockRows) : _mm512_setzero_ps();
  }
}

template <int kRows, int kBlocks>
MOESAIC_AVX512_INLINE void store_sums(const float* bias, float* y, int64_t y_stride,
                                      const __m512 (&sum)[kBlocks][kRows]) {
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) {
    const __m512 add = bias != nullptr ? _mm512_loadu_ps(bias + b * kBlockRows) : _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m512 value = bias != nullptr ? _mm512_add_ps(sum[b][i], add) : sum[b][i];
      _mm512_storeu_ps(y + i * y_stride + b * kBlockRows, value);
    }
  }
}

template <int kRows, int kBlocks>
MOESAIC_AVX512_INLINE void multiply_add(const __m512 (&w)[kBlocks], const float* const (&x)[kRows], int64_t k,
                                        __m512 (&sum)[kBlocks][kRows]) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const __m512 value = _mm512_set1_ps(x[i][k]);
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) sum[b][i] = _mm512_fmadd_ps(w[b], value, sum[b][i]);
  }
}

template <GemmFormat kFormat, int kRows, int kBlocks>
MOESAIC_AVX512_INLINE void dense_sums(const F32Tile& t, const float* const (&x)[kRows], __m512 (&sum)[kBlocks][kRows]) {
  constexpr int64_t kStep = kBlockRows * (kFormat == GemmFormat::f32 ? 4 : 2);
  const std::byte* block[kBlocks];
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) block[b] = t.w + b * t.block_bytes;
  // Prefetches run ahead in each block, and at its end in the block that the next tile reads in its place.
  const int64_t ahead = std::min(t.k_count, kDenseAheadBytes / kStep);
  const int64_t ends[2] = {t.k_count - ahead, t.k_count};
  int64_t k = 0, jump = ahead * kStep;
  for (int64_t end : ends) {
    for (; k < end; ++k) {
      __m512 w[kBlocks];
#pragma GCC unroll 8
      for (int b = 0; b < kBlocks; ++b) {
        _mm_prefetch(block[b] + k * kStep + jump, _MM_HINT_T0);
        w[b] = load_dense<kFormat>(block[b] + k * kStep);
      }
      multiply_add<kRows, kBlocks>(w, x, k, sum);
    }
    jump += (kBlocks - 1) * t.block_bytes;
  }
}

// kScale: multiply the code values by the scales; otherwise `scales` is not looked at.
template <int kShift, bool kScale, int kRows, int kBlocks>
MOESAIC_AVX512_INLINE void mx_column(const __m512i (&chunk)[kBlocks], const __m512 (&scales)[kBlocks],
                                     const float* const (&x)[kRows], int64_t k, __m512 (&sum)[kBlocks][kRows]) {
  __m512 w[kBlocks];
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b)
    w[b] = kScale ? mx_weights<kShift>(chunk[b], scales[b]) : mx_values<kShift>(chunk[b]);
  multiply_add<kRows, kBlocks>(w, x, k, sum);
}

// 16 columns of a group: the low nibbles for kHalf 0, the high ones for kHalf 1.
template <int kHalf, bool kScale, int kRows, int kBlocks>
MOESAIC_AVX512_INLINE void mx_half(const std::byte* const (&group)[kBlocks], const __m512 (&scales)[kBlocks],
                                   const float* const (&x)[kRows], int64_t k, __m512 (&sum)[kBlocks][kRows]) {
  constexpr int kShift = kHalf * 4;
  for (int64_t c = 0; c < 4; ++c, k += 4) {
    __m512i chunk[kBlocks];
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) chunk[b] = _mm512_loadu_si512(group[b] + kBlockRows + c * 64);
    mx_column<kShift, kScale, kRows, kBlocks>(chunk, scales, x, k, sum);
    mx_column<kShift + 8, kScale, kRows, kBlocks>(chunk, scales, x, k + 1, sum);
    mx_column<kShift + 16, kScale, kRows, kBlocks>(chunk, scales, x, k + 2, sum);
    mx_column<kShift + 24, kScale, kRows, kBlocks>(chunk, scales, x, k + 3, sum);
  }
}

template <bool kScale, int kRows, int kBlocks>
MOESAIC_AVX512_INLINE void mx_group(const std::byte* const (&group)[kBlocks], const __m512 (&scales)[kBlocks],
                                    const float* const (&x)[kRows], int64_t k, __m512 (&sum)[kBlocks][kRows]) {
  mx_half<0, kScale, kRows, kBlocks>(group, scales, x, k, sum);
  mx_half<1, kScale, kRows, kBlocks>(group, scales, x, k + 16, sum);
}

// Whether all scale bytes of the groups are in [kScaledLow, kScaledHigh].
template <int kBlocks>
MOESAIC_AVX512_INLINE bool scales_in_window(const std::byte* const (&group)[kBlocks]) {
  __mmask16 outside = 0;
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(group[b]));
    const __m128i above = _mm_sub_epi8(bytes, _mm_set1_epi8(kScaledLow));  // wraps for bytes below the window
    outside |= _mm_cmpgt_epu8_mask(above, _mm_set1_epi8(kScaledHigh - kScaledLow));
  }
  return outside == 0;
}

// Multiplies the sums of a block by 2^(from - to).
template <int kRows>
MOESAIC_AVX512_INLINE void rescale(__m512i from, __m512i to, __m512 (&sum)[kRows]) {
  const __m512i exponent = _mm512_add_epi32(_mm512_sub_epi32(from, to), _mm512_set1_epi32(127));
  const __m512 factor = _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) sum[i] = _mm512_mul_ps(sum[i], factor);
}

// The first groups, as far as their scales are in the window; returns the k after them. The sums are kept divided by
// the current group's scale, which spares the multiplication of each weight; F32Tile::ordinary says why this is exact.
template <int kRows, int kBlocks>
MOESAIC_AVX512_INLINE int64_t mx_scaled_sums(const F32Tile& t, const std::byte* (&group)[kBlocks],
                                             const float* const (&x)[kRows], __m512 (&sum)[kBlocks][kRows]) {
  const __m512i one = _mm512_set1_epi32(127);
  __m512i scale[kBlocks];
  const __m512 unused[kBlocks] = {};
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) scale[b] = one;
  int64_t k = 0;
  for (; k < t.k_count && scales_in_window<kBlocks>(group); k += kMxGroup) {
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) {
      const __m512i next = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(group[b])));
      rescale<kRows>(scale[b], next, sum[b]);
      scale[b] = next;
    }
    mx_group<false, kRows, kBlocks>(group, unused, x, k, sum);
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) group[b] += kMxBlockGroupBytes;
  }
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) rescale<kRows>(scale[b], one, sum[b]);
  return k;
}

template <int kRows, int kBlocks>
MOESAIC_AVX512_INLINE void mx_sums(const F32Tile& t, const float* const (&x)[kRows], __m512 (&sum)[kBlocks][kRows]) {
  const std::byte* group[kBlocks];
#pragma GCC unroll 8
  for (int b = 0; b < kBlocks; ++b) group[b] = t.w + b * t.block_bytes;
  int64_t k = t.ordinary ? mx_scaled_sums<kRows, kBlocks>(t, group, x, sum) : 0;
  for (; k < t.k_count; k += kMxGroup) {
    __m512 scales[kBlocks];
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) scales[b] = load_scales(group[b]);
    mx_group<true, kRows, kBlocks>(group, scales, x, k, sum);
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) group[b] += kMxBlockGroupBytes;
  }
}

template <GemmFormat kFormat, int kRows, int kBlocks>
MOESAIC_AVX512 void f32_kernel(const F32Tile& t) {
  __m512 sum[kBlocks][kRows];
  const float* x[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) x[i] = t.x[i];
  load_sums<kRows, kBlocks>(t, sum);
  if constexpr (kFormat == GemmFormat::mxfp4) {
    mx_sums<kRows, kBlocks>(t, x, sum);
  } else {
    dense_sums<kFormat, kRows, kBlocks>(t, x, sum);
  }
  store_sums<kRows, kBlocks>(t.bias, t.y, t.y_stride, sum);
}

template <GemmFormat kFormat>
void f32_by_rows(const F32Tile& t) {
  const bool wide = t.blocks > 1;
  switch (t.rows) {
    case 1: return wide ? f32_kernel<kFormat, 1, 4>(t) : f32_kernel<kFormat, 1, 1>(t);
    case 2: return wide ? f32_kernel<kFormat, 2, 4>(t) : f32_kernel<kFormat, 2, 1>(t);
    case 3: return wide ? f32_kernel<kFormat, 3, 4>(t) : f32_kernel<kFormat, 3, 1>(t);
    case 4: return wide ? f32_kernel<kFormat, 4, 4>(t) : f32_kernel<kFormat, 4, 1>(t);
    case 5: return wide ? f32_kernel<kFormat, 5, 4>(t) : f32_kernel<kFormat, 5, 1>(t);
    default: return wide ? f32_kernel<kFormat, 6, 4>(t) : f32_kernel<kFormat, 6, 1>(t);
  }
}

void f32_tile(const F32Tile& t) {
  switch (t.format) {
    case GemmFormat::f32: return f32_by_rows<GemmFormat::f32>(t);
    case GemmFormat::bf16: return f32_by_rows<GemmFormat::bf16>(t);
    case GemmFormat::f16: return f32_by_rows<GemmFormat::f16>(t);
    case GemmFormat::mxfp4: return f32_by_rows<GemmFormat::mxfp4>(t);
  }
}

template <int kShift>
MOESAIC_AVX512_INLINE void widen_chunk(__m512i chunk, __m512 scales, float* out) {
  _mm512_storeu_ps(out, mx_weights<kShift>(chunk, scales));
  _mm512_storeu_ps(out + 16, mx_weights<kShift + 8>(chunk, scales));
  _mm512_storeu_ps(out + 32, mx_weights<kShift + 16>(chunk, scales));
  _mm512_storeu_ps(out + 48, mx_weights<kShift + 24>(chunk, scales));
}

MOESAIC_AVX512 void widen_mxfp4(const std::byte* group, int64_t k_count, float* out) {
  for (int64_t k = 0; k < k_count; k += kMxGroup, group += kMxBlockGroupBytes) {
    const __m512 scales = load_scales(group);
    for (int64_t c = 0; c < 4; ++c, out += 4 * kBlockRows) {
      const __m512i chunk = _mm512_loadu_si512(group + kBlockRows + c * 64);
      widen_chunk<0>(chunk, scales, out);
      widen_chunk<4>(chunk, scales, out + 16 * kBlockRows);
    }
    out += 16 * kBlockRows;
  }
}

// Codes to 2 * value + 12, unsigned: dpbusd takes an unsigned and a signed operand.
MOESAIC_AVX512_INLINE __m512i shifted_values(__m512i codes) {
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  return _mm512_shuffle_epi8(table, codes);
}

MOESAIC_AVX512_INLINE void load_group(const std::byte* group, __m512i (&w)[8]) {
  const __m512i low = _mm512_set1_epi8(0x0F);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i chunk = _mm512_loadu_si512(group + kBlockRows + c * 64);
    w[c] = shifted_values(_mm512_and_si512(chunk, low));
    w[c + 4] = shifted_values(_mm512_and_si512(_mm512_srli_epi16(chunk, 4), low));
  }
}

MOESAIC_AVX512_INLINE void prefetch_group(const std::byte* group) {
#pragma GCC unroll 8
  for (int64_t i = 0; i < kMxBlockGroupBytes; i += 64) _mm_prefetch(group + i, _MM_HINT_T0);
}

// The group's integer sums: `offset` takes the 12s away again.
MOESAIC_AVX512_INLINE __m512i group_sums(const __m512i (&w)[8], const Q8Group& x) {
  __m512i sum = _mm512_set1_epi32(x.offset);
  const int8_t* q = x.q;
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) {
    int32_t four;
    __builtin_memcpy(&four, q + c * 4, 4);
    sum = _mm512_dpbusd_epi32(sum, w[c], _mm512_set1_epi32(four));
  }
  return sum;
}

template <int kRows>
MOESAIC_AVX512 void q8_kernel(const Q8Tile& t) {
  __m512 sum[1][kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) sum[0][i] = _mm512_setzero_ps();
  const std::byte* group = t.w;
  for (int64_t g = 0; g < t.groups; ++g, group += kMxBlockGroupBytes) {
    // With one row the hardware's prefetching is better; with more, each group takes too long for it.
    if constexpr (kRows > 1) prefetch_group(group + kAheadBytes);
    __m512i w[8];
    load_group(group, w);
    const __m512 scales = load_scales(group);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Q8Group& x = t.x[i][g];
      const __m512 scale = _mm512_mul_ps(scales, _mm512_set1_ps(x.half_d));
      sum[0][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(group_sums(w, x)), scale, sum[0][i]);
    }
  }
  store_sums<kRows, 1>(t.bias, t.y, t.y_stride, sum);
}

void q8_tile(const Q8Tile& t) {
  switch (t.rows) {
    case 1: return q8_kernel<1>(t);
    case 2: return q8_kernel<2>(t);
    case 3: return q8_kernel<3>(t);
    case 4: return q8_kernel<4>(t);
    case 5: return q8_kernel<5>(t);
    case 6: return q8_kernel<6>(t);
    case 7: return q8_kernel<7>(t);
    default: return q8_kernel<8>(t);
  }
}

MOESAIC_AVX512 bool ordinary(const float* x, int64_t K) {
  const __m512i low = _mm512_set1_epi32(kOrdinaryLow), width = _mm512_set1_epi32(kOrdinaryHigh - kOrdinaryLow);
  __mmask16 outside = 0;
  for (int64_t k = 0; k < K; k += 16) {
    const __m512i bits = _mm512_and_si512(_mm512_loadu_si512(x + k), _mm512_set1_epi32(0x7FFFFFFF));
    outside |= _mm512_mask_cmpge_epu32_mask(_mm512_test_epi32_mask(bits, bits), _mm512_sub_epi32(bits, low), width);
  }
  return outside == 0;
}

MOESAIC_AVX512 void quantize(const float* x, int64_t groups, Q8Group* out) {
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  for (int64_t g = 0; g < groups; ++g, x += kMxGroup) {
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    // As integers: order of magnitude, with infinity and NaN above every finite value.
    const __m512i bits = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                                          _mm512_and_si512(_mm512_castps_si512(b), magnitude));
    const Q8Scale scale = q8_scale(_mm512_reduce_max_epi32(bits));
    const __mmask16 keep = scale.finite ? 0xFFFF : 0;  // zeros instead of conversions of NaN
    const __m512 inverse = _mm512_set1_ps(scale.inverse);
    const __m512i qa = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(a, inverse));
    const __m512i qb = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(b, inverse));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out[g].q), _mm512_cvtepi32_epi8(qa));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out[g].q + 16), _mm512_cvtepi32_epi8(qb));
    out[g].half_d = scale.half_d;
    out[g].offset = -12 * _mm512_reduce_add_epi32(_mm512_add_epi32(qa, qb));
  }
}

}  // namespace

const GemmKernels kGemmAvx512{
    .f32_rows = 6,
    .q8_rows = 8,
    .mx_direct_rows = 24,
    .f32_blocks = {1, 4, 4, 4, 4, 4, 4},
    .f32_tile = f32_tile,
    .q8_tile = q8_tile,
    .widen_mxfp4 = widen_mxfp4,
    .ordinary = ordinary,
    .quantize = quantize,
};

}  // namespace moesaic
