// StateSlots: one slot per sequence for state of constant size (rings, recurrent state). Pure bookkeeping like
// BlockPool, except that a slot has exactly one owner. Not thread-safe: the engine thread owns it.
#pragma once

#include <cstdint>
#include <optional>

#include "cache/block_pool.h"

namespace moesaic {

using SlotId = int32_t;

class StateSlots {
 public:
  StateSlots(int64_t slots, int64_t stride_bytes) : pool_(slots, stride_bytes) {}

  // A free slot, or nothing if all are taken. It contains what its last owner left: a new sequence must clear it.
  [[nodiscard]] std::optional<SlotId> acquire() {
    SlotId id = 0;
    return pool_.allocate({&id, 1}) ? std::optional(id) : std::nullopt;
  }
  void release(SlotId id);

  int64_t slots() const { return pool_.blocks(); }
  int64_t free_slots() const { return pool_.free_blocks(); }
  bool used(SlotId id) const { return pool_.owners(id) > 0; }
  // Byte offset of the slot in its pool, 64-bit.
  int64_t offset(SlotId id) const { return pool_.offset(id); }

 private:
  BlockPool pool_;
};

}  // namespace moesaic
