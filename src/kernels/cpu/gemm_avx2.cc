// AVX2 with FMA and F16C: two 256-bit registers are one row block's 16 output rows.
#include <immintrin.h>

#include <algorithm>

#include "kernels/cpu/gemm_tiles.h"
#include "weights/layout.h"

#define MOESAIC_AVX2 __attribute__((target("avx2,fma,f16c")))
#define MOESAIC_AVX2_INLINE MOESAIC_AVX2 __attribute__((always_inline)) inline

namespace moesaic {
namespace {

constexpr int64_t kAheadBytes = 4096;       // how far ahead of the q8 kernel weights are prefetched
constexpr int64_t kDenseAheadBytes = 4096;  // the same in each block of a dense matrix

// Eight of a block's columns' elements as floats.
template <GemmFormat kFormat>
MOESAIC_AVX2_INLINE __m256 load_dense(const std::byte* w) {
  if constexpr (kFormat == GemmFormat::f32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(w));
  } else {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w));
    if constexpr (kFormat == GemmFormat::f16) return _mm256_cvtph_ps(bits);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
}

// 8 E8M0 bytes as floats; byte 0 is the subnormal 2^-127, and the only one whose shifted bits are below it.
MOESAIC_AVX2_INLINE __m256 load_scales(const std::byte* scales) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales)));
  return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_slli_epi32(bytes, 23), _mm256_set1_epi32(0x00400000)));
}

// The weights of the code in bits [kShift, kShift + 4) of each lane. vpermps looks at the low 3 bits, the magnitude;
// the code's sign goes to the scale.
template <int kShift>
MOESAIC_AVX2_INLINE __m256 mx_weights(__m256i chunk, __m256 scales) {
  const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
  const __m256i index = kShift == 0 ? chunk : _mm256_srli_epi32(chunk, kShift);
  const __m256i sign = kShift == 28 ? chunk : _mm256_slli_epi32(chunk, 28 - kShift);
  const __m256 signed_scales = _mm256_xor_ps(scales, _mm256_and_ps(_mm256_castsi256_ps(sign), _mm256_set1_ps(-0.0f)));
  return _mm256_mul_ps(_mm256_permutevar8x32_ps(magnitudes, index), signed_scales);
}

// Sums and weights of kVectors half blocks: vector v is rows 8v .. 8v+7.
template <int kRows, int kVectors>
MOESAIC_AVX2_INLINE void load_sums(const F32Tile& t, __m256 (&sum)[kVectors][kRows]) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
      sum[v][i] = t.resume ? _mm256_loadu_ps(t.y + i * t.y_stride + v * 8) : _mm256_setzero_ps();
  }
}

template <int kRows, int kVectors>
MOESAIC_AVX2_INLINE void store_sums(const float* bias, float* y, int64_t y_stride,
                                    const __m256 (&sum)[kVectors][kRows]) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const __m256 add = bias != nullptr ? _mm256_loadu_ps(bias + v * 8) : _mm256_setzero_ps();
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m256 value = bias != nullptr ? _mm256_add_ps(sum[v][i], add) : sum[v][i];
      _mm256_storeu_ps(y + i * y_stride + v * 8, value);
    }
  }
}

template <int kRows, int kVectors>
MOESAIC_AVX2_INLINE void multiply_add(const __m256 (&w)[kVectors], const float* const (&x)[kRows], int64_t k,
                                      __m256 (&sum)[kVectors][kRows]) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const __m256 value = _mm256_broadcast_ss(x[i] + k);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[v][i] = _mm256_fmadd_ps(w[v], value, sum[v][i]);
  }
}

