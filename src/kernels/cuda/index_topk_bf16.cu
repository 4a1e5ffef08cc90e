// index_topk by scores from the matrix units: queries rounded to bf16, a bf16 cache, sums in float32. The choice among
// the scores is exact: see index_select.cu.
#include <algorithm>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/index_select.cuh"
#include "kernels/cuda/swizzled.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kTileKeys = 16 * kWarps;  // entries of a tile: 16 a warp
constexpr int kTileHeads = 64;          // whose products a warp makes at once
constexpr int kMaxHeads = 128;
constexpr int64_t kBlocks = 528;

// scores[local token, entry] = sum over heads of w[h] relu(scale q[h] . k[entry]). A block takes every gridDim.y-th
// tile of 128 entries of one token (blockIdx.x); the next tile is on its way while one is multiplied. Shared memory,
// swizzled bf16: queries [heads, rounded up to 64][stride], keys [2][128][stride].
__global__ void __launch_bounds__(kThreads, 2)
    score_kernel(IndexEntries entries, int64_t first_token, int heads, int D, int top_k, float scale, const float* q,
                 const float* w, float* all_scores, int64_t score_stride) {
  after_previous();
  __shared__ float weights[kMaxHeads];
  const int stride = swizzled::padded(D), padded_heads = ceil_div(heads, kTileHeads) * kTileHeads;
  uint16_t* queries = dynamic_shared<uint16_t>();
  uint16_t* keys = queries + padded_heads * stride;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / kWarp, lane = tid % kWarp, quad = lane % 4;
  const int64_t t = first_token + blockIdx.x;
  const int n = entries.visible(t);
  if (n <= top_k) return;  // all are chosen
  const int32_t* table = entries.table(t);
  float* scores = all_scores + blockIdx.x * score_stride;

  for (int i = tid; i < padded_heads * stride / 2; i += kThreads) {
    const int h = i / (stride / 2), d = i % (stride / 2) * 2;
    const float* x = q + (t * heads + h) * D + d;
    *reinterpret_cast<unsigned*>(queries + swizzled::at(h, d / 8, stride) + d % 8) =
        h < heads && d < D ? pack_bf16(x[0], x[1]) : 0;
  }
  for (int i = tid; i < padded_heads; i += kThreads) weights[i] = i < heads ? w[t * heads + i] : 0.0f;

  const auto copy = [&](int64_t tile, int buffer) {  // two threads an entry; zeros beyond what is there
    const int row = tid / 2;
    const int64_t entry = tile * kTileKeys + row;
    const uint16_t* from = nullptr;
    if (entry < n) {
      const EntryPlace place = entry_place(entry, entries.ratio);
      from =
          reinterpret_cast<const uint16_t*>(entries.blocks + table[place.block] * entries.block_stride) + place.row * D;
    }
    uint16_t* to = keys + buffer * kTileKeys * stride;
    for (int c = tid % 2; c < stride / 8; c += 2) {
      const bool exists = from != nullptr && c * 8 < D;
      copy_async(to + swizzled::at(row, c, stride),
                 exists ? static_cast<const void*>(from + c * 8) : static_cast<const void*>(entries.blocks),
                 exists ? 16 : 0);
    }
  };

  const int64_t tiles = ceil_div(n, kTileKeys);
  if (blockIdx.y < tiles) copy(blockIdx.y, 0);
  commit_copies();
  int buffer = 0;
  for (int64_t tile = blockIdx.y; tile < tiles; tile += gridDim.y, buffer ^= 1) {
    wait_copies<0>();
    __syncthreads();  // this tile has come, and the one before has been read
    if (tile + gridDim.y < tiles) copy(tile + gridDim.y, buffer ^ 1);
    commit_copies();
    const uint16_t* from = keys + buffer * kTileKeys * stride;
    float totals[2] = {};  // of entries lane / 4 and lane / 4 + 8 of the warp's, over this thread's heads
    for (int first = 0; first < padded_heads; first += kTileHeads) {
      float dots[kTileHeads / 8][4] = {};
      for (int k = 0; k < stride / 16; k += 2) {
        unsigned a[2][4];
        swizzled::load_rows16(a[0], from, 16 * warp, k, stride);
        swizzled::load_rows16(a[1], from, 16 * warp, k + 1, stride);
#pragma unroll
        for (int i = 0; i < kTileHeads / 8; ++i) {
          unsigned b[4];
          swizzled::load_columns8(b, queries, first + 8 * i, k, stride);
          mma_bf16(dots[i], a[0], b[0], b[1]);
          mma_bf16(dots[i], a[1], b[2], b[3]);
        }
      }
#pragma unroll
      for (int i = 0; i < kTileHeads / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float dot = dots[i][j] * scale;
          const int h = first + 8 * i + 2 * quad + j % 2;
          if (h < heads) totals[j / 2] += weights[h] * (dot < 0 ? 0.0f : dot);  // NaN stays
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      totals[r] += __shfl_xor_sync(kAllLanes, totals[r], 1);
      totals[r] += __shfl_xor_sync(kAllLanes, totals[r], 2);
      const int64_t entry = tile * kTileKeys + 16 * warp + 8 * r + lane / 4;
      if (quad == 0 && entry < n) scores[entry] = totals[r];
    }
  }
}

const char* refuse(const OpDesc& desc, const DeviceInfo&) {
  if (desc.precision == Precision::float32) return "rounds queries to bf16";
  if (desc.cache_dtype != DType::bf16) return "reads a bf16 cache";
  const int64_t D = desc.attrs.integer(Attr::head_dim);
  if (D % 8 != 0 || D > 128) return "head_dim must be a multiple of 8, at most 128";
  if (desc.attrs.integer(Attr::heads) > kMaxHeads) return "there are more than 128 heads";
  return refuse_exact_scores(desc);
}

int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo&) {
  return score_bytes(desc);
}

void launch_index(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  if (args.now.tokens == 0) return;
  const int heads = static_cast<int>(desc.attrs.integer(Attr::heads));
  const int D = static_cast<int>(desc.attrs.integer(Attr::head_dim));
  const IndexEntries entries = index_entries(desc, args);
  CHECK(entries.block_stride % 16 == 0 && reinterpret_cast<uintptr_t>(entries.blocks) % 16 == 0,
        "cache blocks of index keys must lie at multiples of 16 bytes");
  const IndexTurns turns = index_turns(desc, args, reinterpret_cast<float*>(workspace));
  const int rows = ceil_div(heads, kTileHeads) * kTileHeads + 2 * kTileKeys;
  const size_t shared = sizeof(uint16_t) * static_cast<size_t>(rows * swizzled::padded(D));
  append_keys(desc, args, stream);
  for (int64_t first = 0; first < args.now.tokens; first += turns.chunk) {
    const int64_t tokens = std::min(turns.chunk, args.now.tokens - first);
    const dim3 grid(static_cast<unsigned>(tokens),
                    blocks_per_token(tokens, ceil_div(turns.stride, kTileKeys), kBlocks));
    launch(score_kernel, grid, kThreads, shared, stream, entries, first, heads, D,
           static_cast<int>(desc.attrs.integer(Attr::top_k)), desc.attrs.real(Attr::scale), args.input<float>(0),
           args.input<float>(2), turns.scores, turns.stride);
    select_entries(desc, args, turns, first, tokens, stream);
  }
}

}  // namespace

const Kernel kIndexTopkBf16{.name = "index_topk.bf16.cuda",
                            .op = Op::index_topk,
                            .backend = Backend::cuda,
                            .refuse = refuse,
                            .workspace_bytes = workspace_bytes,
                            .launch = launch_index};

}  // namespace moesaic::cuda
