// CachePool: blocks and a state slot for each sequence. The engine thread owns it; see BlockPool for thread rules.
#pragma once

#include <vector>

#include "cache/block_pool.h"
#include "cache/state_slots.h"
#include "ir/cache_spec.h"

namespace moesaic {

// What a sequence holds. `length` tokens are in the cache; `blocks` covers those and what is reserved beyond.
struct SequenceCache {
  std::vector<BlockId> blocks;
  SlotId slot = -1;
  int64_t length = 0;
};

class CachePool {
 public:
  CachePool(int64_t blocks, int64_t block_bytes, int64_t slots, int64_t slot_bytes)
      : blocks_(blocks, block_bytes), slots_(slots, slot_bytes) {}

  static int64_t blocks_for(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }
  // Tokens of the longest sequence that could be opened if nothing else were open.
  int64_t longest_tokens() const { return blocks_.blocks() * kBlockTokens; }

  // Reserves a slot and the blocks for up to `tokens` tokens; false, and no change, when there is too little free now.
  [[nodiscard]] bool open(SequenceCache& sequence, int64_t tokens);
  void close(SequenceCache& sequence);

  const BlockPool& blocks() const { return blocks_; }
  const StateSlots& slots() const { return slots_; }
  BlockPool& blocks() { return blocks_; }
  StateSlots& slots() { return slots_; }

 private:
  BlockPool blocks_;
  StateSlots slots_;
};

}  // namespace moesaic
