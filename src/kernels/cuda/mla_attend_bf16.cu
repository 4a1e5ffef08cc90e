// mla_attend on the matrix units: queries and softmax weights rounded to bf16, a bf16 cache, sums in float32. See
// mla_attend.cuh for rows and splits.
#include <algorithm>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/mla_attend.cuh"
#include "kernels/cuda/swizzled.cuh"

namespace moesaic::cuda::latents {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kRows = 64;  // in shared memory at a time, twice
constexpr int kSplitRows = 512;
constexpr int kRing = 3;               // places of the rows of so many tiles are known
constexpr int64_t kWholeBlocks = 132;  // with so many (token, head group) pairs, splits stay in one block

// A block takes 16 kTiles heads of one token and one split of its rows, or with kWhole all of them in turn, when `o`
// holds the sum of the splits so far. Warp w makes the scores and sums of head tile w % kTiles: of the kGroups groups
// of warps that share a tile, each takes its part of the 64 rows' scores and of the channels. The next tile of rows is
// on its way while one is multiplied. Shared memory, swizzled bf16: q [16 kTiles][stride], rows [2][64][stride],
// weights [16 kTiles][64].
template <int kTiles, bool kWhole>
__global__ void __launch_bounds__(kThreads, 1)
    attend_kernel(LatentRows from, Turn turn, int64_t first_token, int64_t tokens, int heads, float scale,
                  const float* q, SplitStates split_states, float* o) {
  after_previous();
  constexpr int kHeads = 16 * kTiles, kGroups = kWarps / kTiles, kValueTiles = 4 * kTiles;
  __shared__ const uint16_t* row_at[kRing][kRows];
  __shared__ unsigned seen_at[kRing][2];  // a bit per row
  __shared__ float largest_of[kGroups][kHeads], total_of[kGroups][kHeads];
  const int width = from.L + from.rope, stride = swizzled::padded(width);
  uint16_t* qs = dynamic_shared<uint16_t>();
  uint16_t* rows = qs + kHeads * stride;
  uint16_t* weights = rows + 2 * kRows * stride;

  const int tid = static_cast<int>(threadIdx.x), warp = tid / kWarp, lane = tid % kWarp, g = lane / 4, quad = lane % 4;
  const int tile = warp % kTiles, group = warp / kTiles, head_groups = ceil_div(heads, kHeads);
  const int first_head = static_cast<int>(blockIdx.x) % head_groups * kHeads;
  const int64_t order = blockIdx.x / static_cast<unsigned>(head_groups);
  const int64_t local = kWhole ? tokens - 1 - order : order, t = first_token + local;  // the longest first
  const int own = from.positions[t], count = from.count(t), size = from.split_rows(count);
  const int begin = kWhole ? 0 : static_cast<int>(blockIdx.y) * size, end = kWhole ? count : min(count, begin + size);
  if (begin >= count) return;
  const int32_t* table = from.table(t);
  const int tiles = ceil_div(end - begin, kRows), split_tiles = size / kRows;

  for (int i = tid; i < kHeads * stride / 2; i += kThreads) {
    const int h = i / (stride / 2), d = i % (stride / 2) * 2;
    unsigned pair = 0;
    if (first_head + h < heads && d < width) {
      const float* x = q + (t * heads + first_head + h) * width;
      pair = pack_bf16(query_channel(turn, x, from.L, t, d), query_channel(turn, x, from.L, t, d + 1));
    }
    *reinterpret_cast<unsigned*>(qs + swizzled::at(h, d / 8, stride) + d % 8) = pair;
  }
  const auto place = [&](int j) {  // the first two warps
    if (tid >= kRows || j >= tiles) return;
    const int i = begin + j * kRows + tid;
    const uint16_t* row = i < end ? from.row<uint16_t>(t, own, table, i) : nullptr;
    row_at[j % kRing][tid] = row;
    const unsigned seen = __ballot_sync(kAllLanes, row != nullptr ? 1 : 0);
    if (lane == 0) seen_at[j % kRing][warp] = seen;
  };
  const auto copy = [&](int j) {  // rows that are not seen and channels beyond a row become zeros
    uint16_t* to = rows + j % 2 * kRows * stride;
    for (int r = warp; r < kRows; r += kWarps) {
      const uint16_t* row = row_at[j % kRing][r];
      for (int c = lane; c < stride / 8; c += kWarp) {
        const bool exists = row != nullptr && c * 8 < width;
        copy_async(to + swizzled::at(r, c, stride),
                   exists ? static_cast<const void*>(row + c * 8) : static_cast<const void*>(from.blocks),
                   exists ? 16 : 0);
      }
    }
  };

  float sums[kValueTiles][2][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {};  // of heads g and g + 8; totals of this thread's columns
  SoftmaxState whole[2] = {{-INFINITY, -1.0f}, {-INFINITY, -1.0f}};
  bool any = false;
  place(0);
  place(1);
  __syncthreads();
  copy(0);
  commit_copies();
  for (int j = 0; j < tiles; ++j) {
    wait_copies<0>();
    __syncthreads();  // tile j has come, and tile j - 1 has been read
    if (j + 1 < tiles) copy(j + 1);
    commit_copies();
    place(j + 2);
    const uint16_t* keys = rows + j % 2 * kRows * stride;
    const unsigned first_seen = seen_at[j % kRing][0], second_seen = seen_at[j % kRing][1];
    if ((first_seen | second_seen) != 0) {
      any = true;
      float scores[kTiles][4] = {};
#pragma unroll 2
      for (int k = 0; k < stride / 16; k += 2) {
        unsigned a[2][4];
        swizzled::load_rows16(a[0], qs, 16 * tile, k, stride);
        swizzled::load_rows16(a[1], qs, 16 * tile, k + 1, stride);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          unsigned b[4];
          swizzled::load_columns8(b, keys, (group * kTiles + n) * 8, k, stride);
          mma_bf16(scores[n], a[0], b[0], b[1]);
          mma_bf16(scores[n], a[1], b[2], b[3]);
        }
      }
      const int column = group * kTiles * 8;  // of the 64 rows
      const unsigned seen = (column < 32 ? first_seen : second_seen) >> (column % 32);
      float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool visible = (seen >> (8 * n + 2 * quad + i % 2) & 1) != 0;
          scores[n][i] = visible ? scores[n][i] * scale : -INFINITY;
          top[i / 2] = fmaxf(top[i / 2], scores[n][i]);
        }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(kAllLanes, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(kAllLanes, top[r], 2));
        if (quad == 0) largest_of[group][16 * tile + 8 * r + g] = top[r];
      }
      __syncthreads();
      float factor[2], base[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float after = largest[r];
#pragma unroll
        for (int i = 0; i < kGroups; ++i) after = fmaxf(after, largest_of[i][16 * tile + 8 * r + g]);
        base[r] = finite_or_zero(after);
        factor[r] = expf(largest[r] - base[r]);
        largest[r] = after;
        total[r] *= factor[r];
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int c = column + 8 * n + 2 * quad;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float low = __expf(scores[n][2 * r] - base[r]), high = __expf(scores[n][2 * r + 1] - base[r]);
          total[r] += low + high;
          *reinterpret_cast<unsigned*>(weights + swizzled::at(16 * tile + 8 * r + g, c / 8, kRows) + c % 8) =
              pack_bf16(low, high);
        }
      }
      __syncthreads();
      if (__any_sync(kAllLanes, factor[0] != 1.0f || factor[1] != 1.0f ? 1 : 0) != 0) {
#pragma unroll
        for (int i = 0; i < kValueTiles; ++i)
#pragma unroll
          for (int c = 0; c < 8; ++c) sums[i][c / 4][c % 4] *= factor[c % 4 / 2];
      }
#pragma unroll
      for (int k = 0; k < kRows / 16; ++k) {
        unsigned a[4];
        swizzled::load_rows16(a, weights, 16 * tile, k, kRows);
#pragma unroll
        for (int i = 0; i < kValueTiles; ++i) {
          const int n = group + kGroups * i;
          if (16 * n >= from.L) continue;  // the whole warp
          unsigned b[4];
          swizzled::load_values(b, keys, k, n, stride);
          mma_bf16(sums[i][0], a, b[0], b[1]);
          mma_bf16(sums[i][1], a, b[2], b[3]);
        }
      }
    }
    const bool last = j + 1 == tiles;
    if (!last && (j + 1) % split_tiles != 0) continue;

    // The split is complete.
    float keep[2] = {1.0f, 1.0f}, add[2] = {};
    const bool none_before = whole[0].total < 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total[r] += __shfl_xor_sync(kAllLanes, total[r], 1);
      total[r] += __shfl_xor_sync(kAllLanes, total[r], 2);
      if (quad == 0) total_of[group][16 * tile + 8 * r + g] = total[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      SoftmaxState state{largest[r], total_of[0][16 * tile + 8 * r + g]};
#pragma unroll
      for (int i = 1; i < kGroups; ++i) state.total += total_of[i][16 * tile + 8 * r + g];
      if (!any) state.total = -1.0f;
      const int head = first_head + 16 * tile + 8 * r + g;
      if constexpr (kWhole) {
        if (any) fold_state(whole[r], state, keep[r], add[r]);
      } else if (head < heads && group == 0 && quad == 0) {
        split_states.states[split_states.at(local, heads, head, static_cast<int>(blockIdx.y))] = state;
      }
      largest[r] = -INFINITY;
      total[r] = 0;
    }
