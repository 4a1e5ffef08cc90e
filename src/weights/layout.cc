#include "weights/layout.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "quant/fp4.h"

namespace moesaic {
namespace {

constexpr int64_t kChunkK = 64;  // k per pass over the 16 rows: their lines and the 16 x 64 results stay in L1

// Moves one element between unaligned places.
template <typename T>
void move(const std::byte* from, std::byte* to) {
  T value;
  std::memcpy(&value, from, sizeof value);
  std::memcpy(to, &value, sizeof value);
}

// Copies block `block` between the source matrix and its packed place. kPack: source to packed; else back.
template <typename T, bool kPack, typename Byte>
void copy_dense_block(Byte* plain, DenseOrder order, int64_t N, int64_t K, int64_t block, auto* packed) {
  constexpr int64_t kSize = sizeof(T);
  const int64_t row = block * kBlockRows, rows = std::min(kBlockRows, N - row);
  const bool tail = rows < kBlockRows;
  const int64_t k_step = (order == DenseOrder::rows_first ? 1 : N) * kSize;
  const int64_t r_step = (order == DenseOrder::rows_first ? K : 1) * kSize;
  const int64_t packed_k_step = (tail ? 1 : kBlockRows) * kSize, packed_r_step = (tail ? K : 1) * kSize;
  plain += row * r_step;
  packed += row * K * kSize;
  for (int64_t begin = 0; begin < K; begin += kChunkK) {
    const int64_t end = std::min(K, begin + kChunkK);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = begin; k < end; ++k) {
        auto* a = plain + r * r_step + k * k_step;
        auto* b = packed + r * packed_r_step + k * packed_k_step;
        if constexpr (kPack) {
          move<T>(a, b);
        } else {
          move<T>(b, a);
        }
      }
    }
  }
}

// 16 checkpoint bytes (adjacent pairs) of one row and group to 16 bytes that pair k with k + 16, in order of k.
__m128i split_halves(const std::byte* codes) {
  const __m128i source = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m128i low = _mm_set1_epi8(0x0F);
  const __m128i even = _mm_and_si128(source, low);                    // byte j: k = 2j
  const __m128i odd = _mm_and_si128(_mm_srli_epi16(source, 4), low);  // byte j: k = 2j + 1
  const __m128i first = _mm_unpacklo_epi8(even, odd), second = _mm_unpackhi_epi8(even, odd);
  return _mm_or_si128(first, _mm_slli_epi16(second, 4));
}

// The inverse of split_halves.
__m128i join_pairs(__m128i split) {
  const __m128i low = _mm_set1_epi8(0x0F), even_bytes = _mm_set1_epi16(0x00FF);
  const __m128i first = _mm_and_si128(split, low), second = _mm_and_si128(_mm_srli_epi16(split, 4), low);
  const auto pairs = [&](__m128i k) {  // 16 codes to 8 words whose low byte is the pair
    return _mm_and_si128(_mm_or_si128(k, _mm_srli_epi16(k, 4)), even_bytes);
  };
  return _mm_packus_epi16(pairs(first), pairs(second));
}

void store_chunks(__m128i split, std::byte* group_codes, int64_t r) {
  alignas(16) std::byte bytes[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(bytes), split);
  for (int64_t c = 0; c < 4; ++c) std::memcpy(group_codes + c * 64 + r * 4, bytes + c * 4, 4);
}

void pack_mx_block(const std::byte* codes, const std::byte* scales, int64_t groups, std::byte* packed) {
  for (int64_t g = 0; g < groups; ++g, packed += kMxBlockGroupBytes) {
    for (int64_t r = 0; r < kBlockRows; ++r) {
      packed[r] = scales[r * groups + g];
      store_chunks(split_halves(codes + (r * groups + g) * 16), packed + kBlockRows, r);
    }
  }
}

void pack_mx_tail(const std::byte* codes, const std::byte* scales, int64_t row_groups, std::byte* packed) {
  for (int64_t i = 0; i < row_groups; ++i, packed += kMxRowGroupBytes) {
    packed[0] = scales[i];
    std::memcpy(packed + 1, codes + i * 16, 16);
  }
}

