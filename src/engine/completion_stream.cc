#include "engine/completion_stream.h"

namespace moesaic {

void CompletionStream::push(Chunk chunk) {
  {
    const std::lock_guard lock(mutex_);
    chunks_.push_back(std::move(chunk));
  }
  notify();
}

void CompletionStream::finish(Status status, FinishReason reason, const Usage& usage, StopMatch stop) {
  {
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
    reason_ = reason;
    usage_ = usage;
    stop_ = std::move(stop);
    finished_ = true;
  }
  notify();
}

// The reader is called without the lock, so that it may read at once.
void CompletionStream::notify() {
  ready_.notify_one();
  std::shared_ptr<const std::function<void()>> reader;
  {
    const std::lock_guard lock(mutex_);
    reader = on_ready_;
  }
  if (reader) (*reader)();
}

std::optional<Chunk> CompletionStream::take() {
  if (chunks_.empty()) return std::nullopt;
  Chunk chunk = std::move(chunks_.front());
  chunks_.pop_front();
  return chunk;
}

std::optional<Chunk> CompletionStream::next() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [&] { return finished_ || !chunks_.empty(); });
  return take();
}

std::optional<Chunk> CompletionStream::try_next() {
  const std::lock_guard lock(mutex_);
  return take();
}

bool CompletionStream::ended() {
  const std::lock_guard lock(mutex_);
  return finished_ && chunks_.empty();
}

void CompletionStream::on_ready(std::function<void()> ready) {
  auto reader = std::make_shared<const std::function<void()>>(std::move(ready));
  bool now = false;
  {
    const std::lock_guard lock(mutex_);
    on_ready_ = reader;
    now = finished_ || !chunks_.empty();
  }
  if (now) (*reader)();
}

Completion& Completion::operator=(Completion&& other) noexcept {
  if (stream_) stream_->cancel();
  stream_ = std::move(other.stream_);
  return *this;
}

Completion::~Completion() {
  if (stream_) stream_->cancel();
}

std::optional<Chunk> Completion::next() {
  return stream_->next();
}

std::optional<Chunk> Completion::try_next() {
  return stream_->try_next();
}

bool Completion::ended() const {
  return stream_->ended();
}

void Completion::on_ready(std::function<void()> ready) {
  stream_->on_ready(std::move(ready));
}

void Completion::cancel() {
  stream_->cancel();
}

const Status& Completion::status() const {
  return stream_->status();
}

FinishReason Completion::finish_reason() const {
  return stream_->reason();
}

const StopMatch& Completion::stop_match() const {
  return stream_->stop_match();
}

Usage Completion::usage() const {
  return stream_->usage();
}

}  // namespace moesaic
