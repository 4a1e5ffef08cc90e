// linear for many rows of x on the warpgroup matrix units: x is rounded to bf16 and weights of other formats are
// widened to bf16 into the workspace first; then blocks of three warpgroups, one of which copies tiles of 64 columns of
// both operands to shared memory while the others multiply, go through the tiles of y. All sums run over ascending k;
// with splits (few tiles), over ranges of K whose sums are added in order by a last launch.
#include <algorithm>

#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 256;  // of the elementwise launches

__global__ void __launch_bounds__(kThreads) round_kernel(const float* x, int64_t eights, uint16_t* out) {
  after_previous();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= eights) return;
  const float4 a = reinterpret_cast<const float4*>(x)[2 * i], b = reinterpret_cast<const float4*>(x)[2 * i + 1];
  reinterpret_cast<uint4*>(out)[i] =
      make_uint4(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w));
}

// out[rows, K] = w in bf16, one thread for eight elements.
template <Stored kStored>
__global__ void __launch_bounds__(kThreads) widen_kernel(StoredMatrix w, int64_t eights, uint16_t* out) {
  after_previous();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= eights) return;
  const int across = w.K / 8;
  float v[8];
  load_eight<kStored>(w, i / across, static_cast<int>(i % across) * 8, v);
  reinterpret_cast<uint4*>(out)[i] =
      make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
}

// y = bias + the parts [splits][T, groups * N], in order.
__global__ void __launch_bounds__(kThreads) add_parts_kernel(const float* parts, int splits, LinearCall call) {
  after_previous();
  const int64_t elements = call.T * call.y_stride();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements) return;
  float sum = parts[i];
  for (int s = 1; s < splits; ++s) sum += parts[s * elements + i];
  call.y[i] = call.bias != nullptr ? sum + call.bias[i % call.N] : sum;
}

unsigned blocks_for(int64_t items) {
  return static_cast<unsigned>(ceil_div(items, int64_t{kThreads}));
}

constexpr int kTileRows = 128;   // of x
constexpr int kTileDepth = 64;   // of K: 128 bytes
constexpr int kWarpgroup = 128;  // threads
constexpr int kBand = 16;        // tiles of x that are worked on together, so that both operands stay in L2

template <int kColumns>
struct TileShape {
  static constexpr int kStages = kColumns == 256 ? 4 : 6;
  static constexpr int kXBytes = kTileRows * kSwizzleRow, kStageBytes = kXBytes + kColumns * kSwizzleRow;
  static constexpr int kSharedBytes = kStages * kStageBytes + 2 * kStages * 8;
};

struct Product {
  const uint16_t* x;  // bf16 [T, groups * K]
  const uint16_t* w;  // bf16 [groups * N, K]
  LinearCall call;
  float* parts;  // [splits][T, groups * N] where splits > 1
  int splits;
};

// One tile of y: rows of x from `row`, rows of w from `column`, steps of kTileDepth of K.
struct Tile {
  int row, column, group, split, begin, end;
};

template <int kColumns>
__device__ __forceinline__ Tile tile_at(const Product& p, int index) {
  const int down = ceil_div(p.call.T, kTileRows), across = ceil_div(p.call.N, kColumns);
  const int steps = ceil_div(p.call.K, kTileDepth);
  const int plane = index / (down * across), i = index % (down * across), band = i / (kBand * across);
  const int height = min(kBand, down - band * kBand), j = i - band * kBand * across;
  const int split = plane % p.splits;
  return {.row = (band * kBand + j % height) * kTileRows,
          .column = j / height * kColumns,
          .group = plane / p.splits,
          .split = split,
          .begin = static_cast<int>(static_cast<int64_t>(steps) * split / p.splits),
          .end = static_cast<int>(static_cast<int64_t>(steps) * (split + 1) / p.splits)};
}

// Copies kRows rows of 64 columns from k on into a swizzled tile; what lies past `rows` or `K` becomes zero. By one
// warpgroup, eight threads a row.
template <int kRows>
__device__ __forceinline__ void copy_tile(std::byte* tile, const uint16_t* matrix, int64_t stride, int row, int rows,
                                          int k, int K, int thread) {
  const int chunk = thread % 8, line = thread / 8;
  const int column = k + chunk * 8, left = column < K ? rows - row - line : 0;
  const uint16_t* from = matrix + (row + line) * stride + column;
  std::byte* to = tile + swizzle128(line * kSwizzleRow + chunk * 16);
#pragma unroll
  for (int i = 0; i < kRows / 16; ++i) {
    const bool inside = 16 * i < left;
    copy_async(to + i * 16 * kSwizzleRow, inside ? from + 16 * i * stride : matrix, inside ? 16 : 0);
  }
}

