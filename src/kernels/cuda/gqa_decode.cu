// Grouped-query attention token by token on the matrix units, for bf16 caches and heads of 64 or 128, exact: every
// float32 operand is the sum of three bf16 (8 bits of its 24 each), products of bf16 are exact, and sums are float32.
//
// A thread block takes one split (or all) of a (token, 8 query heads of a kv head); its four warps take steps of 16
// rows in turn, straight from global memory to the fragments of mma.cuh. The 16 rows of an a fragment are the 8 heads'
// high parts and the same heads' middle parts; a second product adds the low parts. Which channel a lane holds is free
// as long as both operands agree, so that a lane reads 16 bytes at once:
//
//   scores[16, 8 keys] = q k    lane 4g + q reads channels 32c + 8q .. + 7 of key g
//   values[16, 8 n]    = p v    lane 4g + q reads channels 64c + 8g .. + 7 of rows 2q, 2q+1, 2q+8, 2q+9
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gqa.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/reduce.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kStepRows = 16;
constexpr int kPad = 4;  // floats between rows of shared memory

// Two float32 as three pairs of bf16 that add up to them.
struct Parts {
  unsigned high, middle, low;
};
__device__ __forceinline__ Parts split_parts(float x, float y) {
  Parts p;
  p.high = pack_bf16(x, y);
  x -= __uint_as_float(p.high << 16), y -= __uint_as_float(p.high & 0xFFFF0000u);
  p.middle = pack_bf16(x, y);
  x -= __uint_as_float(p.middle << 16), y -= __uint_as_float(p.middle & 0xFFFF0000u);
  p.low = pack_bf16(x, y);
  return p;
}

// d += a b for the 8 heads: the low parts, then high and middle parts side by side.
__device__ __forceinline__ void mma_parts(float (&d)[4], const uint4& upper, const uint2& lower, unsigned b0,
                                          unsigned b1) {
  const unsigned low[4] = {lower.x, 0, lower.y, 0}, high[4] = {upper.x, upper.y, upper.z, upper.w};
  mma_bf16(d, low, b0, b1);
  mma_bf16(d, high, b0, b1);
}

__device__ __forceinline__ unsigned word(const uint4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

// Shared memory of a block. The sums over splits are each thread's own.
template <int D>
struct Shared {
  uint4 query_upper[D / 16][kWarp];  // a fragments of high and middle parts
  uint2 query_lower[D / 16][kWarp];  // of low parts, without the zeros
  float values[kWarps][kHeadBlock][D + kPad];
  float largest[kWarps][kHeadBlock], total[kWarps][kHeadBlock];
  float sum_largest[kHeadBlock * D], sum_total[kHeadBlock * D], sum_value[kHeadBlock * D];
};

// Where a block finds rows of one kv head.
struct Rows {
  const uint16_t* slot = nullptr;  // keys of the ring's row 0; null: blocks
  const int32_t* table = nullptr;  // blocks of the sequence
  int64_t values_offset;           // elements from keys to values
  int width, kv_column;            // elements of a row; of this head's first channel
  int held = -1, entry = 0;        // a lane's entry of the table: of block held + lane
};

__device__ __forceinline__ Rows rows_of(const Gqa& g, const GqaToken& x, int kv_head) {
  Rows rows;
  rows.width = g.kv_heads * g.D, rows.kv_column = kv_head * g.D;
  rows.values_offset = static_cast<int64_t>(g.window > 0 ? g.window : kBlockTokens) * rows.width;
  if (g.window > 0) rows.slot = gqa_cached<const uint16_t>(g, x.sequence, 0, 0);
  else rows.table = g.block_tables + x.sequence * g.max_blocks;
  return rows;
}

// Keys of row `row`, a multiple of 16, and of the 15 that follow it: all lie in one block. The warp calls it together.
__device__ __forceinline__ const uint16_t* step_keys(const Gqa& g, const GqaToken& x, Rows& rows, int row) {
  if (rows.slot != nullptr) return rows.slot + static_cast<int64_t>(row) * rows.width + rows.kv_column;
  const int block = row / kBlockTokens;
  if (rows.held < 0 || block - rows.held >= kWarp) {
    rows.held = block;
    const int mine = block + static_cast<int>(threadIdx.x) % kWarp;
    rows.entry = mine * kBlockTokens < x.rows ? rows.table[mine] : 0;
  }
  const int64_t place = __shfl_sync(kAllLanes, rows.entry, block - rows.held);
  return reinterpret_cast<const uint16_t*>(g.cache + place * g.stride) +
         static_cast<int64_t>(row % kBlockTokens) * rows.width + rows.kv_column;
}

// Eight channels of token t of this step, as the cache will hold them.
__device__ __forceinline__ uint4 rounded_input(const Turn& turn, const float* head, int t, int channel) {
  const float4 a = turned_four(turn, head, t, channel), b = turned_four(turn, head, t, channel + 4);
  return make_uint4(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w));
}

