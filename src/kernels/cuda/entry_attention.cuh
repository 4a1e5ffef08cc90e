// What the kernels of entry_attend share: one shared key, which is also the value, per token of the window and per
// compressed entry. The rows a token sees are numbered window first, then entries, both ascending, and taken in chunks
// of 32; a part is up to ceil(chunks / 16) neighbouring chunks. A part is summed chunk by chunk with a running maximum,
// and the parts are merged in order, starting from the head's sink. All of this follows from the token's position (and
// the entries chosen for it) alone, so a token gives the same bits in any batch, however its sequence is cut into
// steps, and whether one block runs all its parts or every part has a block of its own.
#pragma once

#include "ir/cache_spec.h"
#include "kernels/cuda/caches.cuh"
#include "kernels/cuda/numbers.cuh"

namespace moesaic::cuda::entry {

constexpr int kChunk = 32;      // rows
constexpr int kMostParts = 16;  // of a token
constexpr int kMostDim = 512;
constexpr int64_t kSpreadTokens = 16;  // steps of so many tokens or fewer have a block for each part

struct EntryAttend {
  const float *q, *kv, *sinks, *entries;  // [T, heads * D], [T, D], [heads], [T, D]
  const int32_t* chosen;                  // [T, chosen_width], or null: all
  const int32_t *positions, *sequence_of, *offsets, *tables, *slots;
  CacheView cache;  // slot: the ring of the window, position p in row p % window; blocks: entries (EntryPlace)
  int64_t max_blocks;
  int heads, D, padded, window, ratio, chosen_width;  // padded: D as a multiple of 64
  int tiles, groups;                                  // tiles of heads in a block, blocks for the heads of a token
  float scale;
  float* out;  // [T, heads * D]
  // Of each part, where every part has its block: [T][kMostParts][heads] sums of D, then maximum and total.
  float* sums;
  float2* totals;
  const uint16_t* rounded;  // [2][T][D]: kv and entries as a bf16 cache will hold them, or null
  int tokens;
};

// What one token sees.
struct Visible {
  int t, position, step_begin, recent, rows, chunks, chunks_of_part, parts;
  const std::byte* ring;
  const int32_t* table;

  __device__ __forceinline__ void look(const EntryAttend& a, int token) {
    t = token, position = a.positions[t];
    const int s = a.sequence_of[t];
    step_begin = position - (t - a.offsets[s]);
    recent = min(position + 1, a.window);
    int entries = a.ratio > 0 ? (position + 1) / a.ratio : 0;
    if (a.chosen != nullptr) entries = min(entries, a.chosen_width);
    rows = recent + entries;
    chunks = ceil_div(rows, kChunk);
    chunks_of_part = ceil_div(chunks, kMostParts);
    parts = ceil_div(chunks, chunks_of_part);
    ring = slot_of(a.cache, a.slots[s]);
    table = a.tables + s * a.max_blocks;
  }

  // Address of row i, 0 for none. Rows of this step come from the inputs, which are float32: marked by the lowest bit;
  // or from what was rounded of them.
  template <typename T>
  __device__ __forceinline__ uintptr_t address(const EntryAttend& a, int i) const {
    if (i >= rows) return 0;
    const auto input = [&](const float* from, int p) {
      const int64_t row = t - (position - p);
      if (a.rounded == nullptr) return reinterpret_cast<uintptr_t>(from + row * a.D) | 1;
      return reinterpret_cast<uintptr_t>(a.rounded + (from == a.kv ? row : a.tokens + row) * a.D);
    };
    const int64_t bytes = static_cast<int64_t>(a.D) * static_cast<int64_t>(sizeof(T));
    if (i < recent) {
      const int p = position - recent + 1 + i;
      return p >= step_begin ? input(a.kv, p) : reinterpret_cast<uintptr_t>(ring + p % a.window * bytes);
    }
    int e = i - recent;
    if (a.chosen != nullptr) e = a.chosen[static_cast<int64_t>(t) * a.chosen_width + e];
    if (e < 0) return 0;
    const int last = e * a.ratio + a.ratio - 1;
    if (last >= step_begin) return input(a.entries, last);
    const EntryPlace place = entry_place(e, a.ratio);
    return reinterpret_cast<uintptr_t>(block_of(a.cache, table[place.block]) + place.row * bytes);
  }
};

// Maximum and total of e^(score - maximum); nothing yet where the maximum is -inf.
struct Softmax {
  float top, total;
};
// What the sum so far and the part's sum are multiplied with as the part is merged.
__device__ __forceinline__ float2 merge(Softmax& so_far, const Softmax& part) {
  const float top = fmaxf(so_far.top, part.top);
  const float2 factors = make_float2(expf(so_far.top - top), expf(part.top - top));
  so_far.total = fmaf(part.total, factors.y, __fmul_rn(so_far.total, factors.x));
  so_far.top = top;
  return factors;
}
__device__ __forceinline__ float merged(float so_far, float part, float2 factors) {
  return fmaf(part, factors.y, __fmul_rn(so_far, factors.x));
}

const char* refuse_entries(const OpDesc& desc, const DeviceInfo& device);
// For the parts; a multiple of 16.
int64_t entry_workspace(const OpDesc& desc, const DeviceInfo& device);
// With blocks of up to `most_tiles` tiles of `tile_heads` heads.
EntryAttend entry_arguments(const OpDesc& desc, const Args& args, std::byte* workspace, int tile_heads, int most_tiles);

// After every part of the tokens has been summed: merges them, and appends.
void merge_and_append(const EntryAttend& a, DType cache, int64_t tokens, Stream& stream);
// Writes what later steps see of the step's tokens.
void append(const EntryAttend& a, DType cache, int64_t tokens, Stream& stream);

}  // namespace moesaic::cuda::entry
