// What the two index_topk kernels share: exact selection of the largest scores, and how a step is cut into tasks.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "base/function_ref.h"
#include "kernels/kernel.h"

namespace moesaic::cpu {

// A number that orders candidates: larger score first, then lower position; NaN comes after everything. Never 0.
inline uint64_t candidate(float score, int64_t position) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes 0: they tie
  const uint32_t order = score != score ? 0 : (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(order) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(position));
}
inline int32_t candidate_position(uint64_t candidate) {
  return static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(candidate));
}

// Keeps the `top_k` largest of a stream of candidates in `memory` of capacity(top_k) numbers: when that is full, a
// partial selection drops all but the best. Linear in the number of candidates on average.
class TopCandidates {
 public:
  static constexpr int64_t capacity(int64_t top_k) { return 2 * top_k + 64; }

  TopCandidates(uint64_t* memory, int64_t top_k) : memory_(memory), top_k_(top_k) {}

  void add(uint64_t candidate) {
    if (candidate <= bound_) return;
    memory_[count_++] = candidate;
    if (count_ == capacity(top_k_)) shrink();
  }
  // The best, in no order: at most top_k of them.
  std::span<uint64_t> best() {
    if (count_ > top_k_) shrink();
    return {memory_, static_cast<size_t>(count_)};
  }

 private:
  void shrink();

  uint64_t* memory_;
  int64_t top_k_, count_ = 0;
  uint64_t bound_ = 0;  // candidates up to here are beaten by top_k others
};

// Scores of the cache block of keys that starts at position `first` (64 of them, or 64 / ratio), of which `count` are
// visible, for token t.
using ScoreBlock = function_ref<void(int64_t t, int64_t first, int64_t count, float* scores, int thread)>;
// Prepares thread's scratch for token t, before its blocks are scored.
using BeginToken = function_ref<void(int64_t t, int thread)>;

int64_t select_workspace(const OpDesc& desc, const DeviceInfo& device);
// Writes the positions of every token of the step, in ascending order and then -1.
void select_positions(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream, BeginToken begin,
                      ScoreBlock score);

}  // namespace moesaic::cpu
