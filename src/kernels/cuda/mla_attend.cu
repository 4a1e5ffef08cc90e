// mla_attend in float32: softmax attention over cached latents, all positions or a chosen few. See mla_attend.cuh.
#include <algorithm>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/mla_attend.cuh"

namespace moesaic::cuda::latents {
namespace {

constexpr int kThreads = 256;
constexpr int kHeads = 16;   // of a block: they share the rows it loads
constexpr int kRows = 16;    // in shared memory at a time
constexpr int kSlices = 16;  // of the channels, when scores are made
constexpr int kColumns = 8;  // of the sums, per thread, in two groups of four
constexpr int kSplitRows = 256;
constexpr int kMaxLatent = kThreads / 4 * kColumns;
constexpr int kPositionInput = 3;
constexpr int64_t kWholeBlocks = 256;    // with so many (token, head group) pairs, splits stay in one block
constexpr int64_t kSpreadStates = 4096;  // (token, head group, split) triples that the workspace holds

// Floats of a row in shared memory: a multiple of 4 per slice, and 4 more that turn the banks.
__host__ __device__ constexpr int row_stride(int width) {
  return ceil_div(width, kSlices * 4) * kSlices * 4 + 4;
}

// kRows rows as floats; a null row as zeros. Channels beyond the row's stay as they are.
template <typename T>
__device__ __forceinline__ void load_rows(const T* const* rows, const LatentRows& from, int stride, float* to) {
  constexpr int kVector = 16 / sizeof(T);
  const int width = from.L + from.rope, tid = static_cast<int>(threadIdx.x);
  if (!from.vectors) {
    for (int i = tid; i < kRows * width; i += kThreads) {
      const T* row = rows[i / width];
      to[i / width * stride + i % width] = row != nullptr ? load_element(row + i % width) : 0.0f;
    }
    return;
  }
  const int vectors = width / kVector;
#pragma unroll 4
  for (int i = tid; i < kRows * vectors; i += kThreads) {
    const int r = i / vectors, c = i % vectors * kVector;
    const T* row = rows[r];
    const uint4 v = row != nullptr ? *reinterpret_cast<const uint4*>(row + c) : make_uint4(0, 0, 0, 0);
    float* out = to + r * stride + c;
    if constexpr (sizeof(T) == 4) {
      *reinterpret_cast<uint4*>(out) = v;
    } else {
      const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; j += 2)
        *reinterpret_cast<float4*>(out + 2 * j) =
            make_float4(__uint_as_float(words[j] << 16), __uint_as_float(words[j] & 0xFFFF0000u),
                        __uint_as_float(words[j + 1] << 16), __uint_as_float(words[j + 1] & 0xFFFF0000u));
    }
  }
}

// Partial dot products [slice][head][row] of the first `heads` heads with 16 rows: half a warp takes a slice of the
// channels, a lane 4 heads and 4 rows of it.
__device__ __forceinline__ void score_slices(const float* q, const float* rows, int stride, int heads, float* partial) {
  const int tid = static_cast<int>(threadIdx.x), slice = tid / 16, head = tid % 16 / 4, row = tid % 4;
  const int width = (stride - 4) / kSlices;
  float sums[4][4] = {};
#pragma unroll 1
  for (int d = slice * width; d < (slice + 1) * width; d += 4) {
    float4 a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = *reinterpret_cast<const float4*>(q + (head + 4 * i) * stride + d);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 b = *reinterpret_cast<const float4*>(rows + (row + 4 * j) * stride + d);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (4 * i >= heads) continue;  // the whole block
        sums[i][j] = multiply_add(a[i].x, b.x, sums[i][j]);
        sums[i][j] = multiply_add(a[i].y, b.y, sums[i][j]);
        sums[i][j] = multiply_add(a[i].z, b.z, sums[i][j]);
        sums[i][j] = multiply_add(a[i].w, b.w, sums[i][j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) partial[(slice * kHeads + head + 4 * i) * kRows + row + 4 * j] = sums[i][j];
}

// Adds 16 rows' scores to the state of head tid / 16 (all its 16 threads hold it); leaves the rows' weights [row][head]
// and the head's factor for what was summed before.
__device__ __forceinline__ void soften(const float* partial, bool seen, float scale, SoftmaxState& state,
                                       float* weights, float* factors) {
  const int tid = static_cast<int>(threadIdx.x), head = tid / kRows, row = tid % kRows;
  float score = partial[tid];
#pragma unroll
  for (int s = 1; s < kSlices; ++s) score += partial[s * kHeads * kRows + tid];
  score = seen ? score * scale : -INFINITY;
  float largest = fmaxf(state.largest, score);
#pragma unroll
  for (int d = kRows / 2; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, d));
  const float base = finite_or_zero(largest), weight = seen ? expf(score - base) : 0.0f;
  const float factor = expf(state.largest - base);
  float total = weight;
#pragma unroll
  for (int d = kRows / 2; d > 0; d /= 2) total += __shfl_xor_sync(kAllLanes, total, d);
  state.total = __fmaf_rn(state.total, factor, total);
  state.largest = largest;
  weights[row * kHeads + head] = weight;
  if (row == 0) factors[head] = factor;
}

// A block takes 16 heads of one token and one split of its rows, or with kWhole all of them in turn, when `o`
// holds the sum of the splits so far. A thread sums 4 heads x 8 channels. q[T, heads, L + rope], o[T, heads, L];
// blockIdx.x is token * groups + group. Shared memory: q and rows [16][stride], the slices' scores.
template <typename T, bool kWhole>
__global__ void __launch_bounds__(kThreads, 2)
    attend_kernel(LatentRows from, Turn turn, int64_t first_token, int heads, float scale, const float* q,
                  SplitStates split_states, float* o) {
  after_previous();
  float* qs = dynamic_shared<float>();
  __shared__ const T* row_at[2][kRows];
  __shared__ unsigned seen_at[2];  // a bit per row
  __shared__ __align__(16) float weights[kRows * kHeads];
  __shared__ __align__(16) float factors[kHeads];
  __shared__ SoftmaxState block_states[kHeads];
  const int width = from.L + from.rope, stride = row_stride(width), groups = ceil_div(heads, kHeads);
  float* rows = qs + kHeads * stride;
  float* partial = rows + kRows * stride;
  const int tid = static_cast<int>(threadIdx.x), first_head = static_cast<int>(blockIdx.x) % groups * kHeads;
  const int64_t local = blockIdx.x / static_cast<unsigned>(groups), t = first_token + local;
  const int own = from.positions[t], count = from.count(t), size = from.split_rows(count);
  const int32_t* table = from.table(t);
  const int begin = kWhole ? 0 : static_cast<int>(blockIdx.y) * size, end = kWhole ? count : min(count, begin + size);
  if (!kWhole && begin >= count) return;

  for (int i = tid; i < kHeads * stride; i += kThreads) {
    const int head = first_head + i / stride, d = i % stride;
    qs[i] = head < heads && d < width ? query_channel(turn, q + (t * heads + head) * width, from.L, t, d) : 0.0f;
    rows[i] = 0.0f;
  }
  const auto place = [&](int buffer, int first, int last) {  // the first warp: rows [first, last), at most kRows
    if (tid >= kWarp) return;
    const T* row = tid < kRows && first + tid < last ? from.row<T>(t, own, table, first + tid) : nullptr;
    if (tid < kRows) row_at[buffer][tid] = row;
    const unsigned seen = __ballot_sync(kAllLanes, row != nullptr ? 1 : 0);
    if (tid == 0) seen_at[buffer] = seen;
  };

  const int quad = tid / 64 * 4, column = tid % 64 * 4;  // of the sums: heads and channels
  SoftmaxState whole[4];
#pragma unroll
  for (int h = 0; h < 4; ++h) whole[h] = {-INFINITY, -1.0f};
  int buffer = 0;
  place(0, begin, min(end, begin + size));
  for (int split = begin; split < end; split += size) {
    const int last = min(end, split + size);
    SoftmaxState state{-INFINITY, 0.0f};
    bool any = false;
    float sums[4][kColumns] = {};
    for (int first = split; first < last; first += kRows, buffer ^= 1) {
      __syncthreads();  // the rows' places are known; rows and weights of the tile before have been read
      const int next = first + kRows < last ? first + kRows : last;
      const unsigned seen = seen_at[buffer];
      if (seen != 0) load_rows(row_at[buffer], from, stride, rows);
      place(buffer ^ 1, next, next < last ? last : min(end, last + size));
      if (seen == 0) continue;
      any = true;
      __syncthreads();
      score_slices(qs, rows, stride, heads - first_head, partial);
      __syncthreads();
      soften(partial, (seen >> (tid % kRows) & 1) != 0, scale, state, weights, factors);
      __syncthreads();
      const float4 factor = *reinterpret_cast<const float4*>(factors + quad);
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        sums[0][c] *= factor.x, sums[1][c] *= factor.y, sums[2][c] *= factor.z, sums[3][c] *= factor.w;
#pragma unroll 4
      for (int r = 0; r < kRows; ++r) {
        const float4 p = *reinterpret_cast<const float4*>(weights + r * kHeads + quad);
#pragma unroll
        for (int g = 0; g < kColumns / 4; ++g) {
          if (column + 256 * g >= from.L || first_head + quad >= heads) continue;
          const float4 v = *reinterpret_cast<const float4*>(rows + r * stride + column + 256 * g);
          const float value[4] = {v.x, v.y, v.z, v.w}, weight[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
          for (int h = 0; h < 4; ++h)
#pragma unroll
            for (int c = 0; c < 4; ++c) sums[h][4 * g + c] = multiply_add(weight[h], value[c], sums[h][4 * g + c]);
        }
      }
    }
    if (tid % kRows == 0) block_states[tid / kRows] = {state.largest, any ? state.total : -1.0f};
    __syncthreads();
    const bool none_before = whole[0].total < 0, final = last == end;
    if (kWhole && !any && !final) continue;
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      const int head = first_head + quad + h;
      if (head >= heads) continue;
      const SoftmaxState of_split = block_states[quad + h];
      float keep = 1.0f, add = 0.0f;
      float* to;
      if constexpr (kWhole) {
        if (any) fold_state(whole[h], of_split, keep, add);
        to = o + (t * heads + head) * from.L + column;
      } else {
        const int64_t at = split_states.at(local, heads, head, static_cast<int>(blockIdx.y));
        if (column == 0) split_states.states[at] = of_split;
        to = split_states.values + at * from.L + column;
      }
#pragma unroll
      for (int g = 0; g < kColumns / 4; ++g) {
        if (column + 256 * g >= from.L) continue;
        float v[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          v[c] = sums[h][4 * g + c];
          if constexpr (kWhole) {
            v[c] = fold_value(none_before ? 0.0f : to[256 * g + c], keep, v[c], add);
            if (final && !(whole[h].total < 0)) v[c] /= whole[h].total;
          }
        }
        *reinterpret_cast<float4*>(to + 256 * g) = make_float4(v[0], v[1], v[2], v[3]);
      }
    }
  }
}

// A block folds the splits of one head of a token, 4 channels a thread; no rows at all give zeros.
__global__ void __launch_bounds__(kThreads / 2)
    fold_kernel(LatentRows from, int64_t first_token, int heads, SplitStates splits, float* o) {
  after_previous();
  const int64_t local = blockIdx.x / static_cast<unsigned>(heads), t = first_token + local;
  const int head = static_cast<int>(blockIdx.x) % heads;
  const int rows = from.count(t), count = ceil_div(rows, from.split_rows(rows));
  for (int l = static_cast<int>(threadIdx.x) * 4; l < from.L; l += static_cast<int>(blockDim.x) * 4) {
    SoftmaxState state{-INFINITY, -1.0f};
    float4 sum = make_float4(0, 0, 0, 0);
    for (int s = 0; s < count; ++s) {
      const int64_t at = splits.at(local, heads, head, s);
      const SoftmaxState of_split = splits.states[at];
      const float4 v = *reinterpret_cast<const float4*>(splits.values + at * from.L + l);
      if (of_split.total < 0) continue;
      float keep, add;
      fold_state(state, of_split, keep, add);
      sum.x = fold_value(sum.x, keep, v.x, add);
      sum.y = fold_value(sum.y, keep, v.y, add);
      sum.z = fold_value(sum.z, keep, v.z, add);
      sum.w = fold_value(sum.w, keep, v.w, add);
    }
    if (state.total >= 0 || state.total != state.total)
      sum = make_float4(sum.x / state.total, sum.y / state.total, sum.z / state.total, sum.w / state.total);
    *reinterpret_cast<float4*>(o + (t * heads + head) * from.L + l) = sum;
  }
}

// A block a token.
template <typename T>
__global__ void append_kernel(std::byte* blocks, int64_t block_stride, LatentRows rows, Turn turn, const float* latent,
                              const float* k_pe) {
  after_previous();
  const int64_t t = blockIdx.x;
  const int p = rows.positions[t], width = rows.L + rows.rope;
  T* to = reinterpret_cast<T*>(blocks + rows.table(t)[p / kBlockTokens] * block_stride) +
          static_cast<int64_t>(p % kBlockTokens) * width;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x))
    store_element(to + i, i < rows.L ? latent[t * rows.L + i] : turned(turn, k_pe + t * rows.rope, t, i - rows.L));
}

