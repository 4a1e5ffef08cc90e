// linear for up to 4 rows of x: bound by the reading of w, so a warp keeps 4 to 12 loads of 16 bytes a lane in flight
// all the time and reads the first of them before the launch's predecessor has ended; products and sums in float32.
//
// A lane takes every 32nd vector of a row of w (of `parts` warps that share a row, each takes every parts-th 32), its
// sum goes over ascending k, lanes are added as a butterfly and parts in order. The order of a sum depends on N, K,
// groups and the format alone: rows of x do not change each other's bits. Matrices multiplied in one launch count as
// one, whose N is the sum of theirs.
#include <algorithm>
#include <bit>
#include <climits>
#include <span>

#include "kernels/cuda/folds.cuh"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/reduce.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp, kBlocksPerSm = 2;
constexpr int kMostRows = 4;                // of x
constexpr int64_t kMostShared = 200 << 10;  // bytes of x a block holds

// x lies in shared memory in cells of 16 bytes: 4 floats, or 8 bf16; a vector of 16 bytes of w meets kCells of them.
template <Stored kStored>
struct GemvShape {
  static constexpr int kPer = kInVector<kStored>, kInCell = kStored == Stored::f32 ? 4 : 8, kCells = kPer / kInCell;
  static constexpr bool kScaled = kStored == Stored::fp8;
};

struct GemvPlan {
  int parts, rounds, blocks;  // warps that share a row; times a block takes rows; of a group
  int passes, across;         // of the ring along a part of a row; cells of a row of x
  int scale_shift;            // log2 of the columns of an fp8 scale
};

// One of the matrices of a launch: its rows are those from `begin` on of all matrices below each other.
struct Segment {
  const std::byte *codes, *scales;
  const float* bias;
  float* y;
  int begin, N;
};
// What a launch multiplies. Of several matrices, w, bias and y lie in segments and N counts the rows of all; unused
// segments begin at INT_MAX.
template <int kMany>
struct GemvCall : LinearCall {
  Segment segments[kMany];

  __device__ __forceinline__ Segment segment_of(int row) const {
    int i = 0;
#pragma unroll
    for (int next = 1; next < kMany; ++next) i += row >= segments[next].begin;
    return segments[i];
  }
};
template <>
struct GemvCall<1> : LinearCall {
  __device__ __forceinline__ Segment segment_of(int) const { return {w.codes, w.scales, bias, y, 0, groups * N}; }
};

// The vectors of a lane's rows in a pass of the ring.
template <int kR>
struct RowsAt {
  const std::byte* codes[kR];  // null past the end
  const float* scales[kR];
  int first;  // vector
};

__device__ __forceinline__ void widen_pair(unsigned pair, float& low, float& high) {
  low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xFFFF0000u);
}
__device__ __forceinline__ float half_to_f32(unsigned bits) {
#ifdef MOESAIC_EMULATED_CUDA
  return f16_to_float(static_cast<uint16_t>(bits));
#else
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<uint16_t>(bits)));
  return x;
#endif
}

// Cell c of a vector of w, without its scale.
template <Stored kStored, int kInCell>
__device__ __forceinline__ void widen_cell(const uint4& v, int c, float (&w)[kInCell]) {
  const unsigned words[4] = {v.x, v.y, v.z, v.w};
  if constexpr (kStored == Stored::f32) {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = __uint_as_float(words[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kStored == Stored::bf16) widen_pair(words[i], w[2 * i], w[2 * i + 1]);
      if constexpr (kStored == Stored::f16)
        w[2 * i] = half_to_f32(words[i] & 0xFFFFu), w[2 * i + 1] = half_to_f32(words[i] >> 16);
      if constexpr (kStored == Stored::fp8)
        widen_pair(e4m3_pair(words[2 * c + i / 2] >> (i % 2 * 16)), w[2 * i], w[2 * i + 1]);
    }
  }
}
template <int kInCell>
__device__ __forceinline__ void widen_x(const uint4& v, float (&x)[kInCell]) {
  widen_cell<kInCell == 4 ? Stored::f32 : Stored::bf16>(v, 0, x);
}

