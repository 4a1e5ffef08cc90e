// Cases of route, dispatch and combine.
#include <algorithm>
#include <cmath>

#include "kernels/kernel_harness.h"

namespace moesaic {
namespace {

struct Routing {
  int64_t experts, top_k;
};
constexpr Routing kRoutings[] = {{8, 3}, {16, 1}, {32, 4}, {128, 4}, {8, 8}};

std::string label(int64_t tokens, const Routing& r) {
  return fmt::format("T={} E={} k={}", tokens, r.experts, r.top_k);
}

// The exponent v - top is rounded (|v - top| units), e^x adds 1.5 ulp = 3 units, and so do the k terms of the sum it is
// divided by; k roundings of that sum and one division. A unit is at most one ulp.
double softmax_ulps(double spread, int64_t k) {
  return 2 * (spread + 3) + static_cast<double>(k) + 1;
}

void add_route(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t tokens : kCaseTokens) {
    for (const Routing& r : kRoutings) {
      const Bounds now{tokens, 0};
      TestOperand logits = normal_operand(rng, {Symbol::T, r.experts}, now, 3);
      if (tokens % 2 == 0)  // ties everywhere
        for (double& v : logits.values) v = std::round(v);
      out.push_back(make_case(label(tokens, r), Op::route, {{Attr::top_k, static_cast<double>(r.top_k)}},
                              {std::move(logits)}, now));
      out.back().tolerance = {.ulps = softmax_ulps(40, r.top_k)};  // 3 sigma * normal() stays below 3 * 8.6
    }
  }
}

// As random_ids, with about one token in `of` of no expert; 0: none.
TestOperand ids_with_gaps(Rng& rng, int64_t tokens, const Routing& r, Skew skew, int64_t of) {
  TestOperand ids = random_ids(rng, tokens, r.top_k, r.experts, skew);
  for (int64_t t = 0; of > 0 && t < tokens; ++t)
    if (rng.below(of) == 0) std::fill_n(ids.integers.begin() + t * r.top_k, r.top_k, -1);
  return ids;
}

void add_dispatch(Rng& rng, std::vector<KernelCase>& out) {
  const auto add = [&](int64_t tokens, const Routing& r, Skew skew, int64_t gaps) {
    out.push_back(make_case(label(tokens, r), Op::dispatch, {{Attr::experts, static_cast<double>(r.experts)}},
                            {ids_with_gaps(rng, tokens, r, skew, gaps)}, {tokens, 0}));
  };
  for (int64_t tokens : kCaseTokens)
    for (const Routing& r : kRoutings) {
      for (Skew skew : {Skew::even, Skew::favourites, Skew::first}) add(tokens, r, skew, 0);
      add(tokens, r, Skew::even, 3);
    }
  add(5, {7, 2}, Skew::even, 1);  // no row at all
  add(129, {1000, 22}, Skew::even, 0);
  add(400, {33, 20}, Skew::even, 9);
  add(1024, {8, 8}, Skew::first, 0);  // 8192 rows
  add(1025, {8, 8}, Skew::even, 5);
  add(2051, {96, 6}, Skew::favourites, 0);
  add(3000, {1024, 4}, Skew::even, 4);
}

void add_combine(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t tokens : kCaseTokens) {
    for (const Routing& r : kRoutings) {
      const Bounds now{tokens, 0};
      const int64_t H = r.experts == 128 ? 100 : r.experts == 16 && tokens == 17 ? 2880 : 96;
      const KernelCase sorted = make_case("", Op::dispatch, {{Attr::experts, static_cast<double>(r.experts)}},
                                          {random_ids(rng, tokens, r.top_k, r.experts, Skew::even)}, now);
      std::vector<double> places = reference(sorted)[0][2];
      for (size_t i = 0; tokens % 2 == 0 && i < places.size(); ++i)  // tokens, and single slots, of no expert
        if (rng.below(5) == 0 || i / static_cast<size_t>(r.top_k) == 1) places[i] = -1;
      out.push_back(make_case(label(tokens, r) + fmt::format(" H={}", H), Op::combine, {},
                              {normal_operand(rng, {Dim(Symbol::T, r.top_k), H}, now),
                               integer_operand({Dim(Symbol::T, r.top_k)}, {places.begin(), places.end()}),
                               normal_operand(rng, {Symbol::T, r.top_k}, now)},
                              now));
      out.back().tolerance = {.per_magnitude = static_cast<double>(r.top_k + 1) * kUnit};  // one rounding per term
    }
  }
}

}  // namespace

std::vector<KernelCase> routing_cases(Op op, Rng& rng) {
  std::vector<KernelCase> out;
  if (op == Op::route) add_route(rng, out);
  if (op == Op::dispatch) add_dispatch(rng, out);
  if (op == Op::combine) add_combine(rng, out);
  return out;
}

}  // namespace moesaic
