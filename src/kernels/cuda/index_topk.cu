// index_topk by exact scores in float32. A block of the cache holds its 64 / ratio keys [D]; scores go to the
// workspace, from which index_select.cu chooses. A score's terms are added in an order that the shape alone fixes.
#include <algorithm>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/index_select.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTileKeys = 128, kTileHeads = 64;                           // of a pass; a thread has 8 keys and 4 heads
constexpr int kKeyStride = kTileKeys + 4, kQueryStride = kTileHeads + 4;  // floats of a channel in shared memory
constexpr int kMaxDim = 256;
constexpr int64_t kBlocks = 528;  // about two rounds of two blocks an SM

__device__ __forceinline__ float multiply_add(float a, float b, float c) {
#ifdef MOESAIC_EMULATED_CUDA
  return a * b + c;  // fmaf would be a call
#else
  return fmaf(a, b, c);
#endif
}

// A block a token: the key of the window that it closes.
template <typename T>
__global__ void append_kernel(std::byte* blocks, IndexEntries entries, int D, const float* k) {
  after_previous();
  const int64_t t = blockIdx.x;
  const int p = entries.positions[t];
  if ((p + 1) % entries.ratio != 0) return;
  T* to = reinterpret_cast<T*>(blocks + entries.table(t)[p / kBlockTokens] * entries.block_stride) +
          static_cast<int64_t>(p % kBlockTokens / entries.ratio) * D;
  for (int d = static_cast<int>(threadIdx.x); d < D; d += static_cast<int>(blockDim.x))
    store_element(to + d, k[t * D + d]);
}

// Writes channels of a key [D] to column `column` of keys [D][kKeyStride]: part `part` of two. Null: zeros.
template <typename T>
__device__ __forceinline__ void load_key(const T* key, int D, bool vectors, int part, float* keys, int column) {
  constexpr int kVector = 16 / sizeof(T);
  if (!vectors || key == nullptr) {
    for (int d = part; d < D; d += 2) keys[d * kKeyStride + column] = key != nullptr ? load_element(key + d) : 0.0f;
    return;
  }
#pragma unroll 4
  for (int d = part * kVector; d < D; d += 2 * kVector) {
    const uint4 v = *reinterpret_cast<const uint4*>(key + d);
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
    float* to = keys + d * kKeyStride + column;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4) {
        to[i * kKeyStride] = __uint_as_float(words[i]);
      } else {
        to[2 * i * kKeyStride] = __uint_as_float(words[i] << 16);
        to[(2 * i + 1) * kKeyStride] = __uint_as_float(words[i] & 0xFFFF0000u);
      }
    }
  }
}

