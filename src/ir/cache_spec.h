// CacheSpec: the bytes one layer keeps for a sequence. The scheduler sees only these costs, never what they mean.
#pragma once

#include <cstdint>
#include <string>

namespace moesaic {

constexpr int kBlockTokens = 64;  // tokens that one cache block covers, in every layer

struct CacheSpec {
  int64_t bytes_per_entry = 0;     // one entry of this layer
  int tokens_per_entry = 1;        // 1 dense; 4 or 128 for compressed entries
  int64_t bytes_per_sequence = 0;  // constant part: rings, unfinished windows, recurrent state

  int64_t block_bytes(int block_tokens = kBlockTokens) const {
    return bytes_per_entry * (block_tokens / tokens_per_entry);
  }
  bool operator==(const CacheSpec&) const = default;
};

// Keys and values of grouped-query attention.
constexpr CacheSpec gqa_cache(int64_t kv_heads, int64_t head_dim, int64_t element_bytes) {
  return {2 * kv_heads * head_dim * element_bytes};
}
// The same for a layer that sees the last `tokens` tokens only: a ring in the sequence's slot.
constexpr CacheSpec window_cache(CacheSpec spec, int64_t tokens) {
  return {0, 1, spec.bytes_per_entry * tokens};
}

// A layer's cache as the graph declares it.
struct CacheDecl {
  std::string layer;  // scope of the layer, for tables and messages
  CacheSpec spec;
};

}  // namespace moesaic
