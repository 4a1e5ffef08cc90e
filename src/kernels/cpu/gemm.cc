#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/cpu/gemm_tiles.h"
#include "weights/layout.h"

namespace moesaic {
namespace {

constexpr int64_t kPanelK = 512;  // columns widened at a time
constexpr int64_t kPanelBlocks = 4;
constexpr int64_t kChunkRows = 192;  // activation rows per pass: 192 x 512 floats stay in L2 beside the panel

int64_t block_bytes(GemmFormat format, int64_t K) {
  return gemm_matrix_bytes(format, kBlockRows, K);
}

// The last N % 16 rows as a full block of the same format; the missing rows are zeros.
void pad_dense_tail(const std::byte* tail, int64_t elem_bytes, int64_t rows, int64_t K, std::byte* block) {
  std::memset(block, 0, static_cast<size_t>(kBlockRows * K * elem_bytes));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < K; ++k)
      std::memcpy(block + (k * kBlockRows + r) * elem_bytes, tail + (r * K + k) * elem_bytes,
                  static_cast<size_t>(elem_bytes));
}

// As above; a missing row has codes 0 and the finite scale 2^-127, so that it contributes exactly 0.
void pad_mxfp4_tail(const std::byte* tail, int64_t rows, int64_t K, std::byte* block) {
  const int64_t groups = K / kMxGroup;
  std::memset(block, 0, static_cast<size_t>(groups * kMxBlockGroupBytes));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t g = 0; g < groups; ++g, tail += kMxRowGroupBytes) {
      std::byte* to = block + g * kMxBlockGroupBytes;
      to[r] = tail[0];
      const auto code = [&](int64_t k) { return (tail[1 + k / 2] >> (k % 2 * 4)) & std::byte{15}; };
      for (int64_t k = 0; k < 16; ++k) to[16 + k / 4 * 64 + r * 4 + k % 4] = code(k) | code(k + 16) << 4;
    }
  }
}

void pad_tail(const GemmMatrix& w, std::byte* block) {
  const int64_t rows = w.N % kBlockRows;
  const std::byte* tail = w.data + gemm_matrix_bytes(w.format, w.N - rows, w.K);
  if (w.format == GemmFormat::mxfp4) return pad_mxfp4_tail(tail, rows, w.K, block);
  pad_dense_tail(tail, w.format == GemmFormat::f32 ? 4 : 2, rows, w.K, block);
}

void check_range(const GemmMatrix& w, int64_t row_begin, int64_t row_end) {
  CHECK(w.K > 0 && (w.format != GemmFormat::mxfp4 || w.K % kMxGroup == 0), "K {}", w.K);
  CHECK(row_begin >= 0 && row_begin % kBlockRows == 0 && row_end <= w.N, "rows {} to {} of {}", row_begin, row_end,
        w.N);
  CHECK(row_end % kBlockRows == 0 || row_end == w.N, "rows end at {} of {}", row_end, w.N);
}

// Rows [begin, begin + count) of the near-equal split of `rows` into tiles of at most `limit`.
struct RowSplit {
  int64_t begin, count;
};
RowSplit row_split(int64_t rows, int64_t limit, int64_t tile) {
  const int64_t tiles = (rows + limit - 1) / limit, begin = rows * tile / tiles;
  return {begin, rows * (tile + 1) / tiles - begin};
}
int64_t tile_count(int64_t rows, int64_t limit) {
  return (rows + limit - 1) / limit;
}

const float* row_of(const GemmRows& x, int64_t m) {
  return x.x + (x.gather != nullptr ? x.gather[m] : m) * x.stride;
}
const Q8Group* row_of(const Q8Rows& x, int64_t m, int64_t groups) {
  return x.groups + (x.gather != nullptr ? x.gather[m] : m) * groups;
}

// Moves a tile to the block `blocks` further on.
template <typename Tile>
void advance(Tile& tile, int64_t blocks) {
  tile.w += blocks * tile.block_bytes;
  tile.y += blocks * kBlockRows;
  if (tile.bias != nullptr) tile.bias += blocks * kBlockRows;
}

// Runs a tile over `blocks` blocks: `best` at a time, then one at a time.
template <typename Tile>
void run_blocks(Tile tile, int64_t blocks, int best, void (*run)(const Tile&)) {
  while (blocks > 0) {
    tile.blocks = blocks >= best ? best : 1;
    run(tile);
    blocks -= tile.blocks;
    advance(tile, tile.blocks);
  }
}

