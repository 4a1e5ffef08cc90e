// Grouped-query attention for prompts on the matrix units, for bf16 caches and heads of 64 or 128: q and the weights of
// the softmax are rounded to bf16, sums are float32 (FlashAttention-2: Dao, arXiv 2307.08691).
//
// A thread block takes 128 rows, which are (token, query head) pairs of one kv head and neighbouring tokens, and walks
// the 64-row tiles of keys that they see, each a block of the cache; a warp has 16 or 32 of the rows. Tiles lie at
// fixed positions and a tile that a row does not see changes nothing, so a token's result does not depend on its
// neighbours or on how the prompt was cut into chunks. Steps of few tokens a sequence go to attend_tokens() instead,
// which rounds q alike but not the weights.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gqa.cuh"
#include "kernels/cuda/mma.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kRows = 128;
constexpr int kTile = kBlockTokens;
constexpr int kFewTokens = 8;  // a sequence, at most, for attend_tokens()
// Warps of a block, and 16-row fragments of each: more rows a warp read shared memory less, but need registers.
template <int D>
constexpr int kWarps = D == 64 ? 4 : 8;
template <int D>
constexpr int kThreads = kWarp* kWarps<D>;
template <int D>
constexpr int kBlocks = kRows / 16 / kWarps<D>;
constexpr float kLog2E = 1.44269504088896340736f;

__device__ __forceinline__ float exp2_approximate(float x) {
#ifdef MOESAIC_EMULATED_CUDA
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// The lane, as a value that the compiler does not carry through a loop: addresses made of it cost less than registers.
__device__ __forceinline__ int fresh_lane() {
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  asm volatile("" : "+r"(lane));
  return lane;
}

// Tokens [begin, end) of the launch, all of one sequence, the first at position `position`.
struct Segment {
  int sequence, begin, end, position;
  int chunk;  // position of the sequence's first token in this step
};

__device__ __forceinline__ Segment segment_at(const Gqa& g, int t, int limit) {
  Segment s;
  s.sequence = g.sequence_of[t], s.begin = t, s.position = g.positions[t];
  s.end = min(limit, g.sequence_offsets[s.sequence + 1]);
  s.chunk = s.position - (t - g.sequence_offsets[s.sequence]);
  return s;
}

// Shared memory: two tiles of keys and of values, rows of D; 16-byte piece c of row r lies in place c ^ (r % 8) of the
// row.
template <int D>
struct Tiles {
  uint16_t keys[2][kTile * D], values[2][kTile * D];
  uint4 query[kRows / 16][D / 16][kWarp];  // each lane's own fragments
  Segment segment;                         // here, as registers are scarce
};
template <int D>
__device__ __forceinline__ int piece_offset(int row, int piece) {
  return row * D + (piece ^ (row & 7)) * 8;
}

// Keys (which = 0) or values (1) of one kv head at one position: from the blocks of the cache, the ring, or where the
// position belongs to this step, `step` (bf16 [2][tokens][kv_heads * D]). Null: not seen by any token of the segment.
template <int D>
__device__ __forceinline__ const uint16_t* row_place(const Gqa& g, const Segment& s, const uint16_t* step, int position,
                                                     int kv_head, int which) {
  const int width = g.kv_heads * D, last = s.position + s.end - s.begin - 1;
  if (position > last || (g.window > 0 && position <= s.position - g.window)) return nullptr;
  if (g.window > 0 && position >= s.chunk)
    return step + static_cast<int64_t>(which * g.tokens + s.begin + position - s.position) * width + kv_head * D;
  const int row = g.window > 0 ? position % g.window : position;
  return gqa_cached<const uint16_t>(g, s.sequence, row, which) + kv_head * D;
}

// Starts the copies of tile `tile` into buffer `buffer`: half of the threads copy keys, half values. Rows that nobody
// sees become 0.
template <int D>
__device__ __forceinline__ void copy_tile(const Gqa& g, const Segment& s, const uint16_t* step, int tile, int kv_head,
                                          Tiles<D>& tiles, int buffer) {
  constexpr int kByRow = kThreads<D> / 2 / kTile, kEach = D / 8 / kByRow;  // threads of a row, pieces of a thread
  const int thread = static_cast<int>(threadIdx.x), which = thread / (kThreads<D> / 2);
  const int row = thread / kByRow % kTile, first = thread % kByRow * kEach;
  const uint16_t* from = row_place<D>(g, s, step, tile * kTile + row, kv_head, which);
  const int bytes = from != nullptr ? 16 : 0;
  from = bytes > 0 ? from + first * 8 : step;
  uint16_t* to = which == 0 ? tiles.keys[buffer] : tiles.values[buffer];
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    copy_async(to + piece_offset<D>(row, first + i), from + (bytes > 0 ? i * 8 : 0), bytes);
}

// 16 rows of a warp. Of lane 4g + q: row g in [0], row g + 8 in [1]; totals are each lane's own. `largest` is in units
// of log2, so that a tile without a larger score scales by 1 exactly.
template <int D>
struct RowState {
  int position[2];  // -1: no row
  float values[D / 8][4];
  float largest[2], total[2];
};

template <int D>
__device__ __forceinline__ void load_rows(const Gqa& g, const Segment& s, int tile_begin, int kv_head, int block,
                                          RowState<D>& rows, Tiles<D>& tiles) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* from[2];  // heads
  int tokens[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = block * 16 + i * 8 + lane / 4, t = tile_begin + row / g.group;
    const bool held = t >= s.begin && t < s.end;
    rows.position[i] = held ? s.position + t - s.begin : -1;
    rows.largest[i] = -INFINITY, rows.total[i] = 0;
    tokens[i] = held ? t : s.begin;
    from[i] = g.q + (static_cast<int64_t>(tokens[i]) * g.heads + kv_head * g.group + row % g.group) * D;
  }
#pragma unroll 2
  for (int k = 0; k < D / 16; ++k) {
    const auto pair = [&](int i, int channel) {
      const int d = channel + lane % 4 * 2;
      return pack_bf16(turned(g.turn, from[i], tokens[i], d), turned(g.turn, from[i], tokens[i], d + 1));
    };
    tiles.query[block][k][lane] =
        make_uint4(pair(0, 16 * k), pair(1, 16 * k), pair(0, 16 * k + 8), pair(1, 16 * k + 8));
  }
#pragma unroll
  for (int n = 0; n < D / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) rows.values[n][i] = 0;
}

