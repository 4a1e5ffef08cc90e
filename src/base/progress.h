// Progress: one line on stderr that redraws itself on a terminal, and stays silent elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace moesaic {

enum class ProgressUnit { bytes, items };

class Progress {
 public:
  // `enabled` false, or stderr not a terminal, draws nothing.
  Progress(std::string label, int64_t total, ProgressUnit unit, bool enabled = true);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t amount);
  // Told of every advance, drawn or not.
  void on_advance(std::function<void(int64_t done, int64_t total)> told) { told_ = std::move(told); }
  // Removes the line; called by the destructor.
  void finish();

 private:
  void draw();

  const std::string label_;
  const int64_t total_;
  const ProgressUnit unit_;
  bool drawing_;
  int64_t done_ = 0;
  std::function<void(int64_t, int64_t)> told_;
  std::chrono::steady_clock::time_point start_, drawn_;
};

// "25.2 MB", "1.16 GB" (powers of ten) and "3.61 B", "31.1 M" for counts.
std::string human_bytes(double bytes);
std::string human_count(double count);

}  // namespace moesaic
