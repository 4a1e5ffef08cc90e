// Expert products for few rows per expert, bound by the bytes of the packed weights. A block computes tiles of 16
// output rows for up to kTokens routed rows of one expert: its eight warps share out K in pieces of 128, each lane
// keeping several pieces' loads in flight, and add up their sums in a fixed order. Blocks take equal runs of (expert,
// rows, tile), found from the offsets.
#include "kernels/cuda/experts_mxfp4.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/mxfp4.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kTileRows = 16;           // output rows
constexpr int kAhead = 4;               // pieces a lane has in flight
constexpr int kColumn = kTileRows + 4;  // floats between the sums of neighbouring routed rows: spreads banks

// Bytes between the activations of neighbouring routed rows: 64 past a multiple of 128 spreads banks.
__host__ __device__ constexpr int row_bytes(int K) {
  return ceil_div(K, kPiece) * kPiece * 2 + 64;
}

// Of the sums: two where memory allows.
__host__ __device__ constexpr int buffers_of(int tokens) {
  return tokens <= 8 ? 2 : 1;
}

struct Shared {
  std::byte* x;  // [kTokens][row_bytes]: per piece [word][group][16 bytes]
  float* sums;   // [buffers][kWarps][kTokens][kColumn]
  int* passes;   // expert | (which kTokens of its rows) << 16
};

__host__ __device__ constexpr int64_t shared_bytes(int tokens, int K, int64_t passes) {
  return static_cast<int64_t>(tokens) * row_bytes(K) + buffers_of(tokens) * kWarps * tokens * kColumn * 4 + passes * 4;
}

// Lists every `tokens` rows of every expert; returns their number. All threads; ends with a barrier.
__device__ int list_passes(const ExpertCall& call, int tokens, int* passes) {
  __shared__ int scratch[kWarps];
  const int share = (call.E + kThreads - 1) / kThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * share, call.E), end = min(begin + share, call.E);
  int mine = 0, total;
  for (int e = begin; e < end; ++e) mine += (call.offsets[e + 1] - call.offsets[e] + tokens - 1) / tokens;
  int at = sum_before(mine, scratch, total);
  for (int e = begin; e < end; ++e) {
    const int count = (call.offsets[e + 1] - call.offsets[e] + tokens - 1) / tokens;
    for (int i = 0; i < count; ++i) passes[at++] = e | i << 16;
  }
  __syncthreads();
  return total;
}

// The activations of `count` routed rows from `first`, in the order of decode_word, padded with zeros to whole pieces.
__device__ void stage_rows(const ExpertCall& call, int first, int count, std::byte* x) {
  const int words = ceil_div(call.K, kPiece) * (kPiece / 8), stride = row_bytes(call.K);
  for (int i = static_cast<int>(threadIdx.x); i < count * words; i += kThreads) {
    const int row = i / words, word = i % words, in_piece = word % 16;
    const uint4 v = word * 8 < call.K ? activation_word(call.x_row(first + row) + word * 8) : make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(x + row * stride + word / 16 * 256 + (in_piece % 4 * 4 + in_piece / 4) * 16) = v;
  }
}

// Where a warp is in its run of pieces: tile by tile, kWarps apart within one.
struct Cursor {
  int tile, piece;

  __device__ void advance(int rounds) {
    piece += kWarps;
    if (piece < rounds * kWarps) return;
    piece %= kWarps;
    ++tile;
  }
};

// One expert's weights, and the rows 2g and 2g+1 of each tile that a lane reads.
struct Weights {
  const std::byte *codes, *scales;
  int N, groups;  // groups of 32 in a row

  __device__ void load(PieceShare& share, const Cursor& at, int end) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, group = at.piece * 4 + lane % 4;
    const bool there = at.tile < end && group < groups;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(at.tile * kTileRows + lane / 4 * 2 + i, N - 1);
      const int64_t index = static_cast<int64_t>(row) * groups + group;
      share.codes[i] = there ? load_once(codes + index * 16) : make_uint4(0, 0, 0, 0);
      share.scales[i] = there ? static_cast<unsigned>(__ldg(reinterpret_cast<const uint8_t*>(scales) + index)) : 0;
    }
  }
};

// The staged rows that a lane multiplies with: offsets of its group in piece 0. Columns of a product do not touch each
// other, so those past the last row may repeat it.
template <int kTokens>
struct Columns {
  int offsets[kTokens / 8];
  bool more;  // than 8 rows

  __device__ Columns(int count, int stride) : more(count > 8) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) offsets[n] = min(8 * n + lane / 4, count - 1) * stride + lane % 4 * 16;
  }
};

// sums += one piece of 16 rows times the staged rows, whose part in the piece begins at x.
template <int kTokens, bool kHuge>
__device__ __forceinline__ void multiply_piece(const PieceShare& share, const std::byte* x,
                                               const Columns<kTokens>& columns, float (&sums)[kTokens / 8][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    unsigned t[2][4];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      decode_word(share.word(row, i), group_factor(share.scales[row]), t[row]);
      if (kHuge) multiply_word(t[row], excess_factor(share.scales[row]));
    }
    const unsigned even[4] = {t[0][0], t[1][0], t[0][1], t[1][1]}, odd[4] = {t[0][2], t[1][2], t[0][3], t[1][3]};
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
      if (n > 0 && !columns.more) continue;
      const uint4 v = *reinterpret_cast<const uint4*>(x + columns.offsets[n] + i * 64);
      mma_bf16(sums[n], even, v.x, v.y);
      mma_bf16(sums[n], odd, v.z, v.w);
    }
  }
}

