// Kimi delta attention: short convolution, decay gate, recurrence and gated norm (transformers models/kimi_linear; the
// bounded gate is that of Kimi K3, fla/ops/kda/gate.py).
#include <algorithm>
#include <cmath>

#include "kernels/ref/ref.h"

namespace moesaic::ref {
namespace {

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// What the step holds of one sequence: tokens [begin, end), and its part of the cache, zeroed where it starts anew.
struct Run {
  int64_t begin, end;
  double* state;

  Run(const Args& args, int64_t sequence, int64_t state_size)
      : begin(args.batch->sequence_offsets[sequence]),
        end(args.batch->sequence_offsets[sequence + 1]),
        state(reinterpret_cast<double*>(args.cache.slot(args.batch->state_slots[sequence]))) {
    if (begin < end && args.batch->positions[begin] == 0) std::fill_n(state, state_size, 0.0);
  }
};

void short_conv(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const WeightReader weight(args, desc, 1);
  const int64_t C = desc.in(0).type.dim(1).factor, W = desc.in(1).type.dim(2).factor;
  for (int64_t s = 0; s < args.batch->sequences; ++s) {
    const Run run(args, s, (W - 1) * C);
    for (int64_t t = run.begin; t < run.end; ++t) {
      for (int64_t c = 0; c < C; ++c) {
        const double now = args.input<double>(0)[t * C + c];
        double sum = weight[c * W + W - 1] * now;
        for (int64_t j = 0; j + 1 < W; ++j) sum += weight[c * W + j] * run.state[j * C + c];
        for (int64_t j = 0; j + 2 < W; ++j) run.state[j * C + c] = run.state[(j + 1) * C + c];
        if (W > 1) run.state[(W - 2) * C + c] = now;
        args.output<double>(0)[t * C + c] = sum * sigmoid(sum);
      }
    }
  }
}

// Log decay per key channel: lower_bound * sigmoid(rate * z), or -rate * softplus(z) where no bound is set, with the
// head's rate e^A_log.
void kda_gate(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const WeightReader logs(args, desc, 1), bias(args, desc, 2);
  const int64_t width = desc.in(0).type.dim(1).factor, D = width / desc.attrs.integer(Attr::heads);
  for (int64_t i = 0; i < args.now.tokens * width; ++i) {
    const double rate = std::exp(logs[i % width / D]), z = args.input<double>(0)[i] + bias[i % width];
    const double softplus = std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)));
    args.output<double>(0)[i] =
        desc.attrs.has(Attr::lower_bound) ? desc.attrs.number(Attr::lower_bound) * sigmoid(rate * z) : -rate * softplus;
  }
}

// x * scale / |x|
std::vector<double> unit(const double* x, int64_t n, double scale) {
  double square = 1e-6;
  for (int64_t i = 0; i < n; ++i) square += x[i] * x[i];
  std::vector<double> y(x, x + n);
  for (double& v : y) v *= scale / std::sqrt(square);
  return y;
}

// One token of one head: the state [D][V] decays, then moves towards v where k reads it, then q reads it.
void kda_token(const double* q, const double* k, const double* v, const double* g, double beta, int64_t D, int64_t V,
               double* state, double* out) {
  const std::vector<double> key = unit(k, D, 1), query = unit(q, D, 1 / std::sqrt(static_cast<double>(D)));
  std::vector<double> read(static_cast<size_t>(V), 0.0);
  for (int64_t d = 0; d < D; ++d) {
    const double decay = std::exp(g[d]);
    for (int64_t i = 0; i < V; ++i)
      read[static_cast<size_t>(i)] += key[static_cast<size_t>(d)] * (state[d * V + i] *= decay);
  }
  std::fill_n(out, V, 0.0);
  for (int64_t d = 0; d < D; ++d)
    for (int64_t i = 0; i < V; ++i) {
      state[d * V + i] += key[static_cast<size_t>(d)] * beta * (v[i] - read[static_cast<size_t>(i)]);
      out[i] += query[static_cast<size_t>(d)] * state[d * V + i];
    }
}

void kda(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t heads = desc.attrs.integer(Attr::heads), D = desc.attrs.integer(Attr::head_dim);
  const int64_t V = desc.attrs.integer(Attr::v_dim);
  for (int64_t s = 0; s < args.batch->sequences; ++s) {
    const Run run(args, s, heads * D * V);
    stream.pool->run(heads, [&](int64_t h, int) {
      for (int64_t t = run.begin; t < run.end; ++t) {
        const int64_t key = (t * heads + h) * D, value = (t * heads + h) * V;
        kda_token(args.input<double>(0) + key, args.input<double>(1) + key, args.input<double>(2) + value,
                  args.input<double>(3) + key, sigmoid(args.input<double>(4)[t * heads + h]), D, V,
                  run.state + h * D * V, args.output<double>(0) + value);
      }
    });
  }
}

void gated_rms_norm(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const WeightReader weight(args, desc, 1);
  const int64_t D = desc.in(1).type.dim(0).factor;
  int64_t heads = desc.attrs.integer(Attr::heads);
  for (int i = 0; i + 1 < desc.in(0).type.rank(); ++i) heads *= args.now.of(desc.in(0).type.dim(i));
  for (int64_t row = 0; row < heads; ++row) {
    const double *x = args.input<double>(0) + row * D, *gate = args.input<double>(2) + row * D;
    double square = 0;
    for (int64_t d = 0; d < D; ++d) square += x[d] * x[d];
    const double scale = 1 / std::sqrt(square / static_cast<double>(D) + desc.attrs.number(Attr::eps));
    for (int64_t d = 0; d < D; ++d) args.output<double>(0)[row * D + d] = weight[d] * (x[d] * scale) * sigmoid(gate[d]);
  }
}

}  // namespace

const Kernel kShortConv{.name = "short_conv.ref", .op = Op::short_conv, .backend = Backend::ref, .launch = short_conv};
const Kernel kKdaGate{.name = "kda_gate.ref", .op = Op::kda_gate, .backend = Backend::ref, .launch = kda_gate};
const Kernel kKda{.name = "kda.ref", .op = Op::kda, .backend = Backend::ref, .launch = kda};
const Kernel kGatedRmsNorm{
    .name = "gated_rms_norm.ref", .op = Op::gated_rms_norm, .backend = Backend::ref, .launch = gated_rms_norm};

}  // namespace moesaic::ref
