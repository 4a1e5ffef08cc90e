// Expert products for few rows per expert, bound by the bytes of the packed weights. A warp computes tiles of 16 output
// rows for up to kTokens routed rows of one expert over all of K, with kAhead pieces of 128 of K on their way to its
// part of shared memory, on into its next tile. Blocks take equal runs of (expert, rows, tile), found from the offsets,
// and stage the routed rows whenever these change. Even and odd pieces are summed apart; where there are fewer tiles
// than half the warps, two warps share a tile and take one of the sums each (kSplit 2), which changes no bit.
#include "kernels/cuda/experts_mxfp4.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/mxfp4.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kMostWarps = 16, kFewestWarps = 4;  // of a block, as shared memory allows
constexpr int kTileRows = 16;                     // output rows
constexpr int kAhead = 6;  // pieces in flight, one a slot; even, so that those of a slot are all even or all odd
constexpr int kSlotBytes = kTileRows * kPiece / 2;
constexpr int64_t kMostShared = 226 * 1024;  // dynamic; the rest of 227 KB goes to scratch and its alignment

// Bytes between the activations of neighbouring routed rows: 64 past a multiple of 128 spreads banks.
__host__ __device__ constexpr int row_bytes(int K) {
  return ceil_div(K, kPiece) * kPiece * 2 + 64;
}

// Shared memory: activations [tokens][row_bytes], per piece [word][group][16 bytes]; per warp the codes in flight
// [kAhead][2 rows][lane][16 bytes]; the odd sums of split tiles; the passes as expert + (which `tokens` of its rows)
// 2^16.
__host__ __device__ constexpr int fold_bytes(int split, int warps) {
  return split == 1 ? 0 : warps / 2 * kWarp * static_cast<int>(sizeof(float4));
}
constexpr int64_t shared_bytes(int tokens, int split, int warps, int K, int64_t passes) {
  return static_cast<int64_t>(tokens) * row_bytes(K) + warps * kAhead * kSlotBytes + fold_bytes(split, warps) +
         passes * 4;
}

// Lists every `tokens` rows of every expert; returns their number. All threads; ends with a barrier.
__device__ int list_passes(const ExpertCall& call, int tokens, int* passes) {
  __shared__ int scratch[kMostWarps];
  const int share = ceil_div(call.E, static_cast<int>(blockDim.x));
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

// Eight activations of routed row r, from k on.
__device__ __forceinline__ void load_eight(const ExpertCall& call, int r, int k, float4 (&v)[2]) {
  if (!call.quantized) {
    const auto* from = reinterpret_cast<const float4*>(call.x_row(r) + k);
    v[0] = from[0], v[1] = from[1];
    return;
  }
  const std::byte* row = call.quantized_row(r);
  const uint2 codes = *reinterpret_cast<const uint2*>(row + k);
  const float scale = reinterpret_cast<const float*>(row + quantized_scales_at(call.K))[k / kPiece];
  const unsigned word[2] = {codes.x, codes.y};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned low = e4m3_pair(word[i]), high = e4m3_pair(word[i] >> 16);
    v[i] = make_float4(__uint_as_float(low << 16) * scale, __uint_as_float(low & 0xFFFF0000u) * scale,
                       __uint_as_float(high << 16) * scale, __uint_as_float(high & 0xFFFF0000u) * scale);
  }
}

// The activations of `count` routed rows from `first`, in the order of decode_word, padded with zeros to whole pieces.
// All threads, two words at once each.
__device__ void stage_rows(const ExpertCall& call, int first, int count, std::byte* x) {
  constexpr int kAtOnce = 2;
  const int words = ceil_div(call.K, kPiece) * (kPiece / 8), total = count * words, stride = row_bytes(call.K);
  const int threads = static_cast<int>(blockDim.x);
  for (int begin = static_cast<int>(threadIdx.x); begin < total; begin += kAtOnce * threads) {
    float4 v[kAtOnce][2];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = min(begin + j * threads, total - 1);
      load_eight(call, first + i / words, min(i % words * 8, call.K - 8), v[j]);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = begin + j * threads, word = i % words;
      if (i >= total) break;
      const uint4 packed = activation_word(reinterpret_cast<const float*>(v[j]));
      std::byte* to = x + i / words * stride + word / 16 * 256 + (word % 4 * 4 + word % 16 / 4) * 16;
      *reinterpret_cast<uint4*>(to) = word * 8 < call.K ? packed : make_uint4(0, 0, 0, 0);
    }
  }
}