// The 4 or 8 floats of a cell.
template <int kInCell>
__device__ __forceinline__ uint4 cell_of(const float* x) {
  const float4 a = *reinterpret_cast<const float4*>(x);
  if constexpr (kInCell == 4) {
    return make_uint4(__float_as_uint(a.x), __float_as_uint(a.y), __float_as_uint(a.z), __float_as_uint(a.w));
  } else {
    const float4 b = *reinterpret_cast<const float4*>(x + 4);
    return make_uint4(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w));
  }
}

// cells[kT][across] = the group's x; zeros past K and past the last row. Cell c of vector v lies where lanes of a warp
// read neighbours: at (v / 32 * kCells + c) * 32 + v % 32.
template <Stored kStored, int kT>
__device__ __forceinline__ void stage_x(const LinearCall& call, int group, int across, uint4* cells) {
  using Shape = GemvShape<kStored>;
  constexpr int kBatch = 4 / kT;  // times kT loads are in flight
  const float* x = call.x + static_cast<int64_t>(group) * call.K;
  for (int begin = static_cast<int>(threadIdx.x); begin < across; begin += kBatch * kThreads) {
    uint4 batch[kBatch][kT];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int at = begin + b * kThreads, c = at / kWarp % Shape::kCells;
      const int k = (at / kWarp / Shape::kCells * kWarp + at % kWarp) * Shape::kPer + c * Shape::kInCell;
#pragma unroll
      for (int t = 0; t < kT; ++t)
        batch[b][t] =
            k < call.K && t < call.T ? cell_of<Shape::kInCell>(x + t * call.x_stride() + k) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
#pragma unroll
      for (int t = 0; t < kT; ++t)
        if (begin + b * kThreads < across) cells[t * across + begin + b * kThreads] = batch[b][t];
  }
}

template <Stored kStored, int kR, int kMany>
__device__ __forceinline__ RowsAt<kR> rows_at(const GemvCall<kMany>& call, int group, int row, int vector,
                                              int scale_shift) {
  RowsAt<kR> rows{};
  rows.first = vector;
#pragma unroll
  for (int r = 0; r < kR; ++r) {
    const Segment segment = call.segment_of(row + r);
    const int n = group * call.N + row + r - segment.begin;
    const bool inside = row + r < call.N;
    rows.codes[r] =
        inside ? segment.codes + static_cast<int64_t>(n) * (call.K / GemvShape<kStored>::kPer) * 16 : nullptr;
    if constexpr (GemvShape<kStored>::kScaled)
      rows.scales[r] = reinterpret_cast<const float*>(segment.scales) +
                       static_cast<int64_t>(n / call.w.scale_rows) * (((call.K - 1) >> scale_shift) + 1);
  }
  return rows;
}

// What a lane holds of a vector of each of its rows.
template <int kR>
struct Held {
  uint4 codes[kR];
  float scale[kR];
};
template <Stored kStored, int kR>
__device__ __forceinline__ void hold(const RowsAt<kR>& rows, int v, int vectors, int scale_shift, Held<kR>& held) {
#pragma unroll
  for (int r = 0; r < kR; ++r) {
    held.codes[r] = make_uint4(0, 0, 0, 0);
    held.scale[r] = 0;
    if (v >= vectors || rows.codes[r] == nullptr) continue;
    held.codes[r] = load_once(rows.codes[r] + static_cast<int64_t>(v) * 16);
    if constexpr (GemvShape<kStored>::kScaled)
      held.scale[r] = __ldg(rows.scales[r] + (v * GemvShape<kStored>::kPer >> scale_shift));
  }
}

