// The sampler of a step: one block a row; see kernels/sample.h and engine/sampler.cc, whose choices these are. Every
// sum has a fixed order or is of integers, so a row's token depends on nothing but the row.
#include "kernels/cuda/reduce.cuh"
#include "kernels/sample.h"

namespace moesaic {
namespace cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kBins = 256;
constexpr double kMassUnit = 0x1p40;  // of probabilities as integers, whose sums do not depend on their order

// Unsigned integers in the order of the floats; adding 0 merges -0 with +0, which are a tie.
__device__ unsigned order_key(float x) {
  const unsigned bits = __float_as_uint(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ float logit_of(unsigned key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

struct Best {
  float best, second;
  int id;
  int bad;  // 1 + first id that is NaN or +inf, or a large number
};
constexpr int kNoneBad = 0x7FFFFFFF;

__device__ Best better(const Best& a, const Best& b) {
  const bool first = a.best > b.best || (a.best == b.best && a.id < b.id);
  const Best& win = first ? a : b;
  const Best& lose = first ? b : a;
  return {win.best, fmaxf(win.second, lose.best), win.id, min(a.bad, b.bad)};
}

struct Shared {
  Best warps[kWarp];
  double sums[kThreads];
  float scratch[kWarp];
  unsigned long long bins[kBins];
  unsigned long long need;
  unsigned prefix;
  int last;
  int chosen_part;
  double target;
};

__device__ Best block_best(const float* logits, int count, Shared& s) {
  Best mine{-INFINITY, -INFINITY, kNoneBad, kNoneBad};
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const float x = logits[i];
    if (!(x < INFINITY)) mine.bad = min(mine.bad, i + 1);
    else mine = better(mine, {x, -INFINITY, i, kNoneBad});
  }
  for (int d = 16; d > 0; d /= 2) {
    const Best other{__shfl_xor_sync(kAllLanes, mine.best, d), __shfl_xor_sync(kAllLanes, mine.second, d),
                     __shfl_xor_sync(kAllLanes, mine.id, d), __shfl_xor_sync(kAllLanes, mine.bad, d)};
    mine = better(mine, other);
  }
  if (threadIdx.x % kWarp == 0) s.warps[threadIdx.x / kWarp] = mine;
  __syncthreads();
  Best all = s.warps[0];
  for (int w = 1; w < kThreads / kWarp; ++w) all = better(all, s.warps[w]);
  __syncthreads();
  return all;
}

// The distribution so far: engine/sampler.h, Distribution.
struct Rule {
  float best, temperature, min_p, cut_logit;
  int cut_id;

  __device__ float weight(float x, int id) const {
    if (x < cut_logit || (x == cut_logit && id > cut_id)) return 0;
    const float w = expf((x - best) / temperature);
    return w >= min_p ? w : 0;
  }
  __device__ unsigned long long mass(float x, int id) const {
    return static_cast<unsigned long long>(static_cast<double>(weight(x, id)) * kMassUnit);
  }
};

// Cuts behind the last token needed for the mass to reach `need` (top_k: every token counts 1; else share * total): a
// radix selection on the logits' bits, a digit a pass, then the tied tokens by id.
__device__ void cut_after(const float* logits, int count, Rule& rule, bool by_count, double need, Shared& s) {
  const auto mass = [&](int i) -> unsigned long long { return by_count ? 1 : rule.mass(logits[i], i); };
  const int t = static_cast<int>(threadIdx.x);
  if (t == 0) s.prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (t < kBins) s.bins[t] = 0;
    __syncthreads();
    const unsigned prefix = s.prefix;
    for (int i = t; i < count; i += kThreads) {
      const unsigned key = order_key(logits[i]);
      if (shift < 24 && key >> (shift + 8) != prefix) continue;
      const unsigned long long m = mass(i);
      if (m > 0) atomicAdd(&s.bins[key >> shift & 255], m);
    }
    __syncthreads();
    if (t == 0) {
      if (shift == 24) {
        unsigned long long total = 0;
        for (int b = 0; b < kBins; ++b) total += s.bins[b];
        s.need = by_count ? static_cast<unsigned long long>(need)
                          : static_cast<unsigned long long>(need * static_cast<double>(total));
        if (s.need == 0) s.need = 1;
      }
      unsigned digit = 0;
      bool found = false;
      for (int b = kBins - 1; b >= 0 && !found; --b) {
        if (s.bins[b] == 0) continue;
        digit = static_cast<unsigned>(b);
        found = s.bins[b] >= s.need;
        if (!found) s.need -= s.bins[b];
      }
      if (!found) s.need = s.bins[digit];
      s.prefix = prefix << 8 | digit;
    }
    __syncthreads();
  }
  rule.cut_id = 0x7FFFFFFF;
  const float cut = logit_of(s.prefix);
  // Tokens tied at the cut share one mass: how many of them are needed, and which id is the last of those.
  if (t < kWarp) {
    unsigned long long left = s.need;
    int last = 0;
    for (int base = 0; base < count && left > 0; base += kWarp) {
      const int i = base + t;
      const bool tied = i < count && logits[i] == cut;
      const unsigned long long m = tied ? mass(i) : 0;
      unsigned ties = __ballot_sync(kAllLanes, m > 0);
      while (ties != 0 && left > 0) {
        const int lane = __ffs(static_cast<int>(ties)) - 1;
        const unsigned long long one = __shfl_sync(kAllLanes, m, lane);
        last = base + lane;
        left -= min(left, one);
        ties &= ties - 1;
      }
    }
    if (t == 0) s.last = last;
  }
  __syncthreads();
  rule.cut_logit = cut;
  rule.cut_id = s.last;
}

// The token at quantile `uniform` of the cumulative distribution over ids.
__device__ int draw(const float* logits, int count, const Rule& rule, double uniform, Shared& s) {
  const int t = static_cast<int>(threadIdx.x), step = count / kThreads + 1;
  double sum = 0;
  for (int i = t * step; i < min(count, (t + 1) * step); ++i) sum += static_cast<double>(rule.weight(logits[i], i));
  s.sums[t] = sum;
  __syncthreads();
  if (t == 0) {
    double total = 0;
    for (int p = 0; p < kThreads; ++p) total += s.sums[p];
    double target = uniform * total;
    int part = -1;
    for (int p = 0; p < kThreads; ++p) {
      if (s.sums[p] <= 0) continue;
      if (part >= 0) target -= s.sums[part];
      part = p;
      if (target < s.sums[p]) break;
    }
    int chosen = -1;
    double passed = 0;
    for (int i = part * step; part >= 0 && i < min(count, (part + 1) * step) && passed <= target; ++i) {
      const double w = static_cast<double>(rule.weight(logits[i], i));
      if (w > 0) chosen = i;
      passed += w;
    }
    s.last = chosen;
  }
  __syncthreads();
  return s.last;
}

__global__ void __launch_bounds__(kThreads)
    sample_kernel(const float* logits, int vocab, int valid, const SampleRow* rows, SampledRow* sampled,
                  int32_t* next_tokens) {
  after_previous();
  __shared__ Shared s;
  logits += static_cast<int64_t>(blockIdx.x) * vocab;
  const SampleRow row = rows[blockIdx.x];
  const Best best = block_best(logits, valid, s);
  const bool usable = best.bad == kNoneBad && best.best > -INFINITY;
  int id = best.id;
  float logprob = 0;
  if (usable) {
    double sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < valid; i += kThreads)
      sum += static_cast<double>(expf(logits[i] - best.best));
    s.sums[threadIdx.x] = sum;
    __syncthreads();
    for (int d = kThreads / 2; d > 0; d /= 2) {
      if (static_cast<int>(threadIdx.x) < d) s.sums[threadIdx.x] += s.sums[threadIdx.x + d];
      __syncthreads();
    }
    const double log_norm = static_cast<double>(best.best) + log(s.sums[0]);
    __syncthreads();
    if (row.temperature > 0) {
      Rule rule{best.best, row.temperature, 0, -INFINITY, 0x7FFFFFFF};
      if (row.top_k > 0 && row.top_k < valid) cut_after(logits, valid, rule, true, row.top_k, s);
      if (row.top_p < 1) cut_after(logits, valid, rule, false, static_cast<double>(row.top_p), s);
      rule.min_p = row.min_p;
      id = draw(logits, valid, rule, row.uniform, s);
    }
    logprob = static_cast<float>(static_cast<double>(logits[id]) - log_norm);
  }
  if (threadIdx.x != 0) return;
  sampled[blockIdx.x] = {usable ? id : -1, logprob, best.best - best.second, best.bad == kNoneBad ? 0 : best.bad};
  next_tokens[row.slot] = usable ? id : 0;
}

__global__ void feed_kernel(int32_t* token_ids, const int32_t* slots, const int32_t* offsets,
                            const int32_t* next_tokens, int sequences) {
  after_previous();
  const int s = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (s < sequences && token_ids[offsets[s]] < 0) token_ids[offsets[s]] = next_tokens[slots[s]];
}

}  // namespace
}  // namespace cuda

void sample_on_gpu(const float* logits, int64_t count, int64_t vocab, int64_t valid_vocab, const SampleRow* rows,
                   SampledRow* sampled, int32_t* next_tokens, Stream& stream) {
  cuda::launch(cuda::sample_kernel, static_cast<unsigned>(count), cuda::kThreads, 0, stream, logits,
               static_cast<int>(vocab), static_cast<int>(valid_vocab), rows, sampled, next_tokens);
}

void feed_on_gpu(int32_t* token_ids, const int32_t* slots, const int32_t* sequence_offsets, const int32_t* next_tokens,
                 int64_t sequences, Stream& stream) {
  cuda::launch(cuda::feed_kernel, static_cast<unsigned>(cuda::ceil_div(sequences, 128)), 128, 0, stream, token_ids,
               slots, sequence_offsets, next_tokens, static_cast<int>(sequences));
}

}  // namespace moesaic
