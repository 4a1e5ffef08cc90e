// Hyper-connections: X'[k] = post[k] * y + sum_j comb[j][k] * X[j] around a sublayer that reads sum_j pre[j] * X[j].
#include <cmath>

#include "kernels/ref/ref.h"

namespace moesaic::ref {
namespace {

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// One site: n streams of H channels.
struct Streams {
  int64_t n, H, rows;
  Streams(const OpDesc& desc, const Args& args, int input)
      : n(desc.attrs.integer(Attr::streams)),
        H(desc.in(input).type.dim(-1).factor / n),
        rows(args.now.of(desc.in(input).type.dim(0))) {}

  // 1 / root mean square of all n * H values.
  double scale(const double* x, double eps) const {
    double square = 0;
    for (int64_t i = 0; i < n * H; ++i) square += x[i] * x[i];
    return 1 / std::sqrt(square / static_cast<double>(n * H) + eps);
  }
  void collapse(const double* x, const std::vector<double>& weights, double* y) const {
    std::fill_n(y, H, 0.0);
    for (int64_t j = 0; j < n; ++j)
      for (int64_t h = 0; h < H; ++h) y[h] += weights[static_cast<size_t>(j)] * x[j * H + h];
  }
};

void hc_expand(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t n = desc.attrs.integer(Attr::streams), H = desc.in(0).type.dim(-1).factor;
  for (int64_t i = 0; i < args.now.tokens * n; ++i)
    std::copy_n(args.input<double>(0) + i / n * H, H, args.output<double>(0) + i * H);
}

// Sinkhorn-Knopp: rows become a softmax, then columns and rows are normalised in turn; columns come last.
void balance(double* comb, int64_t n, double eps, int64_t iterations) {
  const auto normalise = [&](int64_t stride, int64_t other) {
    for (int64_t a = 0; a < n; ++a) {
      double total = 0;
      for (int64_t b = 0; b < n; ++b) total += comb[a * stride + b * other];
      for (int64_t b = 0; b < n; ++b) comb[a * stride + b * other] /= total + eps;
    }
  };
  for (int64_t a = 0; a < n; ++a) {
    double top = -INFINITY, total = 0;
    for (int64_t b = 0; b < n; ++b) top = std::max(top, comb[a * n + b]);
    for (int64_t b = 0; b < n; ++b) total += comb[a * n + b] = std::exp(comb[a * n + b] - top);
    for (int64_t b = 0; b < n; ++b) comb[a * n + b] = comb[a * n + b] / total + eps;
  }
  normalise(1, n);
  for (int64_t i = 1; i < iterations; ++i) normalise(n, 1), normalise(1, n);
}

void hc_pre(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const WeightReader base(args, desc, 2), scale(args, desc, 3);
  const Streams s(desc, args, 0);
  const int64_t n = s.n, width = n * (n + 2);
  const double hc_eps = desc.attrs.number(Attr::hc_eps);
  for (int64_t t = 0; t < s.rows; ++t) {
    const double* x = args.input<double>(0) + t * n * s.H;
    const double rms = s.scale(x, desc.attrs.number(Attr::eps));
    const auto mix = [&](int64_t i, int64_t part) {
      return args.input<double>(1)[t * width + i] * rms * scale[part] + base[i];
    };
    std::vector<double> pre;
    for (int64_t j = 0; j < n; ++j) {
      pre.push_back(sigmoid(mix(j, 0)) + hc_eps);
      args.output<double>(1)[t * n + j] = 2 * sigmoid(mix(n + j, 1));
    }
    double* comb = args.output<double>(2) + t * n * n;
    for (int64_t i = 0; i < n * n; ++i) comb[i] = mix(2 * n + i, 2);
    balance(comb, n, hc_eps, desc.attrs.integer(Attr::iterations));
    s.collapse(x, pre, args.output<double>(0) + t * s.H);
  }
}

void hc_post(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const Streams s(desc, args, 1);
  for (int64_t t = 0; t < s.rows; ++t) {
    const double *y = args.input<double>(0) + t * s.H, *x = args.input<double>(1) + t * s.n * s.H;
    const double *post = args.input<double>(2) + t * s.n, *comb = args.input<double>(3) + t * s.n * s.n;
    for (int64_t k = 0; k < s.n; ++k) {
      double* out = args.output<double>(0) + (t * s.n + k) * s.H;
      for (int64_t h = 0; h < s.H; ++h) {
        out[h] = post[k] * y[h];
        for (int64_t j = 0; j < s.n; ++j) out[h] += comb[j * s.n + k] * x[j * s.H + h];
      }
    }
  }
}

void hc_head(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const WeightReader base(args, desc, 2), scale(args, desc, 3);
  const Streams s(desc, args, 0);
  for (int64_t t = 0; t < s.rows; ++t) {
    const double* x = args.input<double>(0) + t * s.n * s.H;
    const double rms = s.scale(x, desc.attrs.number(Attr::eps));
    std::vector<double> pre;
    for (int64_t j = 0; j < s.n; ++j)
      pre.push_back(sigmoid(args.input<double>(1)[t * s.n + j] * rms * scale[0] + base[j]) +
                    desc.attrs.number(Attr::hc_eps));
    s.collapse(x, pre, args.output<double>(0) + t * s.H);
  }
}

}  // namespace

const Kernel kHcExpand{.name = "hc_expand.ref", .op = Op::hc_expand, .backend = Backend::ref, .launch = hc_expand};
const Kernel kHcPre{.name = "hc_pre.ref", .op = Op::hc_pre, .backend = Backend::ref, .launch = hc_pre};
const Kernel kHcPost{.name = "hc_post.ref", .op = Op::hc_post, .backend = Backend::ref, .launch = hc_post};
const Kernel kHcHead{.name = "hc_head.ref", .op = Op::hc_head, .backend = Backend::ref, .launch = hc_head};

}  // namespace moesaic::ref