// sum[r][t] += a vector of row r times its cells of x[t], `cells` those of this lane.
template <Stored kStored, int kT, int kR>
__device__ __forceinline__ void multiply(const Held<kR>& held, const uint4* cells, int across, float (&sum)[kR * kT]) {
  using Shape = GemvShape<kStored>;
  float own[kR * kT] = {};
  float(&to)[kR * kT] = Shape::kScaled ? own : sum;
#pragma unroll
  for (int c = 0; c < Shape::kCells; ++c) {
    float w[kR][Shape::kInCell];
#pragma unroll
    for (int r = 0; r < kR; ++r) widen_cell<kStored>(held.codes[r], c, w[r]);
#pragma unroll
    for (int t = 0; t < kT; ++t) {
      float x[Shape::kInCell];
      widen_x(cells[t * across + c * kWarp], x);
#pragma unroll
      for (int i = 0; i < Shape::kInCell; ++i)
#pragma unroll
        for (int r = 0; r < kR; ++r) to[r * kT + t] = add_product(to[r * kT + t], w[r][i], x[i]);
    }
  }
  if constexpr (Shape::kScaled) {
#pragma unroll
    for (int i = 0; i < kR * kT; ++i) sum[i] = add_product(sum[i], held.scale[i / kT], own[i]);
  }
}

// Starts the way of `bytes`, a multiple of 16, to the L2 cache.
__device__ __forceinline__ void fetch_to_l2(const std::byte* from, int bytes) {
#ifdef MOESAIC_EMULATED_CUDA
  static_cast<void>(from), static_cast<void>(bytes);
#else
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes));
#endif
}

// A warp multiplies kR rows of w, or its part of them, by up to kT rows of x, then the rows of its next round. Grid:
// blocks, groups. Shared: x, uint4[kT][across].
template <Stored kStored, int kT, int kR, int kU, int kMany>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) gemv_kernel(GemvCall<kMany> call, GemvPlan plan) {
  let_next_begin();
  using Shape = GemvShape<kStored>;
  __shared__ float partial[kWarps][kR * kT];
  auto* cells = dynamic_shared<uint4>();
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int part = warp % plan.parts, slots = kWarps / plan.parts, group = static_cast<int>(blockIdx.y);
  const int vectors = call.K / Shape::kPer, stride = plan.parts * kWarp, from = part * kWarp + lane;
  const int step = plan.blocks * slots * kR;  // rows from one round to the next
  int row = (static_cast<int>(blockIdx.x) * slots + warp / plan.parts) * kR;

  RowsAt<kR> at = rows_at<kStored, kR, kMany>(call, group, row, from, plan.scale_shift);
  Held<kR> ring[kU];
#pragma unroll
  for (int u = 0; u < kU; ++u) hold<kStored, kR>(at, at.first + u * stride, vectors, plan.scale_shift, ring[u]);
  if (const int next = row + step + lane; plan.rounds > 1 && lane < kR && next < call.N) {
    const Segment segment = call.segment_of(next);
    fetch_to_l2(segment.codes + static_cast<int64_t>(group * call.N + next - segment.begin) * vectors * 16,
                vectors * 16);
  }
  wait_for_previous();
  stage_x<kStored, kT>(call, group, plan.across, cells);
  __syncthreads();

  float sum[kR * kT] = {};
  const int total = plan.rounds * plan.passes;
  const uint4* own = cells + part * Shape::kCells * kWarp + lane;
  for (int s = 0, pass = 0; s < total; ++s) {
    const bool last = pass + 1 == plan.passes;
    const int next_row = s + 1 == total ? call.N : last ? row + step : row;  // call.N: nothing is loaded
    at = rows_at<kStored, kR, kMany>(call, group, next_row, last ? from : at.first + kU * stride, plan.scale_shift);
    float bias[kR] = {};
    if (last && call.bias != nullptr) {
#pragma unroll
      for (int r = 0; r < kR; ++r) {
        const int n = min(row + r, call.N - 1);
        const Segment segment = call.segment_of(n);
        bias[r] = __ldg(segment.bias + n - segment.begin);
      }
    }
    const uint4* along = own + pass * kU * plan.parts * Shape::kCells * kWarp;
#pragma unroll
    for (int u = 0; u < kU; ++u) {
      multiply<kStored, kT, kR>(ring[u], along + u * plan.parts * Shape::kCells * kWarp, plan.across, sum);
      hold<kStored, kR>(at, at.first + u * stride, vectors, plan.scale_shift, ring[u]);
    }
    pass = last ? 0 : pass + 1;
    if (!last) continue;

#pragma unroll
    for (int i = 0; i < kR * kT; ++i) sum[i] = warp_sum(sum[i]);
    if (plan.parts > 1) {  // the first warp of a row adds the parts
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kR * kT; ++i)
        if (lane == i) partial[warp][i] = sum[i];
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kR * kT; ++i)
#pragma unroll
        for (int p = 1; p < kWarps; ++p)
          if (part == 0 && p < plan.parts) sum[i] += partial[warp + p][i];
    }
