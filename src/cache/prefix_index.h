// PrefixIndex: which blocks and snapshots of state hold prefixes that a later prompt may begin with. Pure bookkeeping
// over a BlockPool and StateSlots; copies that it asks for are the caller's to make, in order. Not thread-safe: the
// engine thread owns it.
//
// An entry is a full block of kBlockTokens tokens, found by its key. Its block lies on the device (the index is one of
// its owners), in the host tier, or both. A snapshot is the slot of a sequence as it was at the end of the entry's
// block: where sequences have state of constant size, a prefix can be reused only up to one.
//
// Blocks that only the index owns are free to take: allocate() evicts the one used least recently.
#pragma once

#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cache/block_pool.h"
#include "cache/prefix_key.h"
#include "cache/state_slots.h"

namespace moesaic {

// A block or slot to copy between device and host, or slots on the device; in the order of the list.
struct CacheCopy {
  enum class Kind : uint8_t { block_to_host, block_to_device, slot_to_slot, slot_to_host, slot_to_device };
  Kind kind = Kind::slot_to_slot;
  int64_t from = 0, to = 0;

  bool operator==(const CacheCopy&) const = default;
};

struct PrefixLimits {
  bool needs_state = false;  // sequences have state of constant size
  int64_t snapshots = 0;     // slots that the index may hold
  int64_t host_blocks = 0, host_snapshots = 0;
};

class PrefixIndex {
 public:
  // Both outlive it. `copies` collects what the caller has to copy before it uses what it was given.
  PrefixIndex(BlockPool& blocks, StateSlots& slots, const PrefixLimits& limits);

  // How many blocks, from the first on, are known (`matched`), and how many of them a sequence may start with
  // (`usable`), at most `most`. `tokens` are those of the keys' blocks.
  struct Found {
    int64_t usable = 0, matched = 0;
  };
  Found find(std::span<const BlockKey> keys, std::span<const int32_t> tokens, int64_t most) const;
  // How many of the available blocks take() of these keys would use up: blocks that a sequence holds cost nothing.
  int64_t blocks_to_take(std::span<const BlockKey> keys) const;

  // Shares the first keys.size() blocks, which find() called usable, with a sequence: appends them to `blocks` and
  // brings those in the host tier to the device. False, and no change, without room for these.
  [[nodiscard]] bool take(std::span<const BlockKey> keys, std::vector<BlockId>& blocks, std::vector<CacheCopy>& copies);
  // Copies the snapshot after the block `key` into `slot`.
  void restore(const BlockKey& key, SlotId slot, std::vector<CacheCopy>& copies);

  // Free blocks, evicting where needed; false, and no change, when there are too few even so.
  [[nodiscard]] bool allocate(std::span<BlockId> out, std::vector<CacheCopy>& copies);
  // A sequence's share of a block.
  void release(BlockId block);

  // A sequence's block is complete: from now on it may be found. No change where the key is known already.
  void add(const BlockKey& key, BlockId block, std::span<const int32_t> tokens);
  // Whether a snapshot after the block `key` would be new.
  bool lacks_snapshot(const BlockKey& key) const;
  // A slot for a snapshot, taking that of the one used least recently where needed; nothing where none may be held.
  [[nodiscard]] std::optional<SlotId> snapshot_slot(std::vector<CacheCopy>& copies);
  // The slot, from snapshot_slot(), holds the state after the block `key`, which is known; else it is given back.
  void add_snapshot(const BlockKey& key, SlotId slot);
  void give_back(SlotId slot);
  void drop_snapshot(const BlockKey& key);

  // Forgets everything that no sequence uses.
  void clear();

  int64_t cached_blocks() const { return static_cast<int64_t>(evictable_.size()); }  // that only the index owns
  int64_t available_blocks() const { return blocks_.free_blocks() + cached_blocks(); }
  int64_t snapshots() const { return held_slots_; }
  int64_t host_blocks() const { return limits_.host_blocks - static_cast<int64_t>(free_host_blocks_.size()); }

 private:
  struct Entry;
  using Keys = std::list<BlockKey>;
  using Place = std::optional<Keys::iterator>;
  struct Entry {
    std::vector<int32_t> tokens;
    BlockId block = -1;
    int32_t host_block = -1;
    SlotId slot = -1;
    int32_t host_slot = -1;
    Place evictable, host_use, slot_use, host_slot_use;  // places in the lists of least recent use

    bool empty() const { return block < 0 && host_block < 0 && slot < 0 && host_slot < 0; }
    bool has_block() const { return block >= 0 || host_block >= 0; }
    bool has_state() const { return slot >= 0 || host_slot >= 0; }
  };
  using Entries = std::unordered_map<BlockKey, Entry, BlockKeyHash>;

  Entry& at(const BlockKey& key);
  void evict_block(std::vector<CacheCopy>* copies);
  void evict_snapshot(std::vector<CacheCopy>* copies);
  // A place in the host tier, that of the least recently used entry where none is free.
  std::optional<int32_t> free_host_block();
  std::optional<int32_t> free_host_slot();
  void bring_back(const BlockKey& key, Entry& entry, BlockId block, std::vector<CacheCopy>& copies);
  void forget_host_block(Entry& entry);
  void forget_host_slot(Entry& entry);
  void forget_slot(Entry& entry);
  void erase_if_empty(const BlockKey& key);
  static void touch(Keys& order, Place& place, const BlockKey& key);
  static void remove(Keys& order, Place& place);

  BlockPool& blocks_;
  StateSlots& slots_;
  const PrefixLimits limits_;
  Entries entries_;
  std::unordered_map<BlockId, BlockKey> key_of_;          // of blocks that the index shares
  Keys evictable_, host_use_, slot_use_, host_slot_use_;  // least recently used first
  std::vector<int32_t> free_host_blocks_, free_host_slots_;
  int64_t held_slots_ = 0;  // by snapshots, and by those who asked for one
};

}  // namespace moesaic