void unpack_mx_block(const std::byte* packed, int64_t groups, std::byte* codes, std::byte* scales) {
  for (int64_t g = 0; g < groups; ++g, packed += kMxBlockGroupBytes) {
    for (int64_t r = 0; r < kBlockRows; ++r) {
      alignas(16) std::byte bytes[16];
      for (int64_t c = 0; c < 4; ++c) std::memcpy(bytes + c * 4, packed + kBlockRows + c * 64 + r * 4, 4);
      scales[r * groups + g] = packed[r];
      const __m128i pairs = join_pairs(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + (r * groups + g) * 16), pairs);
    }
  }
}

std::optional<BadScale> find_nan_scale(const std::byte* scales, int64_t row, int64_t rows, int64_t groups) {
  const std::byte* begin = scales + row * groups;
  const void* found = std::memchr(begin, kE8m0Nan, static_cast<size_t>(rows * groups));
  if (found == nullptr) return std::nullopt;
  const int64_t i = static_cast<const std::byte*>(found) - begin;
  return BadScale{row + i / groups, i % groups};
}

}  // namespace

void pack_dense(const std::byte* source, DenseOrder order, int64_t elem_bytes, int64_t N, int64_t K,
                int64_t block_begin, int64_t block_end, std::byte* packed) {
  CHECK(elem_bytes == 2 || elem_bytes == 4, "{} bytes per element", elem_bytes);
  for (int64_t b = block_begin; b < block_end; ++b) {
    if (elem_bytes == 2) {
      copy_dense_block<uint16_t, true>(source, order, N, K, b, packed);
    } else {
      copy_dense_block<uint32_t, true>(source, order, N, K, b, packed);
    }
  }
}

void unpack_dense(const std::byte* packed, DenseOrder order, int64_t elem_bytes, int64_t N, int64_t K,
                  std::byte* target) {
  CHECK(elem_bytes == 2 || elem_bytes == 4, "{} bytes per element", elem_bytes);
  for (int64_t b = 0; b < row_blocks(N); ++b) {
    if (elem_bytes == 2) {
      copy_dense_block<uint16_t, false>(target, order, N, K, b, packed);
    } else {
      copy_dense_block<uint32_t, false>(target, order, N, K, b, packed);
    }
  }
}

std::optional<BadScale> pack_mxfp4(const std::byte* codes, const std::byte* scales, int64_t N, int64_t K,
                                   int64_t block_begin, int64_t block_end, std::byte* packed) {
  CHECK(K % kMxGroup == 0, "K {}", K);
  const int64_t groups = K / kMxGroup;
  for (int64_t b = block_begin; b < block_end; ++b) {
    const int64_t row = b * kBlockRows, rows = std::min(kBlockRows, N - row);
    if (auto bad = find_nan_scale(scales, row, rows, groups)) return bad;
    const std::byte* from = codes + row * groups * 16;
    std::byte* to = packed + row * groups * kMxRowGroupBytes;
    if (rows == kBlockRows) {
      pack_mx_block(from, scales + row * groups, groups, to);
    } else {
      pack_mx_tail(from, scales + row * groups, rows * groups, to);
    }
  }
  return std::nullopt;
}

void unpack_mxfp4(const std::byte* packed, int64_t N, int64_t K, std::byte* codes, std::byte* scales) {
  CHECK(K % kMxGroup == 0, "K {}", K);
  const int64_t groups = K / kMxGroup, full = N / kBlockRows * kBlockRows;
  for (int64_t row = 0; row < full; row += kBlockRows)
    unpack_mx_block(packed + row * groups * kMxRowGroupBytes, groups, codes + row * groups * 16, scales + row * groups);
  for (int64_t i = full * groups; i < N * groups; ++i) {
    scales[i] = packed[i * kMxRowGroupBytes];
    std::memcpy(codes + i * 16, packed + i * kMxRowGroupBytes + 1, 16);
  }
}

}  // namespace moesaic