// Eight channels from `channel` on of key or value row first + i, `cached` being those of row `first`; rows from `end`
// on are 0.
template <bool kFresh, bool kKeys>
__device__ __forceinline__ uint4 load_channels(const Gqa& g, const GqaToken& x, const Rows& rows,
                                               const uint16_t* cached, int first, int i, int end, int channel) {
  if (first + i >= end) return make_uint4(0, 0, 0, 0);
  if (kFresh) {
    const int age = gqa_age(g, x, first + i);
    if (age <= x.since)
      return rounded_input(kKeys ? g.turn : Turn{},
                           (kKeys ? g.k : g.v) + static_cast<int64_t>(x.t - age) * rows.width + rows.kv_column,
                           x.t - age, channel);
  }
  return *reinterpret_cast<const uint4*>(cached + (i * rows.width + channel));
}

// The warp's running softmax: of head g, the same in the four lanes of a row but for `total`, which is each lane's own.
template <int D>
struct WarpState {
  float largest, total;
  float values[D / 8][4];  // high parts' sums in 0 and 1, middle parts' in 2 and 3
};

template <int D>
struct Step {
  uint4 keys[2][D / 32], values[4][D / 64];
  int row, end;

  template <bool kFresh>
  __device__ __forceinline__ void load_keys(const Gqa& g, const GqaToken& x, const Rows& rows, const uint16_t* at) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int c = 0; c < D / 32; ++c)
        keys[n][c] = load_channels<kFresh, true>(g, x, rows, at, row, 8 * n + lane / 4, end, 32 * c + 8 * (lane % 4));
  }
  template <bool kFresh>
  __device__ __forceinline__ void load_values(const Gqa& g, const GqaToken& x, const Rows& rows, const uint16_t* at) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < D / 64; ++c)
        values[r][c] = load_channels<kFresh, false>(g, x, rows, at, row, r / 2 * 8 + lane % 4 * 2 + r % 2, end,
                                                    64 * c + 8 * (lane / 4));
  }
};

// Whether a row of the step is read from the inputs.
__device__ __forceinline__ bool any_fresh(const Gqa& g, const GqaToken& x, int row, int end) {
  const int mine = row + static_cast<int>(threadIdx.x) % kStepRows;
  return __any_sync(kAllLanes, mine < end && gqa_age(g, x, mine) <= x.since) != 0;
}

// Weights of the step's 16 keys for head g of this lane: rows 2q, 2q+1, 2q+8, 2q+9.
template <int D>
__device__ __forceinline__ void soften(float (&scores)[2][4], float scale, int row, int end, WarpState<D>& state,
                                       float (&weights)[4]) {
  const int q = static_cast<int>(threadIdx.x) % 4;
  float largest = state.largest;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool seen = row + i / 2 * 8 + 2 * q + i % 2 < end;
    weights[i] = seen ? (scores[i / 2][i % 2] + scores[i / 2][2 + i % 2]) * scale : -INFINITY;
    largest = fmaxf(largest, weights[i]);
  }
  largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
  const float base = largest == -INFINITY ? 0.0f : largest, alpha = gqa_factor(state.largest, base);
#pragma unroll
  for (int i = 0; i < 4; ++i) weights[i] = expf(weights[i] - base);
  state.largest = largest;
  state.total = fmaf(state.total, alpha, (weights[0] + weights[1]) + (weights[2] + weights[3]));
  if (__any_sync(kAllLanes, alpha != 1.0f) == 0) return;
#pragma unroll
  for (int n = 0; n < D / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) state.values[n][i] *= alpha;
}

// The warp's steps of rows [begin, end).
template <int D>
__device__ __forceinline__ void attend_rows(const Gqa& g, const GqaToken& x, Rows& rows, const Shared<D>& shared,
                                            int begin, int end, WarpState<D>& state) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  state.largest = -INFINITY, state.total = 0;
