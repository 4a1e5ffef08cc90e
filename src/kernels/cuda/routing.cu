// route, dispatch, combine: who computes a token, in which order, and the sum of what came out. A token's route and
// combination do not depend on the other tokens; dispatch places rows by prefix sums, never in order of arrival.
#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/combine.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kMostExperts = 1024;

// ---- route

struct Route {
  const float* logits;       // [T, E]
  const float* bias;         // [E] or null: decides the choice alone
  const int32_t* table;      // [V, k] or null: the choice by token id
  const int32_t* token_ids;  // [T], where there is a table
  const int32_t* live;       // [1] tokens from this one on are padding and go nowhere (id -1); null: none are
  int64_t T;
  int E, k, groups, kept, group_lanes;
  Scoring scoring;
  bool normalize;
  float scale;
  float* weights;  // [T, k]
  int32_t* ids;    // [T, k]

  // Floats of shared memory that a warp needs.
  __host__ __device__ int warp_values() const { return groups > 1 ? E + 2 * groups : 0; }
};

// The order of experts, above 0: NaN as -inf.
__device__ __forceinline__ unsigned expert_key(float x) {
  return order_key(x != x ? -INFINITY : x);
}

// A token's experts lie in a warp: expert i * 32 + lane is slot i of the lane.
template <int kSlots>
struct Slots {
  unsigned key[kSlots];  // what is chosen by; 0: chosen, or no expert
  unsigned best = 0;     // the lane's largest key, and its first slot
  int at = 0;

  __device__ __forceinline__ void find_best() {
    best = 0, at = 0;
#pragma unroll
    for (int i = 0; i < kSlots; ++i)
      if (key[i] > best) best = key[i], at = i;
  }
  // The expert with the largest key of the warp, ties to the lowest; it is taken out.
  __device__ __forceinline__ int take(int lane) {
    const unsigned top = __reduce_max_sync(kAllLanes, best);
    const unsigned own = best == top ? static_cast<unsigned>(at * kWarp + lane) : ~0u;
    const unsigned id = __reduce_min_sync(kAllLanes, own);
    if (id == own) {
#pragma unroll
      for (int i = 0; i < kSlots; ++i)
        if (i == at) key[i] = 0;
      find_best();
    }
    return static_cast<int>(id);
  }
};

// What a softmax over all experts divides by.
struct Softmax {
  float top = 0, total = 1;
};

__device__ __forceinline__ float score_of(Scoring scoring, float logit, const Softmax& over) {
  if (scoring == Scoring::sigmoid) return sigmoid(logit);
  if (scoring == Scoring::sqrt_softplus) return sqrtf(logit > 30 ? logit : log1pf(expf(logit)));
  return expf(logit - over.top) / over.total;
}

template <int kSlots>
__device__ __forceinline__ Softmax softmax_over(const Route& a, const float (&logit)[kSlots], int lane) {
  float top = -INFINITY, total = 0;
#pragma unroll
  for (int i = 0; i < kSlots; ++i) top = fmaxf(top, logit[i]);
  top = warp_max(top);
#pragma unroll
  for (int i = 0; i < kSlots; ++i)
    if (i * kWarp + lane < a.E) total += expf(logit[i] - top);
  return {top, warp_sum(total)};
}

// Gives the keys of experts outside the `kept` best groups that of -inf. A group scores the sum of its two largest
// values (of its one, if it has no more). `values` [E] and `scratch` [2 * groups] are the warp's own shared memory;
// group_lanes lanes, a power of two, read a group.
template <int kSlots>
__device__ void mask_groups(const Route& a, const float* values, unsigned* scratch, int lane, Slots<kSlots>& slots) {
  const int size = a.E / a.groups, lanes = a.group_lanes;
  unsigned *scores = scratch, *lost = scratch + a.groups;
  for (int begin = 0; begin < a.groups; begin += kWarp / lanes) {
    const int g = begin + lane / lanes;
    float first = -INFINITY, second = -INFINITY;
    for (int m = lane % lanes; g < a.groups && m < size; m += lanes) {
      const float v = values[g * size + m];
      if (v > first) second = first, first = v;
      else if (v > second) second = v;
    }
    for (int d = 1; d < lanes; d *= 2) {
      const float other = __shfl_xor_sync(kAllLanes, first, d), runner_up = __shfl_xor_sync(kAllLanes, second, d);
      second = fmaxf(fminf(first, other), fmaxf(second, runner_up));
      first = fmaxf(first, other);
    }
    if (g < a.groups && lane % lanes == 0) scores[g] = expert_key(size > 1 ? first + second : first);
  }
  __syncwarp();
  for (int g = lane; g < a.groups; g += kWarp) {
    int before = 0;
    for (int other = 0; other < a.groups; ++other)
      before += static_cast<int>(scores[other] > scores[g] || (scores[other] == scores[g] && other < g));
    lost[g] = before < a.kept ? 0 : 1;
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const int e = i * kWarp + lane;
    if (e < a.E && lost[e / size] != 0) slots.key[i] = expert_key(-INFINITY);
  }
}