template <GemmFormat kFormat, int kRows, int kVectors>
MOESAIC_AVX2_INLINE void dense_sums(const F32Tile& t, const float* const (&x)[kRows], __m256 (&sum)[kVectors][kRows]) {
  constexpr int64_t kSize = kFormat == GemmFormat::f32 ? 4 : 2;
  const std::byte* vector[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) vector[v] = t.w + v / 2 * t.block_bytes + v % 2 * 8 * kSize;
  // Prefetches run ahead in each block, and at its end in the block that the next tile reads in its place.
  const int64_t ahead = std::min(t.k_count, kDenseAheadBytes / (kBlockRows * kSize));
  const int64_t ends[2] = {t.k_count - ahead, t.k_count};
  int64_t k = 0, jump = ahead * kBlockRows * kSize;
  for (int64_t end : ends) {
    for (; k < end; ++k) {
      __m256 w[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        if (v % 2 == 0) _mm_prefetch(vector[v] + k * kBlockRows * kSize + jump, _MM_HINT_T0);
        w[v] = load_dense<kFormat>(vector[v] + k * kBlockRows * kSize);
      }
      multiply_add<kRows, kVectors>(w, x, k, sum);
    }
    jump += (kVectors / 2 - 1) * t.block_bytes;
  }
}

template <int kShift, int kRows, int kVectors>
MOESAIC_AVX2_INLINE void mx_column(const __m256i (&chunk)[kVectors], const __m256 (&scales)[kVectors],
                                   const float* const (&x)[kRows], int64_t k, __m256 (&sum)[kVectors][kRows]) {
  __m256 w[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) w[v] = mx_weights<kShift>(chunk[v], scales[v]);
  multiply_add<kRows, kVectors>(w, x, k, sum);
}

// 16 columns of a group: the low nibbles for kHalf 0, the high ones for kHalf 1.
template <int kHalf, int kRows, int kVectors>
MOESAIC_AVX2_INLINE void mx_half(const std::byte* const (&group)[kVectors], const __m256 (&scales)[kVectors],
                                 const float* const (&x)[kRows], int64_t k, __m256 (&sum)[kVectors][kRows]) {
  constexpr int kShift = kHalf * 4;
  for (int64_t c = 0; c < 4; ++c, k += 4) {
    __m256i chunk[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      chunk[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group[v] + kBlockRows + c * 64 + v % 2 * 32));
    mx_column<kShift, kRows, kVectors>(chunk, scales, x, k, sum);
    mx_column<kShift + 8, kRows, kVectors>(chunk, scales, x, k + 1, sum);
    mx_column<kShift + 16, kRows, kVectors>(chunk, scales, x, k + 2, sum);
    mx_column<kShift + 24, kRows, kVectors>(chunk, scales, x, k + 3, sum);
  }
}

// Codes to 2 * value + 12, unsigned: maddubs takes an unsigned and a signed operand.
MOESAIC_AVX2_INLINE __m256i shifted_values(__m256i codes) {
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  return _mm256_shuffle_epi8(table, codes);
}

// Turns bytes u = 2v + 12 of 8 rows into weights without a multiplication: u below the exponent of a row's scale is the
// float base + u * scale / 2, and taking base + 12 * scale / 2 away is exact. The byte sits in bits 0-7 or 16-23 of the
// mantissa, hence two bases. Scale bytes above kMaxFastScale would overflow a base.
struct MxBases {
  __m256 low, high, low_zero, high_zero;
};
constexpr uint8_t kMaxFastScale = 224;

MOESAIC_AVX2_INLINE MxBases mx_bases(const std::byte* scales) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales)));
  const __m256i bits = _mm256_slli_epi32(bytes, 23);
  const __m256i low = _mm256_add_epi32(bits, _mm256_set1_epi32(22 << 23));  // bit 0 is 2^(byte - 128)
  const __m256i high = _mm256_add_epi32(bits, _mm256_set1_epi32(6 << 23));  // bit 16 is 2^(byte - 128)
  return {_mm256_castsi256_ps(low), _mm256_castsi256_ps(high),
          _mm256_castsi256_ps(_mm256_or_si256(low, _mm256_set1_epi32(12))),
          _mm256_castsi256_ps(_mm256_or_si256(high, _mm256_set1_epi32(12 << 16)))};
}

MOESAIC_AVX2_INLINE __m256 mx_fast(__m256i u, int32_t mask, __m256 base, __m256 zero) {
  const __m256 byte = _mm256_castsi256_ps(_mm256_and_si256(u, _mm256_set1_epi32(mask)));
  return _mm256_sub_ps(_mm256_or_ps(byte, base), zero);
}

