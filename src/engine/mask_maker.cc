#include "engine/mask_maker.h"

#include <algorithm>

namespace moesaic {

MaskMaker::MaskMaker() : thread_([this] { loop(); }) {}

MaskMaker::~MaskMaker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void MaskMaker::start(Sequence& sequence) {
  if (!sequence.matcher) return;
  sequence.mask_state.store(MaskState::wanted, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(&sequence);
  }
  work_.notify_one();
}

void MaskMaker::loop() {
  for (;;) {
    Sequence* next = nullptr;
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      next = queue_.front();
      queue_.erase(queue_.begin());
      // Claimed under the lock: finish() takes what is left in the queue away before its sequence can go.
      auto wanted = MaskState::wanted;
      if (!next->mask_state.compare_exchange_strong(wanted, MaskState::begun)) continue;
    }
    make(*next);
  }
}

void MaskMaker::make(Sequence& sequence) {
  const Clock::time_point start = Clock::now();
  sequence.matcher->mask(sequence.mask);
  nanoseconds_ += std::chrono::nanoseconds(Clock::now() - start).count();
  ++made_;
  sequence.mask_state.store(MaskState::ready, std::memory_order_release);
}

void MaskMaker::finish(Sequence& sequence) {
  if (!sequence.matcher || sequence.mask_state.load(std::memory_order_acquire) == MaskState::ready) return;
  ++late_;
  bool mine = false;
  {
    const std::lock_guard lock(mutex_);
    auto wanted = MaskState::wanted;
    mine = sequence.mask_state.compare_exchange_strong(wanted, MaskState::begun);
    std::erase(queue_, &sequence);
  }
  if (mine) make(sequence);
  while (sequence.mask_state.load(std::memory_order_acquire) != MaskState::ready) std::this_thread::yield();
}

void MaskMaker::count(EngineStats& stats) const {
  stats.masks = made_;
  stats.masks_late = late_;
  stats.mask_seconds = static_cast<double>(nanoseconds_) * 1e-9;
}

}  // namespace moesaic
