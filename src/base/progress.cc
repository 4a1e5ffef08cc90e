#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace moesaic {
namespace {

std::string scaled(double value, const std::array<const char*, 5>& units) {
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < units.size()) value /= 1000, ++unit;
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}{}", value, decimals, *units[unit] != '\0' ? " " : "", units[unit]);
}

constexpr auto kRedraw = std::chrono::milliseconds(80);

}  // namespace

std::string human_bytes(double bytes) {
  return scaled(bytes, {"B", "kB", "MB", "GB", "TB"});
}

std::string human_count(double count) {
  return scaled(count, {"", "k", "M", "B", "T"});
}

Progress::Progress(std::string label, int64_t total, ProgressUnit unit, bool enabled)
    : label_(std::move(label)),
      total_(std::max<int64_t>(total, 1)),
      unit_(unit),
      drawing_(enabled && isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()),
      drawn_(start_) {}

Progress::~Progress() {
  finish();
}

void Progress::advance(int64_t amount) {
  done_ += amount;
  if (told_) told_(done_, total_);
  const auto now = std::chrono::steady_clock::now();
  if (!drawing_ || now - drawn_ < kRedraw) return;
  drawn_ = now;
  draw();
}

void Progress::draw() {
  constexpr int kWidth = 30;
  const double fraction = std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  const double seconds = std::chrono::duration<double>(drawn_ - start_).count();
  const double rate = seconds > 0 ? static_cast<double>(done_) / seconds : 0;
  const int64_t left = rate > 0 ? static_cast<int64_t>(static_cast<double>(total_ - done_) / rate) : 0;
  const auto human = unit_ == ProgressUnit::bytes ? human_bytes : human_count;
  const int filled = static_cast<int>(fraction * kWidth);
  fmt::print(stderr, "\r\033[K{} [{}{}] {:3.0f}%  {}/s  {}:{:02} left", label_,
             std::string(static_cast<size_t>(filled), '#'), std::string(static_cast<size_t>(kWidth - filled), '.'),
             fraction * 100, human(rate), left / 60, left % 60);
  std::fflush(stderr);
}

void Progress::finish() {
  if (drawing_) fmt::print(stderr, "\r\033[K");
  drawing_ = false;
}

}  // namespace moesaic
