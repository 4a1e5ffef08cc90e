// Cases of short_conv, kda_gate, kda and gated_rms_norm.
#include <algorithm>
#include <cmath>

#include "kernels/state_steps.h"

namespace moesaic {
namespace {

// The sum over absolute inputs, all steps before included.
Values absolute_magnitude(const KernelCase& test, size_t step) {
  KernelCase copy = test;
  for (KernelStep& s : copy.steps) s = absolute(s);
  return reference(copy)[step];
}

// Sequences whole, in pieces and mixed with others, some shorter than a filter.
std::vector<std::vector<std::vector<Chunk>>> all_cuts(const StateData& data) {
  return {whole(data), in_chunks(data, 1), in_chunks(data, 2), together(data, 1), together(data, 17)};
}

// A sum of W products, W + 1 roundings; silu's slope is below 1.1 and its own error below 5 units (an exponential of
// 1.5 ulp, an addition, a division). The magnitude is silu of the sum over absolute values: at least half of it.
void add_short_conv(Rng& rng, std::vector<KernelCase>& out) {
  for (auto [channels, width] : {std::pair<int64_t, int64_t>{1, 4}, {16, 4}, {100, 4}, {40, 1}, {24, 2}, {130, 8}}) {
    StateData data = random_state_data(rng, {channels}, {1, 70, 2, 5});
    data.weights = {vector_operand(rng, {channels, 1, width}, 0.6)};
    for (const auto& steps : all_cuts(data)) {
      KernelCase test = state_case(fmt::format("C={} W={} in {} steps", channels, width, steps.size()), Op::short_conv,
                                   {{Attr::cache, 0}}, data, steps);
      test.tolerance = {.ulps = 5, .per_magnitude = 2.2 * static_cast<double>(width + 2) * kUnit};
      test.magnitude = absolute_magnitude;
      out.push_back(std::move(test));
    }
  }
}

// With u = z + bias, one rounding of u moves e^-|u| by |u| units and sigmoid(rate u) by rate |u| units, and so does
// each unit of the rate (an exponential of 1.5 ulp, a product); the rest are about 12 operations.
double gate_ulps(const std::vector<TestOperand>& inputs, int64_t heads) {
  const auto largest = [](const std::vector<double>& values, size_t count) {
    double top = 0;
    for (size_t i = 0; i < std::min(count, values.size()); ++i) top = std::max(top, std::abs(values[i]));
    return top;
  };
  const double u = largest(inputs[0].values, SIZE_MAX) + largest(inputs[2].values, SIZE_MAX);
  return 24 + 12 * u * std::max(1.0, std::exp(largest(inputs[1].values, static_cast<size_t>(heads))));
}

void add_kda_gate(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t tokens : kCaseTokens) {
    for (auto [heads, D] : {std::pair<int64_t, int64_t>{1, 2}, {4, 16}, {3, 40}, {2, 128}}) {
      for (bool bounded : {false, true}) {
        const Bounds now{tokens, 0};
        Attrs attrs{{Attr::heads, static_cast<double>(heads)}};
        if (bounded) attrs.set(Attr::lower_bound, -5);
        std::vector<TestOperand> inputs{normal_operand(rng, {Symbol::T, heads * D}, now, tokens % 2 == 0 ? 3 : 30),
                                        vector_operand(rng, {1, 1, heads + tokens % 3, 1}, 0.7, 0.5),
                                        vector_operand(rng, {heads, D})};
        const double ulps = gate_ulps(inputs, heads);
        out.push_back(make_case(fmt::format("T={} heads={} D={} bounded={}", tokens, heads, D, bounded), Op::kda_gate,
                                attrs, std::move(inputs), now));
        out.back().tolerance = {.ulps = ulps, .absolute = 5 * 0x1p-127};  // 5 / e^x, where e^x overflows
      }
    }
  }
}

// Length of the longest column that the state of a head ever has.
double longest_column(const StateData::Sequence& s, const KdaSize& size, int64_t head) {
  double longest = 0;
  std::vector<double> column(static_cast<size_t>(size.D));
  for (int64_t i = 0; i < size.V; ++i) {
    std::fill(column.begin(), column.end(), 0.0);
    for (int64_t t = 0; t < s.length; ++t) {
      const auto key = static_cast<size_t>((t * size.heads + head) * size.D);
      double length = 1e-6, read = 0, square = 0;
      for (size_t d = 0; d < column.size(); ++d) {
        column[d] *= std::exp(s.inputs[3][key + d]);
        length += s.inputs[1][key + d] * s.inputs[1][key + d];
        read += column[d] * s.inputs[1][key + d];
      }
      length = std::sqrt(length);
      const double beta = 1 / (1 + std::exp(-s.inputs[4][static_cast<size_t>(t * size.heads + head)]));
      const double v = s.inputs[2][static_cast<size_t>((t * size.heads + head) * size.V + i)];
      for (size_t d = 0; d < column.size(); ++d) {
        column[d] += s.inputs[1][key + d] / length * beta * (v - read / length);
        square += column[d] * column[d];
      }
      longest = std::max(longest, square + v * v);
    }
  }
  return std::sqrt(longest);
}

// A token maps a column s of the state to (I - beta k k^T) diag(e^g) s + beta v k, which lengthens no error. It adds
// one of its own: s^T k, D + 1 roundings, applied along k; decays, k and beta with up to 12 units each, and 6
// operations. q reads the sum of all these, with D + 1 roundings and 12 units more.
void add_kda(Rng& rng, std::vector<KernelCase>& out) {
  for (const KdaSize& size : {KdaSize{1, 2, 3}, {3, 16, 16}, {2, 24, 40}, {1, 32, 81}, {2, 128, 64}}) {
    for (double strongest : {-0.01, -5.0, -60.0}) {
      const StateData data = random_kda(rng, size, {1, 70, 2, 33}, strongest);
      double length = 0;
      for (const auto& s : data.sequences)
        for (int64_t h = 0; h < size.heads; ++h) length = std::max(length, longest_column(s, size, h));
      const auto D = static_cast<double>(size.D);
      for (const auto& steps : all_cuts(data)) {
        KernelCase test = state_case(
            fmt::format("heads={} D={} V={} decay {} in {} steps", size.heads, size.D, size.V, strongest, steps.size()),
            Op::kda, kda_attrs(size), data, steps);
        test.tolerance = {.per_magnitude = (70 * (2 * D + 42) + D + 13) * kUnit, .absolute = 0x1p-120};
        test.magnitude = [size = length / std::sqrt(D), values = data.widths[2]](const KernelCase& c, size_t step) {
          return Values{std::vector<double>(static_cast<size_t>(c.steps[step].now.tokens * values), size)};
        };
        out.push_back(std::move(test));
      }
    }
  }
}

// The norm as in rms_norm (a mean from 64 running sums, then 4 operations, and as much as a margin), then a sigmoid of
// 4 units and a product.
void add_gated_norm(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t tokens : kCaseTokens) {
    for (auto [heads, D] : {std::pair<int64_t, int64_t>{1, 100}, {4, 16}, {3, 40}, {2, 128}}) {
      const Bounds now{tokens, 0};
      const std::vector<Dim> dims{Symbol::T, heads * D};
      out.push_back(make_case(fmt::format("T={} heads={} D={}", tokens, heads, D), Op::gated_rms_norm,
                              {{Attr::eps, 1e-5}, {Attr::heads, static_cast<double>(heads)}},
                              {normal_operand(rng, dims, now, tokens % 2 == 0 ? 1 : 1e3),
                               vector_operand(rng, {D}, 0.2, 1), normal_operand(rng, dims, now, 4)},
                              now));
      out.back().tolerance = {.ulps = static_cast<double>(D / 64 + 8) / 2 + 14};
    }
  }
}

}  // namespace

std::vector<KernelCase> kda_cases(Op op, Rng& rng) {
  std::vector<KernelCase> out;
  if (op == Op::short_conv) add_short_conv(rng, out);
  if (op == Op::kda_gate) add_kda_gate(rng, out);
  if (op == Op::kda) add_kda(rng, out);
  if (op == Op::gated_rms_norm) add_gated_norm(rng, out);
  return out;
}

}  // namespace moesaic
