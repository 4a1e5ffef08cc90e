// The exact choice of the top_k largest scores of a token: a radix selection on the bits of the floats, 11 at a time,
// then one pass that counts and one that writes. One block a token; nothing depends on the order of atomics.
#include <algorithm>

#include "kernels/cuda/index_select.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kBins = 2048;
constexpr int kGroups = 256, kGroupBins = kBins / kGroups;
constexpr int kMaxWarps = 32;
constexpr int64_t kLongHistory = 16384;                      // from here on a block has 1024 threads
constexpr int64_t kScoresPerChoice = 64;                     // room for so many scores per entry that a step chooses,
constexpr int64_t kLeastScores = (int64_t{1} << 20) + 1024;  // but at least for a million positions of one token
constexpr int64_t kMostScores = int64_t{1} << 26;

// The order of candidates: NaN below everything.
__device__ __forceinline__ unsigned candidate_key(float score) {
  return score != score ? 0 : order_key(score);
}

// The order keys of scores [i, i + 4), 0 beyond n; how many of the four exist.
__device__ __forceinline__ int load_keys(const float* scores, int i, int n, unsigned (&keys)[4]) {
  if (i >= n) return 0;
  const float4 v = *reinterpret_cast<const float4*>(scores + i);
  keys[0] = candidate_key(v.x), keys[1] = candidate_key(v.y);
  keys[2] = candidate_key(v.z), keys[3] = candidate_key(v.w);
  return min(4, n - i);
}

struct Radix {
  unsigned prefix;  // bits decided so far
  int wanted;       // entries still to be chosen among those with this prefix
  bool all;         // exactly all of them
};

// The digit of `bins`, counted from the top, in which the wanted-th entry falls. The first warp; sums: [kGroups].
__device__ __forceinline__ void find_digit(const int* bins, const int* sums, int shift, Radix& radix) {
  const int lane = static_cast<int>(threadIdx.x);
  int own = 0;  // this lane's groups, the highest first
  for (int i = 0; i < kGroups / kWarp; ++i) own += sums[kGroups - 1 - (lane * (kGroups / kWarp) + i)];
  int before = own;
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) {
    const int other = __shfl_up_sync(kAllLanes, before, d);
    if (lane >= d) before += other;
  }
  before -= own;
  if (before >= radix.wanted || before + own < radix.wanted) return;
  int bin = kBins - 1 - lane * (kBins / kWarp);  // one lane alone
  for (int group = bin / kGroupBins; before + sums[group] < radix.wanted; --group, bin -= kGroupBins)
    before += sums[group];
  for (; before + bins[bin] < radix.wanted; --bin) before += bins[bin];
  radix.prefix |= static_cast<unsigned>(bin) << shift;
  radix.wanted -= before;
  radix.all = radix.wanted == bins[bin];
}

// Finds the smallest key that is chosen, and how many of the entries with it are.
__device__ __forceinline__ Radix find_threshold(const float* scores, int n, int top_k) {
  __shared__ int bins[kBins], sums[kGroups];
  __shared__ Radix found;
  const int tid = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if (tid == 0) found = {0, top_k, false};
  unsigned mask = 0;
  for (int pass = 0; pass < 3; ++pass) {
    const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;
    const unsigned digits = shift == 0 ? 1023u : kBins - 1;
    for (int i = tid; i < kBins; i += threads) bins[i] = 0;
    __syncthreads();
    const Radix radix = found;
    if (radix.all) break;
#pragma unroll 2
    for (int i = tid * 4; i < n; i += threads * 4) {
      unsigned keys[4];
      const int count = load_keys(scores, i, n, keys);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (j < count && (keys[j] & mask) == radix.prefix) atomicAdd(&bins[keys[j] >> shift & digits], 1);
    }
    __syncthreads();
    for (int g = tid; g < kGroups; g += threads) {
      int sum = 0;
      for (int i = 0; i < kGroupBins; ++i) sum += bins[g * kGroupBins + i];
      sums[g] = sum;
    }
    __syncthreads();
    if (tid < kWarp) {
      Radix next = radix;
      find_digit(bins, sums, shift, next);
      if (next.wanted != radix.wanted || next.prefix != radix.prefix || next.all) found = next;
    }
    __syncthreads();
    mask |= digits << shift;
  }
  __syncthreads();
  return found;
}

