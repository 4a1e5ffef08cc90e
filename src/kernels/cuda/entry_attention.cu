// entry_attend in float32. See entry_attention.cuh.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/entry_attention.cuh"
#include "kernels/cuda/folds.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/rows.cuh"

namespace moesaic::cuda {
namespace {

using namespace entry;

constexpr int kHeads = 4;  // of a tile, which two warps hold
constexpr int kTileThreads = 64;
constexpr int kMostTiles = 4;       // of a block; they share its chunk
constexpr int kSlices = 16;         // lanes that share a score, each with every 16th quad of the head's channels
constexpr int kRowsEach = 8;        // scores of a lane: kHeads * kRowsEach
constexpr int kStep = 4 * kSlices;  // two quads of output channels a thread

// The parts of a block's shared memory.
template <typename T>
struct Shared {
  float* q;            // [tiles * kHeads][padded]
  T* rows;             // [kChunk][padded]
  float* weights;      // [tiles][kChunk][kHeads]: scores, then e^(score - maximum)
  float* rescale;      // [tiles * kHeads]: of the part's sum, before the chunk is added
  float2* merge;       // [tiles * kHeads]: of the sum so far and of the part
  float* total;        // [tiles * kHeads]
  uintptr_t* address;  // [2][kChunk]

  static size_t bytes(int tiles, int padded) {
    const auto heads = static_cast<size_t>(tiles * kHeads), width = static_cast<size_t>(padded);
    return heads * (4 * width + 4 * kChunk + 16) + kChunk * width * sizeof(T) + 2 * kChunk * sizeof(uintptr_t);
  }
  __device__ __forceinline__ Shared(int tiles, int padded) {
    const int heads = tiles * kHeads;
    address = dynamic_shared<uintptr_t>();
    q = reinterpret_cast<float*>(address + 2 * kChunk);
    weights = q + heads * padded;
    rows = reinterpret_cast<T*>(weights + heads * kChunk);
    merge = reinterpret_cast<float2*>(rows + kChunk * padded);
    rescale = reinterpret_cast<float*>(merge + heads);
    total = rescale + heads;
  }
};

__device__ __forceinline__ Floats<4> load_quad(const float* p) {
  return load_floats<4>(p);
}
__device__ __forceinline__ Floats<4> load_quad(const uint16_t* p) {
  const uint2 x = *reinterpret_cast<const uint2*>(p);
  return {__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xFFFF0000u), __uint_as_float(x.y << 16),
          __uint_as_float(x.y & 0xFFFF0000u)};
}

// Eight elements of a row on their way from global to shared memory, as they come: 8 floats or 8 bf16.
struct Eight {
  float4 low, high;

  __device__ __forceinline__ void load(uintptr_t row, bool floats, int first) {
    if (floats) {
      const auto* from = reinterpret_cast<const float4*>(row + static_cast<uintptr_t>(first) * 4);
      low = from[0], high = from[1];
    } else {
      const uint4 bits = *reinterpret_cast<const uint4*>(row + static_cast<uintptr_t>(first) * 2);
      low = make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                        __uint_as_float(bits.w));
    }
  }
  __device__ __forceinline__ void store(float* to, bool) const {
    reinterpret_cast<float4*>(to)[0] = low;
    reinterpret_cast<float4*>(to)[1] = high;
  }
  __device__ __forceinline__ void store(uint16_t* to, bool floats) const {
    *reinterpret_cast<uint4*>(to) =
        floats ? uint4{pack_bf16(low.x, low.y), pack_bf16(low.z, low.w), pack_bf16(high.x, high.y),
                       pack_bf16(high.z, high.w)}
               : uint4{__float_as_uint(low.x), __float_as_uint(low.y), __float_as_uint(low.z), __float_as_uint(low.w)};
  }
};