#pragma unroll
    for (int i = 0; i < kValueTiles; ++i) {
      const int n = group + kGroups * i;
      if (16 * n >= from.L || (kWhole && !any && !last)) continue;
#pragma unroll
      for (int c = 0; c < 4; ++c) {  // pairs: 8 c / 2 channels on, heads g and g + 8
        const int r = c % 2, head = first_head + 16 * tile + 8 * r + g, l = 16 * n + c / 2 * 8 + 2 * quad;
        float2 v = make_float2(sums[i][c / 2][2 * r], sums[i][c / 2][2 * r + 1]);
        sums[i][c / 2][2 * r] = sums[i][c / 2][2 * r + 1] = 0;
        if (head >= heads) continue;
        float2* to;
        if constexpr (kWhole) {
          to = reinterpret_cast<float2*>(o + (t * heads + head) * from.L + l);
          const float2 before = none_before ? make_float2(0, 0) : *to;
          v.x = fold_value(before.x, keep[r], v.x, add[r]);
          v.y = fold_value(before.y, keep[r], v.y, add[r]);
          if (last && !(whole[r].total < 0)) v.x /= whole[r].total, v.y /= whole[r].total;
        } else {
          const int64_t at = split_states.at(local, heads, head, static_cast<int>(blockIdx.y));
          to = reinterpret_cast<float2*>(split_states.values + at * from.L + l);
        }
        *to = v;
      }
    }
    any = false;
  }
}

