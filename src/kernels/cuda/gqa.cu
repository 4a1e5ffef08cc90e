// Grouped-query attention, exact: float32 arithmetic for caches of float32 or bf16 and any head up to 256 wide.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gqa.cuh"
#include "kernels/cuda/reduce.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kHeadsPerWarp = kHeadBlock / kWarps;
constexpr int kTileRows = kWarp;  // a lane's key
constexpr int kMaxHeadDim = 256;

// Shared memory, floats: q [8][D], keys [32][D + 1], values [32][D], weights [8][32].
size_t plain_shared_bytes(int D) {
  return sizeof(float) * static_cast<size_t>(kHeadBlock * D + kTileRows * (2 * D + 1) + kHeadBlock * kTileRows);
}

struct PlainTile {
  float *q, *keys, *values, *weights;
  __device__ PlainTile(float* shared, int D)
      : q(shared), keys(q + kHeadBlock * D), values(keys + kTileRows * (D + 1)), weights(values + kTileRows * D) {}
};

// Rows [begin, end) of one kv head, at most 32, into shared memory: a warp a row.
template <typename T>
__device__ void load_rows(const Gqa& g, const GqaToken& x, int kv_head, int begin, int end, const PlainTile& tile) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int row = begin + static_cast<int>(threadIdx.x) / kWarp; row < end; row += kWarps) {
    const int age = gqa_age(g, x, row), i = row - begin;
    const bool fresh = age <= x.since;
    for (int which = 0; which < 2; ++which) {
      float* to = which == 0 ? tile.keys + i * (g.D + 1) : tile.values + i * g.D;
      const float* input = (which == 0 ? g.k : g.v) + (static_cast<int64_t>(x.t - age) * g.kv_heads + kv_head) * g.D;
      const T* cached = fresh ? nullptr : gqa_cached<T>(g, x.sequence, row, which) + kv_head * g.D;
      const Turn turn = which == 0 ? g.turn : Turn{};
      for (int d = lane; d < g.D; d += kWarp)
        to[d] = fresh ? through<T>(turned(turn, input, x.t - age, d)) : load_element(cached + d);
    }
  }
}

// A warp's head: `value` holds channels lane, lane + 32, ...
template <int kChannels>
struct PlainHead {
  float largest, total, value[kChannels];
  __device__ void clear() {
    largest = -INFINITY, total = 0;
#pragma unroll
    for (float& v : value) v = 0;
  }
};

// Adds the tile's `count` rows to a head of this warp.
template <int kChannels>
__device__ void attend_tile(const Gqa& g, const PlainTile& tile, int h, int count, PlainHead<kChannels>& head) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float score = 0;
  const float *q = tile.q + h * g.D, *key = tile.keys + lane * (g.D + 1);
  if (lane < count)
    for (int d = 0; d < g.D; ++d) score = fmaf(q[d], key[d], score);
  score = lane < count ? score * g.scale : -INFINITY;
  const float largest = fmaxf(head.largest, warp_max(score)), base = largest == -INFINITY ? 0.0f : largest;
  const float alpha = gqa_factor(head.largest, base), weight = expf(score - base);
  head.largest = largest;
  head.total = fmaf(head.total, alpha, warp_sum(weight));
  float* weights = tile.weights + h * kTileRows;
  weights[lane] = weight;
  __syncwarp();
#pragma unroll
  for (float& v : head.value) v *= alpha;
  for (int row = 0; row < count; ++row)
#pragma unroll
    for (int c = 0; c < kChannels; ++c)
      if (lane + c * kWarp < g.D)
        head.value[c] = fmaf(weights[row], tile.values[row * g.D + lane + c * kWarp], head.value[c]);
}

template <int kChannels>
__device__ void store_partial(const Gqa& g, float* partial, int h, const PlainHead<kChannels>& head) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int c = 0; c < kChannels; ++c)
    if (lane + c * kWarp < g.D) partial[h * g.D + lane + c * kWarp] = head.value[c];
  if (lane == 0) partial[kHeadBlock * g.D + h] = head.largest, partial[kHeadBlock * (g.D + 1) + h] = head.total;
}

