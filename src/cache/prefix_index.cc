#include "cache/prefix_index.h"

#include <algorithm>

#include "base/error.h"
#include "ir/cache_spec.h"

namespace moesaic {
namespace {

std::vector<int32_t> numbers_down(int64_t count) {
  std::vector<int32_t> out;
  out.reserve(static_cast<size_t>(count));
  for (int64_t i = count; i-- > 0;) out.push_back(static_cast<int32_t>(i));
  return out;
}

std::span<const int32_t> tokens_of(std::span<const int32_t> tokens, size_t block) {
  return tokens.subspan(block * kBlockTokens, kBlockTokens);
}

}  // namespace

PrefixIndex::PrefixIndex(BlockPool& blocks, StateSlots& slots, const PrefixLimits& limits)
    : blocks_(blocks),
      slots_(slots),
      limits_(limits),
      free_host_blocks_(numbers_down(limits.host_blocks)),
      free_host_slots_(numbers_down(limits.host_snapshots)) {}

PrefixIndex::Entry& PrefixIndex::at(const BlockKey& key) {
  const auto it = entries_.find(key);
  CHECK(it != entries_.end(), "a block that is not in the prefix index");
  return it->second;
}

void PrefixIndex::touch(Keys& order, Place& place, const BlockKey& key) {
  if (place) order.splice(order.end(), order, *place);
  else place = order.insert(order.end(), key);
}

void PrefixIndex::remove(Keys& order, Place& place) {
  if (place) order.erase(*place);
  place.reset();
}

PrefixIndex::Found PrefixIndex::find(std::span<const BlockKey> keys, std::span<const int32_t> tokens,
                                     int64_t most) const {
  Found found;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto it = entries_.find(keys[i]);
    if (it == entries_.end() || !it->second.has_block()) break;
    const Entry& entry = it->second;
    if (!std::ranges::equal(entry.tokens, tokens_of(tokens, i))) break;
    found.matched = static_cast<int64_t>(i) + 1;
    if (found.matched <= most && (!limits_.needs_state || entry.has_state())) found.usable = found.matched;
  }
  return found;
}

int64_t PrefixIndex::blocks_to_take(std::span<const BlockKey> keys) const {
  return std::ranges::count_if(keys, [&](const BlockKey& key) {
    const auto it = entries_.find(key);
    return it == entries_.end() || it->second.block < 0 || it->second.evictable;
  });
}

// Shares what is on the device first, so that making room for the rest cannot evict it.
bool PrefixIndex::take(std::span<const BlockKey> keys, std::vector<BlockId>& blocks, std::vector<CacheCopy>& copies) {
  std::vector<BlockId> shared;
  for (const BlockKey& key : keys) {
    Entry& entry = at(key);
    remove(host_use_, entry.host_use);  // out of the list, it keeps its place in the host tier
    if (entry.block < 0) continue;
    remove(evictable_, entry.evictable);
    blocks_.share(entry.block);
    shared.push_back(entry.block);
  }
  std::vector<BlockId> fresh(keys.size() - shared.size());
  const bool room = allocate(fresh, copies);
  size_t next = 0;
  for (const BlockKey& key : keys) {
    Entry& entry = at(key);
    if (room && entry.block < 0) bring_back(key, entry, fresh[next++], copies);
    if (room) blocks.push_back(entry.block);
    if (entry.host_block >= 0) touch(host_use_, entry.host_use, key);
  }
  for (size_t i = shared.size(); !room && i-- > 0;) release(shared[i]);  // the last are the first to go
  return room;
}

void PrefixIndex::bring_back(const BlockKey& key, Entry& entry, BlockId block, std::vector<CacheCopy>& copies) {
  entry.block = block;
  blocks_.share(block);
  key_of_[block] = key;
  copies.push_back({CacheCopy::Kind::block_to_device, entry.host_block, block});
}

void PrefixIndex::restore(const BlockKey& key, SlotId slot, std::vector<CacheCopy>& copies) {
  Entry& entry = at(key);
  CHECK(entry.has_state(), "no snapshot to restore");
  if (entry.slot >= 0) {
    copies.push_back({CacheCopy::Kind::slot_to_slot, entry.slot, slot});
    touch(slot_use_, entry.slot_use, key);
    return;
  }
  copies.push_back({CacheCopy::Kind::slot_to_device, entry.host_slot, slot});
  touch(host_slot_use_, entry.host_slot_use, key);
}

bool PrefixIndex::allocate(std::span<BlockId> out, std::vector<CacheCopy>& copies) {
  if (std::ssize(out) > available_blocks()) return false;
  while (blocks_.free_blocks() < std::ssize(out)) evict_block(&copies);
  const bool enough = blocks_.allocate(out);
  CHECK(enough);
  return true;
}

void PrefixIndex::release(BlockId block) {
  const auto known = key_of_.find(block);
  blocks_.release(block);
  if (known == key_of_.end() || blocks_.owners(block) > 1) return;
  Entry& entry = at(known->second);
  touch(evictable_, entry.evictable, known->second);
}

