// CompletionStream: the queue between the engine's thread and the reader of one Completion.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "moesaic/engine.h"

namespace moesaic {

class CompletionStream {
 public:
  // Engine's side. After finish() nothing more is pushed.
  void push(Chunk chunk);
  void finish(Status status, FinishReason reason, const Usage& usage, StopMatch stop = {});
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  // Reader's side.
  std::optional<Chunk> next();
  std::optional<Chunk> try_next();
  bool ended();
  void on_ready(std::function<void()> ready);
  void cancel() { cancelled_.store(true, std::memory_order_release); }
  const Status& status() const { return status_; }
  FinishReason reason() const { return reason_; }
  const Usage& usage() const { return usage_; }
  const StopMatch& stop_match() const { return stop_; }

 private:
  void notify();
  std::optional<Chunk> take();

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Chunk> chunks_;
  bool finished_ = false;
  std::atomic<bool> cancelled_{false};
  Status status_;
  FinishReason reason_ = FinishReason::none;
  Usage usage_;
  StopMatch stop_;
  std::shared_ptr<const std::function<void()>> on_ready_;  // guarded by mutex_
};

}  // namespace moesaic