#pragma unroll
  for (int n = 0; n < D / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) state.values[n][i] = 0;
  Step<D> step;
  step.row = begin + warp * kStepRows, step.end = end;
  if (step.row >= end) return;
  const uint16_t* at = step_keys(g, x, rows, step.row);
  bool fresh = any_fresh(g, x, step.row, end);
  if (fresh)
    step.template load_keys<true>(g, x, rows, at), step.template load_values<true>(g, x, rows, at + rows.values_offset);
  else
    step.template load_keys<false>(g, x, rows, at),
        step.template load_values<false>(g, x, rows, at + rows.values_offset);
  while (true) {
    asm volatile("" ::: "memory");  // or the compiler keeps the query in registers it does not have
    float scores[2][4] = {};
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const uint4 upper = shared.query_upper[k][lane];
      const uint2 lower = shared.query_lower[k][lane];
#pragma unroll
      for (int n = 0; n < 2; ++n)
        mma_parts(scores[n], upper, lower, word(step.keys[n][k / 2], k % 2 * 2),
                  word(step.keys[n][k / 2], k % 2 * 2 + 1));
    }
    const int row = step.row;
    step.row += kWarps * kStepRows;
    const bool more = step.row < end;
    if (more) {  // the next keys, while this step's weights are computed
      at = step_keys(g, x, rows, step.row);
      fresh = any_fresh(g, x, step.row, end);
      if (fresh) step.template load_keys<true>(g, x, rows, at);
      else step.template load_keys<false>(g, x, rows, at);
    }
    float weights[4];
    soften<D>(scores, g.scale, row, end, state, weights);
    const Parts first = split_parts(weights[0], weights[1]), second = split_parts(weights[2], weights[3]);
    const uint4 upper = make_uint4(first.high, first.middle, second.high, second.middle);
    const uint2 lower = make_uint2(first.low, second.low);
#pragma unroll
    for (int c = 0; c < D / 64; ++c)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const unsigned pick = j % 2 == 0 ? 0x5410 : 0x7632;  // element j of two rows
        mma_parts(state.values[8 * c + j], upper, lower,
                  __byte_perm(word(step.values[0][c], j / 2), word(step.values[1][c], j / 2), pick),
                  __byte_perm(word(step.values[2][c], j / 2), word(step.values[3][c], j / 2), pick));
      }
    if (!more) break;
    if (fresh) step.template load_values<true>(g, x, rows, at + rows.values_offset);
    else step.template load_values<false>(g, x, rows, at + rows.values_offset);
  }
}

// What each warp found.
template <int D>
__device__ __forceinline__ void store_warp(const WarpState<D>& state, Shared<D>& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int h = lane / 4, q = lane % 4;
  float total = state.total + __shfl_xor_sync(kAllLanes, state.total, 1);
  total += __shfl_xor_sync(kAllLanes, total, 2);
  if (q == 0) shared.largest[warp][h] = state.largest, shared.total[warp][h] = total;
#pragma unroll
  for (int n = 0; n < D / 8; n += 4)
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const auto value = [&](int i) { return state.values[n + i][column] + state.values[n + i][2 + column]; };
      *reinterpret_cast<float4*>(&shared.values[warp][h][n / 8 * 64 + 16 * q + 8 * column + n % 8]) =
          make_float4(value(0), value(1), value(2), value(3));
    }
}

// Channel d of head h over all warps.
template <int D>
__device__ __forceinline__ GqaState over_warps(const Shared<D>& shared, int h, int d) {
  float largest = -INFINITY;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shared.largest[w][h]);
  GqaState s{largest, 0, 0};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float factor = gqa_factor(shared.largest[w][h], largest);
    s.total = fmaf(shared.total[w][h], factor, s.total);
    s.value = fmaf(shared.values[w][h][d], factor, s.value);
  }
  return s;
}

// The parts of the 8 heads' channels, 0 for heads past the group: warp w makes the fragments w, w + 4, ...
template <int D>
__device__ __forceinline__ void load_query(const Gqa& g, int t, int kv_head, int first_head, Shared<D>& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int h = first_head + lane / 4;
  const float* head = g.q + (static_cast<int64_t>(t) * g.heads + kv_head * g.group + h) * D;
  for (int k = warp; k < D / 16; k += kWarps) {
    float4 x = make_float4(0, 0, 0, 0);
    if (h < g.group) x = turned_four(g.turn, head, t, lane % 4 * 8 + 32 * (k / 2) + 4 * (k % 2));
    if (g.round_q)
      x = make_float4(through<uint16_t>(x.x), through<uint16_t>(x.y), through<uint16_t>(x.z), through<uint16_t>(x.w));
    const Parts first = split_parts(x.x, x.y), second = split_parts(x.z, x.w);
    shared.query_upper[k][lane] = make_uint4(first.high, first.middle, second.high, second.middle);
    shared.query_lower[k][lane] = make_uint2(first.low, second.low);
  }
}

