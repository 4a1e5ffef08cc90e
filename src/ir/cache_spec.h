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

  // An entry lies in the block of its last token: one that spans several blocks leaves a gap in the others.
  int64_t block_bytes(int block_tokens = kBlockTokens) const {
    return bytes_per_entry * ((block_tokens + tokens_per_entry - 1) / tokens_per_entry);
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

// The last width - 1 inputs of a causal convolution, oldest first: [width - 1][channels].
constexpr CacheSpec short_conv_cache(int64_t channels, int64_t width, int64_t element_bytes) {
  return {0, 1, (width - 1) * channels * element_bytes};
}
// The state of Kimi delta attention, key-major: [heads][key_dim][value_dim].
constexpr CacheSpec kda_cache(int64_t heads, int64_t key_dim, int64_t value_dim, int64_t element_bytes) {
  return {0, 1, heads * key_dim * value_dim * element_bytes};
}

// Latent and rotated key part of multi-head latent attention.
constexpr CacheSpec mla_cache(int64_t latent, int64_t rope, int64_t element_bytes) {
  return {(latent + rope) * element_bytes};
}
// Keys of the sparse attention's indexer; or their hashes, which are sign bits and a float32 length.
constexpr CacheSpec index_cache(int64_t head_dim, int64_t element_bytes, int64_t ratio = 1) {
  return {head_dim * element_bytes, static_cast<int>(ratio)};
}
constexpr CacheSpec hash_cache(int64_t bits) {
  return {bits / 8 + 4};
}

// Where entry `e` of a layer with `ratio` tokens an entry lies; `ratio` divides kBlockTokens or is a multiple of it.
struct EntryPlace {
  int64_t block, row;
};
constexpr EntryPlace entry_place(int64_t e, int64_t ratio) {
  const int64_t last = e * ratio + ratio - 1;
  return {last / kBlockTokens, last % kBlockTokens / ratio};
}

// Both halves of every kv and gate in the windows that the next entry can still need: see compress.
constexpr CacheSpec compress_cache(int64_t ratio, int64_t width, bool overlap, int64_t element_bytes) {
  return {0, 1, (overlap ? 2 : 1) * ratio * 2 * width * element_bytes};
}
// The last `window` keys of head_dim elements, and compressed entries (ratio 0: none), see entry_attend.
constexpr CacheSpec entry_cache(int64_t head_dim, int64_t window, int64_t ratio, int64_t element_bytes) {
  return {ratio > 0 ? head_dim * element_bytes : 0, ratio > 0 ? static_cast<int>(ratio) : 1,
          window * head_dim * element_bytes};
}

// A layer's cache as the graph declares it.
struct CacheDecl {
  std::string layer;  // scope of the layer, for tables and messages
  CacheSpec spec;
};

}  // namespace moesaic