// The copying warpgroup: keeps kStages - 1 stages on the way.
template <int kColumns>
__device__ void copy_tiles(const Product& p, int tiles, std::byte* stages, uint64_t* full, uint64_t* empty) {
  using Shape = TileShape<kColumns>;
  constexpr int kLag = Shape::kStages - 2;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int64_t x_stride = p.call.x_stride();
  int step = 0;  // over all tiles
  const auto arrived = [&](int s) {
    fence_proxy_async();
    barrier_arrive(&full[s % Shape::kStages]);
  };
  for (int index = static_cast<int>(blockIdx.x); index < tiles; index += static_cast<int>(gridDim.x)) {
    const Tile tile = tile_at<kColumns>(p, index);
    const uint16_t* x = p.x + static_cast<int64_t>(tile.group) * p.call.K;
    const uint16_t* w = p.w + static_cast<int64_t>(tile.group) * p.call.N * p.call.K;
    for (int s = tile.begin; s < tile.end; ++s, ++step) {
      const int stage = step % Shape::kStages, round = step / Shape::kStages;
      barrier_wait(&empty[stage], static_cast<unsigned>(round & 1) ^ 1);
      std::byte* to = stages + stage * Shape::kStageBytes;
      copy_tile<kTileRows>(to, x, x_stride, tile.row, p.call.T, s * kTileDepth, p.call.K, thread);
      copy_tile<kColumns>(to + Shape::kXBytes, w, p.call.K, tile.column, p.call.N, s * kTileDepth, p.call.K, thread);
      commit_copies();
      if (step < kLag) continue;
      wait_copies<kLag>();
      arrived(step - kLag);
    }
  }
  wait_copies<0>();
  for (int s = max(0, step - kLag); s < step; ++s) arrived(s);
}

// Rows g and g + 8 of the warp's 16, two columns at a time.
template <int kColumns>
__device__ __forceinline__ void store_tile(const Product& p, const Tile& tile, const float (&d)[kColumns / 2],
                                           int row) {
  const LinearCall& call = p.call;
  const int q = static_cast<int>(threadIdx.x) % 4;
  const bool whole = p.splits == 1, pairs = call.y_stride() % 2 == 0 && call.N % 2 == 0;
  const int64_t plane = call.T * call.y_stride();
  float* y = (whole ? call.y : p.parts + tile.split * plane) + static_cast<int64_t>(tile.group) * call.N;
  const float* bias = whole ? call.bias : nullptr;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const int n = tile.column + 8 * j + 2 * q;
    if (n >= call.N) break;
    const bool two = n + 1 < call.N;
    const float b0 = bias != nullptr ? __ldg(bias + n) : 0, b1 = bias != nullptr && two ? __ldg(bias + n + 1) : 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (row + 8 * h >= call.T) continue;
      float* to = y + (row + 8 * h) * call.y_stride() + n;
      const float v0 = d[4 * j + 2 * h] + b0, v1 = d[4 * j + 2 * h + 1] + b1;
      if (pairs) {
        *reinterpret_cast<float2*>(to) = make_float2(v0, v1);
      } else {
        to[0] = v0;
        if (two) to[1] = v1;
      }
    }
  }
}

// A multiplying warpgroup: 64 of the tile's rows of x by all its rows of w.
template <int kColumns>
__device__ void multiply_tiles(const Product& p, int tiles, const std::byte* stages, uint64_t* full, uint64_t* empty) {
  using Shape = TileShape<kColumns>;
  const int thread = static_cast<int>(threadIdx.x), half = thread / kWarpgroup - 1, lane = thread % kWarp;
  const int warp = thread / kWarp % 4;
  int step = 0;
  const auto release = [&](int s) {
    if (lane == 0) barrier_arrive(&empty[s % Shape::kStages]);
  };
  float d[kColumns / 2];
  for (int index = static_cast<int>(blockIdx.x); index < tiles; index += static_cast<int>(gridDim.x)) {
    const Tile tile = tile_at<kColumns>(p, index);
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) d[i] = 0;
    for (int s = tile.begin; s < tile.end; ++s, ++step) {
      const int stage = step % Shape::kStages, round = step / Shape::kStages;
      barrier_wait(&full[stage], static_cast<unsigned>(round & 1));
      const std::byte* at = stages + stage * Shape::kStageBytes;
      const uint64_t a = k_major_descriptor(at + half * 64 * kSwizzleRow);
      const uint64_t b = k_major_descriptor(at + Shape::kXBytes);
      keep_in_place(d);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_bf16(d, a + k * kDescriptorStep, b + k * kDescriptorStep, true);
      wgmma_commit();
      if (s > tile.begin) {
        wgmma_wait<1>();
        release(step - 1);
      }
    }
    wgmma_wait<0>();
    keep_in_place(d);
    release(step - 1);
    store_tile<kColumns>(p, tile, d, tile.row + half * 64 + warp * 16 + lane / 4);
  }
}