LatentRows latent_rows(const OpDesc& desc, const Args& args, int split) {
  const BatchView& batch = *args.batch;
  const bool chosen = desc.inputs_before_table() > kPositionInput;
  LatentRows rows{.blocks = args.cache.blocks,
                  .block_stride = args.cache.block_stride,
                  .block_tables = batch.block_tables,
                  .positions = batch.positions,
                  .sequence_of = batch.sequence_of,
                  .max_blocks = batch.max_blocks,
                  .list = chosen ? args.input<int32_t>(kPositionInput) : nullptr,
                  .list_length = chosen ? static_cast<int>(desc.in(kPositionInput).type.dim(1).factor) : 0,
                  .L = static_cast<int>(desc.in(1).type.dim(1).factor),
                  .rope = static_cast<int>(desc.attrs.integer(Attr::rope_dim)),
                  .split = split,
                  .vectors = false};
  const int64_t row_bytes = (rows.L + rows.rope) * dtype_bytes(desc.cache_dtype);
  rows.vectors =
      row_bytes % 16 == 0 && rows.block_stride % 16 == 0 && reinterpret_cast<uintptr_t>(rows.blocks) % 16 == 0;
  return rows;
}

// (token, split) pairs whose states the workspace holds, and the bytes of the states.
int64_t token_splits(const OpDesc& desc) {
  const int64_t groups = ceil_div(desc.attrs.integer(Attr::heads), kHeads);
  return std::min<int64_t>(desc.bounds.tokens * kMaxSplits, std::max<int64_t>(kMaxSplits, kSpreadStates / groups));
}
int64_t state_bytes(const OpDesc& desc) {
  const int64_t states = token_splits(desc) * desc.attrs.integer(Attr::heads);
  return ceil_div(states * static_cast<int64_t>(sizeof(SoftmaxState)), 256) * 256;
}

