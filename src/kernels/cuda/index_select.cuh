// What the two index_topk kernels share: scores of some tokens in the workspace, and the exact choice of the largest.
#pragma once

#include "ir/cache_spec.h"
#include "kernels/cuda/numbers.cuh"

namespace moesaic::cuda {

// Where entries of the cache lie and how many of them a token sees. Entry e is a key of `ratio` tokens; the last of
// them has it.
struct IndexEntries {
  const std::byte* blocks;
  int64_t block_stride;
  const int32_t *block_tables, *positions, *sequence_of;
  int64_t max_blocks;
  int ratio;

  __device__ __forceinline__ int visible(int64_t t) const { return (positions[t] + 1) / ratio; }
  __device__ __forceinline__ const int32_t* table(int64_t t) const {
    return block_tables + sequence_of[t] * max_blocks;
  }
};
IndexEntries index_entries(const OpDesc& desc, const Args& args);

// Tokens take turns: `chunk` of them have room for scores f32[chunk, stride] of every entry of the longest history.
struct IndexTurns {
  float* scores;
  int64_t chunk, stride;
};
int64_t score_bytes(const OpDesc& desc);
// Throws Error(internal) where a sequence may have more entries than the workspace holds scores: a million and more.
IndexTurns index_turns(const OpDesc& desc, const Args& args, float* scores);

// Writes the choices of tokens [first, first + tokens), in ascending order and then -1: larger scores first, then lower
// entries, NaN last. Entries of tokens that see top_k or fewer are chosen without a look at their scores.
void select_entries(const OpDesc& desc, const Args& args, const IndexTurns& turns, int64_t first, int64_t tokens,
                    Stream& stream);

// index_topk.cu: writes the step's keys to the cache, [64 / ratio][D] in a block, rounded to its type; and what every
// kernel that makes scores of them refuses.
void append_keys(const OpDesc& desc, const Args& args, Stream& stream);
const char* refuse_exact_scores(const OpDesc& desc);

// Blocks per token that make up `wanted` blocks in all, at most one a tile.
inline unsigned blocks_per_token(int64_t tokens, int64_t tiles, int64_t wanted) {
  const int64_t blocks = ceil_div(wanted, tokens);
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < tiles ? blocks : tiles);
}

}  // namespace moesaic::cuda