// What experts are chosen by. A softmax that nothing is added to keeps the order of its logits, without their rounding;
// after a NaN all its scores are NaN.
template <int kSlots>
__device__ void set_keys(const Route& a, const float (&logit)[kSlots], const Softmax& over, int lane, float* values,
                         Slots<kSlots>& slots) {
  const bool by_logit = a.scoring == Scoring::softmax_chosen || (a.scoring == Scoring::softmax && a.bias == nullptr &&
                                                                 a.groups == 1 && over.total == over.total);
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const int e = i * kWarp + lane;
    slots.key[i] = 0;
    if (e >= a.E) continue;
    float value = by_logit ? logit[i] : score_of(a.scoring, logit[i], over);
    if (a.bias != nullptr) value += a.bias[e];
    slots.key[i] = expert_key(value);
    if (a.groups > 1) values[e] = value;
  }
  if (a.groups == 1) return;
  __syncwarp();
  mask_groups(a, values, reinterpret_cast<unsigned*>(values + a.E), lane, slots);
}

// Token t, by a warp; lane j returns choice j, -1 of padding. `values`: shared memory of the warp where there are
// groups. E <= 32 * kSlots, k <= 32.
template <int kSlots>
__device__ __forceinline__ int route_token(const Route& a, int64_t t, int lane, float* values) {
  const float* logits = a.logits + t * a.E;
  float logit[kSlots];
#pragma unroll
  for (int i = 0; i < kSlots; ++i) logit[i] = i * kWarp + lane < a.E ? logits[i * kWarp + lane] : -INFINITY;
  Softmax over;
  if (a.scoring == Scoring::softmax) over = softmax_over(a, logit, lane);
  int id = 0;
  if (a.table != nullptr) {
    if (lane < a.k) id = a.table[static_cast<int64_t>(a.token_ids[t]) * a.k + lane];
  } else {
    Slots<kSlots> slots;
    set_keys(a, logit, over, lane, values, slots);
    slots.find_best();
    for (int j = 0; j < a.k; ++j) {
      const int taken = slots.take(lane);
      if (lane == j) id = taken;
    }
  }
  const float chosen = lane < a.k ? logits[id] : 0;
  if (a.scoring == Scoring::softmax_chosen) over.top = __shfl_sync(kAllLanes, chosen, 0);
  const float score = lane < a.k ? score_of(a.scoring, chosen, over) : 0;
  float divisor = a.normalize ? warp_sum(score) : 1;
  if (a.scoring == Scoring::sigmoid || a.scoring == Scoring::sqrt_softplus) divisor += a.normalize ? 1e-20f : 0;
  if (a.live != nullptr && t >= *a.live) id = -1;
  if (lane < a.k) a.weights[t * a.k + lane] = score / divisor * a.scale, a.ids[t * a.k + lane] = id;
  return id;
}

// A warp a token.
template <int kSlots>
__global__ void __launch_bounds__(128) route_kernel(Route a) {
  after_previous();
  const int warp = static_cast<int>(threadIdx.y);
  const int64_t t = static_cast<int64_t>(blockIdx.x) * blockDim.y + warp;
  if (t < a.T)
    route_token<kSlots>(a, t, static_cast<int>(threadIdx.x), dynamic_shared<float>() + warp * a.warp_values());
}

const char* refuse_route(const OpDesc& desc, const DeviceInfo& device) {
  if (width_of(desc.in(0)) > kMostExperts) return "at most 1024 experts";
  if (width_of(desc.out(0)) > kWarp) return "at most 32 experts a token";
  return refuse_types(desc, device);
}

