// Kimi delta attention: short convolution, decay gate and recurrence. Everything a sequence keeps is float32 and lies
// in its slot.
//
// The recurrence of one head, S key-major [D][V], with q and k of unit length, q also scaled by D^-0.5:
//   S = diag(e^g) S;  delta = beta (v - S^T k);  S = S + k delta^T;  out = S^T q
// Both kernels compute out = S^T q + (q . k) delta from the decayed S, so that one pass over the state and one sum over
// its rows serve delta and out. They sum in the same order, 16 groups of neighbouring rows and then a butterfly over
// the groups: a token gives the same bits whichever kernel runs it and however its sequence is cut into steps.
#include "kernels/cuda/caches.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/folds.cuh"
#include "kernels/cuda/rows.cuh"

namespace moesaic::cuda {
namespace {

// ---- short_conv

constexpr int kMaxTaps = 8;
constexpr int kConvThreads = 128;

struct Conv {
  const float *x, *weight;  // [T, C], [C, W]
  const int32_t *positions, *sequence_of, *offsets, *slots;
  CacheView cache;  // slot: [W - 1][C], oldest first
  int tokens, C, W;
  int tile;  // tokens of a block
  float* out;
};

// kWide channels of one tile of tokens. The thread that runs the first token of a sequence also runs the others that
// need rows of the slot, whichever tile they lie in, and writes the slot: nobody else touches it. Taps and rows are
// aligned at their end: the last tap is the token's own.
template <int kTaps, int kWide>
__global__ void __launch_bounds__(kConvThreads) conv_kernel(Conv c) {
  after_previous();
  const int channel = static_cast<int>(blockIdx.y * kConvThreads + threadIdx.x) * kWide;
  if (channel >= c.C) return;
  constexpr int kBefore = kTaps - 1;
  const int absent = kTaps - c.W;  // taps
  float taps[kTaps][kWide];
#pragma unroll
  for (int k = 0; k < kWide; ++k) {
    const float* weight = c.weight + static_cast<int64_t>(channel + k) * c.W;
    if (kTaps == 4 && kWide == 4 && c.W == 4) {
      const auto four = load_floats<kWide>(weight);
#pragma unroll
      for (int j = 0; j < kWide; ++j) taps[j][k] = four.v[j];
      continue;
    }
#pragma unroll
    for (int j = 0; j < kTaps; ++j) taps[j][k] = j >= absent ? weight[j - absent] : 0.0f;
  }
  const auto input = [&](int t) { return load_floats<kWide>(c.x + static_cast<int64_t>(t) * c.C + channel); };

  const int first = static_cast<int>(blockIdx.x) * c.tile, last = min(c.tokens, first + c.tile);
  for (int t = first, end = 0; t < last; t = end) {
    const int s = c.sequence_of[t], begin = c.offsets[s];
    end = c.offsets[s + 1];
    const bool owner = begin >= first;
    const int start = owner ? begin : max(t, begin + c.W - 1);
    const int stop = min(end, owner ? max(last, begin + c.W - 1) : last);
    if (start >= stop) continue;
    Floats<kWide> before[kBefore];  // rows start - kBefore .. start - 1
    float* state = reinterpret_cast<float*>(slot_of(c.cache, c.slots[s])) + channel;
    const bool fresh = c.positions[begin] == 0;  // the slot counts as zeros, whatever it holds
#pragma unroll
    for (int j = 0; j < kBefore; ++j) {
      before[j] = Floats<kWide>{};
      if (j < absent) continue;
      if (!owner) before[j] = input(start - kBefore + j);
      if (owner && !fresh) before[j] = load_floats<kWide>(state + static_cast<int64_t>(j - absent) * c.C);
    }
    if (owner) {
      Floats<kWide> after[kBefore];
#pragma unroll
      for (int j = 0; j < kBefore; ++j) after[j] = before[j];
      for (int now = max(begin, end - kBefore); now < end; ++now) {
#pragma unroll
        for (int j = 0; j + 1 < kBefore; ++j) after[j] = after[j + 1];
        after[kBefore - 1] = input(now);
      }
#pragma unroll
      for (int j = 0; j < kBefore; ++j)
        if (j >= absent) store_floats<kWide>(state + static_cast<int64_t>(j - absent) * c.C, after[j]);
    }
    for (int now = start; now < stop; ++now) {
      const Floats<kWide> x = input(now);
      Floats<kWide> out;
#pragma unroll
      for (int k = 0; k < kWide; ++k) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < kBefore; ++j) sum = fmaf(taps[j][k], before[j].v[k], sum);
        sum = fmaf(taps[kBefore][k], x.v[k], sum);
        out.v[k] = sum / (1.0f + expf(-sum));
      }
      store_floats<kWide>(c.out + static_cast<int64_t>(now) * c.C + channel, out);
#pragma unroll
      for (int j = 0; j + 1 < kBefore; ++j) before[j] = before[j + 1];
      before[kBefore - 1] = x;
    }
  }
}

