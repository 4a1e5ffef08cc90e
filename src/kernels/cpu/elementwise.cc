// slice, glu, sigmoid_gate, attn_res, and rope in its general form. Plain loops: they move little beside the products.
#include <cmath>
#include <cstring>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rows.h"

namespace moesaic::cpu {
namespace {

float sigmoid(float x) {
  return 1 / (1 + exp_one(-x));
}

void slice(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t heads = desc.attrs.integer(Attr::heads), count = desc.attrs.integer(Attr::count);
  const int64_t D = width_of(desc.in(0)) / heads, begin = desc.attrs.integer(Attr::begin);
  for_ranges(stream, rows_of(desc.in(0), args.now) * heads, row_grain(count), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      std::memcpy(args.output<float>(0) + i * count, args.input<float>(0) + i * D + begin,
                  static_cast<size_t>(count) * 4);
  });
}

float silu_glu(float gate, float up, float limit) {
  if (limit > 0) gate = std::min(gate, limit), up = std::clamp(up, -limit, limit);
  return gate * sigmoid(gate) * up;
}

float situ_glu(float gate, float up, float beta, float linear_beta) {
  const float linear = linear_beta > 0 ? linear_beta * std::tanh(up / linear_beta) : up;
  return beta * std::tanh(gate / beta) * sigmoid(gate) * linear;
}

void glu(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const bool silu = static_cast<Activation>(desc.attrs.integer(Attr::activation)) == Activation::silu;
  const float limit = desc.attrs.real(Attr::limit);
  const float beta = static_cast<float>(desc.attrs.number(Attr::beta, 1));
  const float linear_beta = static_cast<float>(desc.attrs.number(Attr::linear_beta, 0));
  const float *gate = args.input<float>(0), *up = args.input<float>(1);
  for_ranges(stream, rows_of(desc.in(0), args.now) * width_of(desc.in(0)), 4096, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      args.output<float>(0)[i] = silu ? silu_glu(gate[i], up[i], limit) : situ_glu(gate[i], up[i], beta, linear_beta);
  });
}

void sigmoid_gate(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  for_ranges(stream, rows_of(desc.in(0), args.now) * width_of(desc.in(0)), 4096, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      args.output<float>(0)[i] = args.input<float>(0)[i] * sigmoid(args.input<float>(1)[i]);
  });
}

void rotate(const float* x, const float* table, int64_t half, bool interleaved, float sign, float* y) {
  for (int64_t i = 0; i < half; ++i) {
    const int64_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
    const float cosine = table[2 * i], sine = sign * table[2 * i + 1], first = x[a], second = x[b];
    y[a] = first * cosine - second * sine;
    y[b] = second * cosine + first * sine;
  }
}

void rope_general(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t heads = desc.attrs.integer(Attr::heads), D = desc.attrs.integer(Attr::head_dim);
  const int64_t half = desc.in(1).type.dim(1).factor, begin = desc.attrs.integer(Attr::begin, 0);
  const bool interleaved = desc.attrs.integer(Attr::interleaved, 0) != 0;
  const float sign = desc.attrs.integer(Attr::inverse, 0) != 0 ? -1.0f : 1.0f;
  for_ranges(stream, args.now.tokens * heads, row_grain(D), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float* x = args.input<float>(0) + row * D;
      float* y = args.output<float>(0) + row * D;
      std::memcpy(y, x, static_cast<size_t>(D) * 4);
      rotate(x + begin, args.input<float>(1) + row / heads * half * 2, half, interleaved, sign, y + begin);
    }
  });
}

constexpr int64_t kMostRows = 16;  // blocks and prefix of attn_res

// The score of one row: its dot product with norm * proj over its root mean square.
float residual_score(const float* row, const float* norm, const float* proj, int64_t H, float eps) {
  float square = 0, score = 0;
  for (int64_t h = 0; h < H; ++h) {
    square += row[h] * row[h];
    score += row[h] * (norm[h] * proj[h]);
  }
  return score / std::sqrt(square / static_cast<float>(H) + eps);
}

void mix_token(const OpDesc& desc, const Args& args, int64_t t) {
  const int64_t H = width_of(desc.in(0)), blocks = static_cast<int64_t>(desc.inputs.size()) - 3;
  const auto row = [&](int64_t j) { return args.input<float>(static_cast<int>(j < blocks ? j + 3 : 0)) + t * H; };
  float scores[kMostRows], total = 0, top = -INFINITY;
  for (int64_t j = 0; j <= blocks; ++j) {
    scores[j] = residual_score(row(j), args.input<float>(1), args.input<float>(2), H, desc.attrs.real(Attr::eps));
    top = std::max(top, scores[j]);
  }
  for (int64_t j = 0; j <= blocks; ++j) total += scores[j] = exp_one(scores[j] - top);
  float* y = args.output<float>(0) + t * H;
  for (int64_t h = 0; h < H; ++h) y[h] = scores[0] / total * row(0)[h];
  for (int64_t j = 1; j <= blocks; ++j)
    for (int64_t h = 0; h < H; ++h) y[h] += scores[j] / total * row(j)[h];
}

void attn_res(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  for_ranges(stream, args.now.tokens, row_grain(width_of(desc.in(0)) * 4), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) mix_token(desc, args, t);
  });
}

}  // namespace

const Kernel kSlice{
    .name = "slice.cpu", .op = Op::slice, .backend = Backend::cpu, .refuse = refuse_types, .launch = slice};
const Kernel kGlu{.name = "glu.cpu", .op = Op::glu, .backend = Backend::cpu, .refuse = refuse_types, .launch = glu};
const Kernel kSigmoidGate{.name = "sigmoid_gate.cpu",
                          .op = Op::sigmoid_gate,
                          .backend = Backend::cpu,
                          .refuse = refuse_types,
                          .launch = sigmoid_gate};
const Kernel kRopeGeneral{.name = "rope.general.cpu",
                          .op = Op::rope,
                          .backend = Backend::cpu,
                          .refuse = refuse_types,
                          .launch = rope_general};
const Kernel kAttnRes{
    .name = "attn_res.cpu", .op = Op::attn_res, .backend = Backend::cpu, .refuse = refuse_types, .launch = attn_res};

}  // namespace moesaic::cpu
