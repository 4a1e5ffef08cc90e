#include "cache/prefix_key.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>

namespace moesaic {
namespace {

BlockKey key_of(XXH128_hash_t hash) {
  return {hash.low64, hash.high64};
}

class Hash {
 public:
  explicit Hash(uint64_t seed) : state_(XXH3_createState()) { XXH3_128bits_reset_withSeed(state_.get(), seed); }

  void add(const void* data, size_t bytes) { XXH3_128bits_update(state_.get(), data, bytes); }
  void add(int64_t number) { add(&number, sizeof number); }
  void add(const BlockKey& key) { add(&key, sizeof key); }
  void add(std::string_view text) {  // its length first, so that neighbours cannot trade characters
    add(static_cast<int64_t>(text.size()));
    add(text.data(), text.size());
  }
  BlockKey key() const { return key_of(XXH3_128bits_digest(state_.get())); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

}  // namespace

BlockKey PrefixHasher::root(std::span<const Field> fields) const {
  Hash hash(seed_);
  for (const Field& field : fields) hash.add(field.tag), hash.add(field.value);
  return hash.key();
}

BlockKey PrefixHasher::block(const BlockKey& parent, std::span<const int32_t> tokens, int64_t start,
                             std::span<const MediaRange> media) const {
  const int64_t end = start + std::ssize(tokens);
  Hash hash(seed_);
  hash.add(parent);
  hash.add(tokens.data(), tokens.size_bytes());
  for (const MediaRange& m : media) {
    if (m.start >= end || m.start + m.count <= start) continue;
    hash.add(m.digest);
    hash.add(start - m.start);  // where in the image the block begins
  }
  return hash.key();
}

BlockKey PrefixHasher::digest(std::string_view bytes) const {
  return key_of(XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed_));
}

}  // namespace moesaic