const char* refuse_conv(const OpDesc& desc, const DeviceInfo& device) {
  if (width_of(desc.in(1)) > kMaxTaps) return "filters of more than 8 taps";
  return refuse_types(desc, device);
}

void short_conv(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const BatchView& batch = *args.batch;
  const int64_t tokens = args.now.tokens, width = width_of(desc.in(0)), tile = tokens <= 512 ? 1 : 16;
  const Conv c{.x = args.input<float>(0),
               .weight = args.input<float>(1),
               .positions = batch.positions,
               .sequence_of = batch.sequence_of,
               .offsets = batch.sequence_offsets,
               .slots = batch.state_slots,
               .cache = args.cache,
               .tokens = static_cast<int>(tokens),
               .C = static_cast<int>(width),
               .W = static_cast<int>(width_of(desc.in(1))),
               .tile = static_cast<int>(tile),
               .out = args.output<float>(0)};
  const bool fours = in_fours(width, c.x, c.weight, c.out) && in_sixteens(args.cache);
  const auto kernel =
      c.W <= 4 ? (fours ? conv_kernel<4, 4> : conv_kernel<4, 1>) : (fours ? conv_kernel<8, 4> : conv_kernel<8, 1>);
  const int64_t parts = ceil_div(fours ? width / 4 : width, int64_t{kConvThreads});
  launch(kernel, dim3(static_cast<unsigned>(ceil_div(tokens, tile)), static_cast<unsigned>(parts)), kConvThreads, 0,
         stream, c);
}

// ---- kda_gate

const char* refuse_gate(const OpDesc& desc, const DeviceInfo& device) {
  if (desc.attrs.number(Attr::lower_bound, -1) >= 0) return "lower_bound must be negative";
  return refuse_types(desc, device);
}

// out = bound * sigmoid(rate * (z + bias)); bound 0: -rate * softplus(z + bias), with rate = e^log of the channel's
// head. z: [rows, width], heads of D channels; a thread for each unit of a row.
template <int kWide>
__global__ void gate_kernel(const float* z, const float* logs, const float* bias, float bound, int64_t rows, int width,
                            int D, float* out) {
  after_previous();
  const RowUnit at = row_unit();
  const int i = at.unit * kWide;
  if (at.row >= rows || i >= width) return;
  const float rate = expf(logs[i / D]);  // D is a multiple of kWide
  auto x = load_floats<kWide>(z + at.row * width + i);
#pragma unroll
  for (int k = 0; k < kWide; ++k) {
    const float v = x.v[k] + bias[i + k];
    x.v[k] = bound < 0 ? bound / (1.0f + expf(-(rate * v))) : -rate * (fmaxf(v, 0.0f) + log1pf(expf(-fabsf(v))));
  }
  store_floats<kWide>(out + at.row * width + i, x);
}

void kda_gate(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t width = width_of(desc.in(0)), D = width / desc.attrs.integer(Attr::heads), rows = args.now.tokens;
  const float* z = args.input<float>(0);
  float* out = args.output<float>(0);
  const bool fours = in_fours(D, z, out);
  const RowGrid g = row_grid(rows, fours ? width / 4 : width);
  launch(fours ? gate_kernel<4> : gate_kernel<1>, g.grid, g.block, 0, stream, z, args.input<float>(1),
         args.input<float>(2), static_cast<float>(desc.attrs.number(Attr::lower_bound, 0)), rows,
         static_cast<int>(width), static_cast<int>(D), out);
}

// ---- kda

constexpr int kGroups = 16;   // of neighbouring rows of the state; D <= 16 * kRows
constexpr int kColumns = 32;  // of the state, that a block holds
constexpr int kKdaThreads = 128;
constexpr int kTile = 8;           // tokens that are made ready at once
constexpr int64_t kMostRows = 16;  // of a group

struct Kda {
  const float *q, *k, *v, *g, *b;  // [T, heads * D] twice, [T, heads * V], [T, heads * D], [T, heads]
  const int32_t *positions, *offsets, *slots;
  CacheView cache;  // slot: [heads][D][V]
  int heads, D, V, slices;
  bool fours;  // D and V are multiples of 4 and every row is aligned
  float* out;  // [T, heads * V]
};