void PrefixIndex::evict_block(std::vector<CacheCopy>* copies) {
  CHECK(!evictable_.empty());
  const BlockKey key = evictable_.front();
  Entry& entry = at(key);
  if (copies != nullptr && entry.host_block < 0)
    if (const auto host = free_host_block()) {
      entry.host_block = *host;
      copies->push_back({CacheCopy::Kind::block_to_host, entry.block, *host});
      touch(host_use_, entry.host_use, key);
    }
  remove(evictable_, entry.evictable);
  key_of_.erase(entry.block);
  blocks_.release(entry.block);
  entry.block = -1;
  if (entry.host_block < 0) forget_slot(entry), forget_host_slot(entry);  // a snapshot without its block is of no use
  erase_if_empty(key);
}

std::optional<int32_t> PrefixIndex::free_host_block() {
  if (free_host_blocks_.empty()) {
    if (host_use_.empty()) return std::nullopt;
    const BlockKey oldest = host_use_.front();
    Entry& entry = at(oldest);
    forget_host_block(entry);
    if (!entry.has_block()) forget_slot(entry), forget_host_slot(entry);
    erase_if_empty(oldest);
  }
  const int32_t host = free_host_blocks_.back();
  free_host_blocks_.pop_back();
  return host;
}

std::optional<int32_t> PrefixIndex::free_host_slot() {
  if (free_host_slots_.empty()) {
    if (host_slot_use_.empty()) return std::nullopt;
    const BlockKey oldest = host_slot_use_.front();
    forget_host_slot(at(oldest));
    erase_if_empty(oldest);
  }
  const int32_t host = free_host_slots_.back();
  free_host_slots_.pop_back();
  return host;
}

void PrefixIndex::forget_host_block(Entry& entry) {
  if (entry.host_block < 0) return;
  free_host_blocks_.push_back(entry.host_block);
  entry.host_block = -1;
  remove(host_use_, entry.host_use);
}

void PrefixIndex::forget_host_slot(Entry& entry) {
  if (entry.host_slot < 0) return;
  free_host_slots_.push_back(entry.host_slot);
  entry.host_slot = -1;
  remove(host_slot_use_, entry.host_slot_use);
}

void PrefixIndex::forget_slot(Entry& entry) {
  if (entry.slot < 0) return;
  give_back(entry.slot);
  entry.slot = -1;
  remove(slot_use_, entry.slot_use);
}

void PrefixIndex::erase_if_empty(const BlockKey& key) {
  if (const auto it = entries_.find(key); it != entries_.end() && it->second.empty()) entries_.erase(it);
}

void PrefixIndex::add(const BlockKey& key, BlockId block, std::span<const int32_t> tokens) {
  CHECK(std::ssize(tokens) == kBlockTokens, "a block of {} tokens", tokens.size());
  if (key_of_.contains(block)) return;
  Entry& entry = entries_[key];
  if (entry.block >= 0) return;
  if (!entry.empty() && !std::ranges::equal(entry.tokens, tokens)) return;  // what the host holds is of other tokens
  entry.tokens.assign(tokens.begin(), tokens.end());
  entry.block = block;
  blocks_.share(block);
  key_of_[block] = key;
}

bool PrefixIndex::lacks_snapshot(const BlockKey& key) const {
  const auto it = entries_.find(key);
  return it == entries_.end() || it->second.slot < 0;
}

std::optional<SlotId> PrefixIndex::snapshot_slot(std::vector<CacheCopy>& copies) {
  if (limits_.snapshots == 0) return std::nullopt;
  if (held_slots_ == limits_.snapshots) {
    if (slot_use_.empty()) return std::nullopt;
    evict_snapshot(&copies);
  }
  const auto slot = slots_.acquire();
  CHECK(slot.has_value(), "{} slots are held as snapshots, of {} allowed", held_slots_, limits_.snapshots);
  ++held_slots_;
  return slot;
}

void PrefixIndex::evict_snapshot(std::vector<CacheCopy>* copies) {
  const BlockKey key = slot_use_.front();
  Entry& entry = at(key);
  if (copies != nullptr && entry.host_slot < 0)
    if (const auto host = free_host_slot()) {
      entry.host_slot = *host;
      copies->push_back({CacheCopy::Kind::slot_to_host, entry.slot, *host});
      touch(host_slot_use_, entry.host_slot_use, key);
    }
  forget_slot(entry);
  erase_if_empty(key);
}

void PrefixIndex::add_snapshot(const BlockKey& key, SlotId slot) {
  const auto it = entries_.find(key);
  if (it == entries_.end() || !it->second.has_block() || it->second.slot >= 0) return give_back(slot);
  it->second.slot = slot;
  touch(slot_use_, it->second.slot_use, key);
}

void PrefixIndex::give_back(SlotId slot) {
  slots_.release(slot);
  --held_slots_;
}

void PrefixIndex::drop_snapshot(const BlockKey& key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  forget_slot(it->second);
  forget_host_slot(it->second);
  erase_if_empty(key);
}

void PrefixIndex::clear() {
  while (!evictable_.empty()) evict_block(nullptr);
  while (!slot_use_.empty()) evict_snapshot(nullptr);
  for (auto it = entries_.begin(); it != entries_.end();) {
    forget_host_block(it->second);
    forget_host_slot(it->second);
    it = it->second.empty() ? entries_.erase(it) : std::next(it);
  }
}

}  // namespace moesaic