// The weights of 4 consecutive columns of 8 rows.
MOESAIC_AVX2_INLINE void mx_four(__m256i u, const MxBases& bases, __m256 (&w)[4]) {
  const __m256i odd = _mm256_srli_epi32(u, 8);
  w[0] = mx_fast(u, 0xFF, bases.low, bases.low_zero);
  w[1] = mx_fast(odd, 0xFF, bases.low, bases.low_zero);
  w[2] = mx_fast(u, 0xFF0000, bases.high, bases.high_zero);
  w[3] = mx_fast(odd, 0xFF0000, bases.high, bases.high_zero);
}

// 32 bytes of a chunk, one half of the group, as 2v + 12.
template <int kHalf>
MOESAIC_AVX2_INLINE __m256i mx_half_values(const std::byte* chunk) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(chunk));
  const __m256i codes = kHalf == 0 ? bytes : _mm256_srli_epi16(bytes, 4);
  return shifted_values(_mm256_and_si256(codes, _mm256_set1_epi8(0x0F)));
}

template <int kHalf, int kRows, int kVectors>
MOESAIC_AVX2_INLINE void mx_fast_half(const std::byte* const (&group)[kVectors], const MxBases (&bases)[kVectors],
                                      const float* const (&x)[kRows], int64_t k, __m256 (&sum)[kVectors][kRows]) {
  for (int64_t c = 0; c < 4; ++c, k += 4) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      __m256 w[4];
      mx_four(mx_half_values<kHalf>(group[v] + kBlockRows + c * 64 + v % 2 * 32), bases[v], w);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) sum[v][i] = _mm256_fmadd_ps(w[j], _mm256_broadcast_ss(x[i] + k + j), sum[v][i]);
      }
    }
  }
}

template <int kVectors>
MOESAIC_AVX2_INLINE bool fast_scales(const std::byte* const (&group)[kVectors]) {
  const __m128i limit = _mm_set1_epi8(static_cast<char>(kMaxFastScale));
  __m128i top = limit;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; v += 2)
    top = _mm_max_epu8(top, _mm_loadu_si128(reinterpret_cast<const __m128i*>(group[v])));
  return _mm_movemask_epi8(_mm_cmpeq_epi8(top, limit)) == 0xFFFF;
}

template <int kRows, int kVectors>
MOESAIC_AVX2_INLINE void mx_sums(const F32Tile& t, const float* const (&x)[kRows], __m256 (&sum)[kVectors][kRows]) {
  const std::byte* group[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) group[v] = t.w + v / 2 * t.block_bytes;
  for (int64_t k = 0; k < t.k_count; k += kMxGroup) {
    if (kRows <= 2 && fast_scales<kVectors>(group)) {  // with more rows there are too few registers for it
      MxBases bases[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) bases[v] = mx_bases(group[v] + v % 2 * 8);
      mx_fast_half<0, kRows, kVectors>(group, bases, x, k, sum);
      mx_fast_half<1, kRows, kVectors>(group, bases, x, k + 16, sum);
    } else {
      __m256 scales[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) scales[v] = load_scales(group[v] + v % 2 * 8);
      mx_half<0, kRows, kVectors>(group, scales, x, k, sum);
      mx_half<1, kRows, kVectors>(group, scales, x, k + 16, sum);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) group[v] += kMxBlockGroupBytes;
  }
}

template <GemmFormat kFormat, int kRows, int kBlocks>
MOESAIC_AVX2 void f32_kernel(const F32Tile& t) {
  __m256 sum[2 * kBlocks][kRows];
  const float* x[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) x[i] = t.x[i];
  load_sums<kRows, 2 * kBlocks>(t, sum);
  if constexpr (kFormat == GemmFormat::mxfp4) {
    mx_sums<kRows, 2 * kBlocks>(t, x, sum);
  } else {
    dense_sums<kFormat, kRows, 2 * kBlocks>(t, x, sum);
  }
  store_sums<kRows, 2 * kBlocks>(t.bias, t.y, t.y_stride, sum);
}