// Elements [first, first + N) of a row of n, zeros beyond it.
template <int N>
__device__ __forceinline__ void load_part(const float* row, int first, int n, bool fours, float (&x)[N]) {
  if constexpr (N % 4 == 0) {
    if (fours) {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        const float4 f = first + i < n ? *reinterpret_cast<const float4*>(row + first + i) : float4{};
        x[i] = f.x, x[i + 1] = f.y, x[i + 2] = f.z, x[i + 3] = f.w;
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = first + i < n ? row[first + i] : 0.0f;
}

// One token of one head as the recurrence reads it. Rows from D on have zeros.
template <int kRows>
struct alignas(16) KdaToken {
  float key[kGroups * kRows], query[kGroups * kRows], decay[kGroups * kRows];
  float beta, overlap, v[kColumns], unused[2];  // overlap = q . k
};

// The part of it that a lane loads: neighbouring elements of q, k and g, and one of v.
template <int kRows>
struct KdaInputs {
  static constexpr int kPart = kGroups * kRows / kWarp;
  float q[kPart], k[kPart], g[kPart], v, b;

  __device__ __forceinline__ void load(const Kda& a, int64_t t, int head, int column) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int64_t keys = (t * a.heads + head) * a.D;
    load_part(a.q + keys, lane * kPart, a.D, a.fours, q);
    load_part(a.k + keys, lane * kPart, a.D, a.fours, k);
    load_part(a.g + keys, lane * kPart, a.D, a.fours, g);
    v = column + lane < a.V ? a.v[(t * a.heads + head) * a.V + column + lane] : 0.0f;
    b = a.b[t * a.heads + head];
  }

  // By one warp.
  __device__ __forceinline__ void make_ready(int D, KdaToken<kRows>& to) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    float sums[3] = {};  // q . q, k . k, q . k
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      sums[0] = fmaf(q[i], q[i], sums[0]);
      sums[1] = fmaf(k[i], k[i], sums[1]);
      sums[2] = fmaf(q[i], k[i], sums[2]);
    }
    warp_sums(sums);
    const float query = 1.0f / sqrtf(static_cast<float>(D)) / sqrtf(sums[0] + 1e-6f),
                key = 1.0f / sqrtf(sums[1] + 1e-6f);
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      to.query[lane * kPart + i] = q[i] * query;
      to.key[lane * kPart + i] = k[i] * key;
      to.decay[lane * kPart + i] = expf(g[i]);
    }
    to.v[lane] = v;
    if (lane == 0) to.beta = 1.0f / (1.0f + expf(-b)), to.overlap = sums[2] * query * key;
  }
};

// What a thread holds of the state: kRows rows of group `group`, 4 neighbouring columns.
template <int kRows>
struct KdaState {
  float s[kRows][4];

  __device__ __forceinline__ float* place(const Kda& a, int sequence, int head) const {
    return reinterpret_cast<float*>(slot_of(a.cache, a.slots[sequence])) + static_cast<int64_t>(head) * a.D * a.V;
  }
  __device__ __forceinline__ void load(const Kda& a, const float* state, int group, int column) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int d = group * kRows + i;
#pragma unroll
      for (int c = 0; c < 4; ++c) s[i][c] = 0;
      if (state != nullptr && d < a.D) load_part(state + static_cast<int64_t>(d) * a.V, column, a.V, a.fours, s[i]);
    }
  }
  __device__ __forceinline__ void store(const Kda& a, float* state, int group, int column) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int d = group * kRows + i;
      if (d >= a.D) break;
      float* row = state + static_cast<int64_t>(d) * a.V + column;
      if (a.fours) {
        if (column < a.V) *reinterpret_cast<float4*>(row) = make_float4(s[i][0], s[i][1], s[i][2], s[i][3]);
        continue;
      }
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (column + c < a.V) row[c] = s[i][c];
    }
  }

  static constexpr int kWide = kRows % 4 == 0 ? 4 : 1;  // rows of a load from shared memory

  // Decays, and gives this group's parts of S^T k (sums[0 .. 3]) and S^T q (sums[4 .. 7]).
  __device__ __forceinline__ void read(const KdaToken<kRows>& t, int group, float (&sums)[8]) {
#pragma unroll
    for (int c = 0; c < 8; ++c) sums[c] = 0;
#pragma unroll
    for (int i = 0; i < kRows; i += kWide) {
      const auto key = load_floats<kWide>(t.key + group * kRows + i),
                 query = load_floats<kWide>(t.query + group * kRows + i);
      const auto decay = load_floats<kWide>(t.decay + group * kRows + i);
#pragma unroll
      for (int j = 0; j < kWide; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          s[i + j][c] *= decay.v[j];
          sums[c] = add_product(sums[c], key.v[j], s[i + j][c]);
          sums[4 + c] = add_product(sums[4 + c], query.v[j], s[i + j][c]);
        }
    }
  }
  __device__ __forceinline__ void move(const KdaToken<kRows>& t, int group, const float (&delta)[4]) {
#pragma unroll
    for (int i = 0; i < kRows; i += kWide) {
      const auto key = load_floats<kWide>(t.key + group * kRows + i);
#pragma unroll
      for (int j = 0; j < kWide; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) s[i + j][c] = add_product(s[i + j][c], key.v[j], delta[c]);
    }
  }
};

