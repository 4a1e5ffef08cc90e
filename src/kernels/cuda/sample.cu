// The sampler of a step; see kernels/sample.h and engine/sampler.cc, whose choices these are. A first launch finds the
// best logits and the normaliser of each part of a row, a block a part; a second one, a block a row, merges them and
// draws where that is asked for. Every sum has a fixed order or is of integers, so a row's token depends on nothing but
// the row.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/sample.h"

namespace moesaic {
namespace cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kPartThreads = 512;
constexpr int kInFlight = 4;     // loads of 4 logits a thread
constexpr int kLeastPart = 256;  // logits: fewer are not worth a block
constexpr int kBins = 256;
constexpr double kMassUnit = 0x1p40;  // of probabilities as integers, whose sums do not depend on their order

__device__ float logit_of(unsigned key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

struct Best {
  float best, second;
  int id;
  int bad;  // 1 + first id that is NaN or +inf, or a large number
};
constexpr int kNoneBad = 0x7FFFFFFF;
__device__ Best nothing() {
  return {-INFINITY, -INFINITY, kNoneBad, kNoneBad};
}

__device__ Best better(const Best& a, const Best& b) {
  const bool first = a.best > b.best || (a.best == b.best && a.id < b.id);
  const Best& win = first ? a : b;
  const Best& lose = first ? b : a;
  return {win.best, fmaxf(win.second, lose.best), win.id, min(a.bad, b.bad)};
}

// Of the logits of a part.
struct Partial {
  Best best;
  double sum;  // of exp(logit - best)
};
static_assert(sizeof(Partial) == kSamplePartBytes && kSampleParts <= kWarp);

struct Shared {
  double sums[kThreads];
  unsigned long long bins[kBins];
  unsigned long long need;
  unsigned prefix;
  int last;
  int chosen_part;
  double target;
};

// Folds of a value a lane; all lanes get the result.
__device__ Best warp_best(Best mine) {
  for (int d = kWarp / 2; d > 0; d /= 2) {
    const Best other{__shfl_xor_sync(kAllLanes, mine.best, d), __shfl_xor_sync(kAllLanes, mine.second, d),
                     __shfl_xor_sync(kAllLanes, mine.id, d), __shfl_xor_sync(kAllLanes, mine.bad, d)};
    mine = better(mine, other);
  }
  return mine;
}
__device__ double warp_total(double x) {
  for (int d = kWarp / 2; d > 0; d /= 2) x += __shfl_xor_sync(kAllLanes, x, d);
  return x;
}

// Logits i..i+3 as far as they come before `end`, else others of the row: a load without a condition can start early.
template <bool kAligned>
__device__ __forceinline__ float4 four_logits(const float* logits, int i, int end) {
  const auto at = [&](int j) { return logits[min(j, end - 1)]; };
  if constexpr (!kAligned) return make_float4(at(i), at(i + 1), at(i + 2), at(i + 3));
  else return *reinterpret_cast<const float4*>(logits + min(i, (end - 1) / 4 * 4));
}

// use(logit, id) for the thread's share of [begin, end), ids ascending, and for some -inf behind the end.
template <bool kAligned, typename Use>
__device__ __forceinline__ void for_each_logit(const float* logits, int begin, int end, Use use) {
  constexpr int kStep = 4 * kPartThreads;
  for (int base = begin + 4 * static_cast<int>(threadIdx.x); base < end; base += kStep * kInFlight) {
    float4 x[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) x[k] = four_logits<kAligned>(logits, base + k * kStep, end);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int i = base + k * kStep;
      use(i < end ? x[k].x : -INFINITY, i);
      use(i + 1 < end ? x[k].y : -INFINITY, i + 1);
      use(i + 2 < end ? x[k].z : -INFINITY, i + 2);
      use(i + 3 < end ? x[k].w : -INFINITY, i + 3);
    }
  }
}

// Grid (rows, parts): partials[row][part] of the part's `size` logits; size and, if kAligned, vocab are multiples of 4.
template <bool kAligned>
__global__ void __launch_bounds__(kPartThreads, 1)
    part_kernel(const float* logits, int vocab, int valid, int size, Partial* partials) {
  after_previous();
  constexpr int kWarps = kPartThreads / kWarp;
  __shared__ Best warps[kWarps];
  __shared__ double sums[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int begin = static_cast<int>(blockIdx.y) * size, end = min(begin + size, valid);
  logits += static_cast<int64_t>(blockIdx.x) * vocab;

  Best mine = nothing();
  for_each_logit<kAligned>(logits, begin, end, [&](float x, int i) {
    const bool good = x < INFINITY, best = good && x > mine.best;
    if (!good) mine.bad = min(mine.bad, i + 1);
    else mine.second = fmaxf(mine.second, best ? mine.best : x);
    if (best) mine.best = x, mine.id = i;
  });
  mine = warp_best(mine);
  if (lane == 0) warps[warp] = mine;
  __syncthreads();
  const Best best = warp_best(lane < kWarps ? warps[lane] : nothing());
  double sum = 0;
  if (best.best > -INFINITY)
    for_each_logit<kAligned>(logits, begin, end,
                             [&](float x, int) { sum += static_cast<double>(expf(x - best.best)); });
  sum = warp_total(sum);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (warp != 0) return;
  sum = warp_total(lane < kWarps ? sums[lane] : 0);
  if (lane == 0) partials[static_cast<int64_t>(blockIdx.x) * gridDim.y + blockIdx.y] = {best, sum};
}

// Of the whole row, in every warp alike.
__device__ Partial merge(const Partial* partials, int parts) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  Partial part{nothing(), 0};
  if (lane < parts) part = partials[lane];
  const Best best = warp_best(part.best);
  return {best, warp_total(part.sum * exp(static_cast<double>(part.best.best) - static_cast<double>(best.best)))};
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

__global__ void __launch_bounds__(kThreads, 1)
    sample_kernel(const float* logits, int vocab, int valid, const Partial* partials, int parts, const SampleRow* rows,
                  SampledRow* sampled, int32_t* next_tokens) {
  after_previous();
  __shared__ Shared s;
  logits += static_cast<int64_t>(blockIdx.x) * vocab;
  const SampleRow row = rows[blockIdx.x];
  const Partial whole = merge(partials + static_cast<int64_t>(blockIdx.x) * parts, parts);
  const Best& best = whole.best;
  const bool usable = best.bad == kNoneBad && best.best > -INFINITY;
  int id = best.id;
  float logit = best.best;
  if (usable && row.temperature > 0) {
    Rule rule{best.best, row.temperature, 0, -INFINITY, 0x7FFFFFFF};
    if (row.top_k > 0 && row.top_k < valid) cut_after(logits, valid, rule, true, row.top_k, s);
    if (row.top_p < 1) cut_after(logits, valid, rule, false, static_cast<double>(row.top_p), s);
    rule.min_p = row.min_p;
    id = draw(logits, valid, rule, row.uniform, s);
    logit = logits[id];
  }
  if (threadIdx.x != 0) return;
  const double logprob = static_cast<double>(logit) - static_cast<double>(best.best) - log(whole.sum);
  sampled[blockIdx.x] = {usable ? id : -1, usable ? static_cast<float>(logprob) : 0, best.best - best.second,
                         best.bad == kNoneBad ? 0 : best.bad};
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
                   SampledRow* sampled, int32_t* next_tokens, std::byte* workspace, Stream& stream) {
  const int width = static_cast<int>(vocab), valid = static_cast<int>(valid_vocab);
  const int parts = std::clamp(valid / cuda::kLeastPart, 1, static_cast<int>(kSampleParts));
  const int size = 4 * cuda::ceil_div(valid, 4 * parts);
  const bool aligned = width % 4 == 0 && reinterpret_cast<uintptr_t>(logits) % sizeof(float4) == 0;
  const auto blocks = static_cast<unsigned>(count);
  auto* partials = reinterpret_cast<cuda::Partial*>(workspace);
  cuda::launch(aligned ? cuda::part_kernel<true> : cuda::part_kernel<false>, dim3(blocks, static_cast<unsigned>(parts)),
               cuda::kPartThreads, 0, stream, logits, width, valid, size, partials);
  cuda::launch(cuda::sample_kernel, blocks, cuda::kThreads, 0, stream, logits, width, valid, partials, parts, rows,
               sampled, next_tokens);
}

void feed_on_gpu(int32_t* token_ids, const int32_t* slots, const int32_t* sequence_offsets, const int32_t* next_tokens,
                 int64_t sequences, Stream& stream) {
  cuda::launch(cuda::feed_kernel, static_cast<unsigned>(cuda::ceil_div(sequences, 128)), 128, 0, stream, token_ids,
               slots, sequence_offsets, next_tokens, static_cast<int>(sequences));
}

}  // namespace moesaic