template <typename T, bool kWhole>
void attend(const OpDesc& desc, const Args& args, const AttendPlan& plan, int64_t first, int64_t tokens,
            Stream& stream) {
  const int stride = row_stride(plan.rows.L + plan.rows.rope);
  const size_t shared = sizeof(float) * static_cast<size_t>((kHeads + kRows) * stride + kSlices * kHeads * kRows);
  const dim3 grid(static_cast<unsigned>(tokens * ceil_div(plan.heads, kHeads)),
                  kWhole ? 1 : static_cast<unsigned>(plan.splits));
  launch(attend_kernel<T, kWhole>, grid, kThreads, shared, stream, plan.rows, turn_of(desc, args), first, plan.heads,
         desc.attrs.real(Attr::scale), args.input<float>(0), plan.states, args.output<float>(0));
}

template <typename T>
void attend_all(const OpDesc& desc, const Args& args, const AttendPlan& plan, Stream& stream) {
  if (plan.splits <= 1 || plan.tokens * ceil_div(plan.heads, kHeads) >= kWholeBlocks)
    return attend<T, true>(desc, args, plan, 0, plan.tokens, stream);
  for (int64_t first = 0; first < plan.tokens; first += plan.spread_tokens) {
    const int64_t tokens = std::min(plan.spread_tokens, plan.tokens - first);
    attend<T, false>(desc, args, plan, first, tokens, stream);
    fold_splits(plan, first, tokens, args.output<float>(0), stream);
  }
}

