// Hyper-connections (see the op table): a few sums over streams per token, and Sinkhorn-Knopp on a small matrix.
#include <cmath>
#include <cstring>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/rows.h"

namespace moesaic::cpu {

#define LANES_BODY "kernels/cpu/hyper_connections_lanes.inc"
#include "kernels/cpu/for_each_isa.inc"

namespace {

constexpr int64_t kMostStreams = 8;

float sigmoid(float x) {
  return 1 / (1 + exp_one(-x));
}

const char* refuse(const OpDesc& desc, const DeviceInfo& device) {
  if (desc.attrs.integer(Attr::streams) > kMostStreams) return "more than 8 streams";
  return refuse_types(desc, device);
}

void mix(const float* const* rows, const float* weights, int64_t count, int64_t H, float* out) {
  constexpr decltype(&scalar::mix_rows) kMix[] = {scalar::mix_rows, avx2::mix_rows, avx512::mix_rows};
  kMix[static_cast<int>(cpu_isa())](rows, weights, count, H, out);
}

// The n streams of one token, side by side.
struct Streams {
  const float* x;
  int64_t n, H;

  // 1 / root mean square of all n * H values.
  float scale(float eps) const {
    constexpr decltype(&scalar::sum_squares) kSum[] = {scalar::sum_squares, avx2::sum_squares, avx512::sum_squares};
    return 1 / std::sqrt(kSum[static_cast<int>(cpu_isa())](x, n * H) / static_cast<float>(n * H) + eps);
  }
  void collapse(const float* weights, float* out) const {
    const float* rows[kMostStreams];
    for (int64_t j = 0; j < n; ++j) rows[j] = x + j * H;
    mix(rows, weights, n, H, out);
  }
};

// Calls body(t, streams of token t) for the rows of operand `input`.
template <typename Body>
void for_tokens(const OpDesc& desc, const Args& args, int input, Stream& stream, Body body) {
  const int64_t n = desc.attrs.integer(Attr::streams), width = width_of(desc.in(input));
  for_ranges(stream, rows_of(desc.in(input), args.now), row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) body(t, Streams{args.input<float>(input) + t * width, n, width / n});
  });
}

void hc_expand(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t n = desc.attrs.integer(Attr::streams), H = width_of(desc.in(0));
  for_ranges(stream, args.now.tokens * n, row_grain(H), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(args.output<float>(0) + i * H, args.input<float>(0) + i / n * H,
                  static_cast<size_t>(H) * sizeof(float));
  });
}

// Divides each of n lines by its sum + eps; the elements of a line are `step` apart, lines `next` apart.
void normalise(float* comb, int64_t n, int64_t next, int64_t step, float eps) {
  for (int64_t a = 0; a < n; ++a) {
    float total = 0;
    for (int64_t b = 0; b < n; ++b) total += comb[a * next + b * step];
    for (int64_t b = 0; b < n; ++b) comb[a * next + b * step] /= total + eps;
  }
}

// Rows become a softmax, then columns and rows are normalised in turn; columns come last.
void balance(float* comb, int64_t n, float eps, int64_t iterations) {
  for (int64_t a = 0; a < n; ++a) {
    float* row = comb + a * n;
    float top = row[0], total = 0;
    for (int64_t b = 1; b < n; ++b) top = std::max(top, row[b]);
    for (int64_t b = 0; b < n; ++b) total += row[b] = exp_one(row[b] - top);
    for (int64_t b = 0; b < n; ++b) row[b] = row[b] / total + eps;
  }
  normalise(comb, n, 1, n, eps);
  for (int64_t i = 1; i < iterations; ++i) {
    normalise(comb, n, n, 1, eps);
    normalise(comb, n, 1, n, eps);
  }
}

void hc_pre(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const float eps = desc.attrs.real(Attr::eps), hc_eps = desc.attrs.real(Attr::hc_eps);
  const int64_t iterations = desc.attrs.integer(Attr::iterations), width = width_of(desc.in(1));
  const float *base = args.input<float>(2), *scale = args.input<float>(3);
  for_tokens(desc, args, 0, stream, [&](int64_t t, const Streams& s) {
    const float rms = s.scale(eps);
    const float* mixed = args.input<float>(1) + t * width;
    float pre[kMostStreams], *post = args.output<float>(1) + t * s.n, *comb = args.output<float>(2) + t * s.n * s.n;
    for (int64_t j = 0; j < s.n; ++j) {
      pre[j] = sigmoid(mixed[j] * rms * scale[0] + base[j]) + hc_eps;
      post[j] = 2 * sigmoid(mixed[s.n + j] * rms * scale[1] + base[s.n + j]);
    }
    for (int64_t i = 0; i < s.n * s.n; ++i) comb[i] = mixed[2 * s.n + i] * rms * scale[2] + base[2 * s.n + i];
    balance(comb, s.n, hc_eps, iterations);
    s.collapse(pre, args.output<float>(0) + t * s.H);
  });
}

void hc_post(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  for_tokens(desc, args, 1, stream, [&](int64_t t, const Streams& s) {
    const float *post = args.input<float>(2) + t * s.n, *comb = args.input<float>(3) + t * s.n * s.n;
    const float* rows[kMostStreams + 1] = {args.input<float>(0) + t * s.H};
    for (int64_t j = 0; j < s.n; ++j) rows[j + 1] = s.x + j * s.H;
    for (int64_t k = 0; k < s.n; ++k) {
      float weights[kMostStreams + 1] = {post[k]};
      for (int64_t j = 0; j < s.n; ++j) weights[j + 1] = comb[j * s.n + k];
      mix(rows, weights, s.n + 1, s.H, args.output<float>(0) + (t * s.n + k) * s.H);
    }
  });
}

void hc_head(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const float eps = desc.attrs.real(Attr::eps), hc_eps = desc.attrs.real(Attr::hc_eps);
  const float *base = args.input<float>(2), *scale = args.input<float>(3);
  for_tokens(desc, args, 0, stream, [&](int64_t t, const Streams& s) {
    const float rms = s.scale(eps);
    const float* mixed = args.input<float>(1) + t * s.n;
    float pre[kMostStreams];
    for (int64_t j = 0; j < s.n; ++j) pre[j] = sigmoid(mixed[j] * rms * scale[0] + base[j]) + hc_eps;
    s.collapse(pre, args.output<float>(0) + t * s.H);
  });
}

}  // namespace

const Kernel kHcExpand{
    .name = "hc_expand.cpu", .op = Op::hc_expand, .backend = Backend::cpu, .refuse = refuse, .launch = hc_expand};
const Kernel kHcPre{
    .name = "hc_pre.cpu", .op = Op::hc_pre, .backend = Backend::cpu, .refuse = refuse, .launch = hc_pre};
const Kernel kHcPost{
    .name = "hc_post.cpu", .op = Op::hc_post, .backend = Backend::cpu, .refuse = refuse, .launch = hc_post};
const Kernel kHcHead{
    .name = "hc_head.cpu", .op = Op::hc_head, .backend = Backend::cpu, .refuse = refuse, .launch = hc_head};

}  // namespace moesaic::cpu
