#include <algorithm>
#include <cmath>

#include "kernels/ref/ref.h"
#include "quant/quantized_row.h"

namespace moesaic::ref {

double clamped_swiglu(double gate, double up, double limit, double alpha) {
  if (limit > 0) {
    gate = std::min(gate, limit);
    up = std::clamp(up, -limit, limit);
  }
  return (up + 1) * gate / (1 + std::exp(-alpha * gate));
}

std::vector<Choice> choose_experts(const double* logits, int64_t experts, int64_t top_k) {
  std::vector<Choice> all;
  for (int64_t e = 0; e < experts; ++e) all.push_back({static_cast<int32_t>(e), logits[e]});
  const auto key = [](const Choice& c) { return std::isnan(c.weight) ? -INFINITY : c.weight; };
  std::sort(all.begin(), all.end(),
            [&](const Choice& a, const Choice& b) { return key(a) != key(b) ? key(a) > key(b) : a.id < b.id; });
  all.resize(static_cast<size_t>(top_k));
  const double top = all[0].weight;
  double total = 0;
  for (Choice& c : all) total += c.weight = std::exp(c.weight - top);
  for (Choice& c : all) c.weight /= total;
  return all;
}

namespace {

// Row `n` of expert `e` times x, plus its bias where input `bias` exists.
double expert_dot(const OpDesc& desc, const Args& args, int weight, int bias, int64_t e, int64_t n, const double* x) {
  const WeightReader w(args, desc, weight);
  const int64_t N = desc.in(weight).type.dim(1).factor, K = desc.in(weight).type.dim(2).factor;
  double sum = 0;
  for (int64_t k = 0; k < K; ++k) sum += w[(e * N + n) * K + k] * x[k];
  return bias < static_cast<int>(desc.inputs.size()) ? sum + WeightReader(args, desc, bias)[e * N + n] : sum;
}

void moe_token(const OpDesc& desc, const Args& args, const double* x, double* y) {
  const int64_t E = desc.attrs.integer(Attr::experts), H = desc.in(0).type.dim(1).factor;
  const int64_t I = desc.in(5).type.dim(2).factor;
  const WeightReader router(args, desc, 1), router_bias(args, desc, 2);
  std::vector<double> logits(static_cast<size_t>(E)), hidden(static_cast<size_t>(I));
  for (int64_t e = 0; e < E; ++e) {
    double& logit = logits[static_cast<size_t>(e)];
    logit = router_bias[e];
    for (int64_t h = 0; h < H; ++h) logit += router[e * H + h] * x[h];
  }
  std::fill_n(y, H, 0.0);
  for (const Choice& c : choose_experts(logits.data(), E, desc.attrs.integer(Attr::top_k))) {
    for (int64_t i = 0; i < I; ++i)
      hidden[static_cast<size_t>(i)] =
          clamped_swiglu(expert_dot(desc, args, 3, 4, c.id, 2 * i, x), expert_dot(desc, args, 3, 4, c.id, 2 * i + 1, x),
                         desc.attrs.number(Attr::limit), desc.attrs.number(Attr::alpha));
    for (int64_t h = 0; h < H; ++h) y[h] += c.weight * expert_dot(desc, args, 5, 6, c.id, h, hidden.data());
  }
}

void moe(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t H = desc.in(0).type.dim(1).factor;
  stream.pool->run(args.now.tokens, [&](int64_t t, int) {
    moe_token(desc, args, args.input<double>(0) + t * H, args.output<double>(0) + t * H);
  });
}

// Routed rows sorted by expert, in token order within one. rows: the token of each; places: where (token, slot) went.
// Ids of -1 (tokens that fill a captured step up) have no row and place -1; offsets[E] counts the others, and rows past
// it are 0.
void dispatch(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t E = desc.attrs.integer(Attr::experts), R = args.now.of(desc.out(0).type.dim(0));
  const int64_t k = desc.in(0).type.dim(1).factor;
  int32_t sorted = 0;
  std::fill_n(args.output<int32_t>(0), R, 0);
  std::fill_n(args.output<int32_t>(2), R, -1);
  for (int64_t e = 0; e < E; ++e) {
    args.output<int32_t>(1)[e] = sorted;
    for (int64_t r = 0; r < R; ++r) {
      if (args.input<int32_t>(0)[r] != e) continue;
      args.output<int32_t>(0)[sorted] = static_cast<int32_t>(r / k);
      args.output<int32_t>(2)[r] = sorted++;
    }
  }
  args.output<int32_t>(1)[E] = sorted;
}

void quantize(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t K = desc.in(0).type.dim(-1).factor, rows = args.now.of(desc.in(0).type.dim(0));
  std::vector<float> x(static_cast<size_t>(K));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < K; ++k) x[static_cast<size_t>(k)] = static_cast<float>(args.input<double>(0)[r * K + k]);
    quantize_row(x.data(), K, args.out[0] + r * quantized_width(K));
  }
}

