#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>

#include "base/fresh_rng.h"

namespace moesaic {
namespace {

// Runs jobs of random sizes; every chunk must run exactly once, with its own job's body, on a valid thread. The
// counters are plain: run() itself must order the bodies' writes before its return.
void stress(int threads, int spin_us, int jobs, int64_t max_count, Rng& rng) {
  ThreadPool pool(threads, spin_us);
  std::vector<int> runs(static_cast<size_t>(max_count));
  for (int job = 0; job < jobs; ++job) {
    const int64_t count = rng.below(max_count + 1);
    std::fill(runs.begin(), runs.end(), 0);
    pool.run(count, [&](int64_t i, int thread) {
      if (thread >= 0 && thread < threads) runs[static_cast<size_t>(i)] += 1 + job;
    });
    for (int64_t i = 0; i < max_count; ++i)
      ASSERT_EQ(runs[static_cast<size_t>(i)], i < count ? 1 + job : 0)
          << "job " << job << " chunk " << i << " of " << count;
  }
}

TEST(ThreadPool, EveryChunkRunsOnce) {
  Rng rng = fresh_rng();
  for (int threads : {1, 2, 3, 8})
    for (int spin_us : {0, 1, 50}) stress(threads, spin_us, 1000, 40, rng);
}

// Jobs of a few chunks end before late workers wake: those must not touch the next job.
TEST(ThreadPool, LateWorkersLeaveNewerJobsAlone) {
  Rng rng = fresh_rng();
  stress(4, 5, 10'000, 3, rng);
  stress(2, 0, 10'000, 4, rng);
}

TEST(ThreadPool, JobsSeeEarlierJobsResults) {
  ThreadPool pool(4);
  std::vector<int64_t> values(257);
  std::iota(values.begin(), values.end(), 0);
  for (int round = 0; round < 200; ++round) pool.run(257, [&](int64_t i, int) { values[static_cast<size_t>(i)] += i; });
  for (int64_t i = 0; i < 257; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], 201 * i);
}

TEST(ThreadPool, ThreadNumbersAreNotShared) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> busy(4);
  std::atomic<int> shared = 0;
  pool.run(20'000, [&](int64_t, int thread) {
    if (busy[static_cast<size_t>(thread)].exchange(1) != 0) ++shared;
    busy[static_cast<size_t>(thread)] = 0;
  });
  EXPECT_EQ(shared, 0);
}

TEST(ThreadPool, SleepingWorkersWake) {
  ThreadPool pool(3, 0);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than any spin
    std::atomic<int> waiting = 0;
    // Both chunks must be held at once: this ends only if a worker woke up.
    pool.run(2, [&](int64_t, int) {
      ++waiting;
      while (waiting < 2) std::this_thread::yield();
    });
  }
}

TEST(ThreadPool, ManyShortLivedPools) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(3, i % 2 * 50);
    std::atomic<int64_t> sum = 0;
    if (i % 3 != 0) pool.run(10, [&](int64_t k, int) { sum += k; });
    EXPECT_EQ(sum, i % 3 != 0 ? 45 : 0);
  }
}

// A worker that wakes for the last job while the pool closes must not wait for another one.
TEST(ThreadPool, ClosesRightAfterAJob) {
  for (int i = 0; i < 1000; ++i) {
    ThreadPool pool(4, 0);
    for (int job = 0; job < 3; ++job) pool.run(2, [](int64_t, int) {});
  }
}

TEST(ThreadPool, ThreadCountFromTheEnvironment) {
  setenv("MOESAIC_THREADS", "3", 1);
  EXPECT_EQ(ThreadPool().threads(), 3);
  EXPECT_EQ(ThreadPool(2).threads(), 2);
  unsetenv("MOESAIC_THREADS");
  EXPECT_GE(ThreadPool().threads(), 1);
}

TEST(ThreadPoolDeathTest, ChunkNumbersFit32Bits) {
  ThreadPool pool(1);
  EXPECT_DEATH(pool.run(int64_t{1} << 32, [](int64_t, int) {}), "4294967296 chunks");
  EXPECT_DEATH(pool.run(-1, [](int64_t, int) {}), "-1 chunks");
}

}  // namespace
}  // namespace moesaic