template <int kChannels>
__device__ void store_output(const Gqa& g, int t, int query_head, const PlainHead<kChannels>& head) {
  float* out = g.out + (static_cast<int64_t>(t) * g.heads + query_head) * g.D;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int c = 0; c < kChannels; ++c)
    if (lane + c * kWarp < g.D)
      out[lane + c * kWarp] =
          gqa_result({head.largest, head.total, head.value[c]}, g.sinks != nullptr ? g.sinks + query_head : nullptr);
}

template <int kChannels>
__device__ void fold_heads(PlainHead<kChannels>& sum, const PlainHead<kChannels>& next) {
  GqaState s{};
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    s = {sum.largest, sum.total, sum.value[c]};
    fold(s, {next.largest, next.total, next.value[c]});
    sum.value[c] = s.value;
  }
  sum.largest = s.largest, sum.total = s.total;
}

// One split of a (token, 8 query heads) a block where `partials` is given, else all of them; the heads spread over the
// warps, rows staged in tiles of 32.
template <typename T, int kChannels>
__global__ void __launch_bounds__(kThreads, 4) plain_tokens_kernel(Gqa g, float* partials, int64_t items) {
  after_previous();
  const PlainTile tile(dynamic_shared<float>(), g.D);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
    const GqaItem item = gqa_item(g, i);
    const GqaToken x = gqa_token(g, item.t);
    const int size = split_rows(x.rows), splits = ceil_div(x.rows, size);
    if (item.split >= splits) continue;
    const int kv_head = item.block / g.head_blocks, first_head = item.block % g.head_blocks * kHeadBlock;
    const int held = min(kHeadBlock, g.group - first_head);  // heads of this block
    const int64_t query = (static_cast<int64_t>(x.t) * g.heads + kv_head * g.group + first_head) * g.D;
    for (int e = static_cast<int>(threadIdx.x); e < held * g.D; e += kThreads) {
      const float q = turned(g.turn, g.q + query + e / g.D * g.D, x.t, e % g.D);
      tile.q[e] = g.round_q ? through<uint16_t>(q) : q;
    }
    PlainHead<kChannels> sums[kHeadsPerWarp];
    const int last = partials != nullptr ? item.split + 1 : splits;
    for (int split = item.split; split < last; ++split) {
      PlainHead<kChannels> heads[kHeadsPerWarp];
#pragma unroll
      for (auto& head : heads) head.clear();
      const int end = min(x.rows, (split + 1) * size);
      for (int row = split * size; row < end; row += kTileRows) {
        __syncthreads();
        load_rows<T>(g, x, kv_head, row, min(end, row + kTileRows), tile);
        __syncthreads();
#pragma unroll
        for (int j = 0; j < kHeadsPerWarp; ++j)
          if (warp * kHeadsPerWarp + j < held)
            attend_tile(g, tile, warp * kHeadsPerWarp + j, min(end - row, kTileRows), heads[j]);
      }
#pragma unroll
      for (int j = 0; j < kHeadsPerWarp; ++j) {
        if (split == item.split) sums[j] = heads[j];
        else fold_heads(sums[j], heads[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kHeadsPerWarp; ++j) {
      const int h = warp * kHeadsPerWarp + j;
      if (h >= held) continue;
      if (last - item.split == splits) store_output(g, x.t, kv_head * g.group + first_head + h, sums[j]);
      else store_partial(g, partial_of(g, partials, x.t, item.block, item.split), h, sums[j]);
    }
    if (g.single && last == splits && first_head == 0) append_own<T>(g, x, kv_head);
    __syncthreads();
  }
}

// Folds the splits of one (token, head) a block, a channel a thread. Grid: [tokens * blocks, heads of a block].
__global__ void fold_splits_kernel(Gqa g, float* partials) {
  after_previous();
  const int t = static_cast<int>(blockIdx.x) / g.blocks(), block = static_cast<int>(blockIdx.x) % g.blocks();
  const int h = static_cast<int>(blockIdx.y), d = static_cast<int>(threadIdx.x);
  const int in_group = block % g.head_blocks * kHeadBlock + h;
  const GqaToken x = gqa_token(g, t);
  const int splits = ceil_div(x.rows, split_rows(x.rows));
  if (splits == 1 || in_group >= g.group || d >= g.D) return;
  const float* partial = partial_of(g, partials, t, block, 0);
  const auto state = [&](int split) {
    const float* p = partial + split * partial_floats(g.D);
    return GqaState{p[kHeadBlock * g.D + h], p[kHeadBlock * (g.D + 1) + h], p[h * g.D + d]};
  };
  GqaState sum = state(0);
#pragma unroll 4
  for (int split = 1; split < splits; ++split) fold(sum, state(split));
  const int head = block / g.head_blocks * g.group + in_group;
  g.out[(static_cast<int64_t>(t) * g.heads + head) * g.D + d] =
      gqa_result(sum, g.sinks != nullptr ? g.sinks + head : nullptr);
}

// Keys and values of one token a block.
template <typename T>
__global__ void append_kernel(Gqa g) {
  after_previous();
  const int t = static_cast<int>(blockIdx.x), sequence = g.sequence_of[t], width = g.kv_heads * g.D;
  if (g.window > 0 && t < g.sequence_offsets[sequence + 1] - g.window) return;
  const int row = g.window > 0 ? g.positions[t] % g.window : g.positions[t];
  T *keys = gqa_cached<T>(g, sequence, row, 0), *values = gqa_cached<T>(g, sequence, row, 1);
  for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
    const int64_t first = static_cast<int64_t>(t) * width;
    store_element(keys + i, turned(g.turn, g.k + first + i / g.D * g.D, t, i % g.D));
    store_element(values + i, g.v[first + i]);
  }
}

template <typename T>
void launch_plain_tokens(const Gqa& g, float* partials, int splits, Stream& stream) {
  constexpr auto kernel_of = [](int D) {
    if (D <= 32) return plain_tokens_kernel<T, 1>;
    if (D <= 64) return plain_tokens_kernel<T, 2>;
    return D <= 128 ? plain_tokens_kernel<T, 4> : plain_tokens_kernel<T, 8>;
  };
  const int64_t items = static_cast<int64_t>(g.tokens) * g.blocks() * (partials != nullptr ? splits : 1);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(items, 132 * 8));
  launch(kernel_of(g.D), grid, kThreads, plain_shared_bytes(g.D), stream, g, partials, items);
}

