// An exchange without a connection: tasks run when the test says so, what is sent is kept.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>

#include "base/json.h"
#include "server/http.h"

namespace moesaic {

class FakeExchange : public http::Exchange {
 public:
  explicit FakeExchange(std::string body, std::string path = "/", http::Headers headers = {}) {
    request_.method = "POST";
    request_.path = std::move(path);
    request_.headers = std::move(headers);
    request_.body = std::move(body);
    request_.request_id = "test-1";
    request_.arrived = std::chrono::steady_clock::now();
  }

  const http::Request& request() const override { return request_; }
  void respond(http::Response response) override {
    const std::lock_guard lock(mutex_);
    answers_ += 1;
    response_ = std::move(response);
    over_ = true;
    changed_.notify_all();
  }
  void start_stream(std::string content_type, http::Headers headers) override {
    const std::lock_guard lock(mutex_);
    answers_ += 1;
    response_.content_type = std::move(content_type);
    response_.headers = std::move(headers);
    streaming_ = true;
  }
  void write(std::string bytes) override {
    const std::lock_guard lock(mutex_);
    writes_.push_back(bytes);
    buffered_ += slow_ ? bytes.size() : 0;
    response_.body += std::move(bytes);
  }
  void finish() override {
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  size_t buffered() const override { return buffered_; }
  bool open() const override { return open_; }
  void on_close(std::function<void()> closed) override { closed_ = std::move(closed); }
  void on_drain(std::function<void()> drained) override { drained_ = std::move(drained); }
  void post(std::function<void()> task) override {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  // Runs what was posted until nothing is left.
  void run() {
    while (auto task = next(std::chrono::seconds(0))) task();
  }
  // Runs tasks until the answer is complete; false when it is not within half a minute.
  bool run_until_over() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(200);
    while (!over() && std::chrono::steady_clock::now() < deadline)
      if (auto task = next(std::chrono::milliseconds(50))) task();
    run();
    return over();
  }
  void close() {
    open_ = false;
    if (closed_) closed_();
  }
  // From now on the client reads nothing, until drain().
  void stop_reading() { slow_ = true; }
  void drain() {
    slow_ = false, buffered_ = 0;
    if (drained_) drained_();
  }

  bool over() const {
    const std::lock_guard lock(mutex_);
    return over_;
  }
  bool streaming() const { return streaming_; }
  int answers() const { return answers_; }  // respond and start_stream
  const http::Response& response() const { return response_; }
  const std::string& body() const { return response_.body; }
  const std::vector<std::string>& writes() const { return writes_; }
  Json json() const { return parse_json(response_.body, "answer"); }
  std::string header(std::string_view name) const {
    for (const auto& [key, value] : response_.headers)
      if (key == name) return value;
    return "";
  }
  http::Request& edit() { return request_; }

 private:
  std::function<void()> next(std::chrono::milliseconds wait) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait, [&] { return !tasks_.empty(); });
    if (tasks_.empty()) return nullptr;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  http::Request request_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  http::Response response_;
  std::vector<std::string> writes_;
  std::function<void()> closed_, drained_;
  std::atomic<size_t> buffered_{0};
  bool over_ = false, streaming_ = false, open_ = true, slow_ = false;
  int answers_ = 0;
};

}  // namespace moesaic