Route route_of(const OpDesc& desc, const Args& args) {
  const bool second = desc.inputs.size() > 1, hash = second && desc.in(1).type.rank() == 2;
  const auto scoring = static_cast<Scoring>(desc.attrs.integer(Attr::scoring, 0));
  const bool chosen = scoring == Scoring::softmax_chosen;  // knows no bias, groups or scale
  Route a{.logits = args.input<float>(0),
          .bias = second && !hash && !chosen ? args.input<float>(1) : nullptr,
          .table = hash && !chosen ? args.input<int32_t>(1) : nullptr,
          .token_ids = hash ? args.batch->token_ids : nullptr,
          .live = args.batch != nullptr ? args.batch->live_tokens : nullptr,
          .T = args.now.tokens,
          .E = static_cast<int>(width_of(desc.in(0))),
          .k = static_cast<int>(width_of(desc.out(0))),
          .groups = chosen ? 1 : static_cast<int>(desc.attrs.integer(Attr::groups, 1)),
          .kept = static_cast<int>(desc.attrs.integer(Attr::top_groups, 1)),
          .group_lanes = 1,
          .scoring = scoring,
          .normalize = chosen || desc.attrs.integer(Attr::normalize, 0) != 0,
          .scale = chosen ? 1.0f : static_cast<float>(desc.attrs.number(Attr::routed_scale, 1)),
          .weights = args.output<float>(0),
          .ids = args.output<int32_t>(1)};
  while (2 * a.group_lanes * a.groups <= kWarp) a.group_lanes *= 2;
  return a;
}

void route(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const Route a = route_of(desc, args);
  const unsigned warps = a.T > 1024 ? 4 : 1;  // a decode step spreads its few tokens over the device
  const size_t shared = warps * static_cast<size_t>(a.warp_values()) * 4;
  auto* kernel = route_kernel<32>;
  if (a.E <= 128) kernel = route_kernel<4>;
  else if (a.E <= 256) kernel = route_kernel<8>;
  else if (a.E <= 384) kernel = route_kernel<12>;
  else if (a.E <= 512) kernel = route_kernel<16>;
  launch(kernel, static_cast<unsigned>(ceil_div(a.T, int64_t{warps})), {kWarp, warps}, shared, stream, a);
}

// ---- dispatch

constexpr int64_t kOneBlockRows = 8192, kChunkRows = 2048;
constexpr int kCountThreads = 256, kMostSteps = 8;                  // a warp places up to 8 * 32 rows
constexpr int kFewThreads = 512, kFewTokens = kFewThreads / kWarp;  // that one launch routes and places
constexpr int kFewestTokens = 5;                                    // fewer are faster in two launches

struct Dispatch {
  const int32_t* ids;  // [R]: expert of row r, slot r % k of token r / k; none where it is not in [0, E)
  int R, k, E;
  int chunk;    // rows of a block
  int warps;    // of a block that place rows
  int* counts;  // [blocks, E] rows of each block and expert; null where there is one block
  int32_t *rows, *offsets, *places;
};

// counts[block, e] of a chunk.
__global__ void count_rows_kernel(Dispatch a) {
  after_previous();
  int* count = dynamic_shared<int>();
  for (int e = static_cast<int>(threadIdx.x); e < a.E; e += kCountThreads) count[e] = 0;
  __syncthreads();
  const int begin = static_cast<int>(blockIdx.x) * a.chunk, end = min(begin + a.chunk, a.R);
  for (int r = begin + static_cast<int>(threadIdx.x); r < end; r += kCountThreads) {
    const int id = a.ids[r];
    if (id >= 0 && id < a.E) atomicAdd(&count[id], 1);
  }
  __syncthreads();
  int* out = a.counts + static_cast<int64_t>(blockIdx.x) * a.E;
  for (int e = static_cast<int>(threadIdx.x); e < a.E; e += kCountThreads) out[e] = count[e];
}