template <GemmFormat kFormat>
void f32_by_rows(const F32Tile& t) {
  const bool wide = t.blocks > 1;
  switch (t.rows) {
    case 1: return wide ? f32_kernel<kFormat, 1, 2>(t) : f32_kernel<kFormat, 1, 1>(t);
    case 2: return wide ? f32_kernel<kFormat, 2, 2>(t) : f32_kernel<kFormat, 2, 1>(t);
    case 3: return wide ? f32_kernel<kFormat, 3, 1>(t) : f32_kernel<kFormat, 3, 1>(t);
    case 4: return f32_kernel<kFormat, 4, 1>(t);
    case 5: return f32_kernel<kFormat, 5, 1>(t);
    default: return f32_kernel<kFormat, 6, 1>(t);
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
MOESAIC_AVX2_INLINE void widen_chunk(__m256i chunk, __m256 scales, float* out) {
  _mm256_storeu_ps(out, mx_weights<kShift>(chunk, scales));
  _mm256_storeu_ps(out + 16, mx_weights<kShift + 8>(chunk, scales));
  _mm256_storeu_ps(out + 32, mx_weights<kShift + 16>(chunk, scales));
  _mm256_storeu_ps(out + 48, mx_weights<kShift + 24>(chunk, scales));
}

MOESAIC_AVX2 void widen_mxfp4(const std::byte* group, int64_t k_count, float* out) {
  for (int64_t k = 0; k < k_count; k += kMxGroup, group += kMxBlockGroupBytes, out += kMxGroup * kBlockRows) {
    for (int64_t half = 0; half < 2; ++half) {
      const __m256 scales = load_scales(group + half * 8);
      for (int64_t c = 0; c < 4; ++c) {
        const std::byte* from = group + kBlockRows + c * 64 + half * 32;
        const __m256i chunk = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        float* to = out + c * 4 * kBlockRows + half * 8;
        widen_chunk<0>(chunk, scales, to);
        widen_chunk<4>(chunk, scales, to + 16 * kBlockRows);
      }
    }
  }
}

// Half a block's group: `codes` points to its first 32-byte chunk.
MOESAIC_AVX2_INLINE void load_group(const std::byte* codes, __m256i (&w)[8]) {
  const __m256i low = _mm256_set1_epi8(0x0F);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m256i chunk = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + c * 64));
    w[c] = shifted_values(_mm256_and_si256(chunk, low));
    w[c + 4] = shifted_values(_mm256_and_si256(_mm256_srli_epi16(chunk, 4), low));
  }
}

MOESAIC_AVX2_INLINE void prefetch_group(const std::byte* group) {
#pragma GCC unroll 8
  for (int64_t i = 0; i < kMxBlockGroupBytes; i += 64) _mm_prefetch(group + i, _MM_HINT_T0);
}

MOESAIC_AVX2_INLINE __m256i pair_sums(__m256i w, const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  return _mm256_maddubs_epi16(w, _mm256_set1_epi32(four));
}

// The group's integer sums; `offset` takes the 12s away again. A pair is at most 2 * 24 * 127 = 6096, so four pairs
// fit in 16 bits.
MOESAIC_AVX2_INLINE __m256i group_sums(const __m256i (&w)[8], const Q8Group& x) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i first = pair_sums(w[0], x.q), second = pair_sums(w[4], x.q + 16);
#pragma GCC unroll 4
  for (int c = 1; c < 4; ++c) {
    first = _mm256_add_epi16(first, pair_sums(w[c], x.q + c * 4));
    second = _mm256_add_epi16(second, pair_sums(w[c + 4], x.q + 16 + c * 4));
  }
  const __m256i both = _mm256_add_epi32(_mm256_madd_epi16(first, ones), _mm256_madd_epi16(second, ones));
  return _mm256_add_epi32(both, _mm256_set1_epi32(x.offset));
}