// scores[16, 64] = q keys, eight blocks of 8 keys, for each fragment of rows.
template <int D>
__device__ __forceinline__ void multiply_keys(const Tiles<D>& tiles, int buffer, float (&scores)[kBlocks<D>][8][4]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = fresh_lane();
  const uint16_t* keys = tiles.keys[buffer];
  const int base = piece_offset<D>(lane % 8, lane / 8);  // piece 4k + lane / 8 of the row is at base ^ 32k
#pragma unroll
  for (int m = 0; m < kBlocks<D>; ++m)
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[m][n][i] = 0;
#pragma unroll
  for (int k = 0; k < D / 32; ++k) {
    unsigned a[2][kBlocks<D>][4];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int m = 0; m < kBlocks<D>; ++m) {
        const uint4 query = tiles.query[warp * kBlocks<D> + m][2 * k + half][lane];
        a[half][m][0] = query.x, a[half][m][1] = query.y, a[half][m][2] = query.z, a[half][m][3] = query.w;
      }
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      unsigned b[2][4];  // of each block of keys, channels 32k to 32k + 31
#pragma unroll
      for (int i = 0; i < 2; ++i) load_matrices(b[i], keys + 8 * (n + i) * D + (base ^ 32 * k));
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int m = 0; m < kBlocks<D>; ++m)
            mma_bf16(scores[m][n + i], a[half][m], b[i][2 * half], b[i][2 * half + 1]);
    }
  }
}

// Keys that a row does not see get -inf.
template <int D>
__device__ __forceinline__ void mask(const Gqa& g, const RowState<D>& rows, int first_key, float (&scores)[8][4]) {
  const int q = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + 8 * n + 2 * q + i % 2, position = rows.position[i / 2];
      if (key > position || (g.window > 0 && key <= position - g.window)) scores[n][i] = -INFINITY;
    }
}

// Scores become weights relative to the largest so far; sums of before are scaled to it.
template <int D>
__device__ __forceinline__ void soften(float scale2, RowState<D>& rows, float (&scores)[8][4]) {
  float alpha[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = -INFINITY;
#pragma unroll
    for (int n = 0; n < 8; ++n) largest = fmaxf(largest, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
    largest = fmaxf(rows.largest[r], largest * scale2);
    const float base = largest == -INFINITY ? 0.0f : largest;
    alpha[r] = exp2_approximate(rows.largest[r] - base);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) {
        scores[n][i] = exp2_approximate(fmaf(scores[n][i], scale2, -base));
        sum += scores[n][i];
      }
    rows.largest[r] = largest;
    rows.total[r] = fmaf(rows.total[r], alpha[r], sum);
  }
#pragma unroll
  for (int n = 0; n < D / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) rows.values[n][i] *= alpha[i / 2];
}

