// MaskMaker: makes the token masks of sequences that follow a grammar while the step computes their logits. A thread of
// its own takes one after the other; who needs one that has not been begun makes it himself.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/sequence.h"

namespace moesaic {

class MaskMaker {
 public:
  MaskMaker();
  ~MaskMaker();

  // The sequence's next token will be chosen after this step. Nothing where it follows no grammar.
  void start(Sequence& sequence);
  // From any thread, one per sequence: returns when the mask is there.
  void finish(Sequence& sequence);

  void count(EngineStats& stats) const;

 private:
  void loop();
  void make(Sequence& sequence);

  std::mutex mutex_;
  std::condition_variable work_;
  std::vector<Sequence*> queue_;  // guarded by mutex_
  bool stopping_ = false;         // guarded by mutex_
  std::atomic<int64_t> made_{0}, late_{0}, nanoseconds_{0};
  std::thread thread_;
};

}  // namespace moesaic
