// Checkpoint formats of expert weights, each from tensors of the test's own: one per expert or fused, BF16, FP8, INT4
// and MXFP4 as compressed-tensors and DeepSeek-V4 store it. And a family made up on the spot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/fresh_rng.h"
#include "models/blocks.h"
#include "quant/bf16.h"
#include "quant/fp4.h"
#include "quant/fp8.h"
#include "support/run_graph.h"

namespace moesaic {
namespace {

constexpr int64_t kExperts = 3, kHidden = 64, kInner = 32;

// Bytes of a tensor whose weights are `values`, and those values: what a format can hold exactly.
struct Coded {
  TensorMap tensors;
  std::vector<double> values;
};

OwnedTensor raw(DType dtype, Shape shape, const void* data, size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  return {dtype, shape, {from, from + bytes}};
}

Coded bf16_matrix(Rng& rng, const std::string& base, int64_t N, int64_t K) {
  Coded out;
  std::vector<uint16_t> elements;
  for (int64_t i = 0; i < N * K; ++i) {
    elements.push_back(float_to_bf16(static_cast<float>(0.2 * rng.normal())));
    out.values.push_back(static_cast<double>(bf16_to_float(elements.back())));
  }
  out.tensors[base + ".weight"] = raw(DType::bf16, {N, K}, elements.data(), elements.size() * 2);
  return out;
}

Coded fp8_matrix(Rng& rng, const std::string& base, int64_t N, int64_t K) {
  Coded out;
  const float scale = 0.25f;
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < N * K; ++i) {
    codes.push_back(float_to_e4m3(static_cast<float>(rng.normal())));
    out.values.push_back(static_cast<double>(e4m3_to_float(codes.back()) * scale));
  }
  out.tensors[base + ".weight"] = raw(DType::e4m3, {N, K}, codes.data(), codes.size());
  out.tensors[base + ".weight_scale_inv"] = raw(DType::f32, {1, 1}, &scale, 4);
  return out;
}

// compressed-tensors pack-quantized: eight values q + 8 in a word, least significant first.
Coded int4_matrix(Rng& rng, const std::string& base, int64_t N, int64_t K) {
  Coded out;
  std::vector<uint32_t> words(static_cast<size_t>(N * K / 8));
  std::vector<uint16_t> scales;
  for (int64_t i = 0; i < N * K; ++i) {
    if (i % 32 == 0) scales.push_back(float_to_bf16(static_cast<float>(0.02 * rng.uniform(0.5, 2))));
    const int64_t q = rng.below(16) - 8;
    words[static_cast<size_t>(i / 8)] |= static_cast<uint32_t>(q + 8) << (i % 8 * 4);
    out.values.push_back(static_cast<double>(q) * static_cast<double>(bf16_to_float(scales.back())));
  }
  const int64_t shape[2] = {N, K};
  out.tensors[base + ".weight_packed"] = raw(DType::i32, {N, K / 8}, words.data(), words.size() * 4);
  out.tensors[base + ".weight_scale"] = raw(DType::bf16, {N, K / 32}, scales.data(), scales.size() * 2);
  out.tensors[base + ".weight_shape"] = raw(DType::i64, {2}, shape, sizeof shape);
  return out;
}

Coded mxfp4_matrix(Rng& rng, const std::string& base, int64_t N, int64_t K, bool v4) {
  Coded out;
  std::vector<uint8_t> codes(static_cast<size_t>(N * K / 2)), scales;
  for (int64_t i = 0; i < N * K; ++i) {
    if (i % 32 == 0) scales.push_back(static_cast<uint8_t>(122 + rng.below(5)));
    const auto code = static_cast<uint8_t>(rng.below(16));
    codes[static_cast<size_t>(i / 2)] |= static_cast<uint8_t>(code << (i % 2 * 4));
    out.values.push_back(static_cast<double>(e2m1_to_float(code) * e8m0_to_float(scales.back())));
  }
  out.tensors[base + (v4 ? ".weight" : ".weight_packed")] =
      raw(v4 ? DType::i8 : DType::u8, {N, K / 2}, codes.data(), codes.size());
  out.tensors[base + (v4 ? ".scale" : ".weight_scale")] =
      raw(v4 ? DType::e8m0 : DType::u8, {N, K / 32}, scales.data(), scales.size());
  return out;
}

using Make = std::function<Coded(Rng&, const std::string& base, int64_t N, int64_t K)>;

struct Experts {
  TensorMap tensors;
  std::vector<std::vector<double>> gate, up, down;
};

Experts experts_of(Rng& rng, const Make& make, const std::string& gate, const std::string& up,
                   const std::string& down) {
  Experts out;
  for (int64_t e = 0; e < kExperts; ++e) {
    const auto add = [&](const std::string& name, int64_t N, int64_t K, std::vector<std::vector<double>>& values) {
      Coded coded = make(rng, fmt::format("experts.{}.{}", e, name), N, K);
      out.tensors.merge(coded.tensors);
      values.push_back(std::move(coded.values));
    };
    add(gate, kInner, kHidden, out.gate);
    add(up, kInner, kHidden, out.up);
    add(down, kHidden, kInner, out.down);
  }
  return out;
}

double row_dot(const std::vector<double>& matrix, int64_t row, const std::vector<double>& x) {
  double sum = 0;
  for (size_t k = 0; k < x.size(); ++k) sum += matrix[static_cast<size_t>(row) * x.size() + k] * x[k];
  return sum;
}

// The one routed expert of every token is the one with the largest logit; its weight is normalised to 1.
std::vector<double> expected(const Experts& w, size_t e, const std::vector<double>& x) {
  std::vector<double> h, y;
  for (int64_t i = 0; i < kInner; ++i) {
    const double gate = row_dot(w.gate[e], i, x), up = row_dot(w.up[e], i, x);
    h.push_back(gate / (1 + std::exp(-gate)) * up);
  }
  for (int64_t i = 0; i < kHidden; ++i) y.push_back(row_dot(w.down[e], i, h));
  return y;
}

void expect_experts(Rng& rng, Experts w) {
  std::vector<float> x(kHidden), router(kExperts * kHidden, 0);
  std::vector<double> wide;
  for (float& v : x) v = static_cast<float>(rng.normal()), wide.push_back(static_cast<double>(v));
  for (int64_t h = 0; h < kHidden; ++h)
    router[static_cast<size_t>(kHidden + h)] = x[static_cast<size_t>(h)];  // expert 1
  w.tensors["x.weight"] = f32_tensor({1, kHidden}, x);
  w.tensors["gate.weight"] = f32_tensor({kExperts, kHidden}, router);
  MoeConfig config{.route = {.experts = kExperts, .top_k = 1, .scoring = Scoring::softmax}, .intermediate = kInner};
  const auto build = [&](Builder& g) {
    g.output("logits", g.last_token(moe_block(g, g.embed("x", 1, kHidden), config)));
  };
  const std::vector<double> want = expected(w, 1, wide);
  double size = 0;
  for (double v : want) size = std::max(size, std::abs(v));
  for (Backend backend : {Backend::ref, Backend::cpu}) {
    const std::vector<double> got = logits_of(w.tensors, build, backend);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i], want[i], (backend == Backend::ref ? 1e-12 : 1e-5) * size)
          << backend_name(backend) << " " << i;
  }
}

