// Random sequences for attention, and the steps that feed them to a kernel in chunks.
#pragma once

#include "kernels/kernel_harness.h"

namespace moesaic {

struct AttentionShape {
  int64_t heads = 4, kv_heads = 2, D = 16, window = 0;  // window 0: everything before
  DType cache = DType::f32;
  bool sinks = true;
  double scale = 0.25;
  bool rotate = false;
};

// q, k and v of whole sequences, and where each of them lives in the cache.
struct AttentionData {
  AttentionShape shape;
  struct Sequence {
    int64_t length = 0;
    std::vector<double> q, k, v;  // [length, heads * D], [length, kv_heads * D] twice
    std::vector<double> table;    // [length, D / 2, 2]
    std::vector<int32_t> blocks;
    int32_t slot = 0;
  };
  std::vector<Sequence> sequences;
  TestOperand sinks;
  int64_t cache_blocks = 0, cache_slots = 0;
};

// Cosines and sines [count, 2] of quarter turns, which are exact, so that a turned key rounds to bf16 as the key does.
std::vector<double> quarter_turns(Rng& rng, int64_t count);
std::vector<double> random_turns(Rng& rng, int64_t count);

// Blocks and slots are dealt at random from a cache with some to spare.
AttentionData random_attention(Rng& rng, const AttentionShape& shape, const std::vector<int64_t>& lengths);

// Tokens [begin, end) of one sequence, in one step.
struct Chunk {
  size_t sequence;
  int64_t begin, end;
};
KernelCase attention_case(const std::string& name, const AttentionData& data,
                          const std::vector<std::vector<Chunk>>& steps);
// Every sequence alone, in chunks of `chunk` tokens.
std::vector<std::vector<Chunk>> in_chunks(const AttentionData& data, int64_t chunk);
// All sequences together, the i-th in chunks of `chunk` + i tokens, until none is left.
std::vector<std::vector<Chunk>> together(const AttentionData& data, int64_t chunk);

// Outputs [length, heads * D] of each sequence after all steps.
std::vector<std::vector<float>> attention_outputs(const KernelRun& run, const AttentionData& data,
                                                  const std::vector<std::vector<Chunk>>& steps);

}  // namespace moesaic