// A block's units, tiles of consecutive passes: which one a warp (or pair, in `slot` of `slots`) is at. Those of each
// pass are dealt out in turn.
struct Deal {
  int tiles, end, slots, slot;
  int unit, pass_end;  // the first pass begins once settle() was called with unit = pass_end = the first unit

  __device__ bool there() const { return unit < pass_end; }
  __device__ void settle() {
    while (unit >= pass_end && pass_end < end) {
      unit = pass_end + slot;
      pass_end = min((pass_end / tiles + 1) * tiles, end);
    }
  }
};

// Where a lane's next kAhead pieces are: of rows 2g and 2g + 1 of a tile, from its group of the first piece on.
template <int kSplit>
struct Loads {
  Deal at;
  int half;  // which pieces of kSplit
  const std::byte *codes[2], *scales[2];
  int left;  // groups to the row's end

  __device__ void find(const ExpertCall& call, const int* passes) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, group = half * 4 + lane % 4, groups = call.K / 32;
    left = (at.there() ? groups : 0) - group;
    if (!at.there()) return;
    const std::byte* matrix = call.weight + (passes[at.unit / at.tiles] & 0xFFFF) * call.matrix_bytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(at.unit % at.tiles * kTileRows + lane / 4 * 2 + i, call.N - 1);
      const int64_t index = static_cast<int64_t>(row) * groups + group;
      codes[i] = matrix + index * 16;
      scales[i] = matrix + static_cast<int64_t>(call.N) * groups * 16 + index;
    }
  }

  // Piece i of them, zeros past the row's end, to this lane's part of slot i.
  __device__ __forceinline__ void copy(std::byte* ring, int i) const {
    const int bytes = left > i * kSplit * 4 ? 16 : 0;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      copy_async(ring + i * kSlotBytes + r * kWarp * 16, codes[r] + i * kSplit * (kPiece / 2), bytes);
    commit_copies();
  }

  // Their scales. Past the row's end they stay what they were.
  __device__ __forceinline__ void load_scales(unsigned (&to)[kAhead][2]) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (left <= i * kSplit * 4) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) to[i][r] = __ldg(reinterpret_cast<const uint8_t*>(scales[r]) + i * kSplit * 4);
    }
  }

  __device__ __forceinline__ void advance(const ExpertCall& call, const int* passes) {
    left -= kAhead * kSplit * 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) codes[i] += kAhead * kSplit * (kPiece / 2), scales[i] += kAhead * kSplit * 4;
    if (left + static_cast<int>(threadIdx.x) % 4 > 0) return;
    at.unit += at.slots;
    at.settle();
    find(call, passes);
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

template <int kTokens>
struct Sums {
  float of[kTokens / 8][4] = {};
};

// sums += one piece of 16 rows times the staged rows, whose part in the piece begins at x.
template <int kTokens, bool kHuge>
__device__ __forceinline__ void multiply_piece(const PieceShare& share, const std::byte* x,
                                               const Columns<kTokens>& columns, Sums<kTokens>& sums) {
  // Without the minimum of group_factor where it changes nothing.
  const auto factor = [&](int row) {
    return kHuge ? group_factor(share.scales[row]) : share.scales[row] * 0x00800080u + kScaleBias * 0x00800080u;
  };
  const unsigned factors[2] = {factor(0), factor(1)};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    unsigned t[2][4];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      decode_word(share.word(row, i), factors[row], t[row]);
      if (kHuge) multiply_word(t[row], excess_factor(share.scales[row]));
    }
    const unsigned even[4] = {t[0][0], t[1][0], t[0][1], t[1][1]}, odd[4] = {t[0][2], t[1][2], t[0][3], t[1][3]};
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
      if (n > 0 && !columns.more) continue;
      const uint4 v = *reinterpret_cast<const uint4*>(x + columns.offsets[n] + i * 64);
      mma_bf16(sums.of[n], even, v.x, v.y);
      mma_bf16(sums.of[n], odd, v.z, v.w);
    }
  }
}