// Adds one group of half a block for each row of activations.
template <int kRows>
MOESAIC_AVX2_INLINE void q8_group(const Q8Tile& t, int64_t g, int half, __m256 (&sum)[kRows]) {
  const std::byte* group = t.w + g * kMxBlockGroupBytes;
  // With one row the hardware's prefetching is better; with more, each group takes too long for it.
  if (kRows > 1 && half == 0) prefetch_group(group + kAheadBytes);
  __m256i w[8];
  load_group(group + kBlockRows + half * 32, w);
  const __m256 scales = load_scales(group + half * 8);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const Q8Group& x = t.x[i][g];
    const __m256 scale = _mm256_mul_ps(scales, _mm256_set1_ps(x.half_d));
    sum[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(group_sums(w, x)), scale, sum[i]);
  }
}

// One pass over a block: for few rows, where reading the weights is what takes time.
template <int kRows>
MOESAIC_AVX2 void q8_whole(const Q8Tile& t) {
  __m256 sum[2][kRows] = {};
  for (int64_t g = 0; g < t.groups; ++g) {
    q8_group<kRows>(t, g, 0, sum[0]);
    q8_group<kRows>(t, g, 1, sum[1]);
  }
  store_sums<kRows, 2>(t.bias, t.y, t.y_stride, sum);
}

// A pass for each half of the block, which leaves registers for more rows.
template <int kRows>
MOESAIC_AVX2 void q8_halves(const Q8Tile& t) {
  for (int half = 0; half < 2; ++half) {
    __m256 sum[1][kRows] = {};
    for (int64_t g = 0; g < t.groups; ++g) q8_group<kRows>(t, g, half, sum[0]);
    store_sums<kRows, 1>(t.bias != nullptr ? t.bias + half * 8 : nullptr, t.y + half * 8, t.y_stride, sum);
  }
}

void q8_tile(const Q8Tile& t) {
  switch (t.rows) {
    case 1: return q8_whole<1>(t);
    case 2: return q8_whole<2>(t);
    case 3: return q8_halves<3>(t);
    default: return q8_halves<4>(t);
  }
}

MOESAIC_AVX2_INLINE int32_t reduce_max(__m256i a) {
  __m128i b = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4E));
  b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0xB1));
  return _mm_cvtsi128_si32(b);
}

MOESAIC_AVX2_INLINE int32_t reduce_add(__m256i a) {
  __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4E));
  b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0xB1));
  return _mm_cvtsi128_si32(b);
}

MOESAIC_AVX2 void quantize(const float* x, int64_t groups, Q8Group* out) {
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // undoes the lane-wise packs
  for (int64_t g = 0; g < groups; ++g, x += kMxGroup) {
    __m256i amax = _mm256_setzero_si256(), total = _mm256_setzero_si256(), q[4];
    for (int i = 0; i < 4; ++i)  // as integers infinity and NaN are above every finite value
      amax = _mm256_max_epi32(amax, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i * 8)), magnitude));
    const Q8Scale scale = q8_scale(reduce_max(amax));
    const __m256i keep = _mm256_set1_epi32(scale.finite ? -1 : 0);  // zeros instead of conversions of NaN
    for (int i = 0; i < 4; ++i) {
      const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + i * 8), _mm256_set1_ps(scale.inverse));
      q[i] = _mm256_and_si256(_mm256_cvtps_epi32(scaled), keep);
      total = _mm256_add_epi32(total, q[i]);
    }
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[g].q), _mm256_permutevar8x32_epi32(bytes, order));
    out[g].half_d = scale.half_d;
    out[g].offset = -12 * reduce_add(total);
  }
}

}  // namespace

const GemmKernels kGemmAvx2{
    .f32_rows = 6,
    .q8_rows = 4,
    .mx_direct_rows = 6,
    .f32_blocks = {1, 2, 2, 1, 1, 1, 1},
    .f32_tile = f32_tile,
    .q8_tile = q8_tile,
    .widen_mxfp4 = widen_mxfp4,
    .ordinary = nullptr,
    .quantize = quantize,
};

}  // namespace moesaic