int64_t spread_tokens(const OpDesc& desc) {
  const int64_t kv_heads = desc.attrs.integer(Attr::kv_heads);
  const int64_t blocks = kv_heads * ceil_div(desc.attrs.integer(Attr::heads) / kv_heads, int64_t{kHeadBlock});
  return std::min(desc.bounds.tokens, kSpreadItems / blocks);
}

int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo&) {
  return attend_tokens_workspace(desc);
}

void gqa(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  attend_tokens(desc, make_gqa(desc, args, false), workspace, stream);
}

}  // namespace

Gqa make_gqa(const OpDesc& desc, const Args& args, bool round_q) {
  const BatchView& batch = *args.batch;
  Gqa g;
  g.q = args.input<float>(0), g.k = args.input<float>(1), g.v = args.input<float>(2);
  g.sinks = desc.inputs_before_table() > 3 ? args.input<float>(3) : nullptr;
  g.turn = turn_of(desc, args);
  g.out = args.output<float>(0);
  g.positions = batch.positions, g.sequence_of = batch.sequence_of, g.sequence_offsets = batch.sequence_offsets;
  g.block_tables = batch.block_tables, g.state_slots = batch.state_slots, g.max_blocks = batch.max_blocks;
  g.heads = static_cast<int>(desc.attrs.integer(Attr::heads));
  g.kv_heads = static_cast<int>(desc.attrs.integer(Attr::kv_heads));
  g.D = static_cast<int>(desc.attrs.integer(Attr::head_dim));
  g.window = static_cast<int>(desc.attrs.integer(Attr::window));
  g.group = g.heads / g.kv_heads, g.head_blocks = ceil_div(g.group, kHeadBlock);
  g.cache = g.window > 0 ? args.cache.slots : args.cache.blocks;
  g.stride = g.window > 0 ? args.cache.slot_stride : args.cache.block_stride;
  g.tokens = static_cast<int>(args.now.tokens);
  g.scale = desc.attrs.real(Attr::scale);
  g.single = args.now.tokens == batch.sequences, g.round_q = round_q;
  return g;
}

