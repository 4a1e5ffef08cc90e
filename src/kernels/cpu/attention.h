// Softmax attention of one group of query heads over blocks of cached keys, as plain functions, and the cache layout.
//
// The rows of a block (kBlockTokens tokens) or of a window's ring hold, for D % 16 == 0:
//
//   keys    [kv_heads], each: groups of 16 rows (the last one of rows % 16) as [D][rows of the group], so that a SIMD
//           lane is a key
//   values  [kv_heads][rows][D]
//
// A token sees the rows [0, n) of its blocks in order, or of its ring in the ring's order: n and the order follow from
// its position alone. The rows are cut into splits, which follow from n alone too, and each split into blocks of 64
// rows; so no result depends on the rest of the step, on how a prompt was cut into chunks, or on the threads.
#pragma once

#include <cstdint>

#include "base/cpu.h"
#include "base/dtype.h"
#include "ir/cache_spec.h"

namespace moesaic::cpu {

constexpr int64_t kKeyGroup = 16;
constexpr int64_t kMaxSplits = 8;    // a long range of keys is spread over so many threads at most
constexpr int64_t kSplitBlocks = 8;  // and a split has at least so many blocks, where there is more than one

struct KvLayout {
  int64_t kv_heads, D, rows;  // rows of a block, or the window
  DType dtype;                // f32 or bf16

  int64_t head_bytes() const { return rows * D * dtype_bytes(dtype); }  // keys, or values, of one head
  std::byte* keys(std::byte* base, int64_t head) const { return base + head * head_bytes(); }
  std::byte* values(std::byte* base, int64_t head) const { return base + (kv_heads + head) * head_bytes(); }
};

// Writes row `row` of one head; bf16 rounds to nearest even. `keys` and `values` are the head's, k and v f32[D].
void append_row(const KvLayout& layout, std::byte* keys, std::byte* values, int64_t row, const float* k,
                const float* v);

// The running softmax of `group` query heads: largest score, sum of e^(score - largest), and the same sum over values.
struct SoftmaxState {
  float* largest;  // [group]
  float* total;    // [group]
  float* values;   // [group, D]

  static constexpr int64_t floats(int64_t group, int64_t D) { return group * (D + 2); }
  static SoftmaxState at(float* memory, int64_t group) { return {memory, memory + group, memory + 2 * group}; }
};
void clear(const SoftmaxState& state, int64_t group, int64_t D);

// Up to 64 rows of keys and values, of which the first `count` are visible.
struct AttentionBlock {
  const float* q;  // [group, D]
  int64_t group, D;
  float scale;
  const std::byte* keys;  // row 0 of the block
  const std::byte* values;
  int64_t rows;  // rows that the layout holds from row 0 on: decides the width of the last key group
  int64_t count;
  DType dtype;
};
// Floats that attend_block needs as scratch.
constexpr int64_t attention_scratch_floats(int64_t group, int64_t D) {
  return group * kBlockTokens + D * kKeyGroup;
}
void attend_block(Isa isa, const AttentionBlock& block, const SoftmaxState& state, float* scratch);

// out[group, D] from the states of `splits` splits, which lie SoftmaxState::floats apart; `sinks` is null or one logit
// per head, which counts once, in the maximum and the denominator. Splits without keys count nothing; with no keys at
// all the output is 0 where there is a sink.
void merge_splits(Isa isa, const float* states, int64_t splits, const float* sinks, int64_t group, int64_t D,
                  float* out);

// Rotates the pairs (i, i + half) of each of `heads` heads x[heads, 2 * half] by table[half, 2], cosine and sine.
void rope_heads(Isa isa, const float* x, const float* table, int64_t heads, int64_t half, float* y);

// How many splits `blocks` blocks have; split i covers the blocks [blocks * i / splits, blocks * (i + 1) / splits).
constexpr int64_t split_count(int64_t blocks) {
  const int64_t wanted = (blocks + kSplitBlocks - 1) / kSplitBlocks;
  return wanted < kMaxSplits ? wanted : kMaxSplits;
}

}  // namespace moesaic::cpu
