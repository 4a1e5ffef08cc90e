#include "cache/state_slots.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <random>
#include <set>

#include "base/rng.h"

namespace moesaic {
namespace {

uint64_t fresh_seed() {
  const char* replay = std::getenv("MOESAIC_SEED");
  const uint64_t seed = replay != nullptr ? std::strtoull(replay, nullptr, 10) : std::random_device{}();
  std::printf("MOESAIC_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

TEST(StateSlots, FC030_OffsetsAre64Bit) {
  const StateSlots slots(3000, 1002240);
  EXPECT_EQ(slots.offset(2142), 2146798080);
  EXPECT_EQ(slots.offset(2143), 2147800320);
}

// Random operations against the set of slots in use.
TEST(StateSlots, MatchesModel) {
  Rng rng(fresh_seed());
  const int64_t count = 1 + rng.below(40);
  StateSlots slots(count, 4096);
  std::set<SlotId> model;
  bool was_full = false;
  for (int step = 0; step < 100000; ++step) {
    if (rng.below(2) != 0) {
      const auto id = slots.acquire();
      ASSERT_EQ(id.has_value(), static_cast<int64_t>(model.size()) < count);
      was_full |= !id.has_value();
      if (id) {
        ASSERT_TRUE(*id >= 0 && *id < count && model.insert(*id).second) << "slot " << *id;
      }
    } else if (!model.empty()) {
      const auto it = std::next(model.begin(), rng.below(static_cast<int64_t>(model.size())));
      slots.release(*it);
      model.erase(it);
    }
    ASSERT_EQ(slots.free_slots(), count - static_cast<int64_t>(model.size()));
    const auto probe = static_cast<SlotId>(rng.below(count));
    ASSERT_EQ(slots.used(probe), model.contains(probe));
  }
  EXPECT_TRUE(was_full);
}

TEST(StateSlotsDeathTest, DoubleReleaseIsABug) {
  StateSlots slots(2, 64);
  const auto id = slots.acquire();
  slots.release(*id);
  EXPECT_DEATH(slots.release(*id), "state slot 0 is released but already free");
  EXPECT_DEATH(slots.release(2), "2");
}

}  // namespace
}  // namespace moesaic
