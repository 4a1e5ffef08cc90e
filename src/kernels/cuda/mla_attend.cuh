// What the kernels of mla_attend share. A block of the cache holds its 64 tokens' rows [latent (L) | k_pe (rope)].
//
// A token's rows have numbers from 0: its positions in order, or the entries of its list, of which some are none (-1,
// or later than the token). They are cut into splits of `split` rows (or a multiple, for long histories: at most
// kMaxSplits), which follow from the token's position, or the length of its list, alone. Every split gives a softmax
// state of its own, and states are folded in ascending order; so no result depends on the rest of the step, on chunks,
// or on whether splits are spread over blocks.
#pragma once

#include "ir/cache_spec.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/turn.cuh"

namespace moesaic::cuda::latents {

constexpr int kMaxSplits = 64;

// Channel d of a query of L + rope channels, its last ones turned.
__device__ __forceinline__ float query_channel(const Turn& turn, const float* q, int L, int64_t t, int d) {
  return d < L ? q[d] : turned(turn, q + L, t, d - L);
}

// Everything but q's and the output's arithmetic: where rows lie and which of them a token sees.
struct LatentRows {
  const std::byte* blocks;  // of the cache
  int64_t block_stride;
  const int32_t *block_tables, *positions, *sequence_of;
  int64_t max_blocks;
  const int32_t* list;  // [T, list_length] or null: all positions
  int list_length;
  int L, rope;
  int split;     // rows of a split, at least
  bool vectors;  // rows are aligned to 16 bytes and a multiple of them long

  __device__ __forceinline__ int count(int64_t t) const { return list != nullptr ? list_length : positions[t] + 1; }
  // Rows of a split of a token with `count` rows.
  __device__ __forceinline__ int split_rows(int count) const {
    return split * max(1, ceil_div(count, split * kMaxSplits));
  }
  __device__ __forceinline__ const int32_t* table(int64_t t) const {
    return block_tables + sequence_of[t] * max_blocks;
  }
  // Row number i of token t, whose position is `own`; null where the list has none.
  template <typename T>
  __device__ __forceinline__ const T* row(int64_t t, int own, const int32_t* table, int i) const {
    const int p = list != nullptr ? list[t * list_length + i] : i;
    if (p < 0 || p > own) return nullptr;
    return reinterpret_cast<const T*>(blocks + table[p / kBlockTokens] * block_stride) +
           static_cast<int64_t>(p % kBlockTokens) * (L + rope);
  }
};

// a b + c, rounded once on a GPU; in two steps where a fused operation would be a call.
__device__ __forceinline__ float multiply_add(float a, float b, float c) {
#ifdef MOESAIC_EMULATED_CUDA
  return a * b + c;
#else
  return fmaf(a, b, c);
#endif
}

// Largest score and sum of e^(score - largest) of some rows; total < 0: there were none.
struct SoftmaxState {
  float largest, total;
};

__device__ __forceinline__ float finite_or_zero(float largest) {
  return largest == -INFINITY ? 0.0f : largest;
}

// Adds `other` to `sum` and gives the factors of their values: fold_value(value of sum, keep, value of other, add).
__device__ __forceinline__ void fold_state(SoftmaxState& sum, const SoftmaxState& other, float& keep, float& add) {
  const float largest = fmaxf(sum.largest, other.largest), base = finite_or_zero(largest);
  keep = expf(sum.largest - base);
  add = expf(other.largest - base);
  sum.total = __fmaf_rn(fmaxf(sum.total, 0.0f), keep, __fmul_rn(other.total, add));
  sum.largest = largest;
}
__device__ __forceinline__ float fold_value(float sum, float keep, float other, float add) {
  return __fmaf_rn(sum, keep, __fmul_rn(other, add));
}

// The states of splits between the two launches: [token of the launch][head][split].
struct SplitStates {
  SoftmaxState* states;
  float* values;  // the same [L]
  int splits;     // room for so many

  __device__ __forceinline__ int64_t at(int64_t token, int heads, int head, int split) const {
    return (token * heads + head) * splits + split;
  }
};

// What one launch of mla_attend is made of.
struct AttendPlan {
  LatentRows rows;
  int64_t tokens;
  int heads, splits;      // splits that the longest possible history has
  int64_t spread_tokens;  // tokens whose states the workspace holds
  SplitStates states;
};
// `split`: rows of a split.
AttendPlan attend_plan(const OpDesc& desc, const Args& args, std::byte* workspace, int split);
// Of the states; steps of many tokens take turns.
int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo& device);
const char* refuse_latents(const OpDesc& desc);

// Writes the step's latents and turned k_pe to the cache, rounded to its type.
void append_latents(const OpDesc& desc, const Args& args, Stream& stream);
// o[first..first + tokens) from the states of their splits.
void fold_splits(const AttendPlan& plan, int64_t first, int64_t tokens, float* o, Stream& stream);

}  // namespace moesaic::cuda::latents
