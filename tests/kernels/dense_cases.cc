// Cases of embed, rms_norm, add, add_rms_norm, linear, last_token and join_hidden.
#include <algorithm>
#include <cmath>

#include "kernels/kernel_harness.h"
#include "quant/bf16.h"

namespace moesaic {
namespace {

struct Size {
  int64_t tokens, hidden;
};

std::vector<Size> dense_sizes() {
  std::vector<Size> sizes;
  for (int64_t tokens : kCaseTokens)
    for (int64_t hidden : {32, 96, 100}) sizes.push_back({tokens, hidden});
  for (int64_t hidden : {1030, 2880, 7168}) sizes.push_back({3, hidden});
  return sizes;
}

std::string label(const Size& size) {
  return fmt::format("T={} H={}", size.tokens, size.hidden);
}

// Any tokens in any order, and S rows of them.
TestBatch token_batch(Rng& rng, int64_t tokens, int64_t rows, int64_t vocab) {
  TestBatch batch;
  for (int64_t t = 0; t < tokens; ++t) {
    batch.token_ids.push_back(static_cast<int32_t>(rng.below(vocab)));
    batch.positions.push_back(static_cast<int32_t>(t));
    batch.sequence_of.push_back(0);
  }
  batch.sequence_offsets.push_back(static_cast<int32_t>(tokens));
  for (int64_t s = 0; s < rows; ++s) batch.output_rows.push_back(static_cast<int32_t>(rng.below(tokens)));
  std::sort(batch.output_rows.begin(), batch.output_rows.end());
  return batch;
}

// About half the tokens take rows of an image, in any order.
void add_image_rows(Rng& rng, KernelCase& test, int64_t hidden) {
  TestBatch& batch = test.steps[0].batch;
  std::vector<float> rows(static_cast<size_t>(3 * hidden));
  for (float& v : rows) v = static_cast<float>(rng.normal());
  batch.images = std::make_shared<const std::vector<float>>(std::move(rows));
  for (size_t t = 0; t < batch.token_ids.size(); ++t)
    batch.image_rows.push_back(rng.below(2) == 0 ? nullptr : batch.images->data() + rng.below(3) * hidden);
}

void add_embed(Rng& rng, std::vector<KernelCase>& out) {
  for (const Size& size : dense_sizes()) {
    for (DType stored : {DType::bf16, DType::f16, DType::f32}) {
      const int64_t vocab = 50;
      out.push_back(make_case(label(size) + " " + std::string(dtype_name(stored)), Op::embed, {},
                              {weight_operand(rng, WeightKind::embedding, {vocab, size.hidden}, stored)},
                              {size.tokens, 0}, token_batch(rng, size.tokens, 0, vocab)));
      if (size.tokens % 2 == 1) add_image_rows(rng, out.back(), size.hidden);
    }
  }
}

// The mean of H squares comes from 64 running sums (H/64 additions each), a tree of 6 and a division: a relative error
// of (H/64 + 8) units, of which the root keeps half; then the root, the reciprocal and two products, 1 unit each, and
// as much again as a margin for the roundings of the last steps. A unit is at most one ulp.
double norm_ulps(int64_t H) {
  return static_cast<double>(H / 64 + 8) / 2 + 8;
}

void add_norms(Rng& rng, std::vector<KernelCase>& out, bool with_sum) {
  for (const Size& size : dense_sizes()) {
    const Bounds now{size.tokens, 0};
    const std::vector<Dim> dims{Symbol::T, size.hidden};
    const double scale = size.tokens % 2 == 0 ? 1 : 1e4;  // the residual stream grows large
    std::vector<TestOperand> inputs{normal_operand(rng, dims, now, scale)};
    if (with_sum) inputs.push_back(normal_operand(rng, dims, now, scale));
    inputs.push_back(vector_operand(rng, {size.hidden}, 0.2, 1));
    out.push_back(make_case(label(size), with_sum ? Op::add_rms_norm : Op::rms_norm, {{Attr::eps, 1e-5}},
                            std::move(inputs), now));
    // The norm of a rounded sum: one more unit from the element, one from the mean.
    out.back().tolerance = {.ulps = norm_ulps(size.hidden) + (with_sum ? 2 : 0)};
  }
}

void add_sums(Rng& rng, std::vector<KernelCase>& out) {
  for (const Size& size : dense_sizes()) {
    const Bounds now{size.tokens, 0};
    const std::vector<Dim> dims{Symbol::T, size.hidden};
    out.push_back(make_case(label(size), Op::add, {},
                            {normal_operand(rng, dims, now), normal_operand(rng, dims, now, 100)}, now));
    out.back().tolerance = {.ulps = 0.5};
  }
}

// One sum of K products and a bias: K + 1 roundings of partial sums, none larger than the sum over absolute values.
Tolerance dot_tolerance(int64_t K) {
  return {.per_magnitude = static_cast<double>(K + 2) * kUnit, .absolute = 0x1p-140};
}

// INT4 [N, K]: codes, then a positive bf16 scale per group of 32.
TestOperand int4_operand(Rng& rng, int64_t N, int64_t K) {
  constexpr uint8_t kScales[] = {127};
  TestOperand operand = mxfp4_operand(rng, WeightKind::matrix, {N, K}, kScales);
  operand.desc.format = Format::int4;
  operand.stored.resize(static_cast<size_t>(N * K / 2));
  for (int64_t g = 0; g < N * K / 32; ++g) {
    const uint16_t scale = float_to_bf16(static_cast<float>(0.02 * std::exp(rng.normal())));
    for (int b = 0; b < 2; ++b) operand.stored.push_back(static_cast<std::byte>(scale >> (8 * b)));
  }
  return operand;
}

// In every weight format; fp8 in blocks of 128 x 128, and of one row.
std::vector<TestOperand> weights_of_all_formats(Rng& rng, int64_t N, int64_t K) {
  constexpr uint8_t kScales[] = {0, 120, 125, 127};
  return {weight_operand(rng, WeightKind::matrix, {N, K}, DType::bf16, 0.1),
          weight_operand(rng, WeightKind::matrix, {N, K}, DType::f16, 0.1),
          fp8_operand(rng, WeightKind::matrix, {N, K}, 128, 128),
          fp8_operand(rng, WeightKind::matrix, {N, K}, 1, 64),
          mxfp4_operand(rng, WeightKind::matrix, {N, K}, kScales),
          int4_operand(rng, N, K)};
}

// For kernels on matrix units, which truncate where others round: twice the error. Weights that are not bf16 may be
// rounded to it, by 2^-8 of themselves.
void add_fast_linear(Rng& rng, std::vector<KernelCase>& out) {
  const auto add = [&](int64_t tokens, TestOperand weight) {
    const int64_t N = weight.desc.type.dim(0).factor, K = weight.desc.type.dim(1).factor;
    const Bounds now{tokens, 0};
    const bool exact = weight.desc.stored == DType::bf16;
    std::string name = fmt::format("fast T={} N={} K={} format {} {}", tokens, N, K,
                                   static_cast<int>(weight.desc.format), dtype_name(weight.desc.stored));
    std::vector<TestOperand> inputs{normal_operand(rng, {Symbol::T, K}, now), std::move(weight)};
    if (tokens % 2 == 1) inputs.push_back(vector_operand(rng, {N}, 0.3));
    out.push_back(make_case(std::move(name), Op::linear, {}, std::move(inputs), now));
    out.back().desc.precision = Precision::fast;
    out.back().tolerance = {.per_magnitude = static_cast<double>(K + 2) * 2 * kUnit + (exact ? 0 : 0x1p-8),
                            .absolute = 0x1p-126};
  };
  for (int64_t tokens : {0, 1, 8, 9, 17, 33, 64, 65, 129, 257}) {
    add(tokens, weight_operand(rng, WeightKind::matrix, {33, 96}, DType::bf16, 0.1));
    if (tokens < 65) add(tokens, weight_operand(rng, WeightKind::matrix, {201, 64}, DType::bf16, 0.1));
  }
  for (int64_t tokens : {3, 13, 18, 50, 70})
    for (TestOperand& weight : weights_of_all_formats(rng, 40, 160)) add(tokens, std::move(weight));
  for (int64_t tokens : {2, 66}) add(tokens, weight_operand(rng, WeightKind::matrix, {24, 2880}, DType::bf16, 0.02));
  // Kimi K3's o_proj at batch 2: on a GPU exactly 48 KB of shared memory beside what the kernel has of its own.
  add(2, weight_operand(rng, WeightKind::matrix, {1100, 12288}, DType::bf16, 0.02));
}

void add_linear(Rng& rng, std::vector<KernelCase>& out) {
  add_fast_linear(rng, out);
  for (int64_t tokens : kCaseTokens) {
    for (auto [N, K] : {std::pair<int64_t, int64_t>{8, 32}, {32, 96}, {100, 100}, {201, 64}}) {
      for (DType stored : {DType::bf16, DType::f16, DType::f32}) {
        const Bounds now{tokens, 0};
        std::vector<TestOperand> inputs{normal_operand(rng, {Symbol::T, K}, now),
                                        weight_operand(rng, WeightKind::matrix, {N, K}, stored, 0.1)};
        if (tokens % 2 == 1) inputs.push_back(vector_operand(rng, {N}, 0.3));
        out.push_back(make_case(fmt::format("T={} N={} K={} {}", tokens, N, K, dtype_name(stored)), Op::linear, {},
                                std::move(inputs), now));
        out.back().tolerance = dot_tolerance(K);
      }
    }
  }
  for (auto [rows, cols] : {std::pair<int64_t, int64_t>{128, 128}, {1, 32}, {16, 48}}) {
    for (int64_t tokens : {1, 3, 17, 65}) {
      const Bounds now{tokens, 0};
      constexpr int64_t kN = 201, kK = 200;
      out.push_back(make_case(fmt::format("T={} fp8 {}x{}", tokens, rows, cols), Op::linear, {},
                              {normal_operand(rng, {Symbol::T, kK}, now),
                               fp8_operand(rng, WeightKind::matrix, {kN, kK}, rows, cols), vector_operand(rng, {kN})},
                              now));
      out.back().tolerance = dot_tolerance(kK + 1);  // and each weight is a rounded product
    }
  }
  const Bounds now{0, 3};  // logits: rows are S
  out.push_back(make_case("S=3 N=333 K=2880", Op::linear, {},
                          {normal_operand(rng, {Symbol::S, 2880}, now),
                           weight_operand(rng, WeightKind::matrix, {333, 2880}, DType::bf16, 0.02)},
                          now));
  out.back().tolerance = dot_tolerance(2880);
}

void add_last_token(Rng& rng, std::vector<KernelCase>& out) {
  for (const Size& size : dense_sizes()) {
    for (int64_t rows : {int64_t{0}, int64_t{1}, size.tokens / 2, size.tokens}) {
      if (rows > size.tokens) continue;
      const Bounds now{size.tokens, rows};
      out.push_back(make_case(label(size) + fmt::format(" S={}", rows), Op::last_token, {},
                              {normal_operand(rng, {Symbol::T, size.hidden}, now)}, now,
                              token_batch(rng, size.tokens, rows, 10)));
    }
  }
}

// Hidden states of more rows than there are tokens, wider or narrower than x, taken in any order.
void add_join_hidden(Rng& rng, std::vector<KernelCase>& out) {
  for (const Size& size : dense_sizes()) {
    for (int64_t D : {size.hidden, int64_t{36}}) {
      const Bounds now{size.tokens, 0};
      const int64_t rows = size.tokens + 2;
      TestBatch batch;
      for (int64_t i = 0; i < rows * D; ++i) batch.hidden.push_back(static_cast<float>(rng.normal() * 30));
      batch.hidden_wide.assign(batch.hidden.begin(), batch.hidden.end());
      for (int64_t t = 0; t < size.tokens; ++t) batch.hidden_rows.push_back(static_cast<int32_t>(rng.below(rows)));
      out.push_back(make_case(label(size) + fmt::format(" D={}", D), Op::join_hidden, {{Attr::eps, 1e-5}},
                              {normal_operand(rng, {Symbol::T, size.hidden}, now), vector_operand(rng, {D}, 0.2, 1)},
                              now, std::move(batch)));
      out.back().tolerance = {.ulps = norm_ulps(D)};  // and x is copied
    }
  }
}

}  // namespace

std::vector<KernelCase> dense_cases(Op op, Rng& rng) {
  std::vector<KernelCase> out;
  if (op == Op::embed) add_embed(rng, out);
  if (op == Op::rms_norm) add_norms(rng, out, false);
  if (op == Op::add_rms_norm) add_norms(rng, out, true);
  if (op == Op::add) add_sums(rng, out);
  if (op == Op::linear) add_linear(rng, out);
  if (op == Op::last_token) add_last_token(rng, out);
  if (op == Op::join_hidden) add_join_hidden(rng, out);
  return out;
}

}  // namespace moesaic