#pragma unroll
    for (int i = 0; i < kR * kT; ++i) {
      const int n = row + i / kT, t = i % kT;
      if (lane == i && part == 0 && n < call.N && t < call.T) {
        const Segment to = call.segment_of(n);
        to.y[static_cast<int64_t>(t) * to.N + static_cast<int64_t>(group) * call.N + n - to.begin] =
            sum[i] + bias[i / kT];
      }
      sum[i] = 0;
    }
    row += step;
  }
}

// How a product is cut. Parts depend on N, K, groups and the format alone: they order sums.
struct GemvCut {
  int tokens, rows, parts, length, passes;  // rows of x and of w that a warp takes; of the ring, along a part of a row

  int cells(int cells_of_vector) const { return passes * length * parts * kWarp * cells_of_vector; }
};

constexpr int longest_ring(Stored stored, int tokens, int rows) {
  return (stored != Stored::fp8 ? 12 : tokens == 4 ? 4 : 8) / rows;
}
constexpr int middle_ring(Stored stored, int tokens, int rows) {
  return std::min(8 / rows, longest_ring(stored, tokens, rows));
}

template <Stored kStored>
GemvCut cut_of(const LinearCall& call) {
  const int64_t rows = call.y_stride();
  const int thirty_twos = static_cast<int>(ceil_div(call.K, kInVector<kStored> * kWarp));
  GemvCut cut{call.T == 3 ? 4 : call.T, 1, 1, 0, 0};
  // Few rows of w are shared by warps; of many, two share what is read of x.
  while (cut.parts < kWarps && cut.parts < thirty_twos && rows * cut.parts * 2 <= kMultiprocessors * kWarps)
    cut.parts *= 2;
  if (cut.tokens == 4 && rows >= kMultiprocessors * kWarps * 2) cut.rows = 2;
  const int each = ceil_div(thirty_twos, cut.parts), most = longest_ring(kStored, cut.tokens, cut.rows);
  const int least = ceil_div(each, ceil_div(each, most)), middle = middle_ring(kStored, cut.tokens, cut.rows);
  cut.length = least <= 4 / cut.rows ? 4 / cut.rows : least <= middle ? middle : most;
  cut.passes = ceil_div(each, cut.length);
  return cut;
}

template <Stored kStored, int kT, int kR, int kU, int kMany>
void launch_gemv(const GemvCall<kMany>& call, const GemvCut& cut, Stream& stream) {
  GemvPlan plan{};
  plan.parts = cut.parts, plan.passes = cut.passes, plan.across = cut.cells(GemvShape<kStored>::kCells);
  plan.scale_shift = std::countr_zero(static_cast<unsigned>(call.w.scale_cols));
  const int wanted = ceil_div(call.N, kWarps / cut.parts * kR);
  plan.blocks = std::min(wanted, std::max(1, kMultiprocessors * kBlocksPerSm / call.groups));
  plan.rounds = ceil_div(wanted, plan.blocks);
  const dim3 grid(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(call.groups));
  launch(gemv_kernel<kStored, kT, kR, kU, kMany>, grid, kThreads, size_t{kT} * plan.across * sizeof(uint4), stream,
         call, plan);
}