// Adds up the warps' sums of a tile and writes its outputs. All threads; the sums are free again afterwards, as are the
// staged rows. With two buffers the next tile's sums go to the other one, so warps that write nothing run ahead.
template <int kTokens>
__device__ void finish_tile(const ExpertCall& call, float* buffers, float (&sums)[kTokens / 8][4], int e, int tile,
                            int first, int count) {
  static_assert(kTokens * kTileRows / 2 <= kThreads);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, g = thread % kWarp / 4, q = thread % 4;
  const int pair = thread % (kTileRows / 2) * 2, row = tile * kTileRows + pair, token = thread / (kTileRows / 2);
  const bool writes = token < count && row < call.N;
  const float2 bias = writes ? bias_pair(call, e, row) : make_float2(0, 0);
  float* buffer = buffers + tile % buffers_of(kTokens) * (kWarps * kTokens * kColumn);
#pragma unroll
  for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* to = buffer + (warp * kTokens + 8 * n + 2 * q + i) * kColumn + 2 * g;
      *reinterpret_cast<float2*>(to) = make_float2(sums[n][i], sums[n][2 + i]);
      sums[n][i] = sums[n][2 + i] = 0;
    }
  }
  __syncthreads();
  if (writes) {
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float2 v = *reinterpret_cast<const float2*>(buffer + (w * kTokens + token) * kColumn + pair);
      sum.x += v.x, sum.y += v.y;
    }
    write_pair(call, row, first + token, sum.x + bias.x, sum.y + bias.y);
  }
  if (buffers_of(kTokens) == 1) __syncthreads();
}

template <int kTokens>
__global__ void __launch_bounds__(kThreads, 2) decode_kernel(ExpertCall call, int max_passes) {
  std::byte* memory = dynamic_shared<std::byte>();
  const int stride = row_bytes(call.K);
  Shared shared;
  shared.x = memory;
  shared.sums = reinterpret_cast<float*>(memory + kTokens * stride);
  shared.passes = reinterpret_cast<int*>(shared.sums + buffers_of(kTokens) * kWarps * kTokens * kColumn);
  const int passes = min(list_passes(call, kTokens, shared.passes), max_passes);
  const int tiles = ceil_div(call.N, kTileRows), rounds = ceil_div(ceil_div(call.K, kPiece), kWarps);
  const int64_t units = static_cast<int64_t>(passes) * tiles;
  int64_t unit = units * blockIdx.x / gridDim.x;
  const int64_t end = units * (blockIdx.x + 1) / gridDim.x;

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  float sums[kTokens / 8][4] = {};
  while (unit < end) {
    const int pass = shared.passes[unit / tiles], e = pass & 0xFFFF;
    const int first = call.offsets[e] + (pass >> 16) * kTokens, count = min(kTokens, call.offsets[e + 1] - first);
    Cursor here{static_cast<int>(unit % tiles), warp}, ahead = here;
    const int tile_end = static_cast<int>(min(static_cast<int64_t>(tiles), here.tile + (end - unit)));
    const std::byte* codes = call.weight + e * call.matrix_bytes;
    const Weights weights{codes, codes + static_cast<int64_t>(call.N) * call.K / 2, call.N, call.K / 32};
    const Columns<kTokens> columns(count, stride);
    unit += tile_end - here.tile;

    PieceShare shares[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) weights.load(shares[i], ahead, tile_end), ahead.advance(rounds);
    stage_rows(call, first, count, shared.x);
    __syncthreads();
    while (here.tile < tile_end) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (here.tile >= tile_end) break;
        const unsigned largest = max(shares[i].scales[0], shares[i].scales[1]);
        const bool huge = __any_sync(kAllLanes, static_cast<int>(largest > kLargest)) != 0;
        if (here.piece * 4 < weights.groups) {
          const std::byte* from = shared.x + here.piece * (kPiece * 2);
          if (huge) multiply_piece<kTokens, true>(shares[i], from, columns, sums);
          else multiply_piece<kTokens, false>(shares[i], from, columns, sums);
        }
        weights.load(shares[i], ahead, tile_end);
        ahead.advance(rounds);
        const int tile = here.tile;
        here.advance(rounds);
        if (here.tile != tile) finish_tile<kTokens>(call, shared.sums, sums, e, tile, first, count);
      }
    }
  }
}

template <int kTokens>
void launch_decode(const ExpertCall& call, int64_t R, Stream& stream) {
  const int64_t reached = experts_reached(call.E, R), passes = reached + R / kTokens;
  const int64_t bytes = shared_bytes(kTokens, call.K, passes), blocks = bytes <= 112 * 1024 ? 2 : 1;
  const int64_t grid = min(blocks * multiprocessors(), reached * ceil_div(call.N, kTileRows));
  launch(decode_kernel<kTokens>, static_cast<unsigned>(grid), kThreads, static_cast<size_t>(bytes), stream, call,
         static_cast<int>(passes));
}

}  // namespace

void launch_mxfp4_decode(const ExpertCall& call, int64_t R, int64_t tokens, Stream& stream) {
  // An expert has at most one row of each token.
  const bool wide = tokens > 8 && shared_bytes(16, call.K, experts_reached(call.E, R) + R / 16) <= 112 * 1024;
  if (wide) launch_decode<16>(call, R, stream);
  else launch_decode<8>(call, R, stream);
}

}  // namespace moesaic::cuda
