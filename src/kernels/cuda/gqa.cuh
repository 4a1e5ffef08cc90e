// Grouped-query attention on the device: what its kernels share.
//
// A block of the cache holds keys [64][kv_heads][D] and then values; a window's ring holds [window] rows of each in the
// sequence's slot, position p in row p % window. A token sees `rows` rows: those of its blocks in order, or of its ring
// in the ring's order. They are cut into splits whose size follows from `rows` alone, every split is summed in a fixed
// order, and fold() adds the splits in order: so no result of attend_tokens() depends on the rest of the step, on how a
// prompt was cut into chunks, or on how the splits were spread over the device.
#pragma once

#include "ir/cache_spec.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/turn.cuh"

namespace moesaic::cuda {

constexpr int kHeadBlock = 8;  // query heads of one kv head that a thread block serves
constexpr int kMinSplitRows = 256;
constexpr int kMaxSplits = 32;
constexpr int kSpreadItems = 2048;  // steps of so many (token, head block) pairs or fewer spread splits over the device

// One launch, by value. Rows of k and v: kv_heads * D.
struct Gqa {
  const float *q, *k, *v, *sinks;  // sinks null: none
  Turn turn;                       // of q and k, before anything else
  float* out;
  const int32_t *positions, *sequence_of, *sequence_offsets, *block_tables, *state_slots;
  std::byte* cache;  // blocks, or slots where there is a window
  int64_t stride, max_blocks;
  int tokens, heads, kv_heads, D, group, head_blocks, window;
  float scale;
  bool single;   // every sequence has one token: attention appends it, else a launch of its own does
  bool round_q;  // q is rounded to bf16

  __host__ __device__ int blocks() const { return kv_heads * head_blocks; }
};

// A token as its thread block sees it.
struct GqaToken {
  int t, sequence, position;
  int rows;   // that it sees
  int own;    // its own row
  int since;  // rows of its `since` predecessors and its own are read from the inputs; -1: all from the cache
};

__device__ __forceinline__ GqaToken gqa_token(const Gqa& g, int t) {
  GqaToken x;
  x.t = t, x.sequence = g.sequence_of[t], x.position = g.positions[t];
  x.rows = g.window > 0 ? min(x.position + 1, g.window) : x.position + 1;
  x.own = g.window > 0 ? x.position % g.window : x.position;
  x.since = g.window > 0 ? t - g.sequence_offsets[x.sequence] : g.single ? 0 : -1;
  return x;
}
// How many tokens before its own a row was written.
__device__ __forceinline__ int gqa_age(const Gqa& g, const GqaToken& x, int row) {
  return row <= x.own ? x.own - row : x.own - row + g.window;
}

__host__ __device__ inline int split_rows(int rows) {
  int size = kMinSplitRows;
  while (size < (rows + kMaxSplits - 1) / kMaxSplits) size *= 2;
  return size;
}
// An upper bound for all of 1 to `rows`.
inline int most_splits(int64_t rows) {
  return static_cast<int>(std::min<int64_t>(kMaxSplits, ceil_div(rows, int64_t{kMinSplitRows})));
}

// Keys (which = 0) or values (1) of cached row `row`, all kv heads.
template <typename T>
__device__ __forceinline__ T* gqa_cached(const Gqa& g, int sequence, int row, int which) {
  const bool ring = g.window > 0;
  const int64_t place = ring ? g.state_slots[sequence] : g.block_tables[sequence * g.max_blocks + row / kBlockTokens];
  const int rows = ring ? g.window : kBlockTokens;
  return reinterpret_cast<T*>(g.cache + place * g.stride) +
         static_cast<int64_t>(which * rows + (ring ? row : row % kBlockTokens)) * g.kv_heads * g.D;
}

// The softmax of one head over some rows: largest score, sum of e^(score - largest), and one channel of the same sum
// over values.
struct GqaState {
  float largest, total, value;
};
__device__ __forceinline__ float gqa_factor(float x, float largest) {
  return x == -INFINITY ? 0.0f : expf(x - largest);
}
// Adds a later split.
__device__ __forceinline__ void fold(GqaState& s, const GqaState& next) {
  const float largest = fmaxf(s.largest, next.largest);
  const float a = gqa_factor(s.largest, largest), b = gqa_factor(next.largest, largest);
  s.largest = largest;
  s.total = fmaf(next.total, b, __fmul_rn(s.total, a));
  s.value = fmaf(next.value, b, __fmul_rn(s.value, a));
}
// A sink counts once, in the maximum and the denominator.
__device__ __forceinline__ float gqa_result(const GqaState& s, const float* sink) {
  if (sink == nullptr) return s.value / s.total;
  const float largest = fmaxf(s.largest, *sink), a = gqa_factor(s.largest, largest);
  return __fmul_rn(s.value, a) / fmaf(s.total, a, expf(*sink - largest));
}

// Partial states of one split: values [kHeadBlock][D], largest [kHeadBlock], total [kHeadBlock].
__host__ __device__ inline int64_t partial_floats(int D) {
  return kHeadBlock * (D + 2);
}
__device__ __forceinline__ float* partial_of(const Gqa& g, float* partials, int t, int block, int split) {
  return partials + ((static_cast<int64_t>(t) * g.blocks() + block) * kMaxSplits + split) * partial_floats(g.D);
}

// Work item i of a launch over splits: neighbours share a token, later splits of all tokens come last.
struct GqaItem {
  int block, t, split;
};
__device__ __forceinline__ GqaItem gqa_item(const Gqa& g, int64_t i) {
  const int64_t rest = i / g.blocks();
  return {static_cast<int>(i % g.blocks()), static_cast<int>(rest % g.tokens), static_cast<int>(rest / g.tokens)};
}

// The token's own keys and values of one kv head, into the cache. All threads of the block.
template <typename T>
__device__ __forceinline__ void append_own(const Gqa& g, const GqaToken& x, int kv_head) {
  for (int i = static_cast<int>(threadIdx.x); i < 2 * g.D; i += static_cast<int>(blockDim.x)) {
    const int which = i / g.D, d = i % g.D;
    const int64_t head = (static_cast<int64_t>(x.t) * g.kv_heads + kv_head) * g.D;
    const float value = which == 0 ? turned(g.turn, g.k + head, x.t, d) : g.v[head + d];
    store_element(gqa_cached<T>(g, x.sequence, x.own, which) + kv_head * g.D + d, value);
  }
}

Gqa make_gqa(const OpDesc& desc, const Args& args, bool round_q);
const char* refuse_gqa(const OpDesc& desc, const DeviceInfo& device);
int64_t attend_tokens_workspace(const OpDesc& desc);
// Token by token, in float32 throughout (but for round_q): for any step, meant for few tokens a sequence.
void attend_tokens(const OpDesc& desc, const Gqa& g, std::byte* workspace, Stream& stream);
// Appends the step's keys and values to the cache; of a window's chunk only the last `window` tokens.
void append_step(const OpDesc& desc, const Gqa& g, Stream& stream);
// What attend_tokens() launches where matrix units serve (gqa_decode.cu): a bf16 cache, D 64 or 128, aligned to 16
// bytes. `partials` null: every thread block walks all splits of its token.
bool matrix_units_serve(const OpDesc& desc, const Gqa& g);
void launch_matrix_tokens(const Gqa& g, float* partials, int splits, Stream& stream);

}  // namespace moesaic::cuda