template <Stored kStored, int kT, int kR, int kMany>
void launch_ring(const GemvCall<kMany>& call, const GemvCut& cut, Stream& stream) {
  constexpr int kShort = 4 / kR, kMiddle = middle_ring(kStored, kT, kR), kLong = longest_ring(kStored, kT, kR);
  if (cut.length == kShort) return launch_gemv<kStored, kT, kR, kShort>(call, cut, stream);
  if (cut.length == kMiddle) return launch_gemv<kStored, kT, kR, kMiddle>(call, cut, stream);
  launch_gemv<kStored, kT, kR, kLong>(call, cut, stream);
}

template <Stored kStored, int kMany>
void launch_cut(const GemvCall<kMany>& call, Stream& stream) {
  const GemvCut cut = cut_of<kStored>(call);
  if (cut.tokens == 1) return launch_ring<kStored, 1, 1>(call, cut, stream);
  if (cut.tokens == 2) return launch_ring<kStored, 2, 1>(call, cut, stream);
  if (cut.rows == 2) return launch_ring<kStored, 4, 2>(call, cut, stream);
  launch_ring<kStored, 4, 1>(call, cut, stream);
}

// The matrices of `calls`, at most kMostTogether, below each other.
GemvCall<kMostTogether> stacked(std::span<const LinearCall> calls) {
  GemvCall<kMostTogether> all{calls[0], {}};
  all.N = 0;
  for (size_t i = 0; i < kMostTogether; ++i) {
    all.segments[i].begin = i < calls.size() ? all.N : INT_MAX;
    if (i >= calls.size()) continue;
    const LinearCall& call = calls[i];
    all.segments[i] = {call.w.codes, call.w.scales, call.bias, call.y, all.N, call.N};
    all.N += call.N;
  }
  return all;
}

// Whether `a` and `b` differ in w's rows, bias and y alone.
bool may_stack(const LinearCall& a, const LinearCall& b) {
  return a.x == b.x && a.T == b.T && a.K == b.K && a.groups == 1 && b.groups == 1 && a.stored == b.stored &&
         a.w.scale_rows == b.w.scale_rows && a.w.scale_cols == b.w.scale_cols &&
         (a.bias == nullptr) == (b.bias == nullptr);
}

template <typename F>
void with_gemv_format(Stored stored, F f) {
  with_format(stored, [&](auto format) {
    if constexpr (decltype(format)::value != Stored::int4 && decltype(format)::value != Stored::mxfp4) f(format);
  });
}

}  // namespace

bool gemv_serves(const LinearCall& call) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  if (call.T < 1 || call.T > kMostRows || call.K % 16 != 0 || !aligned(call.w.codes) || !aligned(call.x)) return false;
  const auto columns = static_cast<unsigned>(call.w.scale_cols);
  if (call.stored == Stored::fp8 && (columns < 16 || !std::has_single_bit(columns))) return false;
  bool serves = false;
  with_gemv_format(call.stored, [&](auto format) {
    constexpr Stored kStored = decltype(format)::value;
    const GemvCut cut = cut_of<kStored>(call);
    serves = int64_t{cut.tokens} * cut.cells(GemvShape<kStored>::kCells) * 16 <= kMostShared;
  });
  return serves;
}

void linear_gemv(const LinearCall& call, Stream& stream) {
  with_gemv_format(call.stored, [&](auto format) { launch_cut<decltype(format)::value>(GemvCall<1>{call}, stream); });
}

bool gemv_serves_together(std::span<const LinearCall> calls) {
  if (calls.size() < 2 || calls.size() > kMostTogether || calls[0].stored == Stored::f32) return false;
  return std::ranges::all_of(calls, [&](const LinearCall& call) {
    LinearCall as_all = call;
    as_all.N = stacked(calls).N;
    return may_stack(calls[0], call) && gemv_serves(as_all);
  });
}

void linear_gemv_together(std::span<const LinearCall> calls, Stream& stream) {
  with_gemv_format(calls[0].stored, [&](auto format) {
    constexpr Stored kStored = decltype(format)::value;
    if constexpr (kStored != Stored::f32) launch_cut<kStored>(stacked(calls), stream);
  });
}

}  // namespace moesaic::cuda
