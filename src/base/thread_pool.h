// ThreadPool: fork-join over a counter, for loops of tens of microseconds and up.
//
// Workers spin for a bounded time and then sleep on a futex; chunks are claimed from an atomic counter, so a worker
// that wakes late (or whose core is taken) never holds the others up. One job at a time; jobs do not nest. A job never
// allocates.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/function_ref.h"

namespace moesaic {

class ThreadPool {
 public:
  // `threads` counts the calling thread; 0 means one per available core (MOESAIC_THREADS overrides).
  // `spin_us` is how long an idle worker spins before it sleeps (MOESAIC_SPIN_US overrides).
  explicit ThreadPool(int threads = 0, int spin_us = 50);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(i, thread) once for every i in [0, count), on any thread in [0, threads()); returns when all are done.
  // The body must not throw. One thread at a time may call run().
  void run(int64_t count, function_ref<void(int64_t i, int thread)> body);

 private:
  void work(int thread);
  void take_chunks(uint32_t epoch, int thread) noexcept;
  uint32_t wait_for_job(uint32_t seen);

  const int64_t spin_ns_;
  std::vector<std::thread> workers_;
  const function_ref<void(int64_t, int)>* body_ = nullptr;
  // Both hold the job number in the upper 32 bits, and the number of chunks or the next chunk below: a late worker can
  // mix neither a newer job's chunks with an older body nor a newer job's count with an older job's chunks.
  std::atomic<uint64_t> count_{0};
  alignas(64) std::atomic<uint64_t> next_{0};
  alignas(64) std::atomic<int64_t> done_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  std::atomic<uint32_t> finished_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace moesaic
