#include "engine/sequence_memory.h"

#include <algorithm>
#include <random>

namespace moesaic {
namespace {

constexpr int64_t kSnapshotEvery = 32 * kBlockTokens;  // tokens of a long prompt between kept states

uint64_t fresh_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

// Of the host's bytes: as many blocks, and a snapshot for every eighth block where sequences have state.
PrefixLimits limits_of(const LoadedModel& model, const ReuseOptions& options) {
  const int64_t block = model.compiled.cache.block_stride, slot = model.compiled.cache.slot_stride;
  PrefixLimits limits{.needs_state = slot > 0, .snapshots = model.snapshots};
  if (!options.prefixes || options.host_bytes <= 0) return limits;
  constexpr int64_t kBlocksPerSnapshot = 8;
  const int64_t groups = options.host_bytes / std::max<int64_t>(kBlocksPerSnapshot * block + slot, 1);
  limits.host_blocks = block > 0 ? groups * kBlocksPerSnapshot : 0;
  limits.host_snapshots = slot > 0 ? groups : 0;
  return limits;
}

std::span<const int32_t> block_of(const Sequence& sequence, int64_t block) {
  return std::span(sequence.tokens).subspan(static_cast<size_t>(block * kBlockTokens), kBlockTokens);
}

template <class T, size_t n>
std::string_view bytes_of(std::span<T, n> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

}  // namespace

SequenceMemory::SequenceMemory(LoadedModel& model, const ReuseOptions& options)
    : model_(model),
      options_(options),
      hasher_(fresh_seed()),
      pool_(model.blocks, model.compiled.cache.block_stride, model.slots, model.compiled.cache.slot_stride),
      limits_(limits_of(model, options)),
      index_(pool_.blocks(), pool_.slots(), limits_) {
  const CacheMap& cache = model.compiled.cache;
  host_blocks_ = model.device->allocate_host(limits_.host_blocks * cache.block_stride, "the host's share of the cache");
  host_slots_ =
      model.device->allocate_host(limits_.host_snapshots * cache.slot_stride, "the host's share of the cache");
}

void SequenceMemory::extend_keys(Sequence& s, int64_t blocks) const {
  if (s.keys.empty() && blocks > 0) {
    const PrefixHasher::Field salt[] = {{"salt", s.request.cache_salt}};
    s.root = hasher_.root(std::span(salt).first(s.request.cache_salt.empty() ? 0 : 1));
  }
  while (std::ssize(s.keys) < blocks) {
    const int64_t block = std::ssize(s.keys);
    s.keys.push_back(
        hasher_.block(s.keys.empty() ? s.root : s.keys.back(), block_of(s, block), block * kBlockTokens, s.media));
  }
}

// The prompt's image tokens stand for its images, in order. The same values in another grid are another image.
void SequenceMemory::find_media(Sequence& s) const {
  if (!s.media.empty()) return;  // preempted: its images may be gone
  int64_t at = 0;
  for (const PatchedImage& image : s.images) {
    while (s.tokens[static_cast<size_t>(at)] != model_.model.vision->placeholder) ++at;
    const int64_t grid[] = {image.rows, image.columns};
    const PrefixHasher::Field fields[] = {{"grid", bytes_of(std::span(grid))},
                                          {"values", bytes_of(std::span(image.values))}};
    s.media.push_back({at, image.tokens(), hasher_.root(fields)});
    at += image.tokens();
  }
}

// The next block after the known ones is on its way in another sequence: waiting for it costs less than computing it
// twice. Where state is needed that sequence is asked to keep it where the two part.
bool SequenceMemory::being_computed(Sequence& s, int64_t matched) {
  const auto first =
      matched < std::ssize(s.keys) ? computing_.find(s.keys[static_cast<size_t>(matched)]) : computing_.end();
  if (first == computing_.end() || first->second == &s) return false;
  Sequence& owner = *first->second;
  int64_t shared = matched + 1;
  const int64_t most = (s.length() - 1) / kBlockTokens;
  for (; shared < most; ++shared) {
    const auto next = computing_.find(s.keys[static_cast<size_t>(shared)]);
    if (next == computing_.end() || next->second != &owner) break;
  }
  shared = std::min(shared, most);
  if (shared <= matched) return false;
  if (limits_.needs_state) owner.stops.insert(shared * kBlockTokens);
  return true;
}

// Where the state should be kept for others: where blocks are known but their state is not, at the prompt's end, and
// now and then on the way.
void SequenceMemory::plan_stops(Sequence& s, int64_t matched) const {
  s.stops.clear();
  if (!limits_.needs_state || !reuses()) return;
  const int64_t start = s.cache.length, end = (s.length() - 1) / kBlockTokens * kBlockTokens;
  for (int64_t stop = (start / kSnapshotEvery + 1) * kSnapshotEvery; stop < end; stop += kSnapshotEvery)
    s.stops.insert(stop);
  if (matched * kBlockTokens > start) s.stops.insert(std::min(matched * kBlockTokens, end));
  if (end > start) s.stops.insert(end);
}

void SequenceMemory::register_keys(Sequence& s, int64_t first) {
  for (int64_t i = first; i < std::ssize(s.keys); ++i) computing_.try_emplace(s.keys[static_cast<size_t>(i)], &s);
}

void SequenceMemory::unregister_keys(Sequence& s) {
  for (const BlockKey& key : s.keys)
    if (const auto it = computing_.find(key); it != computing_.end() && it->second == &s) computing_.erase(it);
}

SequenceMemory::Opened SequenceMemory::open(Sequence& s, int64_t tokens, int64_t spare) {
  PrefixIndex::Found found;
  const bool reuse = reuses() && s.request.prompt_logprobs < 0;
  if (reuse) {
    find_media(s);  // now: the images are gone when a short prompt's first block is complete
    extend_keys(s, s.length() / kBlockTokens);
    found = index_.find(s.keys, s.tokens, (s.length() - 1) / kBlockTokens);
    if (being_computed(s, found.matched)) return Opened::waits_for_a_prefix;
  }
  const auto usable = static_cast<size_t>(found.usable);
  const int64_t fresh = CachePool::blocks_for(tokens) - found.usable;
  const int64_t taken = index_.blocks_to_take(std::span(s.keys).first(usable));
  if (index_.available_blocks() < taken + fresh + spare) return Opened::full;
  const auto slot = pool_.slots().acquire();
  if (!slot) return Opened::full;
  std::vector<BlockId> blocks, own(static_cast<size_t>(fresh));
  const bool room = index_.take(std::span(s.keys).first(usable), blocks, copies_) && index_.allocate(own, copies_);
  CHECK(room, "{} blocks are available, {} and {} are needed", index_.available_blocks(), taken, fresh);
  blocks.insert(blocks.end(), own.begin(), own.end());
  s.cache = {std::move(blocks), *slot, found.usable * kBlockTokens};
  s.published = found.usable;
  if (usable > 0 && limits_.needs_state) index_.restore(s.keys[usable - 1], *slot, copies_);
  make_copies();
  if (!s.preempted) queries_ += s.length(), hits_ += s.cache.length;
  plan_stops(s, found.matched);
  if (reuse) register_keys(s, found.matched);
  return Opened::yes;
}

bool SequenceMemory::extend(Sequence& s, int64_t tokens) {
  const int64_t more = CachePool::blocks_for(tokens) - std::ssize(s.cache.blocks);
  if (more <= 0) return true;
  std::vector<BlockId> fresh(static_cast<size_t>(more));
  if (!index_.allocate(fresh, copies_)) return false;
  make_copies();
  s.cache.blocks.insert(s.cache.blocks.end(), fresh.begin(), fresh.end());
  return true;
}

// The last blocks first: they are the first to go when memory runs short.
void SequenceMemory::close(Sequence& s) {
  if (s.cache.slot < 0) return;
  unregister_keys(s);
  if (s.pending_snapshot >= 0) index_.give_back(s.pending_snapshot);
  s.pending_snapshot = -1;
  for (size_t i = s.cache.blocks.size(); i-- > 0;) index_.release(s.cache.blocks[i]);
  pool_.slots().release(s.cache.slot);
  s.cache = {};
}

int64_t SequenceMemory::step_tokens(const Sequence& s, int64_t most) const {
  const auto stop = s.stops.upper_bound(s.cache.length);
  return stop == s.stops.end() ? most : std::min(most, *stop - s.cache.length);
}

void SequenceMemory::computed(Sequence& s) {
  if (!reuses() || s.request.prompt_logprobs >= 0) return;
  keep_state(s);
  publish(s);
}

// While it generates, a sequence keeps the state of its last full block alone.
void SequenceMemory::keep_state(Sequence& s) {
  const int64_t at = s.cache.length;
  if (!limits_.needs_state || at % kBlockTokens != 0 || at == 0 || s.pending_snapshot >= 0) return;
  const bool generating = at > s.prompt_tokens;
  if (!generating && !s.stops.contains(at)) return;
  const auto blocks = static_cast<size_t>(at / kBlockTokens);
  if (blocks <= s.keys.size() && !index_.lacks_snapshot(s.keys[blocks - 1])) return;  // another sequence kept it
  const auto slot = index_.snapshot_slot(copies_);
  if (!slot) return;
  copies_.push_back({CacheCopy::Kind::slot_to_slot, s.cache.slot, *slot});
  make_copies();
  s.pending_snapshot = *slot, s.pending_length = at;
}

void SequenceMemory::publish(Sequence& s) {
  const int64_t known = std::min(s.cache.length, s.length()) / kBlockTokens;
  extend_keys(s, known);
  for (; s.published < known; ++s.published) {
    const auto i = static_cast<size_t>(s.published);
    index_.add(s.keys[i], s.cache.blocks[i], block_of(s, s.published));
    if (const auto it = computing_.find(s.keys[i]); it != computing_.end() && it->second == &s) computing_.erase(it);
  }
  if (s.pending_snapshot >= 0 && s.pending_length <= known * kBlockTokens) add_pending_snapshot(s);
}

void SequenceMemory::add_pending_snapshot(Sequence& s) {
  const BlockKey& key = s.keys[static_cast<size_t>(s.pending_length / kBlockTokens) - 1];
  if (s.pending_length > s.prompt_tokens) {
    if (s.generated_snapshot > 0) index_.drop_snapshot(s.keys[static_cast<size_t>(s.generated_snapshot - 1)]);
    s.generated_snapshot = s.pending_length / kBlockTokens;
  }
  index_.add_snapshot(key, s.pending_snapshot);
  s.pending_snapshot = -1;
}

void SequenceMemory::make_copies() {
  Device& device = *model_.device;
  const int64_t block = model_.compiled.cache.block_stride, slot = model_.compiled.cache.slot_stride;
  std::byte *blocks = model_.cache_blocks.data(), *slots = model_.cache_slots.data();
  for (const CacheCopy& c : copies_) {
    using Kind = CacheCopy::Kind;
    switch (c.kind) {
      case Kind::block_to_host:
        device.download(host_blocks_.data() + c.to * block, blocks + c.from * block, block);
        break;
      case Kind::block_to_device:
        device.upload(blocks + c.to * block, host_blocks_.data() + c.from * block, block);
        break;
      case Kind::slot_to_slot: device.copy(slots + c.to * slot, slots + c.from * slot, slot); break;
      case Kind::slot_to_host: device.download(host_slots_.data() + c.to * slot, slots + c.from * slot, slot); break;
      case Kind::slot_to_device: device.upload(slots + c.to * slot, host_slots_.data() + c.from * slot, slot); break;
    }
  }
  copies_.clear();
}

Status SequenceMemory::clear() {
  index_.clear();
  return {};
}

void SequenceMemory::count(EngineStats& stats) const {
  const BlockPool& blocks = pool_.blocks();
  stats.blocks = blocks.blocks();
  stats.blocks_cached = index_.cached_blocks();
  stats.blocks_used = blocks.blocks() - blocks.free_blocks() - stats.blocks_cached;
  stats.slots = model_.sequences;
  stats.slots_used = pool_.slots().slots() - pool_.slots().free_slots() - index_.snapshots();
  stats.host_blocks = limits_.host_blocks, stats.host_blocks_used = index_.host_blocks();
  stats.prefix_queries = queries_, stats.prefix_hits = hits_;
}

}  // namespace moesaic
