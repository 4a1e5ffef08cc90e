#include <algorithm>
#include <functional>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/index.h"

namespace moesaic::cpu {
namespace {

constexpr int64_t kSpreadTokens = 4;  // with fewer tokens per thread than that, long histories are spread by split

// One launch. A buffer holds the candidates of one token, or of one split of it.
struct Selection {
  const OpDesc& desc;
  const Args& args;
  uint64_t* buffers;
  Stream& stream;
  BeginToken begin;
  ScoreBlock score;
  const int64_t top_k = desc.attrs.integer(Attr::top_k), ratio = desc.attrs.integer(Attr::ratio, 1);
  const int64_t block_keys = kBlockTokens / ratio;

  int64_t visible(int64_t t) const { return (args.batch->positions[t] + 1) / ratio; }
  int64_t blocks(int64_t t) const { return (visible(t) + block_keys - 1) / block_keys; }
  uint64_t* buffer(int64_t i) const { return buffers + i * TopCandidates::capacity(top_k); }

  void scan(int64_t t, int64_t first_block, int64_t last_block, int thread, TopCandidates& top) const {
    begin(t, thread);
    float scores[kBlockTokens];
    for (int64_t b = first_block; b < last_block; ++b) {
      const int64_t first = b * block_keys, count = std::min(block_keys, visible(t) - first);
      score(t, first, count, scores, thread);
      for (int64_t i = 0; i < count; ++i) top.add(candidate(scores[i], first + i));
    }
  }
  void write(int64_t t, TopCandidates& top) const {
    int32_t* out = args.output<int32_t>(0) + t * top_k;
    const std::span<uint64_t> best = top.best();
    std::transform(best.begin(), best.end(), out, candidate_position);
    std::sort(out, out + best.size());
    std::fill(out + best.size(), out + top_k, -1);
  }
};

void select_whole(const Selection& s) {
  s.stream.pool->run(s.args.now.tokens, [&](int64_t t, int thread) {
    TopCandidates top(s.buffer(thread), s.top_k);
    s.scan(t, 0, s.blocks(t), thread, top);
    s.write(t, top);
  });
}

// The best of every split, then the best of those: the same choice, since the order of candidates is total.
void select_spread(const Selection& s) {
  const int threads = s.stream.pool->threads();
  const auto split_buffer = [&](int64_t t, int64_t split) { return s.buffer(threads + t * kMaxSplits + split); };
  s.stream.pool->run(s.args.now.tokens * kMaxSplits, [&](int64_t i, int thread) {
    const int64_t t = i / kMaxSplits, split = i % kMaxSplits, n = s.blocks(t);
    TopCandidates top(s.buffer(thread), s.top_k);
    s.scan(t, n * split / kMaxSplits, n * (split + 1) / kMaxSplits, thread, top);
    const std::span<uint64_t> best = top.best();
    *split_buffer(t, split) = best.size();
    std::copy(best.begin(), best.end(), split_buffer(t, split) + 1);
  });
  s.stream.pool->run(s.args.now.tokens, [&](int64_t t, int thread) {
    TopCandidates top(s.buffer(thread), s.top_k);
    for (int64_t split = 0; split < kMaxSplits; ++split) {
      const uint64_t* found = split_buffer(t, split);
      for (uint64_t i = 1; i <= *found; ++i) top.add(found[i]);
    }
    s.write(t, top);
  });
}

}  // namespace

void TopCandidates::shrink() {
  std::nth_element(memory_, memory_ + top_k_ - 1, memory_ + count_, std::greater<>());
  bound_ = memory_[top_k_ - 1];
  count_ = top_k_;
}

int64_t select_workspace(const OpDesc& desc, const DeviceInfo& device) {
  const int64_t spread = device.threads == 1 ? 0 : kSpreadTokens * device.threads * kMaxSplits;
  return (device.threads + spread) * TopCandidates::capacity(desc.attrs.integer(Attr::top_k)) *
         static_cast<int64_t>(sizeof(uint64_t));
}

void select_positions(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream, BeginToken begin,
                      ScoreBlock score) {
  if (args.now.tokens == 0) return;
  const Selection selection{desc, args, reinterpret_cast<uint64_t*>(workspace), stream, begin, score};
  const int threads = stream.pool->threads();
  threads > 1 && args.now.tokens <= kSpreadTokens* threads ? select_spread(selection) : select_whole(selection);
}

}  // namespace moesaic::cpu
