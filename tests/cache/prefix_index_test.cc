// PrefixIndex against a model that is obviously right: every block and slot has content, which the copies move about.
#include "cache/prefix_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <ostream>
#include <random>

#include "base/rng.h"
#include "ir/cache_spec.h"

namespace moesaic {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Kind = CacheCopy::Kind;
using Tokens = std::vector<int32_t>;

uint64_t fresh_seed() {
  const char* replay = std::getenv("MOESAIC_SEED");
  const uint64_t seed = replay != nullptr ? std::strtoull(replay, nullptr, 10) : std::random_device{}();
  std::printf("MOESAIC_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

Tokens block_tokens(int32_t letter) {
  return Tokens(kBlockTokens, letter);
}

// A sequence of blocks, each of one repeated token.
Tokens spell(const std::vector<int32_t>& letters) {
  Tokens tokens;
  for (int32_t letter : letters) tokens.insert(tokens.end(), kBlockTokens, letter);
  return tokens;
}

std::vector<BlockKey> keys_of(const std::vector<int32_t>& letters) {
  const PrefixHasher hasher(1);
  std::vector<BlockKey> keys;
  for (int32_t letter : letters)
    keys.push_back(hasher.block(keys.empty() ? hasher.root({}) : keys.back(), block_tokens(letter),
                                std::ssize(keys) * kBlockTokens));
  return keys;
}

// Content is the text of the whole prefix: a block in the wrong place, or state from elsewhere, cannot look right.
using Content = std::vector<int32_t>;

struct Arrays {
  std::vector<Content> blocks, host_blocks, slots, host_slots;

  void make(std::vector<CacheCopy>& copies) {
    for (const CacheCopy& c : copies) {
      const auto from = static_cast<size_t>(c.from), to = static_cast<size_t>(c.to);
      switch (c.kind) {
        case Kind::block_to_host: host_blocks.at(to) = blocks.at(from); break;
        case Kind::block_to_device: blocks.at(to) = host_blocks.at(from); break;
        case Kind::slot_to_slot: slots.at(to) = slots.at(from); break;
        case Kind::slot_to_host: host_slots.at(to) = slots.at(from); break;
        case Kind::slot_to_device: slots.at(to) = host_slots.at(from); break;
      }
    }
    copies.clear();
  }
};

struct Running {
  std::vector<int32_t> letters;  // what its blocks will hold
  std::vector<BlockKey> keys;
  std::vector<BlockId> blocks;
  SlotId slot = -1;
  size_t length = 0, published = 0;  // blocks

  Content prefix(size_t count) const { return {letters.begin(), letters.begin() + static_cast<int64_t>(count)}; }
};

struct Sizes {
  int64_t blocks = 12, sequences = 4;
  PrefixLimits limits = {};
};

void PrintTo(const Sizes& s, std::ostream* out) {
  *out << s.blocks << " blocks, " << s.limits.snapshots << " snapshots, on the host " << s.limits.host_blocks << " and "
       << s.limits.host_snapshots;
}

// Sequences that come, compute and go. Checks after each operation that those that run have what they computed.
class World {
 public:
  World(uint64_t seed, const Sizes& sizes)
      : sizes_(sizes),
        rng_(seed),
        blocks_(sizes.blocks, 1),
        slots_(sizes.sequences + sizes.limits.snapshots, 1),
        index_(blocks_, slots_, sizes.limits) {
    arrays_.blocks.resize(static_cast<size_t>(sizes.blocks));
    arrays_.slots.resize(static_cast<size_t>(slots_.slots()));
    arrays_.host_blocks.resize(static_cast<size_t>(sizes.limits.host_blocks));
    arrays_.host_slots.resize(static_cast<size_t>(sizes.limits.host_snapshots));
  }

  void act() {
    const int64_t action = rng_.below(20);
    if (action < 5) open();
    else if (action < 13) compute();
    else if (action < 15) publish(any());
    else if (action < 17) snapshot();
    else if (action < 19) close();
    else if (rng_.below(10) == 0) index_.clear();
    check();
  }
  void end() {
    while (!running_.empty()) close();
    check();
    EXPECT_EQ(index_.available_blocks(), sizes_.blocks);
    index_.clear();
    EXPECT_EQ(blocks_.free_blocks(), sizes_.blocks);
    EXPECT_EQ(slots_.free_slots(), slots_.slots());
    EXPECT_EQ(index_.cached_blocks() + index_.snapshots() + index_.host_blocks(), 0);
  }
  int64_t reused() const { return reused_; }
  int64_t from_host() const { return from_host_; }

 private:
  Running* any() {
    return running_.empty() ? nullptr : &running_[static_cast<size_t>(rng_.below(std::ssize(running_)))];
  }

  void open() {
    if (std::ssize(running_) == sizes_.sequences) return;
    Running s;
    for (int64_t i = 1 + rng_.below(6); i-- > 0;) s.letters.push_back(static_cast<int32_t>(rng_.below(2)));
    s.keys = keys_of(s.letters);
    const int64_t most = std::ssize(s.letters) - 1;
    const auto found = index_.find(s.keys, spell(s.letters), most);
    ASSERT_LE(found.usable, std::min(most, found.matched));
    const auto prefix = std::span(s.keys).first(static_cast<size_t>(found.usable));
    const int64_t available = index_.available_blocks(), needed = index_.blocks_to_take(prefix);
    std::vector<CacheCopy> copies;
    ASSERT_EQ(index_.take(prefix, s.blocks, copies), needed <= available);
    if (needed > available) return expect_unchanged(s, copies, available);
    ASSERT_EQ(index_.available_blocks(), available - needed);
    s.slot = slots_.acquire().value();
    arrays_.slots[static_cast<size_t>(s.slot)] = {};
    if (rng_.below(2) == 0) grow(s.blocks, copies);  // more eviction between taking and copying
    if (found.usable > 0 && sizes_.limits.needs_state) index_.restore(prefix.back(), s.slot, copies);
    for (const CacheCopy& copy : copies) from_host_ += copy.kind == Kind::block_to_device;
    arrays_.make(copies);
    s.length = s.published = static_cast<size_t>(found.usable), reused_ += found.usable;
    running_.push_back(std::move(s));
  }

  void expect_unchanged(const Running& s, const std::vector<CacheCopy>& copies, int64_t available) {
    EXPECT_THAT(copies, IsEmpty());
    EXPECT_THAT(s.blocks, IsEmpty());
    EXPECT_EQ(index_.available_blocks(), available);
  }

  bool grow(std::vector<BlockId>& blocks, std::vector<CacheCopy>& copies) {
    BlockId fresh = -1;
    const bool room = index_.available_blocks() > 0;
    EXPECT_EQ(index_.allocate({&fresh, 1}, copies), room);
    if (room) blocks.push_back(fresh);
    return room;
  }

  // The next block of a sequence: its memory held anything before.
  void compute() {
    Running* s = any();
    if (s == nullptr || s->length == s->letters.size()) return;
    std::vector<CacheCopy> copies;
    if (s->blocks.size() == s->length && !grow(s->blocks, copies)) return;
    arrays_.make(copies);
    ++s->length;
    arrays_.blocks[static_cast<size_t>(s->blocks[s->length - 1])] = s->prefix(s->length);
    arrays_.slots[static_cast<size_t>(s->slot)] = s->prefix(s->length);
    if (rng_.below(3) > 0) publish(s);
  }

  void publish(Running* s) {
    for (; s != nullptr && s->published < s->length; ++s->published)
      index_.add(s->keys[s->published], s->blocks[s->published], block_tokens(s->letters[s->published]));
  }

  void snapshot() {
    Running* s = any();
    if (s == nullptr || s->length == 0) return;
    publish(s);
    const BlockKey& key = s->keys[s->length - 1];
    if (rng_.below(8) == 0) return index_.drop_snapshot(key);
    std::vector<CacheCopy> copies;
    const auto slot = index_.snapshot_slot(copies);
    ASSERT_EQ(slot.has_value(), sizes_.limits.snapshots > 0);  // none is held for longer than this function
    if (!slot) return;
    copies.push_back({Kind::slot_to_slot, s->slot, *slot});
    arrays_.make(copies);
    if (rng_.below(8) == 0) return index_.give_back(*slot);
    index_.add_snapshot(key, *slot);
    // Its block is unknown where another sequence's copy was, and has been evicted.
    const auto matched = index_.find(s->keys, spell(s->letters), 0).matched;
    EXPECT_TRUE(!index_.lacks_snapshot(key) || matched < static_cast<int64_t>(s->length));
  }

  void close() {
    Running* s = any();
    if (s == nullptr) return;
    for (size_t i = s->blocks.size(); i-- > 0;) index_.release(s->blocks[i]);
    slots_.release(s->slot);
    running_.erase(running_.begin() + (s - running_.data()));
  }

  void check() {
    std::map<BlockId, int> holders;
    for (const Running& s : running_) {
      for (size_t i = 0; i < s.length; ++i)
        ASSERT_EQ(arrays_.blocks[static_cast<size_t>(s.blocks[i])], s.prefix(i + 1)) << "block " << i;
      if (sizes_.limits.needs_state) {
        ASSERT_EQ(arrays_.slots[static_cast<size_t>(s.slot)], s.prefix(s.length));
      }
      for (BlockId block : s.blocks) ++holders[block];
    }
    for (const auto& [block, count] : holders) {
      ASSERT_GE(blocks_.owners(block), count);
      ASSERT_LE(blocks_.owners(block), count + 1) << "the index is one owner at most";
    }
    ASSERT_EQ(std::ssize(holders) + index_.cached_blocks() + blocks_.free_blocks(), sizes_.blocks);
    ASSERT_EQ(std::ssize(running_) + index_.snapshots() + slots_.free_slots(), slots_.slots());
    ASSERT_LE(index_.snapshots(), sizes_.limits.snapshots);
    ASSERT_LE(index_.host_blocks(), sizes_.limits.host_blocks);
  }

  const Sizes sizes_;
  Rng rng_;
  BlockPool blocks_;
  StateSlots slots_;
  PrefixIndex index_;
  Arrays arrays_;
  std::vector<Running> running_;
  int64_t reused_ = 0, from_host_ = 0;  // blocks
};

class PrefixIndexModel : public testing::TestWithParam<Sizes> {};

TEST_P(PrefixIndexModel, WhatIsFoundIsWhatWasComputed) {
  const uint64_t seed = fresh_seed();
  int64_t reused = 0, from_host = 0;
  for (uint64_t round = 0; round < 20 && !HasFailure(); ++round) {
    World world(seed + round, GetParam());
    for (int step = 0; step < 3000 && !HasFatalFailure(); ++step) world.act();
    world.end();
    reused += world.reused(), from_host += world.from_host();
  }
  EXPECT_GT(reused, 300);
  EXPECT_GE(from_host, GetParam().limits.host_blocks > 0 ? 50 : 0);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, PrefixIndexModel,
    testing::Values(Sizes{}, Sizes{.blocks = 30}, Sizes{.limits = {.host_blocks = 1}},
                    Sizes{.blocks = 9, .limits = {.host_blocks = 20}},
                    Sizes{.limits = {.needs_state = true, .snapshots = 1}},
                    Sizes{.blocks = 30, .limits = {.needs_state = true, .snapshots = 9}},
                    Sizes{.limits = {.needs_state = true, .snapshots = 3, .host_blocks = 3, .host_snapshots = 2}},
                    Sizes{.blocks = 9,
                          .limits = {.needs_state = true, .snapshots = 4, .host_blocks = 20, .host_snapshots = 8}},
                    Sizes{.limits = {.needs_state = true, .snapshots = 2, .host_blocks = 8, .host_snapshots = 1}}));

// An index whose cached blocks are those of a few prefixes.
struct Small {
  explicit Small(int64_t block_count, const PrefixLimits& limits = {})
      : blocks(block_count, 1), slots(4 + limits.snapshots, 1), index(blocks, slots, limits) {}

  std::vector<BlockId> compute(const std::vector<int32_t>& letters) {
    std::vector<BlockId> ids(letters.size());
    EXPECT_TRUE(index.allocate(ids, copies));
    const std::vector<BlockKey> keys = keys_of(letters);
    for (size_t i = 0; i < ids.size(); ++i) index.add(keys[i], ids[i], block_tokens(letters[i]));
    return ids;
  }
  void release(const std::vector<BlockId>& ids) {
    for (size_t i = ids.size(); i-- > 0;) index.release(ids[i]);
  }
  void cache(const std::vector<int32_t>& letters) { release(compute(letters)); }
  int64_t matched(const std::vector<int32_t>& letters) const {
    return index.find(keys_of(letters), spell(letters), 100).matched;
  }
  std::vector<BlockId> take(const std::vector<int32_t>& letters) {
    std::vector<BlockId> ids;
    EXPECT_TRUE(index.take(keys_of(letters), ids, copies));
    return ids;
  }
  BlockId allocate() {
    BlockId id = -1;
    EXPECT_TRUE(index.allocate({&id, 1}, copies));
    return id;
  }

  BlockPool blocks;
  StateSlots slots;
  PrefixIndex index;
  std::vector<CacheCopy> copies;
};

TEST(PrefixIndex, LeastRecentlyUsedIsEvictedFirstAndLastBlocksBeforeFirst) {
  Small s(6);
  s.cache({1, 2, 3});
  s.cache({4, 5, 6});
  s.release(s.take({1, 2}));  // used again; its third block was not
  const std::vector<std::pair<int64_t, int64_t>> order = {{2, 3}, {2, 2}, {2, 1}, {2, 0}, {1, 0}, {0, 0}};
  for (const auto& [first, second] : order) {
    s.allocate();
    EXPECT_EQ(s.matched({1, 2, 3}), first);
    EXPECT_EQ(s.matched({4, 5, 6}), second);
  }
  EXPECT_EQ(s.index.available_blocks(), 0);
}

TEST(PrefixIndex, FreeBlocksGoBeforeCachedOnes) {
  Small s(4);
  s.cache({1, 2});
  s.allocate(), s.allocate();
  EXPECT_EQ(s.matched({1, 2}), 2);
}

TEST(PrefixIndex, WhatRunsIsNotEvicted) {
  Small s(3);
  const std::vector<BlockId> held = s.compute({1, 2});
  s.allocate();
  BlockId more = -7;
  EXPECT_FALSE(s.index.allocate({&more, 1}, s.copies));
  EXPECT_EQ(more, -7);
  EXPECT_EQ(s.matched({1, 2}), 2);
  EXPECT_EQ(s.take({1, 2}), held) << "a block in use is shared, which takes no room";
}

TEST(PrefixIndex, FailedTakeKeepsTheOrderOfEviction) {
  Small s(4, {.host_blocks = 4});
  s.cache({1, 2, 3});
  s.allocate(), s.allocate();  // the third block leaves for the host
  ASSERT_EQ(s.matched({1, 2, 3}), 3);
  s.copies.clear();
  std::vector<BlockId> ids;
  EXPECT_FALSE(s.index.take(keys_of({1, 2, 3}), ids, s.copies));
  EXPECT_THAT(ids, IsEmpty());
  EXPECT_THAT(s.copies, IsEmpty());
  EXPECT_EQ(s.index.blocks_to_take(keys_of({1, 2, 3})), 3);
  const BlockId next = s.allocate();
  EXPECT_THAT(s.copies, ElementsAre(CacheCopy{Kind::block_to_host, next, 1})) << "the second block, not the first";
  EXPECT_EQ(s.index.blocks_to_take(keys_of({1})), 1);
  s.copies.clear();
  EXPECT_EQ(s.take({1}).size(), 1u);
  EXPECT_THAT(s.copies, IsEmpty()) << "the first block is on the device still";
}

TEST(PrefixIndex, BlocksReturnFromTheHost) {
  Small s(2, {.host_blocks = 2});
  s.cache({1, 2});
  const BlockId a = s.allocate(), b = s.allocate();
  EXPECT_EQ(s.index.host_blocks(), 2);
  s.index.release(a), s.index.release(b);
  s.copies.clear();
  const std::vector<BlockId> back = s.take({1, 2});
  EXPECT_THAT(s.copies,
              ElementsAre(CacheCopy{Kind::block_to_device, 1, back[0]}, CacheCopy{Kind::block_to_device, 0, back[1]}));
}

TEST(PrefixIndex, StateEndsWhatCanBeReused) {
  Small s(8, {.needs_state = true, .snapshots = 2});
  const std::vector<BlockKey> keys = keys_of({1, 2, 3, 4});
  const Tokens tokens = spell({1, 2, 3, 4});
  s.compute({1, 2, 3, 4});
  EXPECT_EQ(s.index.find(keys, tokens, 4).usable, 0);
  for (size_t block : {1u, 3u}) s.index.add_snapshot(keys[block], s.index.snapshot_slot(s.copies).value());
  EXPECT_EQ(s.index.find(keys, tokens, 4).usable, 4);
  EXPECT_EQ(s.index.find(keys, tokens, 3).usable, 2);
  EXPECT_EQ(s.index.find(keys, tokens, 3).matched, 4);
  s.index.restore(keys[1], 0, s.copies);  // used: the other is the next to go
  s.index.add_snapshot(keys[0], s.index.snapshot_slot(s.copies).value());
  EXPECT_EQ(s.index.find(keys, tokens, 4).usable, 2);
  EXPECT_FALSE(s.index.lacks_snapshot(keys[0]));
  EXPECT_TRUE(s.index.lacks_snapshot(keys[3]));
}

TEST(PrefixIndex, SnapshotsOfUnknownOrKnownBlocksAreGivenBack) {
  Small s(4, {.needs_state = true, .snapshots = 2});
  s.compute({1});
  s.index.add_snapshot(keys_of({9})[0], s.index.snapshot_slot(s.copies).value());
  EXPECT_EQ(s.index.snapshots(), 0);
  for (int i = 0; i < 2; ++i) s.index.add_snapshot(keys_of({1})[0], s.index.snapshot_slot(s.copies).value());
  EXPECT_EQ(s.index.snapshots(), 1);
  const auto held = s.index.snapshot_slot(s.copies), evicted = s.index.snapshot_slot(s.copies);
  EXPECT_TRUE(held && evicted);
  EXPECT_TRUE(s.index.lacks_snapshot(keys_of({1})[0]));
  EXPECT_FALSE(s.index.snapshot_slot(s.copies)) << "both are with those who asked";
}

// The same key with other tokens, as a collision would give: never taken for the same.
TEST(PrefixIndex, FC041_CollidingKeysAreNotShared) {
  Small s(4, {.host_blocks = 4});
  const BlockKey key = keys_of({1})[0];
  s.cache({1});
  EXPECT_EQ(s.index.find({&key, 1}, block_tokens(1), 1).usable, 1);
  EXPECT_EQ(s.index.find({&key, 1}, block_tokens(2), 1).matched, 0);
  Tokens last = block_tokens(1);
  last.back() = 2;
  EXPECT_EQ(s.index.find({&key, 1}, last, 1).matched, 0);
  std::vector<BlockId> all(4);
  ASSERT_TRUE(s.index.allocate(all, s.copies));  // it leaves for the host
  s.index.add(key, all[0], block_tokens(2));
  EXPECT_EQ(s.index.find({&key, 1}, block_tokens(2), 1).matched, 0);
  EXPECT_EQ(s.index.find({&key, 1}, block_tokens(1), 1).usable, 1) << "the host's copy is still that of its tokens";
}

TEST(PrefixIndex, ClearKeepsWhatRuns) {
  Small s(6, {.needs_state = true, .snapshots = 1, .host_blocks = 4, .host_snapshots = 1});
  const std::vector<BlockId> held = s.compute({1, 2});
  s.cache({3, 4});
  s.index.clear();
  EXPECT_EQ(s.matched({1, 2}), 2);
  EXPECT_EQ(s.matched({3, 4}), 0);
  EXPECT_EQ(s.blocks.free_blocks(), 4);
  s.release(held);
  EXPECT_EQ(s.index.cached_blocks(), 2);
}

TEST(PrefixIndexDeathTest, MisuseIsABug) {
  Small s(2);
  EXPECT_DEATH(s.take({1}), "not in the prefix index");
  EXPECT_DEATH(s.index.add(keys_of({1})[0], 0, Tokens(3)), "a block of 3 tokens");
  s.compute({1});
  EXPECT_DEATH(s.index.restore(keys_of({1})[0], 0, s.copies), "no snapshot");
}

using Fields = std::vector<PrefixHasher::Field>;

TEST(PrefixKey, FC041_FieldsAreTaggedAndLengthPrefixed) {
  const PrefixHasher hasher(7);
  const std::vector<Fields> different = {{},
                                         {{"salt", ""}},
                                         {{"salt", "X"}},
                                         {{"adapter", "X"}},
                                         {{"salt", "s1"}},
                                         {{"salt", "s2"}},
                                         {{"a", "ab"}, {"b", "c"}},
                                         {{"a", "a"}, {"b", "bc"}},
                                         {{"aa", "b"}, {"b", "c"}},
                                         {{"a", "abb"}, {"", "c"}},
                                         {{"b", "c"}, {"a", "ab"}}};
  for (size_t i = 0; i < different.size(); ++i)
    for (size_t j = 0; j < different.size(); ++j)
      EXPECT_EQ(hasher.root(different[i]) == hasher.root(different[j]), i == j) << i << " and " << j;
}

// Media digests that differ in their first byte alone, or in any other.
TEST(PrefixKey, FC041_EveryByteOfADigestReachesTheKey) {
  const PrefixHasher hasher(7);
  const Tokens tokens = block_tokens(5);
  const auto key = [&](const BlockKey& digest) {
    const MediaRange media[] = {{3, 20, digest}};
    return hasher.block({}, tokens, 0, media);
  };
  const BlockKey digest = hasher.digest("an image");
  for (int byte = 0; byte < 8; ++byte) {
    const uint64_t flipped = uint64_t{1} << (8 * byte);
    EXPECT_NE(key({digest.low ^ flipped, digest.high}), key(digest)) << byte;
    EXPECT_NE(key({digest.low, digest.high ^ flipped}), key(digest)) << byte;
  }
  EXPECT_NE(hasher.digest("an image"), hasher.digest("bn image"));
}

TEST(PrefixKey, FC041_KeysAre128BitsWide) {
  static_assert(sizeof(BlockKey) == 16);
  const PrefixHasher hasher(fresh_seed());
  uint64_t low = 0, high = 0;
  for (int32_t i = 0; i < 200; ++i) {
    const BlockKey key = hasher.block({}, block_tokens(i), 0), next = hasher.block({}, block_tokens(i + 1), 0);
    low |= key.low ^ next.low, high |= key.high ^ next.high;
  }
  EXPECT_EQ(low & high, ~uint64_t{0}) << "a bit that never changes";
}

// What a block's key covers: its parent, each token, the media it touches and where in it the block begins, the seed.
TEST(PrefixKey, CoversWhatTheContentDependsOn) {
  const PrefixHasher hasher(7);
  const Tokens tokens = block_tokens(5);
  const BlockKey parent = hasher.root({}), image = hasher.digest("i"), other = hasher.digest("j");
  const BlockKey plain = hasher.block(parent, tokens, 64);
  const auto with = [&](std::vector<MediaRange> media) { return hasher.block(parent, tokens, 64, media); };
  EXPECT_EQ(plain, hasher.block(parent, tokens, 64));
  EXPECT_NE(plain, hasher.block(hasher.root(Fields{{"salt", "s"}}), tokens, 64));
  EXPECT_NE(plain, PrefixHasher(8).block(parent, tokens, 64));
  for (size_t i = 0; i < tokens.size(); ++i) {
    Tokens changed = tokens;
    changed[i] ^= 1 << 20;
    EXPECT_NE(plain, hasher.block(parent, changed, 64)) << "token " << i;
  }
  EXPECT_EQ(plain, with({{0, 64, image}, {128, 9, image}})) << "media before and behind it";
  EXPECT_NE(plain, with({{63, 2, image}}));
  EXPECT_NE(plain, with({{127, 1, image}}));
  EXPECT_NE(with({{40, 70, image}}), with({{40, 70, other}}));
  EXPECT_NE(with({{40, 70, image}}), with({{41, 70, image}})) << "another part of the image";
  EXPECT_NE(with({{64, 9, image}, {73, 9, other}}), with({{64, 9, other}, {73, 9, image}}));
}

}  // namespace
}  // namespace moesaic
