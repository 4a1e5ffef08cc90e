#include "server/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace moesaic {
namespace {

TEST(Workers, RunEverythingThatWasPosted) {
  std::atomic<int> ran{0};
  {
    Workers workers(3);
    for (int i = 0; i < 1000; ++i) workers.post([&] { ++ran; });
  }
  EXPECT_EQ(ran, 1000);
}

TEST(Workers, ASlowTaskDoesNotHoldUpTheOthers) {
  std::promise<void> release, done;
  Workers workers(2);
  workers.post([&] { release.get_future().wait(); });
  workers.post([&] { done.set_value(); });
  EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  release.set_value();
}

}  // namespace
}  // namespace moesaic
