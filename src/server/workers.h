// Workers: threads for what may take a while before a request reaches the engine: reading a large body, tokenizing,
// compiling a schema, fetching an image. Server threads stay free for open streams.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace moesaic {

class Workers {
 public:
  explicit Workers(int threads);
  ~Workers();  // runs what was posted, then joins

  // Any thread. In order of posting, as threads are free; a task must not throw.
  void post(std::function<void()> task);

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace moesaic