// Rows [m_begin, m_begin + m_count) of x times `blocks` blocks; tile.w holds their columns from k_begin on, tile.y is
// the first of the rows.
void f32_rows(const GemmKernels& kernels, F32Tile tile, int64_t blocks, int64_t k_begin, const GemmRows& x,
              int64_t m_begin, int64_t m_count) {
  float* const y = tile.y;
  for (int64_t t = 0; t < tile_count(m_count, kernels.f32_rows); ++t) {
    const RowSplit split = row_split(m_count, kernels.f32_rows, t);
    tile.rows = static_cast<int>(split.count);
    for (int64_t i = 0; i < split.count; ++i) tile.x[i] = row_of(x, m_begin + split.begin + i) + k_begin;
    tile.y = y + split.begin * tile.y_stride;
    run_blocks(tile, blocks, kernels.f32_blocks[tile.rows], kernels.f32_tile);
  }
}

// Rows [m_begin, m_begin + m_count) of x times one block.
void q8_rows(const GemmKernels& kernels, Q8Tile tile, const Q8Rows& x, int64_t m_begin, int64_t m_count) {
  float* const y = tile.y;
  for (int64_t t = 0; t < tile_count(m_count, kernels.q8_rows); ++t) {
    const RowSplit split = row_split(m_count, kernels.q8_rows, t);
    tile.rows = static_cast<int>(split.count);
    for (int64_t i = 0; i < split.count; ++i) tile.x[i] = row_of(x, m_begin + split.begin + i, tile.groups);
    tile.y = y + split.begin * tile.y_stride;
    kernels.q8_tile(tile);
  }
}

// Rows [m, m + 192) of x, with weights converted inside the tile: best for dense formats, and for mxfp4 with few rows.
void f32_direct(const GemmKernels& kernels, F32Tile tile, int64_t blocks, const GemmRows& x, int64_t m) {
  const int64_t m_count = std::min(kChunkRows, x.M - m);
  const int64_t step = kernels.f32_blocks[row_split(m_count, kernels.f32_rows, 0).count];
  tile.y += m * tile.y_stride;
  for (; blocks > 0; blocks -= step, advance(tile, step))
    f32_rows(kernels, tile, std::min(step, blocks), 0, x, m, m_count);
}

// The same from column k on, with mxfp4 weights widened to a panel of 4 blocks x 512 columns that all rows use; sums
// rest in y between panels.
void f32_panels(const GemmKernels& kernels, const F32Tile& whole, int64_t blocks, int64_t k, const GemmRows& x,
                int64_t m, float* panel) {
  const bool last = k + kPanelK >= whole.k_count;
  F32Tile tile = whole;
  tile.k_count = std::min(kPanelK, whole.k_count - k);
  tile.block_bytes = tile.k_count * kBlockRows * 4;
  tile.format = GemmFormat::f32;
  tile.resume = k > 0;
  for (int64_t b = 0; b < blocks; b += kPanelBlocks) {
    const int64_t count = std::min(kPanelBlocks, blocks - b);
    for (int64_t i = 0; i < count; ++i)
      kernels.widen_mxfp4(whole.w + (b + i) * whole.block_bytes + k / kMxGroup * kMxBlockGroupBytes, tile.k_count,
                          panel + i * tile.k_count * kBlockRows);
    tile.w = reinterpret_cast<const std::byte*>(panel);
    tile.y = whole.y + m * whole.y_stride + b * kBlockRows;
    tile.bias = last && whole.bias != nullptr ? whole.bias + b * kBlockRows : nullptr;
    f32_rows(kernels, tile, count, k, x, m, std::min(kChunkRows, x.M - m));
  }
}

bool all_ordinary(const GemmKernels& kernels, const GemmMatrix& w, const GemmRows& x) {
  if (w.format != GemmFormat::mxfp4 || kernels.ordinary == nullptr || w.K > int64_t{1} << 20) return false;
  bool all = true;
  for (int64_t m = 0; all && m < x.M; ++m) all = kernels.ordinary(row_of(x, m), w.K);
  return all;
}

// The last N % 16 rows: a tile on the padded block writes 16 columns to a buffer, of which `lanes` go on to y.
// run(tile, m, rows) computes rows [m, m + rows).
template <typename Tile>
void run_tail(const GemmMatrix& w, Tile tile, int64_t M, int64_t rows_per_tile, std::byte* scratch, auto run) {
  const int64_t lanes = w.N % kBlockRows, y_stride = tile.y_stride;
  float sums[kMaxTileRows * kBlockRows], bias[kBlockRows] = {};
  float* y = tile.y;
  if (tile.bias != nullptr) tile.bias = std::copy_n(tile.bias, lanes, bias) - lanes;
  pad_tail(w, scratch);
  tile.w = scratch;
  tile.y = sums;
  tile.y_stride = kBlockRows;
  for (int64_t m = 0; m < M; m += rows_per_tile, y += rows_per_tile * y_stride) {
    const int64_t rows = std::min(rows_per_tile, M - m);
    run(tile, m, rows);
    for (int64_t i = 0; i < rows; ++i) std::copy_n(sums + i * kBlockRows, lanes, y + i * y_stride);
  }
}

}  // namespace

