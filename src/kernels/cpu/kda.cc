#include "kernels/cpu/kda.h"

#include <cmath>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/rows.h"

namespace moesaic::cpu {
namespace {

constexpr int64_t kMaxTaps = 8;
constexpr int64_t kTile = 16;  // tokens whose keys and queries are made ready at once

// The tokens of one sequence in a step, [n][C], and the W - 1 rows before them.
struct ConvTokens {
  const float *x, *weight;
  float *state, *out;
  int64_t n, C, W;

  const float* row(int64_t t) const { return t < 0 ? state + (W - 1 + t) * C : x + t * C; }
};

}  // namespace

#define LANES_BODY "kernels/cpu/kda_lanes.inc"
#include "kernels/cpu/for_each_isa.inc"

namespace {

struct KdaLoops {
  void (*conv_channels)(const ConvTokens& x, int64_t first);
  void (*gate_row)(const float* z, const float* bias, float log_rate, float bound, int64_t D, float* out);
  void (*gated_norm_row)(const float* x, const float* weight, const float* gate, float eps, int64_t D, float* out);
  void (*unit_row)(const float* x, float scale, int64_t D, float* y);
  float (*sigmoid_one)(float x);
  void (*kda_tokens)(const KdaTokens& x, float* state, float* decay);
};
constexpr KdaLoops kLoops[] = {
    {scalar::conv_channels, scalar::gate_row, scalar::gated_norm_row, scalar::unit_row, scalar::sigmoid_one,
     scalar::kda_tokens},
    {avx2::conv_channels, avx2::gate_row, avx2::gated_norm_row, avx2::unit_row, avx2::sigmoid_one, avx2::kda_tokens},
    {avx512::conv_channels, avx512::gate_row, avx512::gated_norm_row, avx512::unit_row, avx512::sigmoid_one,
     avx512::kda_tokens},
};
const KdaLoops& loops(Isa isa) {
  return kLoops[static_cast<int>(isa)];
}

// What the step holds of one sequence: tokens [begin, end), and its part of the cache.
struct Run {
  int64_t begin, end;
  bool fresh;  // starts at position 0: the state counts as zeros, whatever the slot holds
  float* state;

  Run(const Args& args, int64_t sequence)
      : begin(args.batch->sequence_offsets[sequence]),
        end(args.batch->sequence_offsets[sequence + 1]),
        fresh(begin < end && args.batch->positions[begin] == 0),
        state(reinterpret_cast<float*>(args.cache.slot(args.batch->state_slots[sequence]))) {}
};

// ---- short_conv

const char* refuse_conv(const OpDesc& desc, const DeviceInfo&) {
  if (desc.in(1).type.dim(2).factor > kMaxTaps) return "filters of more than 8 taps";
  return refuse_types(desc);
}

void short_conv(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  constexpr int64_t kChannels = 4 * kLanes;  // of a job
  const int64_t C = width_of(desc.in(0)), W = width_of(desc.in(1)), parts = (C + kChannels - 1) / kChannels;
  const KdaLoops& l = loops(cpu_isa());
  stream.pool->run(args.batch->sequences * parts, [&](int64_t job, int) {
    const Run run(args, job / parts);
    const ConvTokens tokens{.x = args.input<float>(0) + run.begin * C,
                            .weight = args.input<float>(1),
                            .state = run.state,
                            .out = args.output<float>(0) + run.begin * C,
                            .n = run.end - run.begin,
                            .C = C,
                            .W = W};
    const int64_t first = job % parts * kChannels, last = std::min(C, first + kChannels);
    for (int64_t j = 0; run.fresh && j + 1 < W; ++j)
      std::fill(run.state + j * C + first, run.state + j * C + last, 0.0f);
    for (int64_t c = first; c < last; c += kLanes) l.conv_channels(tokens, c);
  });
}

// ---- kda_gate

const char* refuse_gate(const OpDesc& desc, const DeviceInfo&) {
  if (desc.attrs.number(Attr::lower_bound, -1) >= 0) return "lower_bound must be negative";
  return refuse_types(desc);
}

void kda_gate(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t heads = desc.attrs.integer(Attr::heads), D = width_of(desc.out(0)) / heads;
  const auto bound = static_cast<float>(desc.attrs.number(Attr::lower_bound, 0));
  const KdaLoops& l = loops(cpu_isa());
  for_ranges(stream, args.now.tokens * heads, row_grain(4 * D), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t h = i % heads;
      l.gate_row(args.input<float>(0) + i * D, args.input<float>(2) + h * D, args.input<float>(1)[h], bound, D,
                 args.output<float>(0) + i * D);
    }
  });
}

