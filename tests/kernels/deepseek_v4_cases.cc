// Cases of hc_expand, hc_pre, hc_post, hc_head, compress, entry_attend and grouped_linear.
#include <algorithm>
#include <cmath>

#include "kernels/deepseek_v4_steps.h"

namespace moesaic {
namespace {

struct StreamSize {
  int64_t tokens, n, H;
};
std::vector<StreamSize> stream_sizes() {
  std::vector<StreamSize> sizes;
  for (int64_t tokens : kCaseTokens)
    for (auto [n, H] : {std::pair<int64_t, int64_t>{4, 64}, {4, 100}, {2, 16}, {1, 48}, {8, 33}})
      sizes.push_back({tokens, n, H});
  return sizes;
}
std::string label(const StreamSize& s) {
  return fmt::format("T={} n={} H={}", s.tokens, s.n, s.H);
}

Attrs stream_attrs(const StreamSize& s) {
  return {{Attr::streams, static_cast<double>(s.n)}, {Attr::eps, 1e-6}, {Attr::hc_eps, 1e-6}, {Attr::iterations, 20}};
}

// A weight of the mix follows from an argument |mix * rms * scale + base| <= 30, wrong by its own few roundings and
// half those of the mean square (64 running sums), which the exponential turns into a relative error; e^x adds 3 units.
// A round of Sinkhorn-Knopp adds 2 (n + 2) units and passes on at most what it gets.
double mix_units(const StreamSize& s, int64_t iterations) {
  const double argument = 30 * (static_cast<double>(s.n * s.H) / 128 + 8);
  return 2 * argument + 8 + static_cast<double>(iterations * 4 * (s.n + 2));
}

// |X| summed over the streams for the collapsed input (the weights are at most 1 + eps), 2 and 1 for post and comb.
Values stream_magnitude(const KernelCase& test, size_t step) {
  Values out = reference(test)[step];
  const auto n = static_cast<size_t>(test.desc.attrs.integer(Attr::streams));
  const std::vector<double>& x = test.steps[step].inputs[0].values;
  const size_t H = static_cast<size_t>(test.desc.outputs[0].type.dim(-1).factor);
  for (size_t i = 0; i < out[0].size(); ++i) {
    out[0][i] = 0;
    for (size_t j = 0; j < n; ++j) out[0][i] += 1.001 * std::abs(x[(i / H * n + j) * H + i % H]);
  }
  for (size_t o = 1; o < out.size(); ++o) std::fill(out[o].begin(), out[o].end(), o == 1 ? 2.0 : 1.0);
  return out;
}

void add_hc_expand(Rng& rng, std::vector<KernelCase>& out) {
  for (const StreamSize& s : stream_sizes()) {
    const Bounds now{s.tokens, 0};
    out.push_back(make_case(label(s), Op::hc_expand, {{Attr::streams, static_cast<double>(s.n)}},
                            {normal_operand(rng, {Symbol::T, s.H}, now)}, now));
  }
}

void add_hc_pre(Rng& rng, std::vector<KernelCase>& out) {
  for (const StreamSize& s : stream_sizes()) {
    const Bounds now{s.tokens, 0};
    const int64_t mix = s.n * (s.n + 2);
    out.push_back(make_case(label(s), Op::hc_pre, stream_attrs(s),
                            {normal_operand(rng, {Symbol::T, s.n * s.H}, now, s.tokens % 2 == 0 ? 1 : 1e3),
                             normal_operand(rng, {Symbol::T, mix}, now, s.tokens % 2 == 0 ? 1 : 1e3),
                             vector_operand(rng, {mix}), vector_operand(rng, {3}, 0.2, 1)},
                            now));
    out.back().tolerance = {.per_magnitude = (mix_units(s, 20) + static_cast<double>(s.n + 1)) * kUnit};
    out.back().magnitude = stream_magnitude;
  }
}

void add_hc_head(Rng& rng, std::vector<KernelCase>& out) {
  for (const StreamSize& s : stream_sizes()) {
    const bool rows = s.tokens == 17;  // the head runs on the rows with logits
    const Symbol T = rows ? Symbol::S : Symbol::T;
    const Bounds now{rows ? 0 : s.tokens, rows ? s.tokens : 0};
    out.push_back(make_case(label(s), Op::hc_head, stream_attrs(s),
                            {normal_operand(rng, {T, s.n * s.H}, now), normal_operand(rng, {T, s.n}, now),
                             vector_operand(rng, {s.n}), vector_operand(rng, {1}, 0.2, 1)},
                            now));
    out.back().tolerance = {.per_magnitude = (mix_units(s, 0) + static_cast<double>(s.n + 1)) * kUnit};
    out.back().magnitude = stream_magnitude;
  }
}

void add_hc_post(Rng& rng, std::vector<KernelCase>& out) {
  for (const StreamSize& s : stream_sizes()) {
    const Bounds now{s.tokens, 0};
    out.push_back(
        make_case(label(s), Op::hc_post, {{Attr::streams, static_cast<double>(s.n)}},
                  {normal_operand(rng, {Symbol::T, s.H}, now, 10), normal_operand(rng, {Symbol::T, s.n * s.H}, now),
                   normal_operand(rng, {Symbol::T, s.n}, now), normal_operand(rng, {Symbol::T, s.n * s.n}, now)},
                  now));
    out.back().tolerance = {.per_magnitude = static_cast<double>(s.n + 2) * kUnit};  // one rounding per term
  }
}

// The pooled |kv| with the exact weights.
Values compress_magnitude(const KernelCase& test, size_t step) {
  KernelCase copy = test;
  for (KernelStep& s : copy.steps)
    for (double& v : s.inputs[0].values) v = std::abs(v);
  return reference(copy)[step];
}

void add_compress(Rng& rng, std::vector<KernelCase>& out) {
  for (const CompressSize& size :
       {CompressSize{4, true, 32}, {4, true, 16}, {16, false, 32}, {128, false, 80}, {2, true, 144}}) {
    const StateData data = random_compress(rng, size, {129, 1, 300, 4, 3, 17});
    const std::string name = fmt::format("ratio={} overlap={} D={}", size.ratio, size.overlap, size.D);
    int i = 0;
    for (const auto& steps : {whole(data), together(data, 30), in_chunks(data, 7)}) {
      out.push_back(state_case(fmt::format("{} {}", name, i++), Op::compress, compress_attrs(size), data, steps));
      // The exponent is a sum of two and a difference, each within 16, e^x 3 units, twice a sum over the tokens, a
      // ratio.
      const double count = static_cast<double>(size.ratio * (size.overlap ? 2 : 1));
      out.back().tolerance = {.per_magnitude = 2 * (3 * 16 + 3 + count + 2) * kUnit, .absolute = 0x1p-140};
      out.back().magnitude = compress_magnitude;
    }
  }
}

void add_entry_attend(Rng& rng, std::vector<KernelCase>& out) {
  for (EntrySize size : {EntrySize{4, 32, 8, 0},
                         {4, 32, 8, 4},
                         {3, 16, 130, 16},
                         {16, 48, 100, 128},
                         {9, 32, 5, 4, 6},
                         {4, 64, 64, 4, 40}}) {
    for (DType cache : {DType::f32, DType::bf16}) {
      size.cache = cache;
      const EntryData data = random_entries(rng, size, {129, 1, 65, 3, 64, 17, 300});
      const std::string name = fmt::format("heads={} D={} window={} ratio={} chosen={} {}", size.heads, size.D,
                                           size.window, size.ratio, size.chosen, dtype_name(cache));
      for (auto& [cut, steps] :
           {std::pair{" whole", in_chunks(data.places, 1000)}, std::pair{" together", together(data.places, 30)}}) {
        out.push_back(entry_case(name + cut, data, steps));
        if (cache == DType::bf16) out.back().desc.precision = Precision::fast;
      }
    }
  }
  const EntryData data =
      random_entries(rng, {.heads = 4, .D = 16, .window = 700, .ratio = 4}, {1300});  // several splits
  out.push_back(
      entry_case("1300 tokens, the last alone", data, {{{0, 0, 1297}}, {{0, 1297, 1299}}, {{0, 1299, 1300}}}));
}

void add_grouped_linear(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t tokens : {0, 1, 9, 40, 70}) {  // for matrix units, which truncate
    const Bounds now{tokens, 0};
    out.push_back(make_case(fmt::format("fast T={}", tokens), Op::grouped_linear, {{Attr::groups, 3}},
                            {normal_operand(rng, {Symbol::T, 3 * 96}, now),
                             weight_operand(rng, WeightKind::matrix, {3 * 16, 96}, DType::bf16, 0.1)},
                            now));
    out.back().desc.precision = Precision::fast;
    out.back().tolerance = {.per_magnitude = (96 + 2) * 2 * kUnit, .absolute = 0x1p-126};
  }
  for (int64_t tokens : kCaseTokens) {
    for (auto [groups, N, K] : {std::array<int64_t, 3>{2, 16, 64}, {3, 32, 100}, {1, 48, 33}, {8, 80, 32}}) {
      const Bounds now{tokens, 0};
      const Attrs attrs{{Attr::groups, static_cast<double>(groups)}};
      for (DType stored : {DType::bf16, DType::f32}) {
        out.push_back(make_case(fmt::format("T={} groups={} N={} K={}", tokens, groups, N, K), Op::grouped_linear,
                                attrs,
                                {normal_operand(rng, {Symbol::T, groups * K}, now),
                                 weight_operand(rng, WeightKind::matrix, {groups * N, K}, stored, 0.1)},
                                now));
        out.back().tolerance = {.per_magnitude = static_cast<double>(K + 2) * kUnit, .absolute = 0x1p-140};
      }
      out.push_back(make_case(fmt::format("T={} groups={} N={} K={} fp8", tokens, groups, N, K), Op::grouped_linear,
                              attrs,
                              {normal_operand(rng, {Symbol::T, groups * K}, now),
                               fp8_operand(rng, WeightKind::matrix, {groups * N, K}, 128, 128)},
                              now));
      out.back().tolerance = {.per_magnitude = static_cast<double>(K + 3) * kUnit, .absolute = 0x1p-140};
    }
  }
}

}  // namespace

std::vector<KernelCase> deepseek_v4_cases(Op op, Rng& rng) {
  std::vector<KernelCase> out;
  if (op == Op::hc_expand) add_hc_expand(rng, out);
  if (op == Op::hc_pre) add_hc_pre(rng, out);
  if (op == Op::hc_post) add_hc_post(rng, out);
  if (op == Op::hc_head) add_hc_head(rng, out);
  if (op == Op::compress) add_compress(rng, out);
  if (op == Op::entry_attend) add_entry_attend(rng, out);
  if (op == Op::grouped_linear) add_grouped_linear(rng, out);
  return out;
}

}  // namespace moesaic
