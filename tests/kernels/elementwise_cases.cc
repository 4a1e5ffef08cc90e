// Cases of slice, glu, sigmoid_gate, attn_res, rope in its general form, rms_norm per head, routers with scores, and
// expert products of formats that are widened in scratch.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <span>

#include "kernels/kernel_harness.h"

namespace moesaic {
namespace {

double number(int64_t n) {
  return static_cast<double>(n);
}

// e^x is within 1.5 ulp and 1 + e^-x, the division and the products are one rounding each: 16 units cover them, tanh of
// the C library (2 ulp) included.
constexpr Tolerance kSmooth{.ulps = 16, .absolute = 0x1p-120};

void add_slice(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t tokens : kCaseTokens)
    for (auto [heads, D, begin, count] : {std::array<int64_t, 4>{1, 48, 32, 16}, {4, 24, 0, 16}, {3, 20, 7, 5}})
      out.push_back(
          make_case(fmt::format("T={} heads={} D={}", tokens, heads, D), Op::slice,
                    {{Attr::heads, number(heads)}, {Attr::begin, number(begin)}, {Attr::count, number(count)}},
                    {normal_operand(rng, {Symbol::T, heads * D}, {tokens, 0})}, {tokens, 0}));
}

void add_glu(Rng& rng, std::vector<KernelCase>& out) {
  const std::vector<Attrs> kinds = {{{Attr::activation, number(static_cast<int>(Activation::silu))}, {Attr::limit, 0}},
                                    {{Attr::activation, number(static_cast<int>(Activation::silu))}, {Attr::limit, 2}},
                                    {{Attr::activation, number(static_cast<int>(Activation::situ))},
                                     {Attr::limit, 0},
                                     {Attr::beta, 4},
                                     {Attr::linear_beta, 25}},
                                    {{Attr::activation, number(static_cast<int>(Activation::situ))},
                                     {Attr::limit, 0},
                                     {Attr::beta, 4},
                                     {Attr::linear_beta, 0}}};
  for (int64_t tokens : kCaseTokens) {
    for (size_t i = 0; i < kinds.size(); ++i) {
      const Bounds now{tokens, 0};
      const std::vector<Dim> dims{Symbol::T, 100};
      out.push_back(make_case(fmt::format("T={} kind={}", tokens, i), Op::glu, kinds[i],
                              {normal_operand(rng, dims, now, 3), normal_operand(rng, dims, now, 3)}, now));
      out.back().tolerance = kSmooth;
    }
  }
}

void add_sigmoid_gate(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t tokens : kCaseTokens) {
    const Bounds now{tokens, 0};
    const std::vector<Dim> dims{Symbol::T, 96};
    out.push_back(make_case(fmt::format("T={}", tokens), Op::sigmoid_gate, {},
                            {normal_operand(rng, dims, now), normal_operand(rng, dims, now, 4)}, now));
    out.back().tolerance = kSmooth;
  }
}

// A softmax weight that moves by a fraction of itself moves the output by that fraction of its row: the rows' absolute
// values added up.
Values row_magnitude(const KernelCase& test, size_t step) {
  const std::vector<TestOperand>& inputs = test.steps[step].inputs;
  Values out{std::vector<double>(inputs[0].values.size(), 0)};
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i == 1 || i == 2) continue;  // the norm's weight and the query
    for (size_t j = 0; j < out[0].size(); ++j) out[0][j] += std::abs(inputs[i].values[j]);
  }
  return out;
}

// A score adds H products of normalised values (about 1) with weights of about 0.3: in float32, in any order, it is
// within H units of their absolute sum, which stays below H; rounding is random, so a small part of H^2 units is left.
void add_attn_res(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t tokens : kCaseTokens) {
    for (int64_t blocks : {1, 3, 9}) {
      const int64_t H = tokens == 3 ? 2100 : 64;
      const Bounds now{tokens, 0};
      std::vector<TestOperand> inputs{normal_operand(rng, {Symbol::T, H}, now), vector_operand(rng, {H}, 0.2, 1),
                                      vector_operand(rng, {1, H}, 0.3)};
      for (int64_t b = 0; b < blocks; ++b) inputs.push_back(normal_operand(rng, {Symbol::T, H}, now, 2));
      out.push_back(make_case(fmt::format("T={} blocks={}", tokens, blocks), Op::attn_res, {{Attr::eps, 1e-5}},
                              std::move(inputs), now));
      out.back().tolerance = {.per_magnitude = 4 * number(H) * kUnit};
      out.back().magnitude = row_magnitude;
    }
  }
}