template <int kTokens>
__device__ __forceinline__ void multiply_piece(const PieceShare& share, const std::byte* x,
                                               const Columns<kTokens>& columns, Sums<kTokens>& sums) {
  const bool mine = share.scales[0] > kLargest || share.scales[1] > kLargest;
  if (__any_sync(kAllLanes, static_cast<int>(mine)) != 0) multiply_piece<kTokens, true>(share, x, columns, sums);
  else multiply_piece<kTokens, false>(share, x, columns, sums);
}

// The sums of the odd pieces of split tiles go from their warps, the second halves, to the first ones. All threads.
template <int kTokens>
__device__ void fold_halves(float4* fold, int slot, int half, Sums<kTokens> (&sums)[2]) {
  static_assert(kTokens == 8);
  const float(&mine)[4] = sums[0].of[0];
  float4& odd = fold[slot * kWarp + static_cast<int>(threadIdx.x) % kWarp];
  if (half == 1) odd = make_float4(mine[0], mine[1], mine[2], mine[3]);
  __syncthreads();
  float(&to)[4] = sums[1].of[0];
  to[0] = odd.x, to[1] = odd.y, to[2] = odd.z, to[3] = odd.w;
  __syncthreads();
}

// Writes the outputs of rows `row` and the one after it, of `count` routed rows from `first`.
template <int kTokens>
__device__ __forceinline__ void write_tile(const ExpertCall& call, const Sums<kTokens> (&sums)[2], float2 bias, int row,
                                           int first, int count) {
  if (row >= call.N) return;
#pragma unroll
  for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int token = 8 * n + static_cast<int>(threadIdx.x) % 4 * 2 + j;
      if (token >= count) continue;
      write_pair(call, row, first + token, sums[0].of[n][j] + sums[1].of[n][j] + bias.x,
                 sums[0].of[n][2 + j] + sums[1].of[n][2 + j] + bias.y);
    }
  }
}