// The rows of a chunk as they come out of the cache; zeros where there is none and beyond D.
template <typename T>
__device__ __forceinline__ void load_chunk(const EntryAttend& a, const uintptr_t* address, T* rows) {
  constexpr int kAtOnce = 4;
  const int units = a.padded / 8, threads = static_cast<int>(blockDim.x);
  for (int first = static_cast<int>(threadIdx.x); first < kChunk * units; first += kAtOnce * threads) {
    Eight held[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * threads;
      held[j] = {};
      if (i >= kChunk * units) continue;
      const uintptr_t row = address[i / units];
      if (row != 0 && i % units * 8 < a.D)
        held[j].load(row & ~uintptr_t{1}, sizeof(T) == 4 || (row & 1) != 0, i % units * 8);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * threads;
      if (i < kChunk * units) held[j].store(rows + i * 8, (address[i / units] & 1) != 0);
    }
  }
}

// This tile's scores of a chunk, by its two warps: a lane multiplies its slice of 4 heads with that of 8 rows, then the
// slices are summed.
template <typename T>
__device__ __forceinline__ void score(const EntryAttend& a, const float* q, const T* rows, const uintptr_t* address,
                                      float* scores) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, slice = lane % kSlices;
  const int first = (static_cast<int>(threadIdx.x) % kTileThreads) / kSlices * kRowsEach;
  float sums[kRowsEach * kHeads];
#pragma unroll
  for (int i = 0; i < kRowsEach * kHeads; ++i) sums[i] = 0;
#pragma unroll 1
  for (int d = slice * 4; d < a.padded; d += kStep) {
    Floats<4> queries[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) queries[h] = load_floats<4>(q + h * a.padded + d);
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r) {
      const Floats<4> row = load_quad(rows + (first + r) * a.padded + d);
#pragma unroll
      for (int h = 0; h < kHeads; ++h)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[r * kHeads + h] = add_product(sums[r * kHeads + h], queries[h].v[i], row.v[i]);
    }
  }
  float by8[16], by4[8], by2[4], own[2];
  fold_half(sums, 8, by8);
  fold_half(by8, 4, by4);
  fold_half(by4, 2, by2);
  fold_half(by2, 1, own);
  const int row = first + lane / 8 % 2 * 4 + lane / 4 % 2 * 2 + lane / 2 % 2;
  const bool seen = address[row] != 0;
  *reinterpret_cast<float2*>(scores + row * kHeads + lane % 2 * 2) =
      make_float2(seen ? own[0] * a.scale : -INFINITY, seen ? own[1] * a.scale : -INFINITY);
}

// Turns a chunk's scores of two heads, [kChunk][kHeads], into weights, a lane a row; returns in `rescale` what the sums
// of the chunks before are multiplied with.
__device__ __forceinline__ void soften(float* scores, Softmax (&part)[2], float (&rescale)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  auto* at = reinterpret_cast<float2*>(scores + lane * kHeads);
  const float2 score = *at;
  float top[2] = {score.x, score.y};
  warp_maxima(top);
  float sums[2] = {score.x, score.y};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    top[i] = fmaxf(part[i].top, top[i]);
    const float base = top[i] == -INFINITY ? 0.0f : top[i];  // every row so far is absent
    rescale[i] = expf(part[i].top - base);
    sums[i] = expf(sums[i] - base);
  }
  *at = make_float2(sums[0], sums[1]);
  warp_sums(sums);
#pragma unroll
  for (int i = 0; i < 2; ++i) part[i] = {top[i], fmaf(part[i].total, rescale[i], sums[i])};
}