const char* refuse_gqa(const OpDesc& desc, const DeviceInfo&) {
  if (desc.cache_dtype != DType::f32 && desc.cache_dtype != DType::bf16) return "the cache must be f32 or bf16";
  if (desc.attrs.integer(Attr::head_dim) > kMaxHeadDim) return "head_dim must be at most 256";
  if (desc.rotate() == Rotate::neighbours) return "turns channels i and i + D / 2";
  return nullptr;
}

int64_t attend_tokens_workspace(const OpDesc& desc) {
  const int64_t window = desc.attrs.integer(Attr::window), kv_heads = desc.attrs.integer(Attr::kv_heads);
  if (window > 0 && window <= kMinSplitRows) return 0;
  const int64_t blocks = kv_heads * ceil_div(desc.attrs.integer(Attr::heads) / kv_heads, int64_t{kHeadBlock});
  return spread_tokens(desc) * blocks * kMaxSplits * static_cast<int64_t>(sizeof(float)) *
         partial_floats(static_cast<int>(desc.attrs.integer(Attr::head_dim)));
}

void append_step(const OpDesc& desc, const Gqa& g, Stream& stream) {
  const auto kernel = desc.cache_dtype == DType::bf16 ? append_kernel<uint16_t> : append_kernel<float>;
  launch(kernel, static_cast<unsigned>(g.tokens), kThreads, 0, stream, g);
}

// Full attention appends first and then reads the cache alone, but for a lone token, which the one launch reads and
// appends; a ring is overwritten last.
void attend_tokens(const OpDesc& desc, const Gqa& g, std::byte* workspace, Stream& stream) {
  if (g.tokens == 0) return;
  if (g.window == 0 && !g.single) append_step(desc, g, stream);
  const int splits = most_splits(g.window > 0 ? g.window : g.max_blocks * kBlockTokens);
  const bool spread = splits > 1 && g.tokens <= spread_tokens(desc);
  float* partials = spread ? reinterpret_cast<float*>(workspace) : nullptr;
  if (matrix_units_serve(desc, g)) launch_matrix_tokens(g, partials, splits, stream);
  else if (desc.cache_dtype == DType::bf16) launch_plain_tokens<uint16_t>(g, partials, splits, stream);
  else launch_plain_tokens<float>(g, partials, splits, stream);
  if (spread)
    launch(fold_splits_kernel,
           dim3(static_cast<unsigned>(g.tokens * g.blocks()), static_cast<unsigned>(min(g.group, kHeadBlock))),
           static_cast<unsigned>(ceil_div(g.D, kWarp) * kWarp), 0, stream, g, partials);
  if (g.window > 0 && !g.single) append_step(desc, g, stream);
}

const Kernel kGqa{.name = "gqa.cuda",
                  .op = Op::gqa,
                  .backend = Backend::cuda,
                  .refuse = refuse_gqa,
                  .workspace_bytes = workspace_bytes,
                  .launch = gqa};

}  // namespace moesaic::cuda