void add_rope(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t tokens : kCaseTokens) {
    for (int bits = 0; bits < 4; ++bits) {
      constexpr int64_t kHeads = 3, kDim = 24, kHalf = 4;
      const Bounds now{tokens, 0};
      Attrs attrs{{Attr::heads, number(kHeads)}, {Attr::head_dim, number(kDim)}, {Attr::begin, bits < 2 ? 16.0 : 0.0}};
      if ((bits & 1) != 0) attrs.set(Attr::interleaved, 1);
      if (bits == 3) attrs.set(Attr::inverse, 1);
      out.push_back(make_case(
          fmt::format("T={} part {}", tokens, bits), Op::rope, attrs,
          {normal_operand(rng, {Symbol::T, kHeads * kDim}, now), normal_operand(rng, {Symbol::T, kHalf, 2}, now)},
          now));
      out.back().tolerance = {.absolute = 3 * 72 * kUnit};  // two products of numbers below 6 each, and their sum
    }
  }
}

void add_head_norm(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t tokens : {0, 1, 3, 65}) {
    for (bool weighted : {true, false}) {
      constexpr int64_t kHeads = 3, kDim = 24;
      const Bounds now{tokens, 0};
      std::vector<TestOperand> inputs{normal_operand(rng, {Symbol::T, kHeads * kDim}, now)};
      if (weighted) inputs.push_back(vector_operand(rng, {kDim}, 0.2, 1));
      out.push_back(make_case(fmt::format("T={} heads weight={}", tokens, weighted), Op::rms_norm,
                              {{Attr::eps, 1e-6}, {Attr::heads, number(kHeads)}}, std::move(inputs), now));
      out.back().tolerance = {.ulps = 16};
    }
  }
}

// Logits on a grid of 1/8, so that float32 and float64 choose alike: scores of different logits differ by far more than
// their rounding, and equal ones tie in both.
TestOperand grid_logits(Rng& rng, int64_t experts, const Bounds& now) {
  TestOperand logits = normal_operand(rng, {Symbol::T, experts}, now, 1.5);
  for (double& v : logits.values) v = std::round(v * 8) / 8;
  return logits;
}

struct Router {
  int64_t experts, top_k, groups, kept;
};

// The sum of the two best scores of each group; softmax's are not divided by their sum.
std::vector<double> group_scores(const Router& r, Scoring scoring, std::span<const double> logits) {
  std::vector<double> sums;
  for (int64_t g = 0; g < r.groups; ++g) {
    std::vector<double> scores;
    for (double logit :
         logits.subspan(static_cast<size_t>(g * r.experts / r.groups), static_cast<size_t>(r.experts / r.groups)))
      scores.push_back(scoring == Scoring::sigmoid         ? 1 / (1 + std::exp(-logit))
                       : scoring == Scoring::sqrt_softplus ? std::sqrt(std::log1p(std::exp(logit)))
                                                           : std::exp(logit));
    std::ranges::sort(scores, std::greater<>());
    sums.push_back(scores[0] + scores[1]);
  }
  return sums;
}

bool nearly_tie(std::vector<double> sums) {
  std::ranges::sort(sums);
  for (size_t i = 1; i < sums.size(); ++i)
    if (sums[i] != sums[i - 1] && sums[i] - sums[i - 1] < 1e-5 * sums[i]) return true;
  return false;
}