// out[t][top_k]; scores of local token i at i * stride; stride % 4 == 0.
__global__ void __launch_bounds__(kMaxWarps* kWarp)
    select_kernel(IndexEntries entries, const float* all_scores, int64_t stride, int64_t first_token, int top_k,
                  int32_t* out) {
  after_previous();
  __shared__ int above_of[kMaxWarps], equal_of[kMaxWarps];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % kWarp, warp = tid / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int64_t t = first_token + blockIdx.x;
  const int n = entries.visible(t);
  out += t * top_k;
  if (n <= top_k) {
    for (int i = tid; i < top_k; i += static_cast<int>(blockDim.x)) out[i] = i < n ? i : -1;
    return;
  }
  const float* scores = all_scores + blockIdx.x * stride;
  const Radix radix = find_threshold(scores, n, top_k);
  const unsigned threshold = radix.prefix;  // keys of a prefix cut short are all at or above it
  const bool whole = radix.all;
  const auto above = [&](unsigned key) { return whole ? key >= threshold : key > threshold; };
  const auto equal = [&](unsigned key) { return !whole && key == threshold; };

  const int segment = ceil_div(n, warps * 4 * kWarp) * 4 * kWarp;  // of a warp: consecutive entries
  const int begin = min(n, warp * segment), end = min(n, begin + segment);
  int above_count = 0, equal_count = 0;
#pragma unroll 2
  for (int i = begin + lane * 4; i < end; i += 4 * kWarp) {
    unsigned keys[4];
    const int count = load_keys(scores, i, n, keys);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j >= count) continue;
      above_count += above(keys[j]) ? 1 : 0;
      equal_count += equal(keys[j]) ? 1 : 0;
    }
  }
  above_count = __reduce_add_sync(kAllLanes, above_count);
  equal_count = __reduce_add_sync(kAllLanes, equal_count);
  if (lane == 0) above_of[warp] = above_count, equal_of[warp] = equal_count;
  __syncthreads();
  int above_before = 0, equal_before = 0;
  for (int w = 0; w < warp; ++w) above_before += above_of[w], equal_before += equal_of[w];

  for (int i = begin; i < end; i += 4 * kWarp) {  // all lanes together
    unsigned keys[4];
    const int at = i + lane * 4, count = load_keys(scores, at, n, keys);
    int own = 0;  // entries above in the low half, equal ones in the high half
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (j < count) own += (above(keys[j]) ? 1 : 0) + (equal(keys[j]) ? 1 << 16 : 0);
    if (__any_sync(kAllLanes, own) == 0) continue;
    int sum = own;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int other = __shfl_up_sync(kAllLanes, sum, d);
      if (lane >= d) sum += other;
    }
    int a = above_before + ((sum - own) & 0xFFFF), e = equal_before + ((sum - own) >> 16);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j >= count) continue;
      const bool is_above = above(keys[j]), is_equal = equal(keys[j]);
      if (is_above || (is_equal && e < radix.wanted)) out[a + min(e, radix.wanted)] = at + j;
      a += is_above ? 1 : 0, e += is_equal ? 1 : 0;
    }
    sum = __shfl_sync(kAllLanes, sum, kWarp - 1);
    above_before += sum & 0xFFFF, equal_before += sum >> 16;
  }
}

}  // namespace

IndexEntries index_entries(const OpDesc& desc, const Args& args) {
  const BatchView& batch = *args.batch;
  return {.blocks = args.cache.blocks,
          .block_stride = args.cache.block_stride,
          .block_tables = batch.block_tables,
          .positions = batch.positions,
          .sequence_of = batch.sequence_of,
          .max_blocks = batch.max_blocks,
          .ratio = static_cast<int>(desc.attrs.integer(Attr::ratio, 1))};
}

int64_t score_bytes(const OpDesc& desc) {
  const int64_t wanted = desc.bounds.tokens * desc.attrs.integer(Attr::top_k) * kScoresPerChoice;
  return std::max(kLeastScores, std::min(wanted, kMostScores)) * static_cast<int64_t>(sizeof(float));
}

IndexTurns index_turns(const OpDesc& desc, const Args& args, float* scores) {
  const int64_t bytes = score_bytes(desc);
  const int64_t entries = ceil_div(args.batch->max_blocks * kBlockTokens, desc.attrs.integer(Attr::ratio, 1));
  const int64_t stride = ceil_div(std::max<int64_t>(1, entries), 4) * 4;
  const int64_t chunk = bytes / static_cast<int64_t>(sizeof(float)) / stride;
  CHECK(chunk > 0, "index scores of {} entries do not fit the workspace of {} bytes", entries, bytes);
  return {scores, std::min<int64_t>(chunk, 65535), stride};
}

void select_entries(const OpDesc& desc, const Args& args, const IndexTurns& turns, int64_t first, int64_t tokens,
                    Stream& stream) {
  const unsigned threads = turns.stride >= kLongHistory ? kMaxWarps * kWarp : 256;
  launch(select_kernel, static_cast<unsigned>(tokens), threads, 0, stream, index_entries(desc, args), turns.scores,
         turns.stride, first, static_cast<int>(desc.attrs.integer(Attr::top_k)), args.output<int32_t>(0));
}

}  // namespace moesaic::cuda