// values[16, D] += weights values, for each fragment of rows.
template <int D>
__device__ __forceinline__ void multiply_values(const float (&weights)[kBlocks<D>][8][4], const uint16_t* values,
                                                RowState<D> (&rows)[kBlocks<D>]) {
  const int lane = fresh_lane();
  const int base = piece_offset<D>(lane % 16, lane / 16);  // piece n + lane / 16, n even, is at base ^ 8n
#pragma unroll
  for (int k = 0; k < kTile / 16; ++k) {
    unsigned a[kBlocks<D>][4];
#pragma unroll
    for (int m = 0; m < kBlocks<D>; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[m][i] = pack_bf16(weights[m][2 * k + i / 2][i % 2 * 2], weights[m][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      unsigned b[4];
      load_matrices_transposed(b, values + 16 * k * D + (base ^ 8 * n));
#pragma unroll
      for (int m = 0; m < kBlocks<D>; ++m) {
        mma_bf16(rows[m].values[n], a[m], b[0], b[1]);
        mma_bf16(rows[m].values[n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

template <int D>
__device__ __forceinline__ void store_rows(const Gqa& g, int tile_begin, int kv_head, int block,
                                           const RowState<D>& rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float total = rows.total[i] + __shfl_xor_sync(kAllLanes, rows.total[i], 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    if (rows.position[i] < 0) continue;
    const int row = block * 16 + i * 8 + lane / 4, t = tile_begin + row / g.group;
    const int head = kv_head * g.group + row % g.group;
    const float factor =
        gqa_result({rows.largest[i] / kLog2E, total, 1.0f}, g.sinks != nullptr ? g.sinks + head : nullptr);
    float* to = g.out + (static_cast<int64_t>(t) * g.heads + head) * D + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      *reinterpret_cast<float2*>(to + 8 * n) =
          make_float2(rows.values[n][2 * i] * factor, rows.values[n][2 * i + 1] * factor);
  }
}

// See the top. Grid: [kv_heads, tiles of `tile_tokens` tokens], the last tile first as it sees most.
template <int D>
__global__ void __launch_bounds__(kThreads<D>, D == 64 ? 2 : 1)
    prompt_kernel(Gqa g, const uint16_t* step, int tile_tokens) {
  after_previous();
  Tiles<D>& tiles = *dynamic_shared<Tiles<D>>();
  Segment& s = tiles.segment;
  const int kv_head = static_cast<int>(blockIdx.x), first_block = static_cast<int>(threadIdx.x) / kWarp * kBlocks<D>;
  const int tile_begin = static_cast<int>(gridDim.y - 1 - blockIdx.y) * tile_tokens;
  const int tile_end = min(g.tokens, tile_begin + tile_tokens);
  const float scale2 = g.scale * kLog2E;
  for (int t = tile_begin; t < tile_end;) {
    if (threadIdx.x == 0) s = segment_at(g, t, tile_end);
    __syncthreads();
    RowState<D> rows[kBlocks<D>];
    int highest = -1, lowest = INT32_MAX;  // positions of the warp's rows
#pragma unroll
    for (int m = 0; m < kBlocks<D>; ++m) {
      load_rows<D>(g, s, tile_begin, kv_head, first_block + m, rows[m], tiles);
#pragma unroll
      for (int position : rows[m].position)
        if (position >= 0) highest = max(highest, position), lowest = min(lowest, position);
    }
    highest = __reduce_max_sync(kAllLanes, highest), lowest = __reduce_min_sync(kAllLanes, lowest);
    const int last = (s.position + s.end - s.begin - 1) / kTile;
    int tile = g.window > 0 ? max(0, s.position - g.window + 1) / kTile : 0;
    copy_tile<D>(g, s, step, tile, kv_head, tiles, 0);
    commit_copies();
#pragma unroll 1
    for (int buffer = 0; tile <= last; ++tile, buffer ^= 1) {
      wait_copies<0>();
      __syncthreads();  // the tile is there, and all warps have read the one before
      if (tile < last) copy_tile<D>(g, s, step, tile + 1, kv_head, tiles, buffer ^ 1);
      commit_copies();
      const int first_key = tile * kTile, last_key = first_key + kTile - 1;
      if (first_key > highest || (g.window > 0 && last_key <= lowest - g.window)) continue;
      float scores[kBlocks<D>][8][4];
      multiply_keys<D>(tiles, buffer, scores);
      const bool partly = last_key > lowest || (g.window > 0 && first_key <= highest - g.window);
#pragma unroll
      for (int m = 0; m < kBlocks<D>; ++m) {
        if (partly) mask<D>(g, rows[m], first_key, scores[m]);
        soften<D>(scale2, rows[m], scores[m]);
      }
      multiply_values<D>(scores, tiles.values[buffer], rows);
    }
#pragma unroll
    for (int m = 0; m < kBlocks<D>; ++m) store_rows<D>(g, tile_begin, kv_head, first_block + m, rows[m]);
    t = s.end;
    __syncthreads();  // all warps have read the last tile and the segment
  }
}

// The step's keys and values as a bf16 cache will hold them: [2][count].
__global__ void round_step_kernel(Gqa g, int64_t count, uint16_t* step) {
  after_previous();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 2;
  if (i >= count) return;
  const int64_t row = i / g.D, t = row / g.kv_heads;
  const int d = static_cast<int>(i % g.D);
  const float* from = (blockIdx.y == 0 ? g.k : g.v) + row * g.D;
  const Turn turn = blockIdx.y == 0 ? g.turn : Turn{};
  *reinterpret_cast<unsigned*>(step + blockIdx.y * count + i) =
      pack_bf16(turned(turn, from, t, d), turned(turn, from, t, d + 1));
}

bool few_tokens(const Gqa& g, int64_t sequences) {
  return g.tokens <= kFewTokens * sequences;
}

const char* refuse(const OpDesc& desc, const DeviceInfo&) {
  const int64_t D = desc.attrs.integer(Attr::head_dim);
  if (desc.precision == Precision::float32) return "rounds queries and weights to bf16; float32 was asked for";
  if (desc.cache_dtype != DType::bf16) return "the cache must be bf16";
  if (D != 64 && D != 128) return "head_dim must be 64 or 128";
  if (desc.attrs.integer(Attr::heads) / desc.attrs.integer(Attr::kv_heads) > kRows)
    return "at most 128 query heads may share a key head";
  return desc.attrs.number(Attr::scale) > 0 ? nullptr : "the scale must be positive";
}

int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo&) {
  const int64_t row = desc.attrs.integer(Attr::kv_heads) * desc.attrs.integer(Attr::head_dim);
  const int64_t step = desc.attrs.integer(Attr::window) > 0 ? desc.bounds.tokens * row * 2 * 2 : 0;
  return std::max(attend_tokens_workspace(desc), step);
}

// Full attention appends first and reads the cache alone; a ring is overwritten last.
void attend_prompt(const OpDesc& desc, const Gqa& g, uint16_t* step, Stream& stream) {
  const int64_t count = static_cast<int64_t>(g.tokens) * g.kv_heads * g.D;
  if (g.window == 0) append_step(desc, g, stream);
  else
    launch(round_step_kernel, dim3(static_cast<unsigned>(ceil_div(count, int64_t{512})), 2), 256, 0, stream, g, count,
           step);
  const int tile_tokens = kRows / g.group;
  const dim3 grid(static_cast<unsigned>(g.kv_heads), static_cast<unsigned>(ceil_div(g.tokens, tile_tokens)));
  const uint16_t* from = g.window == 0 ? reinterpret_cast<const uint16_t*>(g.cache) : step;
  if (g.D == 64) launch(prompt_kernel<64>, grid, kThreads<64>, sizeof(Tiles<64>), stream, g, from, tile_tokens);
  else launch(prompt_kernel<128>, grid, kThreads<128>, sizeof(Tiles<128>), stream, g, from, tile_tokens);
  if (g.window > 0) append_step(desc, g, stream);
}

void gqa(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const Gqa g = make_gqa(desc, args, true);
  if (few_tokens(g, args.batch->sequences) || !matrix_units_serve(desc, g)) attend_tokens(desc, g, workspace, stream);
  else attend_prompt(desc, g, reinterpret_cast<uint16_t*>(workspace), stream);
}

}  // namespace

const Kernel kGqaBf16{.name = "gqa.bf16.cuda",
                      .op = Op::gqa,
                      .backend = Backend::cuda,
                      .refuse = refuse,
                      .workspace_bytes = workspace_bytes,
                      .launch = gqa};

}  // namespace moesaic::cuda