template <int kTiles, bool kWhole>
void attend(const OpDesc& desc, const Args& args, const AttendPlan& plan, int64_t first, int64_t tokens,
            Stream& stream) {
  const int stride = swizzled::padded(plan.rows.L + plan.rows.rope);
  const size_t shared =
      sizeof(uint16_t) * static_cast<size_t>((16 * kTiles + 2 * kRows) * stride + 16 * kTiles * kRows);
  const dim3 grid(static_cast<unsigned>(tokens * ceil_div(plan.heads, 16 * kTiles)),
                  kWhole ? 1 : static_cast<unsigned>(plan.splits));
  launch(attend_kernel<kTiles, kWhole>, grid, kThreads, shared, stream, plan.rows, turn_of(desc, args), first, tokens,
         plan.heads, desc.attrs.real(Attr::scale), args.input<float>(0), plan.states, args.output<float>(0));
}

template <int kTiles>
void attend_all(const OpDesc& desc, const Args& args, const AttendPlan& plan, Stream& stream) {
  if (plan.splits <= 1 || plan.tokens * ceil_div(plan.heads, 16 * kTiles) >= kWholeBlocks)
    return attend<kTiles, true>(desc, args, plan, 0, plan.tokens, stream);
  for (int64_t first = 0; first < plan.tokens; first += plan.spread_tokens) {
    const int64_t tokens = std::min(plan.spread_tokens, plan.tokens - first);
    attend<kTiles, false>(desc, args, plan, first, tokens, stream);
    fold_splits(plan, first, tokens, args.output<float>(0), stream);
  }
}

const char* refuse_bf16(const OpDesc& desc, const DeviceInfo&) {
  if (desc.precision == Precision::float32) return "rounds queries to bf16";
  if (desc.cache_dtype != DType::bf16) return "reads a bf16 cache";
  if (desc.attrs.integer(Attr::rope_dim) % 16 != 0) return "qk_rope_head_dim must be a multiple of 16";
  if (desc.in(1).type.dim(1).factor + desc.attrs.integer(Attr::rope_dim) > 576)
    return "kv_lora_rank and qk_rope_head_dim are above 576 together";
  return refuse_latents(desc);
}

void launch_bf16(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  if (args.now.tokens == 0) return;
  append_latents(desc, args, stream);
  const AttendPlan plan = attend_plan(desc, args, workspace, kSplitRows);
  CHECK(plan.rows.vectors, "cache blocks of latents must lie at multiples of 16 bytes");
  if (plan.heads <= 16) return attend_all<1>(desc, args, plan, stream);
  plan.heads <= 32 ? attend_all<2>(desc, args, plan, stream) : attend_all<4>(desc, args, plan, stream);
}

}  // namespace
}  // namespace moesaic::cuda::latents

namespace moesaic::cuda {

const Kernel kMlaAttendBf16{.name = "mla_attend.bf16.cuda",
                            .op = Op::mla_attend,
                            .backend = Backend::cuda,
                            .refuse = latents::refuse_bf16,
                            .workspace_bytes = latents::workspace_bytes,
                            .launch = latents::launch_bf16};

}  // namespace moesaic::cuda