// Calls body(e, r, x) for every routed row r of every expert e.
template <typename Body>
void for_each_row(const OpDesc& desc, const Args& args, int64_t e, Body body) {
  const int64_t K = desc.in(3).type.dim(2).factor;
  const int32_t *rows = args.input<int32_t>(1), *offsets = args.input<int32_t>(2);
  for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r) {
    const int64_t source = desc.attrs.integer(Attr::gather) != 0 ? rows[r] : r;
    if (desc.in(0).type.dtype != DType::e4m3) {
      body(r, args.input<double>(0) + source * K);
      continue;
    }
    std::vector<float> x(static_cast<size_t>(K));
    dequantize_row(args.in[0] + source * quantized_width(K), K, x.data());
    body(r, std::vector<double>(x.begin(), x.end()).data());
  }
}

void expert_linear(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t E = desc.in(3).type.dim(0).factor, N = desc.in(3).type.dim(1).factor;
  stream.pool->run(E, [&](int64_t e, int) {
    for_each_row(desc, args, e, [&](int64_t r, const double* x) {
      for (int64_t n = 0; n < N; ++n) args.output<double>(0)[r * N + n] = expert_dot(desc, args, 3, 4, e, n, x);
    });
  });
}

void expert_swiglu(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t E = desc.in(3).type.dim(0).factor, I = desc.in(3).type.dim(1).factor / 2;
  stream.pool->run(E, [&](int64_t e, int) {
    for_each_row(desc, args, e, [&](int64_t r, const double* x) {
      for (int64_t i = 0; i < I; ++i)
        args.output<double>(0)[r * I + i] =
            clamped_swiglu(expert_dot(desc, args, 3, 4, e, 2 * i, x), expert_dot(desc, args, 3, 4, e, 2 * i + 1, x),
                           desc.attrs.number(Attr::limit), desc.attrs.number(Attr::alpha));
    });
  });
}

void clamped_swiglu_op(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t n = args.now.of(desc.out(0).type.dim(0)) * desc.out(0).type.dim(1).factor;
  const double* h = args.input<double>(0);
  for (int64_t i = 0; i < n; ++i)
    args.output<double>(0)[i] =
        clamped_swiglu(h[2 * i], h[2 * i + 1], desc.attrs.number(Attr::limit), desc.attrs.number(Attr::alpha));
}

void combine(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t H = desc.out(0).type.dim(1).factor, k = desc.in(2).type.dim(1).factor;
  for (int64_t t = 0; t < args.now.tokens; ++t) {
    double* y = args.output<double>(0) + t * H;
    std::fill_n(y, H, 0.0);
    for (int64_t j = t * k; j < (t + 1) * k; ++j) {
      const int64_t place = args.input<int32_t>(1)[j];
      for (int64_t h = 0; place >= 0 && h < H; ++h)
        y[h] += args.input<double>(2)[j] * args.input<double>(0)[place * H + h];
    }
  }
}

}  // namespace

const Kernel kMoe{.name = "moe.ref", .op = Op::moe, .backend = Backend::ref, .launch = moe};
const Kernel kDispatch{.name = "dispatch.ref", .op = Op::dispatch, .backend = Backend::ref, .launch = dispatch};
const Kernel kExpertLinear{
    .name = "expert_linear.ref", .op = Op::expert_linear, .backend = Backend::ref, .launch = expert_linear};
const Kernel kExpertSwiglu{
    .name = "expert_swiglu.ref", .op = Op::expert_swiglu, .backend = Backend::ref, .launch = expert_swiglu};
const Kernel kClampedSwiglu{
    .name = "clamped_swiglu.ref", .op = Op::clamped_swiglu, .backend = Backend::ref, .launch = clamped_swiglu_op};
const Kernel kQuantize{.name = "quantize.ref", .op = Op::quantize, .backend = Backend::ref, .launch = quantize};
const Kernel kCombine{.name = "combine.ref", .op = Op::combine, .backend = Backend::ref, .launch = combine};

}  // namespace moesaic::ref
