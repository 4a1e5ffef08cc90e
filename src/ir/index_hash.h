// The random projections of index_topk's hashes, which every backend must draw alike.
#pragma once

#include <cstdint>

#include "base/rng.h"

namespace moesaic {

// 64 bits of a fixed random stream.
constexpr uint64_t hash_projection_word(uint64_t i) {
  constexpr uint64_t kSeed = 0x6D6F657361696331u;
  return mix64(kSeed ^ mix64(i));
}
// Whether projection `bit` takes channel `d` of `head_dim` with a minus sign: one bit of the stream.
constexpr bool hash_projection_sign(int64_t bit, int64_t d, int64_t head_dim) {
  const auto index = static_cast<uint64_t>(bit * head_dim + d);
  return (hash_projection_word(index / 64) >> (index % 64) & 1) != 0;
}

}  // namespace moesaic
