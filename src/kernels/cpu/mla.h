// Attention of query heads that share one cached row per token, its first L channels also being the value (folded
// multi-head latent attention). A block of the cache holds its 64 tokens' rows [latent (L) | k_pe (rope)].
#pragma once

#include "kernels/cpu/attention.h"

namespace moesaic::cpu {

// Up to 64 cached rows, read in place once for `group` heads.
struct LatentBlock {
  const float* q;  // [group, L + rope]
  int64_t group, L, rope;
  float scale;
  const std::byte* const* rows;  // [count]
  int64_t count;
  DType dtype;  // of the rows: f32 or bf16
};
// Adds the rows to `state` (values [group, L]); `scores` is scratch of group * 64 floats. L % 16 == 0.
void attend_latents(Isa isa, const LatentBlock& block, const SoftmaxState& state, float* scores);

}  // namespace moesaic::cpu