// Places the rows of a chunk: after those of lower experts, of earlier blocks, of earlier warps and of lower lanes with
// the same expert. Warp w has rows [w, w + 1) * span of the chunk, in order. At least E threads.
__device__ __forceinline__ void place_rows(const Dispatch& a) {
  int* base = dynamic_shared<int>();                    // [E] where this block's rows of an expert begin
  int *scratch = base + a.E, &placed = scratch[kWarp];  // [32]; rows of all experts
  auto* counts =
      reinterpret_cast<uint16_t*>(scratch + kWarp + 1);  // [warps, E] first rows so far, then of warps before
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int begin = static_cast<int>(blockIdx.x) * a.chunk, end = min(begin + a.chunk, a.R);
  const int span = (a.chunk / kWarp + a.warps - 1) / a.warps * kWarp;
  const int first = begin + warp * span, last = warp < a.warps ? min(first + span, end) : first;

  int id[kMostSteps], rank[kMostSteps];
#pragma unroll
  for (int s = 0; s < kMostSteps; ++s) {
    const int r = first + s * kWarp + lane;
    id[s] = r < last ? a.ids[r] : -1;
    if (id[s] >= a.E) id[s] = -1;
  }
  for (int i = thread; i < a.warps * a.E; i += static_cast<int>(blockDim.x)) counts[i] = 0;
  __syncthreads();
  uint16_t* own = counts + warp * a.E;
#pragma unroll
  for (int s = 0; s < kMostSteps; ++s) {
    if (first + s * kWarp >= last) break;
    const unsigned same = __match_any_sync(kAllLanes, id[s]), lower = same & ((1u << lane) - 1);
    const bool real = id[s] >= 0;
    rank[s] = (real ? own[id[s]] : 0) + __popc(lower);
    __syncwarp();
    if (real && lower == 0) own[id[s]] = static_cast<uint16_t>(own[id[s]] + __popc(same));
    __syncwarp();
  }
  __syncthreads();

  int mine = 0, before = 0;  // rows of expert `thread` in this block, and in those before
  if (thread < a.E) {
    for (int w = 0; w < a.warps; ++w) {
      const int here = counts[w * a.E + thread];
      counts[w * a.E + thread] = static_cast<uint16_t>(mine);
      mine += here;
    }
  }
  int everywhere = mine;
  if (a.counts != nullptr && thread < a.E) {
    everywhere = 0;
#pragma unroll 8
    for (int b = 0; b < static_cast<int>(gridDim.x); ++b) {
      const int there = a.counts[static_cast<int64_t>(b) * a.E + thread];
      everywhere += there;
      if (b < static_cast<int>(blockIdx.x)) before += there;
    }
  }
  int total;
  const int offset = sum_before(everywhere, scratch, total);
  if (thread < a.E) base[thread] = offset + before;
  if (blockIdx.x == 0 && thread < a.E) a.offsets[thread] = offset;
  if (thread == a.E - 1) {
    placed = offset + everywhere;
    if (blockIdx.x == 0) a.offsets[a.E] = placed;
  }
  __syncthreads();

#pragma unroll
  for (int s = 0; s < kMostSteps; ++s) {
    const int r = first + s * kWarp + lane;
    if (r >= last) break;
    const int place = id[s] >= 0 ? base[id[s]] + own[id[s]] + rank[s] : -1;
    a.places[r] = place;
    if (place >= 0) a.rows[place] = r / a.k;
    if (r >= placed) a.rows[r] = 0;  // rows of none
  }
}

__global__ void __launch_bounds__(1024) place_rows_kernel(Dispatch a) {
  after_previous();
  place_rows(a);
}

// Routes a token a warp, then places the rows of all: one block.
template <int kSlots>
__global__ void __launch_bounds__(kFewThreads) route_few_kernel(Route route, Dispatch dispatch) {
  after_previous();
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  __shared__ int32_t ids[kFewTokens * kWarp];
  if (warp < route.T) {
    const int id = route_token<kSlots>(route, warp, lane, dynamic_shared<float>() + warp * route.warp_values());
    if (lane < route.k) ids[warp * route.k + lane] = id;
  }
  __syncthreads();
  dispatch.ids = ids;
  place_rows(dispatch);
}

int64_t dispatch_blocks(int64_t rows) {
  return rows <= kOneBlockRows ? 1 : ceil_div(rows, kChunkRows);
}

int64_t dispatch_workspace(const OpDesc& desc, const DeviceInfo&) {
  const int64_t blocks = dispatch_blocks(desc.bounds.tokens * width_of(desc.in(0)));
  return blocks > 1 ? blocks * desc.attrs.integer(Attr::experts) * 4 : 0;
}

const char* refuse_dispatch(const OpDesc& desc, const DeviceInfo& device) {
  if (desc.attrs.integer(Attr::experts) > kMostExperts) return "at most 1024 experts";
  return refuse_types(desc, device);
}

Dispatch dispatch_of(const OpDesc& desc, const Args& args, std::byte* workspace) {
  const int64_t k = width_of(desc.in(0)), R = args.now.tokens * k, blocks = dispatch_blocks(R);
  const int64_t chunk = blocks > 1 ? kChunkRows : ceil_div(std::max(R, int64_t{1}), int64_t{kWarp}) * kWarp;
  return {.ids = args.input<int32_t>(0),
          .R = static_cast<int>(R),
          .k = static_cast<int>(k),
          .E = static_cast<int>(desc.attrs.integer(Attr::experts)),
          .chunk = static_cast<int>(chunk),
          .warps = static_cast<int>(std::min(chunk / kWarp, int64_t{kWarp})),
          .counts = blocks > 1 ? reinterpret_cast<int*>(workspace) : nullptr,
          .rows = args.output<int32_t>(0),
          .offsets = args.output<int32_t>(1),
          .places = args.output<int32_t>(2)};
}