// ---- gated_rms_norm

void gated_rms_norm(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t heads = desc.attrs.integer(Attr::heads), D = width_of(desc.out(0)) / heads;
  const float eps = desc.attrs.real(Attr::eps);
  const KdaLoops& l = loops(cpu_isa());
  for_ranges(stream, rows_of(desc.out(0), args.now) * heads, row_grain(2 * D), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      l.gated_norm_row(args.input<float>(0) + i * D, args.input<float>(1), args.input<float>(2) + i * D, eps, D,
                       args.output<float>(0) + i * D);
  });
}

// ---- kda

// A thread's scratch: q and k made ready, decays, and beta, of a tile.
int64_t kda_scratch_floats(const OpDesc& desc) {
  return kTile * (3 * desc.attrs.integer(Attr::head_dim) + 1) + kLanes;
}

int64_t kda_workspace(const OpDesc& desc, const DeviceInfo& device) {
  return device.threads * kda_scratch_floats(desc) * static_cast<int64_t>(sizeof(float));
}

// One launch. A job is a head of a sequence and runs its tokens in order by the recurrence, so a prompt gives the same
// bits however it is cut into steps. The chunked form would not, not even on pieces at multiples of 64 positions: a
// piece that two steps share would have to be run token by token. Nor would it gain much on a CPU: the state of a head
// stays in the nearest caches, and the projections around the recurrence do some twenty times its arithmetic.
struct Kda {
  const OpDesc& desc;
  const Args& args;
  const Isa isa = cpu_isa();
  const int64_t heads = desc.attrs.integer(Attr::heads), D = desc.attrs.integer(Attr::head_dim);
  const int64_t V = desc.attrs.integer(Attr::v_dim);

  void tile(int64_t begin, int64_t count, int64_t h, float* state, float* scratch) const {
    const int64_t key = (begin * heads + h) * D, value = (begin * heads + h) * V;
    float *q = scratch, *k = q + kTile * D, *decay = k + kTile * D, *beta = decay + kTile * D;
    const float scale = 1.0f / std::sqrt(static_cast<float>(D));
    for (int64_t t = 0; t < count; ++t) {
      loops(isa).unit_row(args.input<float>(0) + key + t * heads * D, scale, D, q + t * D);
      loops(isa).unit_row(args.input<float>(1) + key + t * heads * D, 1, D, k + t * D);
      beta[t] = loops(isa).sigmoid_one(args.input<float>(4)[(begin + t) * heads + h]);
    }
    kda_recurrent(isa,
                  {.n = count,
                   .D = D,
                   .V = V,
                   .q = q,
                   .k = k,
                   .g = args.input<float>(3) + key,
                   .beta = beta,
                   .v = args.input<float>(2) + value,
                   .out = args.output<float>(0) + value,
                   .g_stride = heads * D,
                   .v_stride = heads * V},
                  state, decay);
  }

  void head(int64_t sequence, int64_t h, float* scratch) const {
    const Run run(args, sequence);
    float* state = run.state + h * D * V;
    if (run.fresh) std::fill_n(state, D * V, 0.0f);
    for (int64_t t = run.begin; t < run.end; t += kTile) tile(t, std::min(kTile, run.end - t), h, state, scratch);
  }
};

void kda(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const Kda launch{desc, args};
  stream.pool->run(args.batch->sequences * launch.heads, [&](int64_t job, int thread) {
    launch.head(job / launch.heads, job % launch.heads,
                reinterpret_cast<float*>(workspace) + thread * kda_scratch_floats(desc));
  });
}

}  // namespace

void kda_recurrent(Isa isa, const KdaTokens& tokens, float* state, float* scratch) {
  loops(isa).kda_tokens(tokens, state, scratch);
}

const Kernel kShortConv{.name = "short_conv.cpu",
                        .op = Op::short_conv,
                        .backend = Backend::cpu,
                        .refuse = refuse_conv,
                        .launch = short_conv};
const Kernel kKdaGate{
    .name = "kda_gate.cpu", .op = Op::kda_gate, .backend = Backend::cpu, .refuse = refuse_gate, .launch = kda_gate};
const Kernel kKda{.name = "kda.cpu",
                  .op = Op::kda,
                  .backend = Backend::cpu,
                  .refuse = refuse_types,
                  .workspace_bytes = kda_workspace,
                  .launch = kda};
const Kernel kGatedRmsNorm{.name = "gated_rms_norm.cpu",
                           .op = Op::gated_rms_norm,
                           .backend = Backend::cpu,
                           .refuse = refuse_types,
                           .launch = gated_rms_norm};

}  // namespace moesaic::cpu
