// compress: windows of tokens become entries. A token of this step is read from the inputs and an older one from the
// sequence's slot, with the same bits, so a window may be cut into steps anywhere.
#include "kernels/cuda/caches.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kAtOnce = 8;  // tokens whose gates and values are loaded together

struct Compress {
  const float *kv, *gate, *ape;  // [T, width] twice, [ratio, width]
  const int32_t *positions, *sequence_of, *offsets, *slots;
  CacheView cache;  // slot: kv and gate of the last `rows` tokens, [rows][2][width], position p in row p % rows
  int tokens, ratio, D, width, rows;
  float* entries;  // [T, D]
};

// The step's part of one sequence.
struct Run {
  int begin, end, position;  // tokens [begin, end), the first of them at this position
  float* state;

  __device__ __forceinline__ Run(const Compress& c, int t) {
    const int s = c.sequence_of[t];
    begin = c.offsets[s], end = c.offsets[s + 1], position = c.positions[t] - (t - begin);
    state = reinterpret_cast<float*>(slot_of(c.cache, c.slots[s]));
  }
  __device__ __forceinline__ float* row(const Compress& c, int p) const {
    return state + static_cast<int64_t>(p % c.rows) * 2 * c.width;
  }
};

// Channels [d, d + kWide) of the entry whose window ends at position `last`: the softmax of gate + ape over the tokens,
// times their kv, oldest token first. With overlap the window before gives its first half of channels, this one its
// second half.
template <int kWide>
__device__ __forceinline__ Floats<kWide> pool(const Compress& c, const Run& run, int last, int d) {
  float top[kWide], total[kWide];
  Floats<kWide> sum{};
#pragma unroll
  for (int k = 0; k < kWide; ++k) top[k] = -INFINITY, total[k] = 0;
  for (int from = max(0, last + 1 - c.rows); from <= last; from += kAtOnce) {
    Floats<kWide> gates[kAtOnce], values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int p = from + i, channel = (p > last - c.ratio ? c.width - c.D : 0) + d;
#pragma unroll
      for (int k = 0; k < kWide; ++k) gates[i].v[k] = -INFINITY, values[i].v[k] = 0;
      if (p > last) continue;
      const int64_t row = static_cast<int64_t>(run.begin + (p - run.position)) * c.width + channel;
      const float* old = run.row(c, p) + channel;
      values[i] = load_floats<kWide>(p >= run.position ? c.kv + row : old);
      gates[i] = load_floats<kWide>(p >= run.position ? c.gate + row : old + c.width);
      const auto ape = load_floats<kWide>(c.ape + static_cast<int64_t>(p % c.ratio) * c.width + channel);
#pragma unroll
      for (int k = 0; k < kWide; ++k) gates[i].v[k] += ape.v[k];
    }
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
      float higher = top[k];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) higher = fmaxf(higher, gates[i].v[k]);
      const float factor = expf(top[k] - higher);
      top[k] = higher, sum.v[k] *= factor, total[k] = __fmul_rn(total[k], factor);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float e = expf(gates[i].v[k] - higher);
        sum.v[k] = fmaf(e, values[i].v[k], sum.v[k]);
        total[k] += e;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kWide; ++k) sum.v[k] /= total[k];
  return sum;
}

// A block for each token, a thread for each kWide channels of its entry. Entries that need rows of the slot are pooled
// by the block of the sequence's first token, which then writes to the slot what later entries may need: nobody else
// touches it.
template <int kWide>
__global__ void __launch_bounds__(kThreads) compress_kernel(Compress c) {
  after_previous();
  const int d = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kWide, t = static_cast<int>(blockIdx.x);
  if (d >= c.D) return;
  const Run run(c, t);
  const int position = c.positions[t];
  const auto needs_slot = [&](int last) { return max(0, last + 1 - c.rows) < run.position; };
  const auto entry = [&](int token) { return c.entries + static_cast<int64_t>(token) * c.D + d; };
  if ((position + 1) % c.ratio != 0) store_floats<kWide>(entry(t), Floats<kWide>{});
  else if (!needs_slot(position)) store_floats<kWide>(entry(t), pool<kWide>(c, run, position, d));
  if (t != run.begin) return;

  const int after = position + run.end - run.begin;  // the position after the step
  for (int last = position + (c.ratio - 1 - position % c.ratio); last < after && needs_slot(last); last += c.ratio)
    store_floats<kWide>(entry(run.begin + last - position), pool<kWide>(c, run, last, d));
  for (int p = max(position, after - c.rows); p < after; ++p) {
    const int64_t from = static_cast<int64_t>(run.begin + p - position) * c.width;
    for (int channel = d; channel < c.width; channel += c.D) {
      store_floats<kWide>(run.row(c, p) + channel, load_floats<kWide>(c.kv + from + channel));
      store_floats<kWide>(run.row(c, p) + c.width + channel, load_floats<kWide>(c.gate + from + channel));
    }
  }
}

void compress(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const BatchView& batch = *args.batch;
  const int64_t ratio = desc.attrs.integer(Attr::ratio), D = width_of(desc.out(0)), width = width_of(desc.in(0));
  const Compress c{.kv = args.input<float>(0),
                   .gate = args.input<float>(1),
                   .ape = args.input<float>(2),
                   .positions = batch.positions,
                   .sequence_of = batch.sequence_of,
                   .offsets = batch.sequence_offsets,
                   .slots = batch.state_slots,
                   .cache = args.cache,
                   .tokens = static_cast<int>(args.now.tokens),
                   .ratio = static_cast<int>(ratio),
                   .D = static_cast<int>(D),
                   .width = static_cast<int>(width),
                   .rows = static_cast<int>(width / D * ratio),
                   .entries = args.output<float>(0)};
  const bool fours = in_fours(D, c.kv, c.gate, c.ape, c.entries) && in_sixteens(args.cache);
  const int64_t parts = ceil_div(fours ? D / 4 : D, int64_t{kThreads});
  launch(fours ? compress_kernel<4> : compress_kernel<1>,
         dim3(static_cast<unsigned>(args.now.tokens), static_cast<unsigned>(parts)), kThreads, 0, stream, c);
}

}  // namespace

const Kernel kCompress{
    .name = "compress.cuda", .op = Op::compress, .backend = Backend::cuda, .refuse = refuse_types, .launch = compress};

}  // namespace moesaic::cuda
