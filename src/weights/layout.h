// "rows16", the packed weight layout of the CPU kernels: blocks of 16 output rows, so that a SIMD lane is a row.
//
// A matrix [N, K] becomes N / 16 blocks followed by the last N % 16 rows. Packing permutes bits and never widens them:
// bytes in equal bytes out, and unpacking restores the checkpoint's bytes. A stack [E, N, K] is E packed matrices, one
// after the other.
//
//   dense, 2 or 4 bytes   block: [K][16] elements                     tail: row-major [N % 16][K]
//   MXFP4, K % 32 == 0    block: per group of 32 k, 16 scale bytes    tail: row-major, per group the scale byte and
//                         and codes [4 chunks c][16 rows][4 bytes i]        the 16 code bytes as in the checkpoint
//
// In an MXFP4 block the low nibble of byte (c, row, i) is the code of k = 4c + i within the group and the high nibble
// that of k = 16 + 4c + i: after the nibble split a 64-byte vector holds 4 consecutive k of 16 rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace moesaic {

constexpr int64_t kBlockRows = 16;
constexpr int64_t kMxBlockGroupBytes = kBlockRows * 17;  // one group of one block: 16 scales, 16 x 16 code bytes
constexpr int64_t kMxRowGroupBytes = 17;                 // one group of one tail row

// Row blocks of a matrix with N rows, counting a short tail as one block.
constexpr int64_t row_blocks(int64_t N) {
  return (N + kBlockRows - 1) / kBlockRows;
}
constexpr int64_t dense_bytes(int64_t elem_bytes, int64_t N, int64_t K) {
  return elem_bytes * N * K;
}
constexpr int64_t mxfp4_bytes(int64_t N, int64_t K) {
  return N * (K / 32) * kMxRowGroupBytes;
}

// How a dense source is stored: [N, K], or [K, N] as in BF16 re-exports of gpt-oss experts.
enum class DenseOrder { rows_first, k_first };

// Packs the row blocks [block_begin, block_end) of one matrix into `packed`, the start of the whole packed matrix.
// `source` is the whole source matrix and may be unaligned. Disjoint block ranges may be packed by several threads.
void pack_dense(const std::byte* source, DenseOrder order, int64_t elem_bytes, int64_t N, int64_t K,
                int64_t block_begin, int64_t block_end, std::byte* packed);
// The inverse over all blocks.
void unpack_dense(const std::byte* packed, DenseOrder order, int64_t elem_bytes, int64_t N, int64_t K,
                  std::byte* target);

struct BadScale {
  int64_t row, group;
};

// As pack_dense, from codes [N, K/32, 16] and scales [N, K/32]. Returns the position of a NaN scale (byte 0xFF) in the
// range if there is one: the checkpoint is corrupt, and the packed bytes must not be used.
[[nodiscard]] std::optional<BadScale> pack_mxfp4(const std::byte* codes, const std::byte* scales, int64_t N, int64_t K,
                                                 int64_t block_begin, int64_t block_end, std::byte* packed);
void unpack_mxfp4(const std::byte* packed, int64_t N, int64_t K, std::byte* codes, std::byte* scales);

}  // namespace moesaic
