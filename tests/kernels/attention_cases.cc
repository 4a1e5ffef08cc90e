// Cases of rope_table, rope and gqa.
#include <cmath>

#include "ir/rope.h"
#include "kernels/attention_steps.h"

namespace moesaic {
namespace {

void add_rope_table(Rng& rng, std::vector<KernelCase>& out) {
  RopeConfig yarn{.theta = 150000, .factor = 32, .beta_fast = 32, .beta_slow = 1, .original_positions = 4096};
  yarn.truncate = false, yarn.attention_factor = 0.1 * std::log(32.0) + 1;
  for (int64_t tokens : kCaseTokens) {
    for (int64_t D : {16, 64}) {
      TestBatch batch;
      for (int64_t t = 0; t < tokens; ++t) batch.positions.push_back(static_cast<int32_t>(rng.below(131072)));
      const RopeConfig rope = tokens % 2 == 0 ? RopeConfig{} : yarn;
      out.push_back(make_case(fmt::format("T={} D={}", tokens, D), Op::rope_table, rope.attrs(D), {}, {tokens, 0},
                              std::move(batch)));
      out.back().tolerance = {.ulps = 0.5001};  // one rounding of a float64 result, itself right to a few 2^-53
    }
  }
}

// |x1 cos| + |x2 sin| for both halves.
Values rope_magnitude(const KernelCase& test, size_t step) {
  const auto heads = static_cast<size_t>(test.desc.attrs.integer(Attr::heads));
  const auto half = static_cast<size_t>(test.desc.attrs.integer(Attr::head_dim) / 2);
  const KernelStep& s = test.steps[step];
  const std::vector<double>&x = s.inputs[0].values, &table = s.inputs[1].values;
  Values out{std::vector<double>(x.size())};
  for (size_t row = 0; row * 2 * half < x.size(); ++row) {
    for (size_t i = 0; i < half; ++i) {
      const size_t at = row * 2 * half + i, entry = (row / heads * half + i) * 2;
      out[0][at] = std::abs(x[at] * table[entry]) + std::abs(x[at + half] * table[entry + 1]);
      out[0][at + half] = std::abs(x[at + half] * table[entry]) + std::abs(x[at] * table[entry + 1]);
    }
  }
  return out;
}

void add_rope(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t tokens : kCaseTokens) {
    for (auto [heads, D] : {std::pair<int64_t, int64_t>{4, 16}, {3, 64}, {2, 80}}) {
      const Bounds now{tokens, 0};
      out.push_back(make_case(
          fmt::format("T={} heads={} D={}", tokens, heads, D), Op::rope,
          {{Attr::heads, static_cast<double>(heads)}, {Attr::head_dim, static_cast<double>(D)}},
          {normal_operand(rng, {Symbol::T, heads * D}, now), normal_operand(rng, {Symbol::T, D / 2, 2}, now)}, now));
      out.back().tolerance = {.per_magnitude = 2.01 * kUnit};  // two products and their sum
      out.back().magnitude = rope_magnitude;
    }
  }
}

// Shapes that matrix units serve: a bf16 cache and heads of 64 or 128, in groups that fill a block of 8 or 16 and in
// others. Each sequence comes in chunks, then token by token beside the others, then a few tokens at a time.
void add_matrix_gqa(Rng& rng, bool rotate, std::vector<KernelCase>& out) {
  AttentionShape shape{.heads = 8, .kv_heads = 1, .D = 64, .cache = DType::bf16, .scale = 0.125, .rotate = rotate};
  const auto add = [&](const std::string& name, const std::vector<int64_t>& lengths,
                       const std::vector<std::vector<Chunk>>& steps) {
    out.push_back(attention_case(fmt::format("{} heads={}/{} D={} window={} rotate={}", name, shape.heads,
                                             shape.kv_heads, shape.D, shape.window, rotate),
                                 random_attention(rng, shape, lengths), steps));
    out.back().desc.precision = Precision::fast;
  };
  const std::vector<std::vector<Chunk>> mixed = {{{0, 0, 139}, {1, 0, 5}},
                                                 {{0, 139, 300}, {1, 5, 40}, {2, 0, 1}},
                                                 {{2, 1, 2}, {0, 300, 301}, {1, 40, 41}},
                                                 {{1, 41, 44}, {0, 301, 303}}};
  add("splits", {540}, {{{0, 0, 320}}, {{0, 320, 538}}, {{0, 538, 539}}, {{0, 539, 540}}});
  shape.heads = 12, shape.kv_heads = 2, shape.window = 128;
  add("mixed", {303, 44, 2}, mixed);
  shape.window = 290;
  add("mixed", {303, 44, 2}, mixed);
  shape.window = 0;
  add("mixed", {303, 44, 2}, mixed);
  shape.D = 128, shape.heads = 10, shape.kv_heads = 1, shape.scale = 0.09, shape.sinks = false;
  add("mixed", {303, 44, 2}, mixed);
  shape.heads = 3, shape.window = 70;
  add("mixed", {303, 44, 2}, mixed);
}

// `rotate` is nothing that the CPU backend does.
void add_gqa(Rng& rng, bool rotate, std::vector<KernelCase>& out) {
  constexpr int64_t kWindows[] = {0, 8, 64, 100, 128};
  int i = 0;
  for (DType cache : {DType::f32, DType::bf16}) {
    for (int64_t window : kWindows) {
      AttentionShape shape{.heads = 8, .kv_heads = 1, .D = 32, .window = window, .cache = cache, .scale = 0.2};
      if (i % 3 == 1) shape.heads = 6, shape.kv_heads = 2, shape.D = 16;
      if (i % 3 == 2) shape.heads = 9, shape.kv_heads = 1, shape.D = 48, shape.sinks = false;
      shape.rotate = rotate;
      const AttentionData data = random_attention(rng, shape, {129, 1, 65, 2, 63, 17, 3, 64});
      const std::string name =
          fmt::format("window={} heads={} D={} cache={}", window, shape.heads, shape.D, dtype_name(cache)) +
          (rotate ? " rotate" : "");
      out.push_back(attention_case(name + " whole", data, in_chunks(data, 200)));
      out.push_back(attention_case(name + " together", data, together(data, 30)));
      ++i;
    }
  }
  const AttentionShape real{
      .heads = 8, .kv_heads = 1, .D = 64, .scale = 0.125, .rotate = rotate};  // a head of gpt-oss, several splits
  const AttentionData data = random_attention(rng, real, {700});
  out.push_back(attention_case("700 tokens, the last alone", data, {{{0, 0, 697}}, {{0, 697, 699}}, {{0, 699, 700}}}));
  add_matrix_gqa(rng, rotate, out);
  const AttentionData none = random_attention(rng, {}, {5});
  out.push_back(attention_case("no tokens", none, {{}, {{0, 0, 5}}}));
}

}  // namespace

std::vector<KernelCase> attention_cases(Op op, Rng& rng) {
  std::vector<KernelCase> out;
  if (op == Op::rope_table) add_rope_table(rng, out);
  if (op == Op::rope) add_rope(rng, out);
  for (bool rotate : {false, true})
    if (op == Op::gqa) add_gqa(rng, rotate, out);
  return out;
}

std::vector<KernelCase> kernel_cases(Op op, Rng& rng) {
  std::vector<KernelCase> out;
  for (auto* cases : {dense_cases, elementwise_cases, vision_cases, attention_cases, routing_cases, expert_cases,
                      mla_cases, kda_cases, deepseek_v4_cases})
    for (KernelCase& test : cases(op, rng)) out.push_back(std::move(test));
  return out;
}

}  // namespace moesaic