const char* refuse(const OpDesc& desc, const DeviceInfo&) {
  return refuse_latents(desc);
}

void launch_attend(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  if (args.now.tokens == 0) return;
  append_latents(desc, args, stream);
  const AttendPlan plan = attend_plan(desc, args, workspace, kSplitRows);
  desc.cache_dtype == DType::bf16 ? attend_all<uint16_t>(desc, args, plan, stream)
                                  : attend_all<float>(desc, args, plan, stream);
}

}  // namespace

AttendPlan attend_plan(const OpDesc& desc, const Args& args, std::byte* workspace, int split) {
  AttendPlan plan{.rows = latent_rows(desc, args, split),
                  .tokens = args.now.tokens,
                  .heads = static_cast<int>(desc.attrs.integer(Attr::heads)),
                  .splits = 1,
                  .spread_tokens = 1,
                  .states = {}};
  const int64_t longest = plan.rows.list != nullptr ? plan.rows.list_length : plan.rows.max_blocks * kBlockTokens;
  plan.splits = static_cast<int>(std::min<int64_t>(kMaxSplits, ceil_div(longest, split)));
  plan.spread_tokens = std::max<int64_t>(1, token_splits(desc) / std::max(1, plan.splits));
  plan.states = {reinterpret_cast<SoftmaxState*>(workspace), reinterpret_cast<float*>(workspace + state_bytes(desc)),
                 plan.splits};
  return plan;
}