// For one token a sequence: a block for each (sequence, head, 32 columns), 8 threads along the columns and 16 along the
// groups of rows, so that a warp reads and writes the state in lines of 128 bytes.
template <int kRows>
__global__ void __launch_bounds__(kKdaThreads) kda_step_kernel(Kda a) {
  after_previous();
  __shared__ KdaToken<kRows> token;
  __shared__ float parts[kKdaThreads / kWarp][2][kColumns];  // S^T k and S^T q over four groups
  const int tid = static_cast<int>(threadIdx.x), lane = tid % kWarp, warp = tid / kWarp, group = tid / 8;
  const int sequence = static_cast<int>(blockIdx.y), head = static_cast<int>(blockIdx.x) / a.slices;
  const int first = static_cast<int>(blockIdx.x) % a.slices * kColumns, column = tid % 8 * 4;
  const int begin = a.offsets[sequence], end = a.offsets[sequence + 1];
  if (begin >= end) return;
  KdaState<kRows> state;
  float* place = state.place(a, sequence, head);
  state.load(a, a.positions[begin] != 0 ? place : nullptr, group, first + column);
  for (int t = begin; t < end; ++t) {
    if (warp == 0) {
      KdaInputs<kRows> inputs;
      inputs.load(a, t, head, first);
      inputs.make_ready(a.D, token);
    }
    __syncthreads();
    float sums[8], four[4], two[2];
    state.read(token, group, sums);
    fold_half(sums, 8, four);
    fold_half(four, 16, two);
#pragma unroll
    for (int i = 0; i < 2; ++i) parts[warp][lane / 8 % 2][column + lane / 16 * 2 + i] = two[i];
    __syncthreads();
    const auto sum = [&](int kind, int c) {
      return (parts[0][kind][c] + parts[1][kind][c]) + (parts[2][kind][c] + parts[3][kind][c]);
    };
    const auto delta_of = [&](int c) { return token.beta * (token.v[c] - sum(0, c)); };
    float delta[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) delta[c] = delta_of(column + c);
    state.move(token, group, delta);
    if (tid < kColumns && first + tid < a.V)
      a.out[(static_cast<int64_t>(t) * a.heads + head) * a.V + first + tid] =
          fmaf(token.overlap, delta_of(tid), sum(1, tid));
    if (t + 1 < end) __syncthreads();
  }
  state.store(a, place, group, first + column);
}

