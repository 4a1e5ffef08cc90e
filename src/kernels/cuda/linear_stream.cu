// linear for up to 64 rows of x: the weights are the A operand of mma.m16n8k16 and stream once from memory to
// registers, 16 bytes a lane; rows of x are its columns, read through L1: a block that takes few of them
// reads f32 and rounds to bf16, one that takes more reads what a launch before this one has rounded.
//
// A sum over K may take its terms in any order, so a lane's 16 bytes, consecutive k of one row, serve as they are: with
// lane = 4g + q, mma j of a chunk takes k = 4j .. 4j+3 of the lane's elements as "k 2q, 2q+1, 2q+8, 2q+9" of both
// operands. Chunks of 4 x 16 bytes of a row are dealt out to `parts` warps, whose sums are added in order. The order
// of a sum depends on N, K and the format alone: rows of x do not change each other's bits.
#include <algorithm>

#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/mma.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kMaxWarps = 8;

__device__ __forceinline__ unsigned word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Two neighbouring E2M1 codes times a power of two, as bf16, in the same way.
__device__ __forceinline__ unsigned e2m1_pair(unsigned low_codes, float scale) {
#ifdef MOESAIC_EMULATED_CUDA
  return pack_bf16(e2m1_to_f32(low_codes) * scale, e2m1_to_f32(low_codes >> 4) * scale);
#else
  const unsigned spread = (low_codes & 0xFu) | (low_codes & 0xF0u) << 12;
  const unsigned bits = (spread & 0x00080008u) << 12 | (spread & 0x00070007u) << 6, half = __float_as_uint(scale) >> 16;
  unsigned result;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(bits), "r"(0x7E807E80u));  // 2^126
  asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(result) : "r"(half | half << 16));
  return result;
#endif
}

// k = 4j .. 4j+3 of a lane's elements as two registers; those of int4 and mxfp4 times `scale`.
template <Stored kStored>
__device__ __forceinline__ void widen_four(const uint4& v, int j, float scale, unsigned& first, unsigned& second) {
  if constexpr (kStored == Stored::bf16) {
    first = word_of(v, 2 * j), second = word_of(v, 2 * j + 1);
  } else if constexpr (kStored == Stored::fp8) {
    const unsigned codes = word_of(v, j);
    first = e4m3_pair(codes), second = e4m3_pair(codes >> 16);
  } else if constexpr (kStored == Stored::mxfp4) {
    const unsigned codes = word_of(v, j / 2) >> (j % 2 * 16);
    first = e2m1_pair(codes, scale), second = e2m1_pair(codes >> 8, scale);
  } else {
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
    float w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = code_of<kStored>(words, 4 * j + i) * scale;
    first = pack_bf16(w[0], w[1]), second = pack_bf16(w[2], w[3]);
  }
}

// Rows of x up to which they are read as f32.
constexpr int rounded_here(Stored stored) {
  return stored == Stored::bf16 || stored == Stored::f16 ? 16 : 8;
}

// kM: times 16 rows of w a warp multiplies by 8 kTiles rows of x.
template <Stored kStored, int kTiles, int kM>
struct StreamShape {
  static constexpr bool kFourBits = kStored == Stored::int4 || kStored == Stored::mxfp4;
  static constexpr bool kFp8 = kStored == Stored::fp8;
  static constexpr int kAhead = kFourBits || (kFp8 && kTiles == 4) ? 2
                                : kTiles >= 4 || kFp8              ? 4
                                                                   : 6;            // chunks in flight
  static constexpr int kPer = kInVector<kStored>, kChunk = 4 * kPer;  // k of a lane, of the warp
  static constexpr int kSteps = kPer / 4;                             // mma along a chunk
  static constexpr int kPitch = 16 * kM + 4, kTokens = 8 * kTiles;    // of sums in shared memory
  static constexpr bool kRounded = kTokens > rounded_here(kStored);   // beforehand
  using X = std::conditional_t<kRounded, uint16_t, float>;
  static constexpr int kXRegisters = kTiles * kPer * static_cast<int>(sizeof(X)) / 4;  // of a chunk
  static constexpr int kXAhead = kXRegisters <= 16 ? 2 : kXRegisters <= 32 ? 1 : 0;    // chunks of x in flight
};

// What a lane holds of a chunk: rows g and g + 8 of every 16.
template <int kM>
struct Chunk {
  uint4 codes[kM][2];
  float scale[kM][2];
};

