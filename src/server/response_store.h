// ResponseStore: the conversations behind the latest answers of /v1/responses, for previous_response_id.
#pragma once

#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "base/json.h"

namespace moesaic {

// Holds at most `size` of them; the oldest goes first. Owners are of one length (auth.h). Any thread.
class ResponseStore {
 public:
  explicit ResponseStore(int64_t size) : size_(static_cast<size_t>(std::max<int64_t>(size, 0))) {}

  bool enabled() const { return size_ > 0; }
  // Only the same owner gets it: ids may be chosen by clients, so that they can be guessed and two may choose the same.
  void put(const std::string& id, JsonArray items, const std::string& owner = {}) {
    if (!enabled()) return;
    const std::lock_guard lock(mutex_);
    const std::string key = owner + id;
    if (!items_.insert_or_assign(key, std::move(items)).second) return;
    order_.push_back(key);
    if (order_.size() <= size_) return;
    items_.erase(order_.front());
    order_.pop_front();
  }
  // Input and output items up to this answer, in order.
  std::optional<JsonArray> get(const std::string& id, const std::string& owner = {}) const {
    const std::lock_guard lock(mutex_);
    const auto at = items_.find(owner + id);
    return at != items_.end() ? std::optional(at->second) : std::nullopt;
  }

 private:
  const size_t size_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, JsonArray> items_;
  std::deque<std::string> order_;
};

}  // namespace moesaic
