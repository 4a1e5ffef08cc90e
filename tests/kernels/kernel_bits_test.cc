// The same bits at every instruction set level, and for a token whatever else is in the step.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/cpu.h"
#include "kernels/kernel_harness.h"

namespace moesaic {
namespace {

uint64_t hash_of(const KernelRun& run) {
  uint64_t hash = 0;
  for (const auto& step : run.outputs)
    for (const auto& output : step)
      for (std::byte b : output) hash = mix64(hash ^ static_cast<uint64_t>(b));
  return hash;
}

// Prints a hash of every kernel's results on some of its cases: run by the test below, once per level.
TEST(KernelBits, DISABLED_Print) {
  Rng rng = fresh_rng();
  for (const Kernel* kernel : registry_of(Backend::cpu).kernels()) {
    const std::vector<KernelCase> cases = kernel_cases(kernel->op, rng);
    uint64_t hash = 0;
    for (size_t i = 0; i < cases.size(); i += 6)
      if (refusal(*kernel, cases[i]) == nullptr) hash = mix64(hash ^ hash_of(run_kernel(*kernel, cases[i], 0xFF, 2)));
    fmt::print("bits {} {:016x}\n", kernel->name, hash);
  }
}

std::vector<std::string> bits_at(Isa isa, uint64_t seed) {
  const std::string command = fmt::format(
      "MOESAIC_ISA={} MOESAIC_SEED={} /proc/{}/exe --gtest_filter=KernelBits.DISABLED_Print "
      "--gtest_also_run_disabled_tests",
      isa_name(isa), seed, getpid());
  std::vector<std::string> lines;
  FILE* pipe = popen(command.c_str(), "r");
  for (char line[256]; pipe != nullptr && std::fgets(line, sizeof line, pipe) != nullptr;)
    if (std::string_view(line).starts_with("bits ")) lines.emplace_back(line);
  if (pipe != nullptr) pclose(pipe);
  return lines;
}

TEST(KernelBits, SameAtEveryLevel) {
  const uint64_t seed = fresh_rng().bits() % 1000000;
  const std::vector<std::string> best = bits_at(cpu_isa(), seed);
  EXPECT_EQ(best.size(), registry_of(Backend::cpu).kernels().size());
  for (Isa isa : {Isa::scalar, Isa::avx2}) {
    if (isa >= cpu_isa()) continue;
    EXPECT_EQ(bits_at(isa, seed), best) << isa_name(isa) << " with MOESAIC_SEED=" << seed;
  }
}

// Row t of every operand that has one per token; k rows for T*k.
KernelStep only_token(const OpDesc& desc, const KernelStep& step, int64_t t) {
  KernelStep alone = step;
  alone.now.tokens = 1;
  for (size_t i = 0; i < alone.inputs.size(); ++i) {
    const std::vector<Dim>& dims = desc.inputs[i].type.dims;
    if (dims[0].fixed()) continue;
    const int64_t width = std::ssize(step.inputs[i].values) / step.now.tokens;
    const auto from = step.inputs[i].values.begin() + t * width;
    alone.inputs[i].values.assign(from, from + width);
  }
  for (auto* values : {&alone.batch.token_ids, &alone.batch.positions, &alone.batch.hidden_rows})
    if (!values->empty()) *values = {(*values)[static_cast<size_t>(t)]};
  if (!step.batch.image_rows.empty()) alone.batch.image_rows = {step.batch.image_rows[static_cast<size_t>(t)]};
  return alone;
}

void expect_alone_as_together(const Kernel& kernel, const KernelCase& test) {
  const KernelRun all = run_kernel(kernel, test);
  for (int64_t t : {int64_t{0}, test.steps[0].now.tokens / 2, test.steps[0].now.tokens - 1}) {
    KernelCase alone = test;
    alone.steps = {only_token(test.desc, test.steps[0], t)};
    const KernelRun one = run_kernel(kernel, alone);
    for (size_t i = 0; i < one.outputs[0].size(); ++i) {
      const std::vector<std::byte>& want = one.outputs[0][i];
      const std::byte* got = all.outputs[0][i].data() + t * std::ssize(want);
      EXPECT_TRUE(std::equal(want.begin(), want.end(), got)) << kernel.name << " " << test.name << " token " << t;
    }
  }
}

void expect_tokens_alone_as_together(Backend backend, std::span<const Op> ops) {
  Rng rng = fresh_rng();
  for (const Kernel* kernel : registry_of(backend).kernels()) {
    if (std::find(ops.begin(), ops.end(), kernel->op) == ops.end()) continue;
    for (const KernelCase& test : kernel_cases(kernel->op, rng))
      if (test.steps[0].now.tokens > 1 && test.steps[0].now.rows == 0 && refusal(*kernel, test) == nullptr)
        expect_alone_as_together(*kernel, test);
  }
}

TEST(KernelBits, TokensDoNotDependOnNeighbours) {
  constexpr Op kByToken[] = {
      Op::embed,      Op::rms_norm,       Op::add,      Op::add_rms_norm,   Op::linear,     Op::rope,   Op::route,
      Op::rope_table, Op::clamped_swiglu, Op::kda_gate, Op::gated_rms_norm, Op::mla_absorb, Op::mla_up, Op::layer_norm,
      Op::hc_expand,  Op::hc_pre,         Op::hc_post,  Op::grouped_linear, Op::join_hidden};
  expect_tokens_alone_as_together(Backend::cpu, kByToken);
}

TEST(KernelBits, TokensDoNotDependOnNeighboursWithCuda) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  constexpr Op kByToken[] = {Op::embed,        Op::rms_norm,       Op::add,        Op::add_rms_norm,   Op::slice,
                             Op::glu,          Op::gelu,           Op::rope,       Op::rope_table,     Op::route,
                             Op::sigmoid_gate, Op::clamped_swiglu, Op::layer_norm, Op::gated_rms_norm, Op::join_hidden,
                             Op::attn_res};
  expect_tokens_alone_as_together(Backend::cuda, kByToken);
}

// An expert's row alone, against the same row among others: the first expert gets rows 0 to n-1, or one of them.
TEST(KernelBits, ExpertRowsDoNotDependOnNeighbours) {
  Rng rng = fresh_rng();
  constexpr int64_t kRows = 70;
  constexpr uint8_t kScales[] = {125, 126, 127};
  const TestOperand weight = mxfp4_operand(rng, WeightKind::experts, {2, 48, 96}, kScales);
  const TestOperand fp8 = fp8_operand(rng, WeightKind::experts, {2, 48, 96}, 128, 128);
  const Bounds now{kRows, 0};
  const TestOperand x = normal_operand(rng, {Symbol::T, 96}, now), quantised = quantized_operand(x);
  const auto run = [&](const Kernel& kernel, std::vector<int32_t> rows) {
    const auto n = static_cast<int32_t>(rows.size());
    Attrs attrs{{Attr::gather, 1}, {Attr::limit, 7}, {Attr::alpha, 1.702}};
    std::vector<int32_t> all(kRows, 0);
    std::copy(rows.begin(), rows.end(), all.begin());
    KernelCase test = make_case("", kernel.op, attrs,
                                {x, integer_operand({Symbol::T}, all), integer_operand({3}, {0, n, n}), weight}, now);
    test.desc.precision = Precision::fast;
    const auto put = [&](size_t input, const TestOperand& operand) {
      test.desc.inputs[input] = operand.desc, test.steps[0].inputs[input] = operand;
    };
    if (refusal(kernel, test) != nullptr) put(0, quantised);  // a kernel of FP8 activations, or of FP8 weights
    if (refusal(kernel, test) != nullptr) put(0, x), put(3, fp8);
    const KernelRun result = run_kernel(kernel, test);
    const auto floats = result.floats(0);
    return std::vector<float>(floats.begin(), floats.begin() + std::ssize(floats) / kRows * n);
  };
  std::vector<int32_t> every(kRows);
  for (int32_t r = 0; r < kRows; ++r) every[static_cast<size_t>(r)] = r;
  for (const Kernel* kernel : registry_of(Backend::cpu).kernels()) {
    if (kernel->op != Op::expert_linear && kernel->op != Op::expert_swiglu) continue;
    const std::vector<float> together = run(*kernel, every);
    for (int32_t r : {0, 33, 69}) {
      const std::vector<float> one = run(*kernel, {r});
      EXPECT_TRUE(std::equal(one.begin(), one.end(), together.begin() + r * std::ssize(one)))
          << kernel->name << " " << r;
    }
  }
}

TEST(KernelBits, ExpIsAccurate) {
  Rng rng = fresh_rng();
  for (int i = 0; i < 200000; ++i) {
    const auto x = static_cast<float>(rng.uniform(-87.3, 88.7));
    const double want = std::exp(static_cast<double>(x)), ulp = std::ldexp(1.0, std::ilogb(want) - 23);
    ASSERT_LE(std::abs(static_cast<double>(cpu::exp_one(x)) - want), 1.5 * ulp) << x;
  }
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(cpu::exp_one(0), 1.0f);
  EXPECT_EQ(cpu::exp_one(89), kInf);
  EXPECT_EQ(cpu::exp_one(kInf), kInf);
  EXPECT_EQ(cpu::exp_one(-kInf), 0.0f);
  EXPECT_EQ(cpu::exp_one(-105), 0.0f);
  EXPECT_NEAR(cpu::exp_one(-95), std::exp(-95.0), 0x1p-149);
  EXPECT_TRUE(std::isnan(cpu::exp_one(NAN)));
}

TEST(KernelBits, SwigluIsTheSameAtEveryLevel) {
  Rng rng = fresh_rng();
  std::vector<float> h(2 * 101);
  for (float& x : h) x = static_cast<float>(20 * rng.normal());
  h[6] = NAN, h[8] = 1, h[9] = std::numeric_limits<float>::infinity(), h[12] = -100;
  std::vector<std::vector<uint32_t>> bits;
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (isa > cpu_isa()) continue;
    std::vector<float> out(101);
    cpu::clamped_swiglu_rows(isa, h.data(), 101, 7, 1.702f, out.data());
    EXPECT_TRUE(std::isnan(out[3]) && std::isfinite(out[4]) && out[4] != 0);
    out[3] = 0;  // a NaN's payload is nobody's business
    std::vector<uint32_t>& level = bits.emplace_back();
    for (float x : out) level.push_back(std::bit_cast<uint32_t>(x));
    EXPECT_EQ(level, bits[0]) << isa_name(isa);
    std::vector<float> in_place = h;
    cpu::clamped_swiglu_rows(isa, in_place.data(), 101, 7, 1.702f, in_place.data());
    EXPECT_TRUE(std::equal(out.begin() + 4, out.end(), in_place.begin() + 4)) << isa_name(isa);
  }
}

}  // namespace
}  // namespace moesaic