int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo&) {
  const int64_t L = desc.in(1).type.dim(1).factor, states = token_splits(desc) * desc.attrs.integer(Attr::heads);
  return state_bytes(desc) + states * L * static_cast<int64_t>(sizeof(float));
}

const char* refuse_latents(const OpDesc& desc) {
  const int64_t L = desc.in(1).type.dim(1).factor, rope = desc.attrs.integer(Attr::rope_dim);
  if (desc.cache_dtype != DType::f32 && desc.cache_dtype != DType::bf16) return "the cache must be f32 or bf16";
  if (L % 16 != 0) return "kv_lora_rank must be a multiple of 16";
  if (L > kMaxLatent || rope > 128) return "kv_lora_rank is above 512 or qk_rope_head_dim above 128";
  return nullptr;
}

void append_latents(const OpDesc& desc, const Args& args, Stream& stream) {
  const LatentRows rows = latent_rows(desc, args, 1);
  launch(desc.cache_dtype == DType::bf16 ? append_kernel<uint16_t> : append_kernel<float>,
         static_cast<unsigned>(args.now.tokens), 128, 0, stream, args.cache.blocks, args.cache.block_stride, rows,
         turn_of(desc, args), args.input<float>(1), args.input<float>(2));
}

void fold_splits(const AttendPlan& plan, int64_t first, int64_t tokens, float* o, Stream& stream) {
  launch(fold_kernel, static_cast<unsigned>(tokens * plan.heads), kThreads / 2, 0, stream, plan.rows, first, plan.heads,
         plan.states, o);
}

}  // namespace moesaic::cuda::latents

namespace moesaic::cuda {

const Kernel kMlaAttend{.name = "mla_attend.cuda",
                        .op = Op::mla_attend,
                        .backend = Backend::cuda,
                        .refuse = latents::refuse,
                        .workspace_bytes = latents::workspace_bytes,
                        .launch = latents::launch_attend};

}  // namespace moesaic::cuda