// For longer runs: a block for each (sequence, head, 32 columns); a warp holds 8 columns and all rows, 2 lanes along
// the columns and 16 along the groups of rows, and needs no other warp between tokens. Tiles of tokens are loaded while
// the tile before is run.
template <int kRows>
__global__ void __launch_bounds__(kKdaThreads) kda_run_kernel(Kda a) {
  after_previous();
  auto* tokens = dynamic_shared<KdaToken<kRows>>();  // [2][kTile]
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp, group = lane / 2;
  const int sequence = static_cast<int>(blockIdx.y), head = static_cast<int>(blockIdx.x) / a.slices;
  const int first = static_cast<int>(blockIdx.x) % a.slices * kColumns, column = warp * 8 + lane % 2 * 4;
  const int begin = a.offsets[sequence], end = a.offsets[sequence + 1];
  if (begin >= end) return;
  KdaState<kRows> state;
  float* place = state.place(a, sequence, head);
  state.load(a, a.positions[begin] != 0 ? place : nullptr, group, first + column);

  // Of a tile, warp w makes tokens w and w + warps ready; a block of fewer warps makes the rest without loading ahead.
  KdaInputs<kRows> ahead[2];
  const auto load = [&](int from) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (from + warp + i * warps < min(end, from + kTile)) ahead[i].load(a, from + warp + i * warps, head, first);
  };
  const auto make_ready = [&](int from, KdaToken<kRows>* to) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (from + warp + i * warps < min(end, from + kTile)) ahead[i].make_ready(a.D, to[warp + i * warps]);
    for (int j = warp + 2 * warps; j < kTile && from + j < end; j += warps) {
      ahead[0].load(a, from + j, head, first);
      ahead[0].make_ready(a.D, to[j]);
    }
  };
  // After the folds lane bit 1 says S^T k or S^T q, bits 2 and 3 which of the four columns.
  const int own = column + lane / 4 % 2 * 2 + lane / 8 % 2;
  const bool writes = (lane & 18) == 2 && first + own < a.V;

  load(begin);
  make_ready(begin, tokens);
  __syncthreads();
  for (int from = begin, tile = 0; from < end; from += kTile, tile ^= 1) {
    load(from + kTile);
    for (int t = from; t < min(end, from + kTile); ++t) {
      const KdaToken<kRows>& token = tokens[tile * kTile + t - from];
      float sums[8], four[4], two[2], one[1];
      state.read(token, group, sums);
      fold_half(sums, 2, four);
      fold_half(four, 4, two);
      fold_half(two, 8, one);
      const float sum = one[0] + __shfl_xor_sync(kAllLanes, one[0], 16);
      const float moved = token.beta * (token.v[own] - sum);  // where the sum is S^T k
      float delta[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) delta[c] = __shfl_sync(kAllLanes, moved, lane % 2 + c / 2 * 4 + c % 2 * 8);
      const float own_delta = own % 4 < 2 ? (own % 2 == 0 ? delta[0] : delta[1]) : (own % 2 == 0 ? delta[2] : delta[3]);
      state.move(token, group, delta);
      if (writes)
        a.out[(static_cast<int64_t>(t) * a.heads + head) * a.V + first + own] = fmaf(token.overlap, own_delta, sum);
    }
    make_ready(from + kTile, tokens + (tile ^ 1) * kTile);
    __syncthreads();
  }
  state.store(a, place, group, first + column);
}

const char* refuse_kda(const OpDesc& desc, const DeviceInfo& device) {
  if (desc.attrs.integer(Attr::head_dim) > kGroups * kMostRows) return "head_dim above 256";
  return refuse_types(desc, device);
}

template <int kRows>
void run_kda(const Kda& a, const Args& args, Stream& stream) {
  const dim3 grid(static_cast<unsigned>(a.heads * a.slices), static_cast<unsigned>(args.batch->sequences));
  if (args.now.tokens <= args.batch->sequences) return launch(kda_step_kernel<kRows>, grid, kKdaThreads, 0, stream, a);
  const int threads = std::min(kKdaThreads, ceil_div(a.V, 8) * kWarp);
  launch(kda_run_kernel<kRows>, grid, static_cast<unsigned>(threads), 2 * kTile * sizeof(KdaToken<kRows>), stream, a);
}

void kda(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  if (args.now.tokens == 0) return;
  const BatchView& batch = *args.batch;
  const int64_t D = desc.attrs.integer(Attr::head_dim), V = desc.attrs.integer(Attr::v_dim);
  Kda a{.q = args.input<float>(0),
        .k = args.input<float>(1),
        .v = args.input<float>(2),
        .g = args.input<float>(3),
        .b = args.input<float>(4),
        .positions = batch.positions,
        .offsets = batch.sequence_offsets,
        .slots = batch.state_slots,
        .cache = args.cache,
        .heads = static_cast<int>(desc.attrs.integer(Attr::heads)),
        .D = static_cast<int>(D),
        .V = static_cast<int>(V),
        .slices = static_cast<int>(ceil_div(V, int64_t{kColumns})),
        .fours = false,
        .out = args.output<float>(0)};
  a.fours = V % 4 == 0 && in_fours(D, a.q, a.k, a.g) && in_sixteens(args.cache);
  if (D <= 32) return run_kda<2>(a, args, stream);
  if (D <= 128) return run_kda<8>(a, args, stream);
  run_kda<16>(a, args, stream);
}

}  // namespace

const Kernel kShortConv{.name = "short_conv.cuda",
                        .op = Op::short_conv,
                        .backend = Backend::cuda,
                        .refuse = refuse_conv,
                        .launch = short_conv};
const Kernel kKdaGate{
    .name = "kda_gate.cuda", .op = Op::kda_gate, .backend = Backend::cuda, .refuse = refuse_gate, .launch = kda_gate};
const Kernel kKda{.name = "kda.cuda", .op = Op::kda, .backend = Backend::cuda, .refuse = refuse_kda, .launch = kda};

}  // namespace moesaic::cuda