// A block for each (token, up to 16 heads), and for each part unless kWhole; two warps for 4 heads: scores, softmax and
// weighted sum of a chunk in turn. A thread holds one or two quads of output channels of its 4 heads.
template <typename T, bool kWhole, int kQuads>
__global__ void __launch_bounds__(kMostTiles* kTileThreads, 2) entry_kernel(EntryAttend a) {
  after_previous();
  const int tid = static_cast<int>(threadIdx.x), tile = tid / kTileThreads, within = tid % kTileThreads;
  const int lane = tid % kWarp, pair = within / kWarp * 2;  // the two heads of the tile whose softmax this warp does
  const Shared<T> s(a.tiles, a.padded);
  __shared__ Visible seen;
  if (tid == 0) seen.look(a, static_cast<int>(blockIdx.x) / a.groups);
  __syncthreads();
  const int block_head = static_cast<int>(blockIdx.x) % a.groups * a.tiles * kHeads,
            first_head = block_head + tile * kHeads;
  const int part_begin = kWhole ? 0 : static_cast<int>(blockIdx.y);
  if (part_begin >= seen.parts) return;
  const int begin = part_begin * seen.chunks_of_part;
  const int end = kWhole ? seen.chunks : min(seen.chunks, begin + seen.chunks_of_part);

  for (int i = tid * 4; i < a.tiles * kHeads * a.padded; i += static_cast<int>(blockDim.x) * 4) {
    const int head = block_head + i / a.padded, d = i % a.padded;
    const bool there = head < a.heads && d < a.D;
    store_floats<4>(
        s.q + i, there ? load_floats<4>(a.q + (static_cast<int64_t>(seen.t) * a.heads + head) * a.D + d) : Floats<4>{});
  }
  if (tid < kChunk) s.address[begin % 2 * kChunk + tid] = seen.address<T>(a, begin * kChunk + tid);
  __syncthreads();

  Softmax part[2], whole[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    part[i] = {-INFINITY, 0};
    whole[i] = {first_head + pair + i < a.heads ? a.sinks[first_head + pair + i] : 0.0f, 1};
  }
  const bool sums_up = within * 4 < a.D;
  const int quads[2] = {within, (within + kTileThreads) * 4 < a.D ? within + kTileThreads : within};
  float sum[kHeads][4 * kQuads] = {}, result[kWhole ? kHeads : 1][4 * kQuads] = {};
  for (int chunk = begin; chunk < end; ++chunk) {
    const uintptr_t* address = s.address + chunk % 2 * kChunk;
    const bool ends = (chunk + 1) % seen.chunks_of_part == 0 || chunk + 1 == seen.chunks;
    float* weights = s.weights + tile * kChunk * kHeads;
    load_chunk(a, address, s.rows);
    __syncthreads();
    if (tid < kChunk && chunk + 1 < end)
      s.address[(chunk + 1) % 2 * kChunk + tid] = seen.address<T>(a, (chunk + 1) * kChunk + tid);
    score(a, s.q + tile * kHeads * a.padded, s.rows, address, weights);
    __syncthreads();
    float rescale[2];
    soften(weights + pair, part, rescale);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = tile * kHeads + pair + i;
      if (lane == 0) s.rescale[head] = rescale[i];
      if (!ends) continue;
      if constexpr (kWhole) {
        const float2 factors = merge(whole[i], part[i]);
        if (lane == 0) s.merge[head] = factors, s.total[head] = whole[i].total;
      } else if (lane == 0 && block_head + head < a.heads) {
        a.totals[(static_cast<int64_t>(seen.t) * kMostParts + part_begin) * a.heads + block_head + head] =
            make_float2(part[i].top, part[i].total);
      }
      part[i] = {-INFINITY, 0};
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
#pragma unroll
      for (int i = 0; i < 4 * kQuads; ++i) sum[h][i] *= s.rescale[tile * kHeads + h];
#pragma unroll 4
    for (int r = 0; r < (sums_up ? kChunk : 0); ++r) {
      const Floats<4> weight = load_floats<4>(weights + r * kHeads);
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        const Floats<4> row = load_quad(s.rows + r * a.padded + quads[j] * 4);
#pragma unroll
        for (int h = 0; h < kHeads; ++h)
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[h][j * 4 + i] = add_product(sum[h][j * 4 + i], weight.v[h], row.v[i]);
      }
    }
    if (kWhole && ends) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float2 factors = s.merge[tile * kHeads + h];
#pragma unroll
        for (int i = 0; i < 4 * kQuads; ++i) {
          result[kWhole ? h : 0][i] = merged(result[kWhole ? h : 0][i], sum[h][i], factors);
          sum[h][i] = 0;
        }
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (first_head + h >= a.heads) break;
    float* to =
        kWhole ? a.out + (static_cast<int64_t>(seen.t) * a.heads + first_head + h) * a.D
               : a.sums + ((static_cast<int64_t>(seen.t) * kMostParts + part_begin) * a.heads + first_head + h) * a.D;
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int quad = within + j * kTileThreads;
      if (quad * 4 >= a.D) break;
      Floats<4> values;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        values.v[i] = kWhole ? result[kWhole ? h : 0][j * 4 + i] / s.total[tile * kHeads + h] : sum[h][j * 4 + i];
      store_floats<4>(to + quad * 4, values);
    }
  }
}