TEST(Formats, Bf16PerExpert) {
  Rng rng = fresh_rng();
  expect_experts(rng, experts_of(rng, bf16_matrix, "gate_proj", "up_proj", "down_proj"));
  expect_experts(rng, experts_of(rng, bf16_matrix, "w1", "w3", "w2"));
}

TEST(Formats, Fp8PerExpert) {
  Rng rng = fresh_rng();
  expect_experts(rng, experts_of(rng, fp8_matrix, "gate_proj", "up_proj", "down_proj"));
}

TEST(Formats, Int4PerExpert) {
  Rng rng = fresh_rng();
  expect_experts(rng, experts_of(rng, int4_matrix, "gate_proj", "up_proj", "down_proj"));
}

TEST(Formats, Mxfp4OfCompressedTensors) {
  Rng rng = fresh_rng();
  const Make make = [](Rng& r, const std::string& base, int64_t N, int64_t K) {
    return mxfp4_matrix(r, base, N, K, false);
  };
  expect_experts(rng, experts_of(rng, make, "w1", "w3", "w2"));
}

TEST(Formats, Mxfp4OfDeepSeekV4) {
  Rng rng = fresh_rng();
  const Make make = [](Rng& r, const std::string& base, int64_t N, int64_t K) {
    return mxfp4_matrix(r, base, N, K, true);
  };
  expect_experts(rng, experts_of(rng, make, "w1", "w3", "w2"));
}

// One tensor for all experts, gate rows first, then up rows.
TEST(Formats, FusedExperts) {
  Rng rng = fresh_rng();
  Experts w = experts_of(rng, bf16_matrix, "gate_proj", "up_proj", "down_proj");
  std::vector<std::byte> gate_up, down;
  for (int64_t e = 0; e < kExperts; ++e) {
    for (const char* name : {"gate_proj", "up_proj"}) {
      const OwnedTensor& t = w.tensors.at(fmt::format("experts.{}.{}.weight", e, name));
      gate_up.insert(gate_up.end(), t.bytes.begin(), t.bytes.end());
    }
    const OwnedTensor& t = w.tensors.at(fmt::format("experts.{}.down_proj.weight", e));
    down.insert(down.end(), t.bytes.begin(), t.bytes.end());
  }
  w.tensors.clear();
  w.tensors["experts.gate_up_proj"] = {DType::bf16, {kExperts, 2 * kInner, kHidden}, gate_up};
  w.tensors["experts.down_proj"] = {DType::bf16, {kExperts, kHidden, kInner}, down};
  expect_experts(rng, std::move(w));
}

TEST(Formats, OneMissingExpertIsNamed) {
  Rng rng = fresh_rng();
  Experts w = experts_of(rng, bf16_matrix, "gate_proj", "up_proj", "down_proj");
  w.tensors.erase("experts.2.up_proj.weight");
  w.tensors["x.weight"] = f32_tensor({1, kHidden}, std::vector<float>(kHidden, 1));
  w.tensors["gate.weight"] = f32_tensor({kExperts, kHidden}, std::vector<float>(kExperts * kHidden, 0));
  MoeConfig config{.route = {.experts = kExperts, .top_k = 1, .scoring = Scoring::softmax}, .intermediate = kInner};
  const auto build = [&](Builder& g) {
    g.output("logits", g.last_token(moe_block(g, g.embed("x", 1, kHidden), config)));
  };
  EXPECT_THAT([&] { logits_of(w.tensors, build, Backend::cpu); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("experts.2.up_proj.weight")));
}

}  // namespace
}  // namespace moesaic