// scores[local token, entry] = sum over heads of w[h] relu(scale q[h] . k[entry]). A block takes every gridDim.y-th
// tile of 128 entries of one token (blockIdx.x), 64 heads at a time. Shared memory: keys [D][132], queries [D][68].
template <typename T>
__global__ void __launch_bounds__(kThreads, 2)
    score_kernel(IndexEntries entries, bool vectors, int64_t first_token, int heads, int D, int top_k, float scale,
                 const float* q, const float* w, float* all_scores, int64_t stride) {
  after_previous();
  float* keys = dynamic_shared<float>();
  float* queries = keys + D * kKeyStride;
  __shared__ float sums[kThreads / 16][kTileKeys];
  const int64_t t = first_token + blockIdx.x;
  const int tid = static_cast<int>(threadIdx.x), key = tid % 16 * 4, head = tid / 16 * 4, n = entries.visible(t);
  if (n <= top_k) return;  // all are chosen
  const int32_t* table = entries.table(t);
  float* scores = all_scores + blockIdx.x * stride;
  const int head_tiles = ceil_div(heads, kTileHeads);
  int loaded = -1;  // the heads in `queries`
  for (int64_t tile = blockIdx.y; tile * kTileKeys < n; tile += gridDim.y) {
    const int64_t entry = tile * kTileKeys + tid % kTileKeys;
    const EntryPlace place = entry_place(entry, entries.ratio);
    const T* from = entry < n ? reinterpret_cast<const T*>(entries.blocks + table[place.block] * entries.block_stride) +
                                    place.row * D
                              : nullptr;
    __syncthreads();  // the tile before has been read
    load_key(from, D, vectors, tid / kTileKeys, keys, tid % kTileKeys);
    float totals[8] = {};
    for (int h = 0; h < head_tiles; ++h) {
      if (h != loaded) {
        if (h > 0) __syncthreads();
        for (int i = tid; i < kTileHeads * D; i += kThreads) {
          const int of_head = h * kTileHeads + i / D;
          queries[i % D * kQueryStride + i / D] = of_head < heads ? q[(t * heads + of_head) * D + i % D] : 0.0f;
        }
        loaded = h;
      }
      __syncthreads();
      float dots[4][8] = {};
#pragma unroll 4
      for (int d = 0; d < D; ++d) {
        const float4 a = *reinterpret_cast<const float4*>(queries + d * kQueryStride + head);
        const float4 b[2] = {*reinterpret_cast<const float4*>(keys + d * kKeyStride + key),
                             *reinterpret_cast<const float4*>(keys + d * kKeyStride + key + 64)};
        const float query[4] = {a.x, a.y, a.z, a.w};
        const float value[8] = {b[0].x, b[0].y, b[0].z, b[0].w, b[1].x, b[1].y, b[1].z, b[1].w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 8; ++j) dots[i][j] = multiply_add(query[i], value[j], dots[i][j]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int of_head = h * kTileHeads + head + i;
        if (of_head >= heads) continue;
        const float weight = w[t * heads + of_head];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float dot = dots[i][j] * scale;
          totals[j] = multiply_add(weight, dot < 0 ? 0.0f : dot, totals[j]);  // NaN stays
        }
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) sums[tid / 16][key + j / 4 * 64 + j % 4] = totals[j];
    __syncthreads();
    if (tid < kTileKeys && entry < n) {
      float total = 0;
      for (int i = 0; i < kThreads / 16; ++i) total += sums[i][tid];
      scores[entry] = total;
    }
  }
}

template <typename T>
void score_and_select(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const int heads = static_cast<int>(desc.attrs.integer(Attr::heads));
  const int D = static_cast<int>(desc.attrs.integer(Attr::head_dim));
  const IndexEntries entries = index_entries(desc, args);
  const IndexTurns turns = index_turns(desc, args, reinterpret_cast<float*>(workspace));
  const bool vectors = D * sizeof(T) % 16 == 0 && entries.block_stride % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(entries.blocks) % 16 == 0;
  append_keys(desc, args, stream);
  for (int64_t first = 0; first < args.now.tokens; first += turns.chunk) {
    const int64_t tokens = std::min(turns.chunk, args.now.tokens - first);
    const dim3 grid(static_cast<unsigned>(tokens),
                    blocks_per_token(tokens, ceil_div(turns.stride, kTileKeys), kBlocks));
    launch(score_kernel<T>, grid, kThreads, sizeof(float) * static_cast<size_t>(D * (kKeyStride + kQueryStride)),
           stream, entries, vectors, first, heads, D, static_cast<int>(desc.attrs.integer(Attr::top_k)),
           desc.attrs.real(Attr::scale), args.input<float>(0), args.input<float>(2), turns.scores, turns.stride);
    select_entries(desc, args, turns, first, tokens, stream);
  }
}

const char* refuse(const OpDesc& desc, const DeviceInfo&) {
  if (desc.cache_dtype != DType::f32 && desc.cache_dtype != DType::bf16) return "the cache must be f32 or bf16";
  return refuse_exact_scores(desc);
}

int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo&) {
  return score_bytes(desc);
}

void launch_index(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  if (args.now.tokens == 0) return;
  desc.cache_dtype == DType::bf16 ? score_and_select<uint16_t>(desc, args, workspace, stream)
                                  : score_and_select<float>(desc, args, workspace, stream);
}

}  // namespace

void append_keys(const OpDesc& desc, const Args& args, Stream& stream) {
  launch(desc.cache_dtype == DType::bf16 ? append_kernel<uint16_t> : append_kernel<float>,
         static_cast<unsigned>(args.now.tokens), 128, 0, stream, args.cache.blocks, index_entries(desc, args),
         static_cast<int>(desc.attrs.integer(Attr::head_dim)), args.input<float>(1));
}

const char* refuse_exact_scores(const OpDesc& desc) {
  if (desc.attrs.has(Attr::hash_bits)) return "chooses by exact scores, not by hash";
  const int64_t ratio = desc.attrs.integer(Attr::ratio, 1);
  if (kBlockTokens % ratio != 0 && ratio % kBlockTokens != 0) return "ratio must divide 64 or be a multiple of it";
  if (desc.attrs.integer(Attr::head_dim) > kMaxDim) return "head_dim is above 256";
  return nullptr;
}

const Kernel kIndexTopk{.name = "index_topk.cuda",
                        .op = Op::index_topk,
                        .backend = Backend::cuda,
                        .refuse = refuse,
                        .workspace_bytes = workspace_bytes,
                        .launch = launch_index};

}  // namespace moesaic::cuda
