#include "engine/completion_stream.h"

namespace moesaic {

void CompletionStream::push(Chunk chunk) {
  {
    const std::lock_guard lock(mutex_);
    chunks_.push_back(std::move(chunk));
  }
  ready_.notify_one();
}

void CompletionStream::finish(Status status, FinishReason reason, const Usage& usage) {
  {
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
    reason_ = reason;
    usage_ = usage;
    finished_ = true;
  }
  ready_.notify_one();
}

std::optional<Chunk> CompletionStream::next() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [&] { return finished_ || !chunks_.empty(); });
  if (chunks_.empty()) return std::nullopt;
  Chunk chunk = std::move(chunks_.front());
  chunks_.pop_front();
  return chunk;
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

void Completion::cancel() {
  stream_->cancel();
}

const Status& Completion::status() const {
  return stream_->status();
}

FinishReason Completion::finish_reason() const {
  return stream_->reason();
}

Usage Completion::usage() const {
  return stream_->usage();
}

}  // namespace moesaic
