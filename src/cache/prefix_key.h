// Keys of cached blocks: what a block's content depends on, in 128 bits. A block's key covers its tokens, what stands
// in for them (images), and the key of the block before it, down to a root that names everything else.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace moesaic {

struct BlockKey {
  uint64_t low = 0, high = 0;

  bool operator==(const BlockKey&) const = default;
};

struct BlockKeyHash {
  size_t operator()(const BlockKey& key) const { return static_cast<size_t>(key.low); }
};

// Tokens of a prompt that stand for media: the same ids for every image, so that the content must be in the key.
struct MediaRange {
  int64_t start = 0, count = 0;  // tokens
  BlockKey digest;               // of the media's bytes
};

class PrefixHasher {
 public:
  // Each process draws its own seed, so that nobody can prepare two prompts with one key.
  explicit PrefixHasher(uint64_t seed) : seed_(seed) {}

  // A field that is absent and one that is empty differ; so do equal values under other tags.
  struct Field {
    std::string_view tag, value;
  };
  BlockKey root(std::span<const Field> fields) const;
  // Of tokens [start, start + tokens.size()) of a sequence; `media` in ascending order.
  BlockKey block(const BlockKey& parent, std::span<const int32_t> tokens, int64_t start,
                 std::span<const MediaRange> media = {}) const;
  BlockKey digest(std::string_view bytes) const;

 private:
  uint64_t seed_;
};

}  // namespace moesaic