// Where a row's codes begin, in vectors of 16 bytes, and its scales.
struct RowStart {
  unsigned vector, scale;
};
template <Stored kStored>
__device__ __forceinline__ RowStart start_of(const StoredMatrix& m, int row) {
  const auto r = static_cast<unsigned>(row), K = static_cast<unsigned>(m.K);
  RowStart start{r * (K / kInVector<kStored>), r * (K / 32)};
  if constexpr (kStored == Stored::fp8)
    start.scale = r / static_cast<unsigned>(m.scale_rows) * static_cast<unsigned>(ceil_div(m.K, m.scale_cols));
  return start;
}

// Elements k + own .. of a lane's rows. An fp8 scale is that of the chunk, k, for products of all lanes; one of int4 or
// mxfp4 is that of the lane's own elements.
template <Stored kStored, int kM>
__device__ __forceinline__ void load_chunk(const StoredMatrix& m, const RowStart (&rows)[kM][2], int k, int own,
                                           Chunk<kM>& chunk) {
  const auto at = static_cast<unsigned>(k + own);
  const bool inside = k + own < m.K;
#pragma unroll
  for (int i = 0; i < kM; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const RowStart& row = rows[i][h];
      chunk.codes[i][h] = make_uint4(0, 0, 0, 0);
      chunk.scale[i][h] = kStored == Stored::f16 ? 1 : 0;
      if constexpr (kStored == Stored::fp8)
        if (k < m.K)
          chunk.scale[i][h] = __ldg(reinterpret_cast<const float*>(m.scales) + row.scale +
                                    static_cast<unsigned>(k) / static_cast<unsigned>(m.scale_cols));
      if (!inside) continue;
      chunk.codes[i][h] = load_once(m.codes + static_cast<uint64_t>(row.vector + at / kInVector<kStored>) * 16);
      if constexpr (kStored == Stored::int4)
        chunk.scale[i][h] = bf16_to_float(__ldg(reinterpret_cast<const uint16_t*>(m.scales) + row.scale + at / 32));
      if constexpr (kStored == Stored::mxfp4)
        chunk.scale[i][h] = e8m0_to_f32(__ldg(reinterpret_cast<const uint8_t*>(m.scales) + row.scale + at / 32));
    }
}

// A lane's elements k .. of one row of x, zeros past the end, and these as the b operands of the steps.
template <int kSteps, typename T>
struct LaneX;
template <int kSteps>
struct LaneX<kSteps, float> {
  float4 v[kSteps];

  __device__ __forceinline__ void load(const float* x, bool inside) {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      v[j] = make_float4(0, 0, 0, 0);
      if (inside) v[j] = *reinterpret_cast<const float4*>(x + 4 * j);
    }
  }
  __device__ __forceinline__ void operands(unsigned (&b)[kSteps][2]) const {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) b[j][0] = pack_bf16(v[j].x, v[j].y), b[j][1] = pack_bf16(v[j].z, v[j].w);
  }
};
template <int kSteps>
struct LaneX<kSteps, uint16_t> {
  uint4 v[kSteps / 2];

  __device__ __forceinline__ void load(const uint16_t* x, bool inside) {
#pragma unroll
    for (int j = 0; j < kSteps / 2; ++j) {
      v[j] = make_uint4(0, 0, 0, 0);
      if (inside) v[j] = *reinterpret_cast<const uint4*>(x + 8 * j);
    }
  }
  __device__ __forceinline__ void operands(unsigned (&b)[kSteps][2]) const {
#pragma unroll
    for (int j = 0; j < kSteps; j += 2)
      b[j][0] = v[j / 2].x, b[j][1] = v[j / 2].y, b[j + 1][0] = v[j / 2].z, b[j + 1][1] = v[j / 2].w;
  }
};