// What later steps see of token t: its row of the ring, if it stays there, and the entry it closes. By a whole block.
template <typename T>
__device__ __forceinline__ void append_token(const EntryAttend& a, int t) {
  const int s = a.sequence_of[t], position = a.positions[t];
  const int64_t bytes = static_cast<int64_t>(a.D) * static_cast<int64_t>(sizeof(T));
  const auto write = [&](const float* from, std::byte* to) {
    for (int d = static_cast<int>(threadIdx.x); d < a.D; d += static_cast<int>(blockDim.x))
      store_element(reinterpret_cast<T*>(to) + d, from[static_cast<int64_t>(t) * a.D + d]);
  };
  if (t >= a.offsets[s + 1] - a.window) write(a.kv, slot_of(a.cache, a.slots[s]) + position % a.window * bytes);
  if (a.ratio == 0 || (position + 1) % a.ratio != 0) return;
  const EntryPlace place = entry_place(position / a.ratio, a.ratio);
  write(a.entries, block_of(a.cache, a.tables[s * a.max_blocks + place.block]) + place.row * bytes);
}

template <typename T>
__global__ void append_kernel(EntryAttend a) {
  after_previous();
  append_token<T>(a, static_cast<int>(blockIdx.x));
}

// Merges the parts of a token: a block for each (token, head), a thread for each quad of channels. The first head's
// block also appends.
template <typename T>
__global__ void merge_kernel(EntryAttend a) {
  after_previous();
  const int t = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int d = static_cast<int>(threadIdx.x) * 4;
  Visible seen;
  seen.look(a, t);
  if (d < a.D) {
    Softmax whole{a.sinks[head], 1};
    Floats<4> result{};
#pragma unroll 4
    for (int p = 0; p < seen.parts; ++p) {
      const int64_t at = (static_cast<int64_t>(t) * kMostParts + p) * a.heads + head;
      const float2 total = a.totals[at];
      const Floats<4> sum = load_floats<4>(a.sums + at * a.D + d);
      const float2 factors = merge(whole, {total.x, total.y});
#pragma unroll
      for (int i = 0; i < 4; ++i) result.v[i] = merged(result.v[i], sum.v[i], factors);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) result.v[i] /= whole.total;
    store_floats<4>(a.out + (static_cast<int64_t>(t) * a.heads + head) * a.D + d, result);
  }
  if (head == 0) append_token<T>(a, t);
}

template <typename T>
void run(const EntryAttend& a, int64_t tokens, Stream& stream) {
  const auto blocks = static_cast<unsigned>(tokens * a.groups), threads = static_cast<unsigned>(a.tiles * kTileThreads);
  const size_t shared = Shared<T>::bytes(a.tiles, a.padded);
  const bool two = a.D > 4 * kTileThreads;  // quads a thread
  if (tokens <= kSpreadTokens)
    launch(two ? entry_kernel<T, false, 2> : entry_kernel<T, false, 1>, dim3(blocks, kMostParts), threads, shared,
           stream, a);
  else launch(two ? entry_kernel<T, true, 2> : entry_kernel<T, true, 1>, blocks, threads, shared, stream, a);
}

void entry_attend(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const int64_t tokens = args.now.tokens;
  if (tokens == 0) return;
  const EntryAttend a = entry_arguments(desc, args, workspace, kHeads, kMostTiles);
  desc.cache_dtype == DType::f32 ? run<float>(a, tokens, stream) : run<uint16_t>(a, tokens, stream);
  tokens <= kSpreadTokens ? merge_and_append(a, desc.cache_dtype, tokens, stream)
                          : append(a, desc.cache_dtype, tokens, stream);
}

// Floats of the parts of `tokens` tokens.
int64_t part_floats(const OpDesc& desc, int64_t tokens) {
  return tokens * kMostParts * desc.attrs.integer(Attr::heads) * (desc.attrs.integer(Attr::head_dim) + 2);
}

}  // namespace