// Adds what the warps found to the thread's channels of the sum over splits.
template <int D>
__device__ __forceinline__ void add_split(Shared<D>& shared, bool first) {
#pragma unroll
  for (int at = static_cast<int>(threadIdx.x); at < kHeadBlock * D; at += kThreads) {
    GqaState sum = over_warps<D>(shared, at / D, at % D);
    if (!first) {
      const GqaState next = sum;
      sum = {shared.sum_largest[at], shared.sum_total[at], shared.sum_value[at]};
      fold(sum, next);
    }
    shared.sum_largest[at] = sum.largest, shared.sum_total[at] = sum.total, shared.sum_value[at] = sum.value;
  }
}

// The thread's channels: to `partial`, or where that is null to the output.
template <int D>
__device__ __forceinline__ void store_sums(const Gqa& g, int t, int kv_head, int first_head, const Shared<D>& shared,
                                           float* partial) {
#pragma unroll
  for (int at = static_cast<int>(threadIdx.x); at < kHeadBlock * D; at += kThreads) {
    const GqaState sum{shared.sum_largest[at], shared.sum_total[at], shared.sum_value[at]};
    const int h = at / D, in_group = first_head + h;
    if (partial != nullptr) {
      partial[at] = sum.value;
      if (at % D == 0) partial[kHeadBlock * D + h] = sum.largest, partial[kHeadBlock * (D + 1) + h] = sum.total;
    } else if (in_group < g.group) {
      const int head = kv_head * g.group + in_group;
      g.out[(static_cast<int64_t>(t) * g.heads + head) * D + at % D] =
          gqa_result(sum, g.sinks != nullptr ? g.sinks + head : nullptr);
    }
  }
}

// See the top. Items: gqa_item(); with `partials` null their split is 0 and the block folds all splits.
template <int D>
__global__ void __launch_bounds__(kThreads, D == 64 ? 3 : 2)
    matrix_tokens_kernel(Gqa g, float* partials, int64_t items) {
  after_previous();
  __shared__ Shared<D> shared;
  for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
    const GqaItem item = gqa_item(g, i);
    const GqaToken x = gqa_token(g, item.t);
    const int size = split_rows(x.rows), splits = ceil_div(x.rows, size);
    if (item.split >= splits) continue;
    const int kv_head = item.block / g.head_blocks, first_head = item.block % g.head_blocks * kHeadBlock;
    load_query<D>(g, x.t, kv_head, first_head, shared);
    __syncthreads();
    Rows rows = rows_of(g, x, kv_head);
    const int last = partials != nullptr ? item.split + 1 : splits;
    for (int split = item.split; split < last; ++split) {
      WarpState<D> state;
      attend_rows<D>(g, x, rows, shared, split * size, min(x.rows, (split + 1) * size), state);
      __syncthreads();  // the split or item before has been read
      store_warp<D>(state, shared);
      __syncthreads();
      add_split<D>(shared, split == item.split);
    }
    const bool whole = last - item.split == splits;
    store_sums<D>(g, x.t, kv_head, first_head, shared,
                  whole ? nullptr : partial_of(g, partials, x.t, item.block, item.split));
    if (g.single && last == splits && first_head == 0) append_own<uint16_t>(g, x, kv_head);
  }
}

bool aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

}  // namespace

bool matrix_units_serve(const OpDesc& desc, const Gqa& g) {
  return desc.cache_dtype == DType::bf16 && (g.D == 64 || g.D == 128) && aligned(g.q) && aligned(g.k) && aligned(g.v) &&
         aligned(g.turn.table) && aligned(g.cache) && g.stride % 16 == 0;
}

void launch_matrix_tokens(const Gqa& g, float* partials, int splits, Stream& stream) {
  const int64_t items = static_cast<int64_t>(g.tokens) * g.blocks() * (partials != nullptr ? splits : 1);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(items, 132 * (g.D == 64 ? 3 : 2)));
  const auto kernel = g.D == 64 ? matrix_tokens_kernel<64> : matrix_tokens_kernel<128>;
  launch(kernel, grid, kThreads, 0, stream, g, partials, items);
}

}  // namespace moesaic::cuda