template <int kTokens, int kSplit>
__global__ void __launch_bounds__(kMostWarps* kWarp, 1) decode_kernel(ExpertCall call, int max_passes) {
  after_previous();
  std::byte* x = dynamic_shared<std::byte>();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
  const int stride = row_bytes(call.K);
  std::byte* rings = x + kTokens * stride;
  std::byte* ring = rings + warp * kAhead * kSlotBytes + thread % kWarp * 16;
  std::byte* sums_of_odd = rings + warps * kAhead * kSlotBytes;
  float4* fold = reinterpret_cast<float4*>(sums_of_odd);
  int* passes = reinterpret_cast<int*>(sums_of_odd + fold_bytes(kSplit, warps));
  const int tiles = ceil_div(call.N, kTileRows), pieces = ceil_div(call.K, kPiece);
  const int64_t units = static_cast<int64_t>(min(list_passes(call, kTokens, passes), max_passes)) * tiles;
  int begin = static_cast<int>(units * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(units * (blockIdx.x + 1) / gridDim.x);

  const int slots = warps / kSplit, slot = warp / kSplit, half = warp % kSplit;
  Loads<kSplit> loads{{tiles, end, slots, slot, begin, begin}, half, {}, {}, 0};
  loads.at.settle();
  loads.find(call, passes);
  unsigned scales[kAhead][2] = {};
#pragma unroll
  for (int i = 0; i < kAhead; ++i) loads.copy(ring, i);
  loads.load_scales(scales);
  loads.advance(call, passes);

  for (int pass_end; begin < end; begin = pass_end) {
    pass_end = min((begin / tiles + 1) * tiles, end);
    const int pass = passes[begin / tiles], e = pass & 0xFFFF;
    const int first = call.offsets[e] + (pass >> 16) * kTokens, count = min(kTokens, call.offsets[e + 1] - first);
    const Columns<kTokens> columns(count, stride);
    __syncthreads();  // the rows of the pass before are free
    stage_rows(call, first, count, x);
    __syncthreads();
    for (int round = begin; round < pass_end; round += slots) {
      const int unit = round + slot, row = unit % tiles * kTileRows + thread % kWarp / 4 * 2;
      const bool there = unit < pass_end;
      if (kSplit == 1 && !there) break;
      float2 bias = make_float2(0, 0);
      Sums<kTokens> sums[2];
      const std::byte* from = x + half * (kPiece * 2);
      for (int left = there ? pieces - half : 0; left > 0; left -= kAhead * kSplit) {
        unsigned now[kAhead][2];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) now[i][0] = scales[i][0], now[i][1] = scales[i][1];
        loads.load_scales(scales);
        // Not earlier: the wait for the scales in use would be one for the bias.
        if (half == 0 && left == pieces) bias = bias_pair(call, e, row);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          wait_copies<kAhead - 1>();  // a lane reads what it copied itself
          if (i * kSplit < left) {
            const auto* codes = reinterpret_cast<const uint4*>(ring + i * kSlotBytes);
            const PieceShare share{{codes[0], codes[kWarp]}, {now[i][0], now[i][1]}};
            multiply_piece(share, from + i * kSplit * (kPiece * 2), columns, sums[kSplit == 1 ? i % 2 : 0]);
          }
          loads.copy(ring, i);
        }
        from += kAhead * kSplit * (kPiece * 2);
        loads.advance(call, passes);
      }
      if constexpr (kSplit == 2) fold_halves(fold, slot, half, sums);
      if (there && half == 0) write_tile(call, sums, bias, row, first, count);
    }
  }
  wait_copies<0>();
}

// Warps of a block, as many as have room: that kFewestWarps have, experts_mxfp4.cu sees to with its limits on K and E.
constexpr int warps_for(int tokens, int split, int K, int64_t passes) {
  int warps = kMostWarps;
  while (warps > kFewestWarps && shared_bytes(tokens, split, warps, K, passes) > kMostShared) warps /= 2;
  return warps;
}
static_assert(shared_bytes(8, 2, kFewestWarps, 11264, 2048 + 16 * 2048 / 8) <= kMostShared);

// The most passes there can be.
int64_t most_passes(const ExpertCall& call, int64_t R, int tokens) {
  return experts_reached(call.E, R) + R / tokens;
}

template <int kTokens, int kSplit>
void launch_decode(const ExpertCall& call, int64_t R, Stream& stream) {
  const int64_t passes = most_passes(call, R, kTokens);
  const int warps = warps_for(kTokens, kSplit, call.K, passes);
  const int64_t bytes = shared_bytes(kTokens, kSplit, warps, call.K, passes);
  const int64_t grid = min(int64_t{stream.multiprocessors}, experts_reached(call.E, R) * ceil_div(call.N, kTileRows));
  launch(decode_kernel<kTokens, kSplit>, static_cast<unsigned>(grid), static_cast<unsigned>(warps * kWarp),
         static_cast<size_t>(bytes), stream, call, static_cast<int>(passes));
}

}  // namespace

void launch_mxfp4_decode(const ExpertCall& call, int64_t R, int64_t tokens, Stream& stream) {
  // An expert has at most one row of each token.
  const int64_t tiles = experts_reached(call.E, R) * ceil_div(call.N, kTileRows);
  const bool wide = tokens > 8 && warps_for(16, 1, call.K, most_passes(call, R, 16)) == kMostWarps;
  if (wide) launch_decode<16, 1>(call, R, stream);
  else if (2 * tiles <= stream.multiprocessors * kMostWarps) launch_decode<8, 2>(call, R, stream);
  else launch_decode<8, 1>(call, R, stream);
}

}  // namespace moesaic::cuda