// A warp multiplies 16 kM rows of w by 8 kTiles rows of x over its share of K. Block: slots x parts warps. Grid: rows
// of w, groups, rows of x. Shared: f32[warps][kTokens][kPitch].
template <Stored kStored, int kTiles, int kM>
__global__ void __launch_bounds__(kMaxWarps* kWarp, kTiles == 8 || kM == 2 ? 1 : 2)
    stream_kernel(LinearCall call, const uint16_t* rounded, int parts) {
  let_next_begin();
  using Shape = StreamShape<kStored, kTiles, kM>;
  constexpr int kSteps = Shape::kSteps, kAhead = Shape::kAhead, kXAhead = Shape::kXAhead;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4, q = lane % 4, part = warp % parts, slots = static_cast<int>(blockDim.x) / kWarp / parts;
  const int group = static_cast<int>(blockIdx.y), token = static_cast<int>(blockIdx.z) * Shape::kTokens;
  const int first = static_cast<int>(blockIdx.x) * slots * 16 * kM, row = first + warp / parts * 16 * kM;

  RowStart rows[kM][2];  // rows past the end are computed again from the last and not stored
#pragma unroll
  for (int i = 0; i < kM; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      rows[i][h] = start_of<kStored>(call.w, group * call.N + min(row + 16 * i + 8 * h + g, call.N - 1));
  const typename Shape::X* x = nullptr;
  if constexpr (Shape::kRounded) x = rounded;
  else x = call.x;
  x += token * call.x_stride() + static_cast<int64_t>(group) * call.K;
  unsigned x_row[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
    x_row[t] = static_cast<unsigned>(min(8 * t + g, call.T - 1 - token) * call.x_stride());

  const int stride = parts * Shape::kChunk, own = q * Shape::kPer;
  int k = part * Shape::kChunk;
  Chunk<kM> ring[kAhead];
#pragma unroll
  for (int u = 0; u < kAhead; ++u) load_chunk<kStored, kM>(call.w, rows, k + u * stride, own, ring[u]);
  wait_for_previous();
  LaneX<kSteps, typename Shape::X> held[kXAhead > 0 ? kXAhead : 1][kTiles];
  const auto load_x = [&](int at, int t, auto& to) {
    to.load(x + (x_row[t] + static_cast<unsigned>(at + own)), at + own < call.K);
  };
#pragma unroll
  for (int u = 0; u < kXAhead; ++u)
#pragma unroll
    for (int t = 0; t < kTiles; ++t) load_x(k + u * stride, t, held[u][t]);
  float sum[kM][kTiles][4] = {};
  while (k < call.K) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (k < call.K) {  // the same for the whole warp
        unsigned a[kM][kSteps][4];
        float scale[kM][2];
#pragma unroll
        for (int i = 0; i < kM; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            scale[i][h] = ring[u].scale[i][h];
#pragma unroll
            for (int j = 0; j < kSteps; ++j)
              widen_four<kStored>(ring[u].codes[i][h], j, scale[i][h], a[i][j][h], a[i][j][2 + h]);
          }
        load_chunk<kStored, kM>(call.w, rows, k + kAhead * stride, own, ring[u]);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          unsigned b[kSteps][2];
          auto& mine = held[kXAhead > 0 ? u % kXAhead : 0][t];
          if constexpr (kXAhead == 0) load_x(k, t, mine);
          mine.operands(b);
          if constexpr (kXAhead > 0) load_x(k + kXAhead * stride, t, mine);
#pragma unroll
          for (int i = 0; i < kM; ++i) {
            if constexpr (kStored == Stored::fp8) {
              float of_codes[4] = {};
#pragma unroll
              for (int j = 0; j < kSteps; ++j) mma_bf16(of_codes, a[i][j], b[j][0], b[j][1]);
#pragma unroll
              for (int e = 0; e < 4; ++e) sum[i][t][e] = fmaf(scale[i][e / 2], of_codes[e], sum[i][t][e]);
            } else {
#pragma unroll
              for (int j = 0; j < kSteps; ++j) mma_bf16(sum[i][t], a[i][j], b[j][0], b[j][1]);
            }
          }
        }
      }
      k += stride;
    }
  }

  auto* sums = dynamic_shared<float>();
  constexpr int kPerWarp = Shape::kTokens * Shape::kPitch;
#pragma unroll
  for (int i = 0; i < kM; ++i)
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        sums[warp * kPerWarp + (8 * t + 2 * q + e % 2) * Shape::kPitch + 16 * i + 8 * (e / 2) + g] = sum[i][t][e];
  __syncthreads();
  const int height = slots * 16 * kM;
  for (int at = static_cast<int>(threadIdx.x); at < height * Shape::kTokens; at += static_cast<int>(blockDim.x)) {
    const int r = at % height, t = at / height, n = first + r;
    if (n >= call.N || token + t >= call.T) continue;
    const float* from = sums + r / (16 * kM) * parts * kPerWarp + t * Shape::kPitch + r % (16 * kM);
    float total = from[0];
    for (int p = 1; p < parts; ++p) total += from[p * kPerWarp];
    if (call.bias != nullptr) total += call.bias[n];
    call.y[(token + t) * call.y_stride() + static_cast<int64_t>(group) * call.N + n] = total;
  }
}