// Shared: the stages, each x tile [128][64] and w tile [kColumns][64], then barriers.
template <int kColumns>
__global__ void __launch_bounds__(3 * kWarpgroup, 1) product_kernel(Product p, int tiles) {
  after_previous();
  using Shape = TileShape<kColumns>;
  auto* stages = dynamic_shared<std::byte>();
  auto* full = reinterpret_cast<uint64_t*>(stages + Shape::kStages * Shape::kStageBytes);
  uint64_t* empty = full + Shape::kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Shape::kStages; ++s) barrier_init(&full[s], kWarpgroup), barrier_init(&empty[s], 8);
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<40>();
    copy_tiles<kColumns>(p, tiles, stages, full, empty);
  } else {
    take_registers<232>();
    multiply_tiles<kColumns>(p, tiles, stages, full, empty);
  }
}

int64_t tiles_of(int64_t T, int64_t N, int64_t groups, int columns) {
  return ceil_div(T, int64_t{kTileRows}) * ceil_div(N, int64_t{columns}) * groups;
}

template <int kColumns>
void launch_product(const Product& p, Stream& stream) {
  const int64_t tiles = tiles_of(p.call.T, p.call.N, p.call.groups, kColumns) * p.splits;
  launch(product_kernel<kColumns>, static_cast<unsigned>(std::min<int64_t>(tiles, kMultiprocessors)), 3 * kWarpgroup,
         TileShape<kColumns>::kSharedBytes, stream, p, static_cast<int>(tiles));
}

int64_t aligned(int64_t bytes) {
  return ceil_div(bytes, int64_t{256}) * 256;
}
int64_t rounded_bytes(int64_t T, const LinearCall& call) {
  return aligned(T * call.x_stride() * 2);
}
int64_t widened_bytes(const LinearCall& call) {
  return call.stored == Stored::bf16 ? 0 : aligned(call.y_stride() * call.K * 2);
}

const uint16_t* widened(const LinearCall& call, uint16_t* out, Stream& stream) {
  if (call.stored == Stored::bf16) return reinterpret_cast<const uint16_t*>(call.w.codes);
  const int64_t eights = call.y_stride() * (call.K / 8);
  with_format(call.stored, [&](auto format) {
    launch(widen_kernel<decltype(format)::value>, blocks_for(eights), kThreads, 0, stream, call.w, eights, out);
  });
  return out;
}

}  // namespace

void round_rows(const LinearCall& call, uint16_t* out, Stream& stream) {
  const int64_t eights = call.T * call.x_stride() / 8;
  launch(round_kernel, blocks_for(eights), kThreads, 0, stream, call.x, eights, out);
}

// Whichever width takes fewer rounds over the device, weighted by the time of a tile. Up to 256 rows K is split as long
// as the device has room: beyond, the order of sums does not depend on the number of rows.
GemmTiling gemm_tiling(int64_t T, int64_t N, int64_t K, int64_t groups) {
  const auto rounds = [&](int columns) { return ceil_div(tiles_of(T, N, groups, columns), int64_t{kMultiprocessors}); };
  const int columns = T > 256 && rounds(256) * 9 <= rounds(128) * 5 ? 256 : 128;
  if (T > 256) return {columns, 1};
  const int64_t room = kMultiprocessors / std::max<int64_t>(1, tiles_of(T, N, groups, columns));
  return {columns, static_cast<int>(std::clamp<int64_t>(std::min(room, K / (4 * kTileDepth)), 1, 8))};
}

int64_t gemm_workspace(int64_t T, const LinearCall& call, const GemmTiling& tiling) {
  const int64_t parts = tiling.splits > 1 ? tiling.splits * T * call.y_stride() * 4 : 0;
  return rounded_bytes(T, call) + widened_bytes(call) + parts;
}

int64_t gemm_workspace(int64_t T, const LinearCall& call) {
  int64_t bytes = 0;
  for (int64_t rows : {T, std::min<int64_t>(T, 256), std::min<int64_t>(T, 128)})
    bytes = std::max(bytes, gemm_workspace(rows, call, gemm_tiling(rows, call.N, call.K, call.groups)));
  return bytes;
}

void gemm_bf16(const LinearCall& call, const GemmTiling& tiling, std::byte* workspace, Stream& stream) {
  if (call.T == 0) return;
  auto* x = reinterpret_cast<uint16_t*>(workspace);
  auto* w = reinterpret_cast<uint16_t*>(workspace + rounded_bytes(call.T, call));
  auto* parts = reinterpret_cast<float*>(workspace + rounded_bytes(call.T, call) + widened_bytes(call));
  round_rows(call, x, stream);
  const Product p{x, widened(call, w, stream), call, parts, tiling.splits};
  if (tiling.columns == 256) launch_product<256>(p, stream);
  else launch_product<128>(p, stream);
  if (tiling.splits == 1) return;
  launch(add_parts_kernel, blocks_for(call.T * call.y_stride()), kThreads, 0, stream, parts, tiling.splits, call);
}

}  // namespace moesaic::cuda
