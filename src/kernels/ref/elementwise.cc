// slice, glu, sigmoid_gate, attn_res.
#include <algorithm>
#include <cmath>

#include "kernels/ref/ref.h"

namespace moesaic::ref {
namespace {

int64_t width(const OperandDesc& operand) {
  return operand.type.dim(-1).factor;
}

int64_t rows(const OperandDesc& operand, const Args& args) {
  int64_t n = 1;
  for (int i = 0; i + 1 < operand.type.rank(); ++i) n *= args.now.of(operand.type.dim(i));
  return n;
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

void slice(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t heads = desc.attrs.integer(Attr::heads), count = desc.attrs.integer(Attr::count);
  const int64_t D = width(desc.in(0)) / heads, n = rows(desc.in(0), args) * heads;
  for (int64_t i = 0; i < n; ++i)
    std::copy_n(args.input<double>(0) + i * D + desc.attrs.integer(Attr::begin), count,
                args.output<double>(0) + i * count);
}

void glu(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const auto activation = static_cast<Activation>(desc.attrs.integer(Attr::activation));
  const int64_t n = rows(desc.in(0), args) * width(desc.in(0));
  for (int64_t i = 0; i < n; ++i) {
    const double gate = args.input<double>(0)[i], up = args.input<double>(1)[i];
    const double limit = desc.attrs.number(Attr::limit);
    args.output<double>(0)[i] = activation == Activation::silu ? silu_glu(gate, up, limit)
                                                               : situ_glu(gate, up, desc.attrs.number(Attr::beta),
                                                                          desc.attrs.number(Attr::linear_beta));
  }
}

void sigmoid_gate(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t n = rows(desc.in(0), args) * width(desc.in(0));
  for (int64_t i = 0; i < n; ++i)
    args.output<double>(0)[i] = args.input<double>(0)[i] * sigmoid(args.input<double>(1)[i]);
}

// Attention residuals (Kimi K3, section 5.1 of its reference): a softmax mix of the blocks and the prefix, scored by
// their normalised rows times norm * proj; the rows themselves are mixed as they are.
void attn_res(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const WeightReader norm(args, desc, 1), proj(args, desc, 2);
  const int64_t H = width(desc.in(0)), blocks = static_cast<int64_t>(desc.inputs.size()) - 3;
  for (int64_t t = 0; t < args.now.tokens; ++t) {
    const auto row = [&](int64_t j) { return args.input<double>(static_cast<int>(j < blocks ? j + 3 : 0)) + t * H; };
    std::vector<double> scores;
    for (int64_t j = 0; j <= blocks; ++j) {
      double square = 0, score = 0;
      for (int64_t h = 0; h < H; ++h) square += row(j)[h] * row(j)[h];
      for (int64_t h = 0; h < H; ++h) score += row(j)[h] * norm[h] * proj[h];
      scores.push_back(score / std::sqrt(square / static_cast<double>(H) + desc.attrs.number(Attr::eps)));
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double& s : scores) total += s = std::exp(s - top);
    std::fill_n(args.output<double>(0) + t * H, H, 0.0);
    for (int64_t j = 0; j <= blocks; ++j)
      for (int64_t h = 0; h < H; ++h)
        args.output<double>(0)[t * H + h] += scores[static_cast<size_t>(j)] / total * row(j)[h];
  }
}

}  // namespace

double silu_glu(double gate, double up, double limit) {
  if (limit > 0) gate = std::min(gate, limit), up = std::clamp(up, -limit, limit);
  return gate * sigmoid(gate) * up;
}

double situ_glu(double gate, double up, double beta, double linear_beta) {
  const double linear = linear_beta > 0 ? linear_beta * std::tanh(up / linear_beta) : up;
  return beta * std::tanh(gate / beta) * sigmoid(gate) * linear;
}

const Kernel kSlice{.name = "slice.ref", .op = Op::slice, .backend = Backend::ref, .launch = slice};
const Kernel kGlu{.name = "glu.ref", .op = Op::glu, .backend = Backend::ref, .launch = glu};
const Kernel kSigmoidGate{
    .name = "sigmoid_gate.ref", .op = Op::sigmoid_gate, .backend = Backend::ref, .launch = sigmoid_gate};
const Kernel kAttnRes{.name = "attn_res.ref", .op = Op::attn_res, .backend = Backend::ref, .launch = attn_res};

}  // namespace moesaic::ref
