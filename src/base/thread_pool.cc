#include "base/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "base/error.h"

namespace moesaic {
namespace {

int64_t env_or(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::strtoll(text, nullptr, 10) : fallback;
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Spins until done() or the time is up; true when done() came in time.
template <typename Done>
bool spin(int64_t limit_ns, Done done) {
  const int64_t end = now_ns() + limit_ns;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      _mm_pause();
    }
  } while (now_ns() < end);
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int threads, int spin_us) : spin_ns_(env_or("MOESAIC_SPIN_US", spin_us) * 1000) {
  if (threads <= 0) threads = static_cast<int>(env_or("MOESAIC_THREADS", available_cores()));
  threads = std::clamp(threads, 1, 1024);
  for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  ++epoch_;
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t count, function_ref<void(int64_t, int)> body) {
  CHECK(count >= 0 && count < (int64_t{1} << 32), "{} chunks", count);
  if (workers_.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  body_ = &body;
  count_.store(static_cast<uint64_t>(epoch) << 32 | static_cast<uint64_t>(count), std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  next_.store(static_cast<uint64_t>(epoch) << 32, std::memory_order_release);
  epoch_.store(epoch, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) epoch_.notify_all();
  take_chunks(epoch, 0);
  const auto finished = [&] { return finished_.load(std::memory_order_acquire) == epoch; };
  if (!spin(spin_ns_, finished))
    while (!finished()) finished_.wait(epoch - 1, std::memory_order_acquire);
}

void ThreadPool::take_chunks(uint32_t epoch, int thread) noexcept {
  const uint64_t numbered_count = count_.load(std::memory_order_relaxed);
  if (numbered_count >> 32 != epoch) return;  // a newer job is being set up: ours was finished by others
  const int64_t count = static_cast<int64_t>(numbered_count & 0xFFFFFFFF);
  int64_t taken = 0;
  uint64_t next = next_.load(std::memory_order_acquire);
  while (next >> 32 == epoch && static_cast<int64_t>(next & 0xFFFFFFFF) < count) {
    if (!next_.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) continue;
    (*body_)(static_cast<int64_t>(next & 0xFFFFFFFF), thread);
    ++taken;
    next = next_.load(std::memory_order_acquire);
  }
  if (taken > 0 && done_.fetch_add(taken, std::memory_order_acq_rel) + taken == count) {
    // Sequentially consistent: notify_one() reads the number of waiters, which must not move before the store.
    finished_.store(epoch, std::memory_order_seq_cst);
    finished_.notify_one();
  }
}

// Returns the number of a job newer than `seen`, once there is one.
uint32_t ThreadPool::wait_for_job(uint32_t seen) {
  const auto changed = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
  if (!spin(spin_ns_, changed)) {
    ++sleepers_;
    while (!changed()) epoch_.wait(seen, std::memory_order_seq_cst);
    --sleepers_;
  }
  return epoch_.load(std::memory_order_acquire);
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  while (true) {
    seen = wait_for_job(seen);
    // Asked after `seen` is read: the last number is only for closing, and no other would come after it.
    if (stop_.load(std::memory_order_acquire)) return;
    take_chunks(seen, thread);
  }
}

}  // namespace moesaic
