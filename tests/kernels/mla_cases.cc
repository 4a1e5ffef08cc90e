// Cases of mla_absorb, mla_attend, mla_up, index_topk and layer_norm.
#include <algorithm>
#include <cmath>

#include "kernels/paged_steps.h"

namespace moesaic {
namespace {

// ---- the products with kv_b_proj

struct Fold {
  int64_t heads, nope, rope, v, L;
};
constexpr Fold kFolds[] = {{2, 32, 16, 24, 32}, {3, 24, 8, 16, 48}, {2, 64, 8, 192, 144}, {1, 128, 64, 128, 512}};

TestOperand kv_b(Rng& rng, const Fold& f, int kind) {
  const std::vector<int64_t> shape{f.heads * (f.nope + f.v), f.L};
  if (kind == 3) return fp8_operand(rng, WeightKind::matrix, shape, 128, 128);
  constexpr DType kStored[] = {DType::bf16, DType::f16, DType::f32};
  return weight_operand(rng, WeightKind::matrix, shape, kStored[kind], 0.1);
}

// K products, each of a weight that fp8 rounds once: see dot_tolerance in dense_cases.cc.
void add_product(Rng& rng, Op op, std::vector<KernelCase>& out) {
  for (int64_t tokens : kCaseTokens) {
    for (const Fold& f : kFolds) {
      if (f.L == 512 && tokens != 3) continue;
      for (int kind = 0; kind < 4; ++kind) {
        const bool absorb = op == Op::mla_absorb;
        const Bounds now{tokens, 0};
        Attrs attrs{{Attr::heads, static_cast<double>(f.heads)},
                    {Attr::nope_dim, static_cast<double>(f.nope)},
                    {Attr::v_dim, static_cast<double>(f.v)}};
        if (absorb) attrs.set(Attr::rope_dim, static_cast<double>(f.rope));
        const int64_t width = f.heads * (absorb ? f.nope + f.rope : f.L), K = absorb ? f.nope : f.L;
        out.push_back(make_case(fmt::format("T={} heads={} L={} kind={}", tokens, f.heads, f.L, kind), op, attrs,
                                {normal_operand(rng, {Symbol::T, width}, now), kv_b(rng, f, kind)}, now));
        if (kind == 0 || kind == 3) out.back().desc.precision = Precision::fast;
        out.back().tolerance = {.per_magnitude = static_cast<double>(K + 3) * kUnit, .absolute = 0x1p-140};
      }
    }
  }
}

// ---- mla_attend

double largest(const PagedData& data, size_t input) {
  double top = 0;
  for (const auto& sequence : data.inputs)
    for (double v : sequence[input]) top = std::max(top, std::abs(v));
  return top;
}

double longest(const PagedData& data, const std::vector<size_t>& inputs, const std::vector<int64_t>& widths) {
  double top = 0;
  for (const auto& sequence : data.inputs) {
    for (size_t row = 0; row * static_cast<size_t>(widths[0]) < sequence[inputs[0]].size(); ++row) {
      double square = 0;
      for (size_t i = 0; i < inputs.size(); ++i)
        for (int64_t d = 0; d < widths[i]; ++d)
          square += std::pow(sequence[inputs[i]][row * static_cast<size_t>(widths[i]) + static_cast<size_t>(d)], 2);
      top = std::max(top, square);
    }
  }
  return std::sqrt(top);
}

// As attention_units in attention_steps.cc, turned or not; a score's 16 partial sums and their tree round less often
// than one sum.
double attend_units(const PagedData& data, const LatentSize& size, double scale) {
  const int64_t width = size.L + size.rope;
  const double score = scale * longest(data, {0}, {width}) * longest(data, {1, 2}, {size.L, size.rope});
  double length = 0;
  for (const auto& s : data.places.sequences) length = std::max(length, static_cast<double>(s.length));
  const double rescales = length / 64 + 10;
  return 2 * (score * static_cast<double>(width + 8) + 2 * score + 3 + rescales * (2 * score + 5)) + 2 * length;
}

void add_attend_case(std::string name, const PagedData& data, const LatentSize& size, DType cache,
                     const std::vector<std::vector<Chunk>>& steps, std::vector<KernelCase>& out) {
  const double scale = 0.5 / std::sqrt(static_cast<double>(size.L + size.rope));
  Attrs attrs = latent_attrs(size, scale);
  if (data.pairs > 0)
    attrs.set(Attr::rotate, static_cast<double>(size.heads % 2 == 0 ? Rotate::neighbours : Rotate::halves));
  out.push_back(paged_case(name, Op::mla_attend, attrs, data, steps, cache, {1, 2}));
  if (cache == DType::bf16) out.back().desc.precision = Precision::fast;
  out.back().tolerance = {.per_magnitude = attend_units(data, size, scale) * kUnit, .absolute = 0x1p-140};
  const double top = 1.01 * largest(data, 1);  // bf16 rounds latents up by 2^-9 at most
  out.back().magnitude = [top](const KernelCase& test, size_t step) {
    const int64_t width = test.desc.out(0).type.dim(1).factor;
    return Values{std::vector<double>(static_cast<size_t>(test.steps[step].now.tokens * width), top)};
  };
}

void turn(Rng& rng, const LatentSize& size, DType cache, PagedData& data) {
  data.pairs = size.rope / 2;
  for (const auto& s : data.places.sequences)
    data.tables.push_back(cache == DType::bf16 ? quarter_turns(rng, s.length * data.pairs)
                                               : random_turns(rng, s.length * data.pairs));
}

void add_attend(Rng& rng, std::vector<KernelCase>& out) {
  for (DType cache : {DType::f32, DType::bf16}) {
    for (const LatentSize& size : {LatentSize{4, 32, 16}, {20, 48, 8}, {9, 16, 6}}) {
      for (int64_t chosen : {0, 24}) {
        PagedData data = random_paged(rng, latent_widths(size), {129, 1, 65, 2, 63, 17, 64});
        if (chosen > 0) choose_positions(rng, data, chosen);
        const std::string name = fmt::format("heads={} L={} rope={} chosen={} cache={}", size.heads, size.L, size.rope,
                                             chosen, dtype_name(cache));
        add_attend_case(name + " whole", data, size, cache, in_chunks(data, 200), out);
        add_attend_case(name + " together", data, size, cache, together(data, 30), out);
        turn(rng, size, cache, data);
        add_attend_case(name + " turned", data, size, cache, together(data, 40), out);
      }
    }
  }
  const LatentSize real{4, 512, 64};  // DeepSeek's rows, several splits
  const PagedData data = random_paged(rng, latent_widths(real), {700});
  add_attend_case("700 tokens, the last alone", data, real, DType::f32, {{{0, 0, 699}}, {{0, 699, 700}}}, out);
  const LatentSize wide{40, 512, 64}, narrow{20, 32, 16};  // for matrix units
  PagedData few = random_paged(rng, latent_widths(wide), {70});
  add_attend_case("40 heads of 512", few, wide, DType::bf16, {{{0, 0, 69}}, {{0, 69, 70}}}, out);
  turn(rng, wide, DType::bf16, few);
  add_attend_case("40 heads of 512, turned", few, wide, DType::bf16, {{{0, 0, 69}}, {{0, 69, 70}}}, out);
  const PagedData many = random_paged(rng, latent_widths(narrow), {560});
  add_attend_case("560 tokens, the last alone", many, narrow, DType::bf16, {{{0, 0, 559}}, {{0, 559, 560}}}, out);
  const LatentSize small{4, 32, 16};
  const PagedData none = random_paged(rng, latent_widths(small), {5});
  add_attend_case("no tokens", none, small, DType::f32, {{}, {{0, 0, 5}}}, out);
}

// ---- index_topk: exact data, since the result is a choice

void add_index(Rng& rng, std::vector<KernelCase>& out) {
  for (DType cache : {DType::f32, DType::bf16}) {
    for (const IndexSize& size :
         {IndexSize{4, 32, 8}, {20, 16, 33}, {1, 16, 1}, {4, 32, 200}, {4, 32, 8, 64}, {3, 16, 33, 128}}) {
      const PagedData data = integer_paged(rng, index_widths(size), {129, 1, 65, 2, 17, 64});
      for (int64_t ratio : {1, 4}) {
        if (ratio > 1 && (size.hash_bits > 0 || size.top_k == 1)) continue;
        const std::string name = fmt::format("heads={} D={} top_k={} hash_bits={} ratio={} cache={}", size.heads,
                                             size.D, size.top_k, size.hash_bits, ratio, dtype_name(cache));
        Attrs attrs = index_attrs(size, 0.125);
        if (ratio > 1) attrs.set(Attr::ratio, static_cast<double>(ratio));
        for (const auto& steps : {in_chunks(data, 200), together(data, 30)}) {
          out.push_back(paged_case(name, Op::index_topk, attrs, data, steps, cache));
          if (cache == DType::bf16) out.back().desc.precision = Precision::fast;
          out.back().magnitude = [](const KernelCase& test, size_t step) {  // integers have no tolerance
            const auto n = test.steps[step].now.of(test.desc.out(0).type.dim(0)) * test.desc.out(0).type.dim(1).factor;
            return Values{std::vector<double>(static_cast<size_t>(n))};
          };
        }
      }
    }
  }
}

// ---- layer_norm: one rounding of a float64 result

void add_layer_norm(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t tokens : kCaseTokens) {
    for (int64_t H : {16, 100, 128, 1152}) {
      if (H == 1152 && tokens > 3) continue;
      const Bounds now{tokens, 0};
      out.push_back(make_case(fmt::format("T={} H={}", tokens, H), Op::layer_norm, {{Attr::eps, 1e-6}},
                              {normal_operand(rng, {Symbol::T, H}, now, tokens % 2 == 0 ? 1 : 1e3),
                               vector_operand(rng, {H}, 0.2, 1), vector_operand(rng, {H}, 0.3)},
                              now));
      out.back().tolerance = {.ulps = 0.5001, .absolute = 1e-12};
    }
  }
}

}  // namespace

std::vector<KernelCase> mla_cases(Op op, Rng& rng) {
  std::vector<KernelCase> out;
  if (op == Op::mla_absorb || op == Op::mla_up) add_product(rng, op, out);
  if (op == Op::mla_attend) add_attend(rng, out);
  if (op == Op::index_topk) add_index(rng, out);
  if (op == Op::layer_norm) add_layer_norm(rng, out);
  return out;
}

}  // namespace moesaic