int64_t gemm_matrix_bytes(GemmFormat format, int64_t N, int64_t K) {
  if (format == GemmFormat::mxfp4) return mxfp4_bytes(N, K);
  return dense_bytes(format == GemmFormat::f32 ? 4 : 2, N, K);
}

const GemmKernels& gemm_kernels(Isa isa) {
  if (isa == Isa::avx512) return kGemmAvx512;
  return isa == Isa::avx2 ? kGemmAvx2 : kGemmScalar;
}

size_t gemm_scratch_bytes(int64_t K) {
  const int64_t panel = kPanelBlocks * kBlockRows * kPanelK * 4, tail = kBlockRows * K * 4;
  return static_cast<size_t>(std::max(panel, tail));
}

void gemm_f32(const GemmKernels& kernels, const GemmMatrix& w, int64_t row_begin, int64_t row_end, const GemmRows& x,
              const float* bias, float* y, int64_t y_stride, std::byte* scratch) {
  check_range(w, row_begin, row_end);
  if (x.M == 0 || row_begin >= row_end) return;
  F32Tile tile{.w = w.data + gemm_matrix_bytes(w.format, row_begin, w.K),
               .block_bytes = block_bytes(w.format, w.K),
               .format = w.format,
               .k_count = w.K,
               .x = {},
               .rows = 0,
               .blocks = 0,
               .ordinary = false,
               .resume = false,
               .bias = bias != nullptr ? bias + row_begin : nullptr,
               .y = y + row_begin,
               .y_stride = y_stride};
  const int64_t blocks = row_end / kBlockRows - row_begin / kBlockRows;
  const bool panels = w.format == GemmFormat::mxfp4 && x.M > kernels.mx_direct_rows;
  tile.ordinary = !panels && all_ordinary(kernels, w, x);
  for (int64_t m = 0; m < x.M; m += kChunkRows) {
    if (!panels) f32_direct(kernels, tile, blocks, x, m);
    for (int64_t k = 0; panels && k < w.K; k += kPanelK)
      f32_panels(kernels, tile, blocks, k, x, m, reinterpret_cast<float*>(scratch));
  }
  if (row_end % kBlockRows == 0) return;
  advance(tile, blocks);
  run_tail(w, tile, x.M, kernels.f32_rows, scratch,
           [&](const F32Tile& t, int64_t m, int64_t rows) { f32_rows(kernels, t, 1, 0, x, m, rows); });
}

void gemm_q8(const GemmKernels& kernels, const GemmMatrix& w, int64_t row_begin, int64_t row_end, const Q8Rows& x,
             const float* bias, float* y, int64_t y_stride, std::byte* scratch) {
  check_range(w, row_begin, row_end);
  CHECK(w.format == GemmFormat::mxfp4, "format {}", static_cast<int>(w.format));
  if (x.M == 0 || row_begin >= row_end) return;
  Q8Tile tile{.w = w.data + gemm_matrix_bytes(w.format, row_begin, w.K),
              .block_bytes = block_bytes(w.format, w.K),
              .groups = w.K / kMxGroup,
              .x = {},
              .rows = 0,
              .bias = bias != nullptr ? bias + row_begin : nullptr,
              .y = y + row_begin,
              .y_stride = y_stride};
  const int64_t blocks = row_end / kBlockRows - row_begin / kBlockRows;
  for (int64_t m = 0; m < x.M; m += kChunkRows) {
    Q8Tile chunk = tile;
    chunk.y += m * y_stride;
    for (int64_t b = 0; b < blocks; ++b, advance(chunk, 1))
      q8_rows(kernels, chunk, x, m, std::min(kChunkRows, x.M - m));
  }
  if (row_end % kBlockRows == 0) return;
  advance(tile, blocks);
  run_tail(w, tile, x.M, kernels.q8_rows, scratch,
           [&](const Q8Tile& t, int64_t m, int64_t rows) { q8_rows(kernels, t, x, m, rows); });
}

void quantize_q8(const GemmKernels& kernels, const float* x, int64_t stride, int64_t row_begin, int64_t row_end,
                 int64_t K, Q8Group* out) {
  CHECK(K % kMxGroup == 0, "K {}", K);
  const int64_t groups = K / kMxGroup;
  for (int64_t row = row_begin; row < row_end; ++row) kernels.quantize(x + row * stride, groups, out + row * groups);
}

}  // namespace moesaic
