#include "cache/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <random>

#include "base/rng.h"

namespace moesaic {
namespace {

uint64_t fresh_seed() {
  const char* replay = std::getenv("MOESAIC_SEED");
  const uint64_t seed = replay != nullptr ? std::strtoull(replay, nullptr, 10) : std::random_device{}();
  std::printf("MOESAIC_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

BlockId allocate_one(BlockPool& pool) {
  BlockId id = -1;
  EXPECT_TRUE(pool.allocate({&id, 1}));
  return id;
}

TEST(BlockPool, FC030_OffsetsAre64Bit) {
  const BlockPool pool(5000, 1002240);
  EXPECT_EQ(pool.offset(2142), 2146798080);
  EXPECT_EQ(pool.offset(2143), 2147800320);
  EXPECT_EQ(pool.offset(4999), 5010197760);
}

TEST(BlockPool, AllOrNothing) {
  BlockPool pool(4, 64);
  std::vector<BlockId> five(5, -7);
  EXPECT_FALSE(pool.allocate(five));
  EXPECT_EQ(pool.free_blocks(), 4);
  EXPECT_THAT(five, ::testing::Each(-7));
  five.resize(4);
  EXPECT_TRUE(pool.allocate(five));
  EXPECT_THAT(five, ::testing::UnorderedElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(pool.allocate({}));  // nothing is always available
  BlockId extra = -7;
  EXPECT_FALSE(pool.allocate({&extra, 1}));
}

TEST(BlockPool, SharedBlockIsFreedByLastOwner) {
  BlockPool pool(2, 64);
  const BlockId id = allocate_one(pool);
  pool.share(id);
  EXPECT_EQ(pool.owners(id), 2);
  EXPECT_FALSE(pool.release(id));
  EXPECT_EQ(pool.free_blocks(), 1);
  EXPECT_TRUE(pool.release(id));
  EXPECT_EQ(pool.free_blocks(), 2);
}

// Random operations against a map from block to owners.
TEST(BlockPool, MatchesModel) {
  Rng rng(fresh_seed());
  const int64_t blocks = 1 + rng.below(60);
  BlockPool pool(blocks, 1 + rng.below(1 << 20));
  std::map<BlockId, int> model;
  const auto any_used = [&] { return std::next(model.begin(), rng.below(static_cast<int64_t>(model.size()))); };
  for (int step = 0; step < 100000; ++step) {
    const int64_t free = blocks - static_cast<int64_t>(model.size());
    const int64_t action = rng.below(5);
    if (action == 0) {
      std::vector<BlockId> got(rng.below(8), -1);
      ASSERT_EQ(pool.allocate(got), static_cast<int64_t>(got.size()) <= free);
      if (static_cast<int64_t>(got.size()) > free) continue;
      for (BlockId id : got) ASSERT_TRUE(id >= 0 && id < blocks && model.emplace(id, 1).second) << "block " << id;
    } else if (!model.empty() && action == 1) {
      const auto it = any_used();
      pool.share(it->first);
      ++it->second;
    } else if (!model.empty()) {
      const auto it = any_used();
      ASSERT_EQ(pool.release(it->first), --it->second == 0);
      if (it->second == 0) model.erase(it);
    }
    ASSERT_EQ(pool.free_blocks(), blocks - static_cast<int64_t>(model.size()));
    const auto probe = static_cast<BlockId>(rng.below(blocks));
    ASSERT_EQ(pool.owners(probe), model.contains(probe) ? model[probe] : 0);
  }
}

TEST(BlockPoolDeathTest, MisuseIsABug) {
  BlockPool pool(4, 64);
  const BlockId id = allocate_one(pool);
  pool.release(id);
  EXPECT_DEATH(pool.release(id), "already free");
  EXPECT_DEATH(pool.share(id), "cannot be shared");
  EXPECT_DEATH(pool.release(4), "block 4 of 4");
  EXPECT_DEATH(pool.offset(-1), "block -1 of 4");
  EXPECT_DEATH(BlockPool(1 << 30, int64_t{1} << 40), "blocks of");
}

}  // namespace
}  // namespace moesaic