// Warps that share 16 rows of w: as many as the device has room for at once.
int parts_of(const LinearCall& call) {
  const int64_t warps = ceil_div(int64_t{call.N}, 16) * call.groups;
  int parts = kMaxWarps;
  while (parts > 1 && warps * parts > int64_t{kMultiprocessors} * 16) parts /= 2;
  return parts;
}

constexpr bool has_four_tiles(Stored stored) {
  return stored == Stored::bf16 || stored == Stored::fp8;
}

// What a warp takes: 16 rows, once or twice, of w and 8 tiles rows of x.
struct StreamTiling {
  int tiles, rows;
};
// As much as possible, since each block reads its rows of x and w itself, unless that leaves most of the device idle.
StreamTiling tiling_of(const LinearCall& call) {
  const bool four = has_four_tiles(call.stored), twice = call.stored == Stored::bf16;
  StreamTiling t{call.T <= 8 ? 1 : call.T <= 16 ? 2 : call.T <= 32 && four ? 4 : 8, twice ? 2 : 1};
  const auto blocks = [&] {
    return int64_t{ceil_div(call.N, 16 * t.rows)} * call.groups * ceil_div(call.T, 8 * t.tiles);
  };
  while (blocks() * 2 <= kMultiprocessors && (t.tiles > 1 || t.rows > 1)) {
    if (t.rows == 2 && t.tiles < 8) t.rows = 1;
    else t = {t.tiles == 8 && !four ? 2 : t.tiles / 2, twice ? 2 : 1};
  }
  return t;
}

template <Stored kStored, int kTiles, int kM>
void launch_stream(const LinearCall& call, const uint16_t* rounded, Stream& stream) {
  using Shape = StreamShape<kStored, kTiles, kM>;
  const int parts = parts_of(call), slots = parts < 4 ? 4 / parts : 1, warps = parts * slots;
  const dim3 grid(static_cast<unsigned>(ceil_div(call.N, slots * 16 * kM)), static_cast<unsigned>(call.groups),
                  static_cast<unsigned>(ceil_div(call.T, Shape::kTokens)));
  launch(stream_kernel<kStored, kTiles, kM>, grid, static_cast<unsigned>(warps * kWarp),
         static_cast<size_t>(warps) * Shape::kTokens * Shape::kPitch * sizeof(float), stream, call, rounded, parts);
}

template <Stored kStored, int kM>
void launch_tiles(const LinearCall& call, int tiles, const uint16_t* rounded, Stream& stream) {
  if (tiles == 1) return launch_stream<kStored, 1, kM>(call, rounded, stream);
  if (tiles == 2) return launch_stream<kStored, 2, kM>(call, rounded, stream);
  if constexpr (has_four_tiles(kStored))
    if (tiles == 4) return launch_stream<kStored, 4, kM>(call, rounded, stream);
  // Of bf16 eight tiles always come with twice 16 rows.
  launch_stream<kStored, 8, kStored == Stored::bf16 ? 2 : 1>(call, rounded, stream);
}

}  // namespace

int64_t stream_workspace(int64_t T, const LinearCall& call) {
  return T > rounded_here(call.stored) ? std::min<int64_t>(T, kStreamedRows) * call.x_stride() * 2 : 0;
}

void linear_stream(const LinearCall& call, std::byte* workspace, Stream& stream) {
  const StreamTiling tiling = tiling_of(call);
  auto* rounded = reinterpret_cast<uint16_t*>(workspace);
  if (8 * tiling.tiles > rounded_here(call.stored)) round_rows(call, rounded, stream);
  with_format(call.stored, [&](auto format) {
    constexpr Stored kStored = decltype(format)::value;
    if constexpr (kStored == Stored::bf16)
      if (tiling.rows == 2) return launch_tiles<kStored, 2>(call, tiling.tiles, rounded, stream);
    if constexpr (kStored != Stored::f32) launch_tiles<kStored, 1>(call, tiling.tiles, rounded, stream);
  });
}

}  // namespace moesaic::cuda