namespace entry {

const char* refuse_entries(const OpDesc& desc, const DeviceInfo& device) {
  if (desc.cache_dtype != DType::f32 && desc.cache_dtype != DType::bf16) return "the cache must be f32 or bf16";
  if (desc.attrs.integer(Attr::head_dim) % 16 != 0) return "head_dim must be a multiple of 16";
  if (desc.attrs.integer(Attr::head_dim) > kMostDim) return "head_dim above 512";
  return refuse_types(desc, device);
}

int64_t entry_workspace(const OpDesc& desc, const DeviceInfo&) {
  return part_floats(desc, std::min(desc.bounds.tokens, kSpreadTokens)) * static_cast<int64_t>(sizeof(float));
}

EntryAttend entry_arguments(const OpDesc& desc, const Args& args, std::byte* workspace, int tile_heads,
                            int most_tiles) {
  const BatchView& batch = *args.batch;
  const int64_t heads = desc.attrs.integer(Attr::heads), D = desc.attrs.integer(Attr::head_dim);
  const int64_t tokens = args.now.tokens, tiles = ceil_div(heads, tile_heads);
  // Fewer heads a block where there would be too few blocks.
  const bool few = tokens * ceil_div(tiles, most_tiles) < 264 && (tokens <= 4 || tokens > kSpreadTokens);
  const auto of_block = static_cast<int>(std::min<int64_t>(tiles, few ? ceil_div(most_tiles, 2) : most_tiles));
  auto* sums = reinterpret_cast<float*>(workspace);
  const bool entries = desc.inputs.size() > 3, chosen = desc.inputs.size() > 4;
  const EntryAttend a{.q = args.input<float>(0),
                      .kv = args.input<float>(1),
                      .sinks = args.input<float>(2),
                      .entries = entries ? args.input<float>(3) : nullptr,
                      .chosen = chosen ? args.input<int32_t>(4) : nullptr,
                      .positions = batch.positions,
                      .sequence_of = batch.sequence_of,
                      .offsets = batch.sequence_offsets,
                      .tables = batch.block_tables,
                      .slots = batch.state_slots,
                      .cache = args.cache,
                      .max_blocks = batch.max_blocks,
                      .heads = static_cast<int>(heads),
                      .D = static_cast<int>(D),
                      .padded = static_cast<int>(ceil_div(D, int64_t{64}) * 64),
                      .window = static_cast<int>(desc.attrs.integer(Attr::window)),
                      .ratio = entries ? static_cast<int>(desc.attrs.integer(Attr::ratio)) : 0,
                      .chosen_width = chosen ? static_cast<int>(width_of(desc.in(4))) : 0,
                      .tiles = of_block,
                      .groups = static_cast<int>(ceil_div(tiles, int64_t{of_block})),
                      .scale = desc.attrs.real(Attr::scale),
                      .out = args.output<float>(0),
                      .sums = sums,
                      .totals = reinterpret_cast<float2*>(sums + tokens * kMostParts * heads * D),
                      .rounded = nullptr,
                      .tokens = static_cast<int>(tokens)};
  CHECK(in_fours(D, a.q, a.kv, a.entries, a.out, a.sums) && in_sixteens(a.cache),
        "entry_attend: found operands or cache rows at addresses that are no multiple of 16; expected all to be");
  return a;
}

void merge_and_append(const EntryAttend& a, DType cache, int64_t tokens, Stream& stream) {
  launch(cache == DType::f32 ? merge_kernel<float> : merge_kernel<uint16_t>,
         dim3(static_cast<unsigned>(tokens), static_cast<unsigned>(a.heads)),
         static_cast<unsigned>(ceil_div(a.D, 4 * kWarp) * kWarp), 0, stream, a);
}

void append(const EntryAttend& a, DType cache, int64_t tokens, Stream& stream) {
  launch(cache == DType::f32 ? append_kernel<float> : append_kernel<uint16_t>, static_cast<unsigned>(tokens), 128, 0,
         stream, a);
}

}  // namespace entry

const Kernel kEntryAttend{.name = "entry_attend.cuda",
                          .op = Op::entry_attend,
                          .backend = Backend::cuda,
                          .refuse = refuse_entries,
                          .workspace_bytes = entry_workspace,
                          .launch = entry_attend};

}  // namespace moesaic::cuda