// Sums of two scores lie on no grid: tokens two of whose groups nearly tie are drawn again.
TestOperand grouped_logits(Rng& rng, const Router& r, Scoring scoring, const Bounds& now) {
  TestOperand logits = grid_logits(rng, r.experts, now);
  for (int64_t t = 0; t < now.tokens && r.groups > 1; ++t) {
    const std::span row(logits.values.data() + t * r.experts, static_cast<size_t>(r.experts));
    while (nearly_tie(group_scores(r, scoring, row)))
      std::ranges::copy(grid_logits(rng, r.experts, {1, 0}).values, row.begin());
  }
  return logits;
}

void add_route(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t tokens : kCaseTokens) {
    for (const Router& r : {Router{8, 3, 1, 1}, {16, 4, 4, 2}, {32, 32, 1, 1}, {24, 2, 8, 3}}) {
      for (Scoring scoring : {Scoring::softmax, Scoring::sigmoid, Scoring::sqrt_softplus}) {
        const Bounds now{tokens, 0};
        Attrs attrs{{Attr::top_k, number(r.top_k)},
                    {Attr::scoring, number(static_cast<int>(scoring))},
                    {Attr::normalize, tokens % 2 == 0 ? 1.0 : 0.0},
                    {Attr::routed_scale, 2.5}};
        if (r.groups > 1) attrs.set(Attr::groups, number(r.groups)), attrs.set(Attr::top_groups, number(r.kept));
        out.push_back(make_case(fmt::format("T={} E={} scoring={}", tokens, r.experts, static_cast<int>(scoring)),
                                Op::route, attrs, {grouped_logits(rng, r, scoring, now)}, now));
        out.back().tolerance = {.ulps = 24 + 2 * number(r.experts)};  // sums over all experts and the chosen
      }
    }
  }
}

// Rows sorted by expert, as dispatch leaves them.
std::vector<TestOperand> sorted_rows(Rng& rng, int64_t tokens, int64_t experts, int64_t top_k) {
  const KernelCase sorted = make_case("", Op::dispatch, {{Attr::experts, number(experts)}},
                                      {random_ids(rng, tokens, top_k, experts, Skew::favourites)}, {tokens, 0});
  const Values table = reference(sorted)[0];
  return {integer_operand({Dim(Symbol::T, top_k)}, {table[0].begin(), table[0].end()}),
          integer_operand({Dim(experts + 1)}, {table[1].begin(), table[1].end()})};
}

void add_widened_experts(Rng& rng, std::vector<KernelCase>& out) {
  constexpr int64_t kExperts = 5, kTopK = 2, kN = 40, kK = 160;
  for (int64_t tokens : {0, 1, 3, 65}) {
    for (bool gather : {true, false}) {
      const Bounds now{tokens, 0};
      const Dim rows = gather ? Dim(Symbol::T) : Dim(Symbol::T, kTopK);
      std::vector<TestOperand> inputs{normal_operand(rng, {rows, kK}, now)};
      for (TestOperand& table : sorted_rows(rng, tokens, kExperts, kTopK)) inputs.push_back(std::move(table));
      inputs.push_back(fp8_operand(rng, WeightKind::experts, {kExperts, kN, kK}, 128, 128));
      out.push_back(make_case(fmt::format("T={} fp8 gather={}", tokens, gather), Op::expert_linear,
                              {{Attr::gather, gather ? 1.0 : 0.0}}, std::move(inputs), now));
      out.back().tolerance = {.per_magnitude = number(kK + 2) * kUnit};
    }
  }
}

}  // namespace

std::vector<KernelCase> elementwise_cases(Op op, Rng& rng) {
  std::vector<KernelCase> out;
  if (op == Op::slice) add_slice(rng, out);
  if (op == Op::glu) add_glu(rng, out);
  if (op == Op::sigmoid_gate) add_sigmoid_gate(rng, out);
  if (op == Op::attn_res) add_attn_res(rng, out);
  if (op == Op::rope) add_rope(rng, out);
  if (op == Op::rms_norm) add_head_norm(rng, out);
  if (op == Op::route) add_route(rng, out);
  if (op == Op::expert_linear) add_widened_experts(rng, out);
  return out;
}

}  // namespace moesaic