size_t place_shared(const Dispatch& a) {
  const auto experts = static_cast<size_t>(a.E);
  return (experts + kWarp + 1) * 4 + static_cast<size_t>(a.warps) * experts * 2;
}

void dispatch(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const Dispatch a = dispatch_of(desc, args, workspace);
  const auto grid = static_cast<unsigned>(dispatch_blocks(a.R));
  const int threads = ceil_div(a.E, kWarp) * kWarp;
  if (grid > 1) launch(count_rows_kernel, grid, kCountThreads, static_cast<size_t>(a.E) * 4, stream, a);
  launch(place_rows_kernel, grid, static_cast<unsigned>(std::max(threads, a.warps * kWarp)), place_shared(a), stream,
         a);
}

// With the dispatch behind it.
void route_then_dispatch(std::span<const OpDesc* const> descs, std::span<const Args> args, std::byte* workspace,
                         Stream& stream) {
  const Route r = route_of(*descs[0], args[0]);
  const Dispatch d = dispatch_of(*descs[1], args[1], workspace);
  const size_t shared = std::max(place_shared(d), static_cast<size_t>(kFewTokens * r.warp_values()) * 4);
  if (r.T < kFewestTokens || r.T > kFewTokens || d.warps * kWarp > kFewThreads || r.E > kFewThreads) {
    route(*descs[0], args[0], workspace, stream);
    return dispatch(*descs[1], args[1], workspace, stream);
  }
  auto* kernel = route_few_kernel<16>;
  if (r.E <= 128) kernel = route_few_kernel<4>;
  else if (r.E <= 256) kernel = route_few_kernel<8>;
  const int threads = std::max(ceil_div(r.E, kWarp), static_cast<int>(r.T)) * kWarp;
  launch(kernel, 1, static_cast<unsigned>(threads), shared, stream, r, d);
}

// ---- combine

// A thread has kWide columns of a token.
template <int kWide>
__global__ void combine_kernel(Combine c, int64_t T, int H) {
  after_previous();
  const RowUnit at = row_unit();
  const int h = at.unit * kWide;
  if (at.row >= T || h >= H) return;
  store_floats<kWide>(c.out + at.row * H + h, combined<kWide>(c, at.row, H, h));
}

Combine combine_of(const OpDesc& desc, const Args& args) {
  return {.y = args.input<float>(0),
          .places = args.input<int32_t>(1),
          .weights = args.input<float>(2),
          .k = static_cast<int>(width_of(desc.in(2))),
          .out = args.output<float>(0)};
}

void combine(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const Combine c = combine_of(desc, args);
  const int64_t H = width_of(desc.out(0)), T = args.now.tokens;
  const bool fours = in_fours(H, c.y, c.out);
  const RowGrid g = row_grid(T, fours ? H / 4 : H);
  launch(fours ? combine_kernel<4> : combine_kernel<1>, g.grid, g.block, 0, stream, c, T, static_cast<int>(H));
}

// With the add_rms_norm behind it.
void combine_then_norm(std::span<const OpDesc* const> descs, std::span<const Args> args, std::byte* workspace,
                       Stream& stream) {
  if (combine_and_norm(combine_of(*descs[0], args[0]), *descs[1], args[1], stream)) return;
  combine(*descs[0], args[0], workspace, stream);
  kAddRmsNorm.launch(*descs[1], args[1], workspace, stream);
}

}  // namespace

const Kernel kRoute{.name = "route.cuda",
                    .op = Op::route,
                    .backend = Backend::cuda,
                    .refuse = refuse_route,
                    .launch = route,
                    .launch_together = route_then_dispatch,
                    .then = Op::dispatch};
const Kernel kDispatch{.name = "dispatch.cuda",
                       .op = Op::dispatch,
                       .backend = Backend::cuda,
                       .refuse = refuse_dispatch,
                       .workspace_bytes = dispatch_workspace,
                       .launch = dispatch};
const Kernel kCombine{.name = "combine.cuda",
                      .op = Op::combine,
                      .backend = Backend::cuda,
                      .refuse = refuse_types,
                      .launch = combine,
                      .launch_together = combine_then_norm,
                      .then = Op::add_rms_norm};

}  // namespace moesaic::cuda
