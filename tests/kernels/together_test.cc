// Kernel::launch_together of the CUDA kernels against `launch` on each of the steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/kernel_harness.h"
#include "support/mirror.h"

namespace moesaic {
namespace {

constexpr size_t kGuards = 16;  // floats behind an output
constexpr float kGuard = -77;

const Kernel& kernel_named(std::string_view name) {
  for (const Kernel* kernel : registry_of(Backend::cuda).kernels())
    if (kernel->name == name) return *kernel;
  CHECK(false, "no kernel is called {}", name);
  std::abort();
}

std::vector<std::byte> memory_of(const TestOperand& operand) {
  if (!operand.stored.empty()) return operand.stored;
  const std::vector<float> floats(operand.values.begin(), operand.values.end());
  std::vector<std::byte> bytes(floats.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), floats.data(), bytes.size());
  return bytes;
}

size_t elements_out(const KernelCase& test) {
  return static_cast<size_t>(test.desc.outputs[0].type.bytes(test.steps[0].now)) / sizeof(float);
}

// The output of each of `tests`, of one step each, from one call; input `shared` of all is that of the first.
std::vector<std::vector<float>> run_together(const Kernel& kernel, const std::vector<KernelCase>& tests, int shared) {
  Device& device = test_device(Backend::cuda);
  Mirror mirror(Backend::cuda);
  std::vector<std::vector<std::byte>> inputs;
  std::vector<std::vector<float>> outputs;
  std::vector<std::vector<std::byte*>> in(tests.size()), out(tests.size());
  std::vector<const OpDesc*> descs;
  std::vector<Args> args;
  int64_t scratch = 0;
  for (size_t i = 0; i < tests.size(); ++i) {
    const KernelStep& step = tests[i].steps[0];
    for (size_t k = 0; k < step.inputs.size(); ++k) {
      const bool again = i > 0 && static_cast<int>(k) == shared;
      in[i].push_back(again ? in[0][k] : mirror.of(inputs.emplace_back(memory_of(step.inputs[k])), false));
    }
    outputs.emplace_back(elements_out(tests[i]) + kGuards, kGuard);
    out[i].push_back(mirror.of(std::as_writable_bytes(std::span(outputs.back())), true));
    descs.push_back(&tests[i].desc);
    args.push_back({.in = in[i], .out = out[i], .now = step.now, .batch = nullptr, .cache = {}});
    if (kernel.workspace_bytes != nullptr)
      scratch = std::max(scratch, kernel.workspace_bytes(tests[i].desc, device.info()));
  }
  Buffer workspace = device.allocate(scratch + 16, "a test's workspace");
  kernel.launch_together(descs, args, workspace.data(), device.stream());
  mirror.finish();
  for (std::vector<float>& y : outputs) {
    EXPECT_TRUE(std::all_of(y.end() - kGuards, y.end(), [](float v) { return v == kGuard; })) << "written past the end";
    y.resize(y.size() - kGuards);
  }
  return outputs;
}

std::vector<std::vector<float>> run_each(const Kernel& kernel, const std::vector<KernelCase>& tests) {
  std::vector<std::vector<float>> outputs;
  for (const KernelCase& test : tests) {
    const KernelRun run = run_kernel(kernel, test);
    outputs.emplace_back(run.floats(0).begin(), run.floats(0).end());
  }
  return outputs;
}

// Each of the two runs may be `tolerance` away from the exact result.
void expect_close(const KernelCase& test, const std::vector<float>& got, const std::vector<float>& want) {
  const std::vector<double> magnitude = reference_of_step(test.desc, absolute(test.steps[0]))[0];
  ASSERT_EQ(got.size(), want.size());
  size_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound = 2 * (test.tolerance.per_magnitude * magnitude[i] + test.tolerance.absolute);
    wrong += !(std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])) <= bound);
  }
  EXPECT_EQ(wrong, 0U) << test.name << " of " << got.size();
}

class Together : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  }
  Rng rng = fresh_rng();
};

constexpr int64_t kK = 192;

TestOperand weight_of(Rng& rng, Format format, DType stored, int64_t N) {
  if (format == Format::fp8) return fp8_operand(rng, WeightKind::matrix, {N, kK}, 16, 64);
  return weight_operand(rng, WeightKind::matrix, {N, kK}, stored, 0.1);
}

// Products of one x with matrices of `rows` rows each.
std::vector<KernelCase> linears(Rng& rng, int64_t T, std::initializer_list<int64_t> rows, bool bias, Format format,
                                DType stored) {
  const Bounds now{T, 0};
  const TestOperand x = normal_operand(rng, {Symbol::T, kK}, now);
  std::vector<KernelCase> tests;
  for (int64_t N : rows) {
    std::vector<TestOperand> inputs{x, weight_of(rng, format, stored, N)};
    if (bias) inputs.push_back(vector_operand(rng, {N}, 0.3));
    KernelCase& test = tests.emplace_back(
        make_case(fmt::format("T={} N={} {}", T, N, dtype_name(stored)), Op::linear, {}, std::move(inputs), now));
    test.desc.precision = Precision::fast;
    test.tolerance = {.per_magnitude = static_cast<double>(kK + 2) * 2 * kUnit, .absolute = 0x1p-126};
  }
  return tests;
}

void expect_linears_together(const std::vector<KernelCase>& tests) {
  const Kernel& kernel = kernel_named("linear.bf16.cuda");
  const auto together = run_together(kernel, tests, 0), each = run_each(kernel, tests);
  for (size_t i = 0; i < tests.size(); ++i) {
    if (tests[i].steps[0].now.tokens > 4) EXPECT_EQ(together[i], each[i]) << tests[i].name;
    else expect_close(tests[i], together[i], each[i]);
  }
}

TEST_F(Together, LinearsOfOneInput) {
  for (int64_t T : {0, 1, 2, 3, 4, 5, 65})
    for (bool bias : {false, true}) {
      expect_linears_together(linears(rng, T, {40, 8, 8}, bias, Format::plain, DType::bf16));
      expect_linears_together(linears(rng, T, {8, 37, 1, 5}, bias, Format::fp8, DType::none));
      expect_linears_together(linears(rng, T, {19, 24}, bias, Format::plain, DType::f16));
    }
}

// Rows enough for several rounds, and pairs of rows that belong to two matrices.
TEST_F(Together, LinearsOfManyRows) {
  for (int64_t T : {1, 3}) {
    expect_linears_together(linears(rng, T, {1401, 703, 2200}, true, Format::plain, DType::bf16));
    expect_linears_together(linears(rng, T, {1401, 703, 2200}, false, Format::fp8, DType::none));
  }
}

TEST_F(Together, LinearsThatDifferAreLaunchedInTurn) {
  std::vector<KernelCase> tests = linears(rng, 3, {40, 8}, false, Format::plain, DType::bf16);
  const TestOperand x = tests[0].steps[0].inputs[0];
  for (KernelCase& other : linears(rng, 3, {8}, true, Format::plain, DType::f16)) {
    other.steps[0].inputs[0] = x;
    tests.push_back(std::move(other));
  }
  const Kernel& kernel = kernel_named("linear.bf16.cuda");
  EXPECT_EQ(run_together(kernel, tests, 0), run_each(kernel, tests));
}

std::vector<KernelCase> ropes(Rng& rng, int64_t T, std::initializer_list<int64_t> heads, int64_t D, bool tail) {
  const Bounds now{T, 0};
  const int64_t begin = tail ? D / 2 : 0, half = (D - begin) / 2;
  const TestOperand table = normal_operand(rng, {Symbol::T, half, 2}, now);
  std::vector<KernelCase> tests;
  for (int64_t count : heads) {
    Attrs attrs{{Attr::heads, static_cast<double>(count)}, {Attr::head_dim, static_cast<double>(D)}};
    if (tail) attrs.set(Attr::begin, static_cast<double>(begin)), attrs.set(Attr::interleaved, 1);
    if (tail && count % 2 == 1) attrs.set(Attr::inverse, 1);
    tests.push_back(make_case(fmt::format("T={} heads={} D={}", T, count, D), Op::rope, attrs,
                              {normal_operand(rng, {Symbol::T, count * D}, now), table}, now));
  }
  return tests;
}

TEST_F(Together, RopesOfOneTable) {
  const Kernel& kernel = kernel_named("rope.cuda");
  for (int64_t T : {0, 1, 3, 65})
    for (int64_t D : {64, 20})
      for (bool tail : {false, true})
        for (auto heads : {std::initializer_list<int64_t>{8, 2}, {6, 1}, {1, 2, 3, 4}}) {
          const std::vector<KernelCase> tests = ropes(rng, T, heads, D, tail);
          EXPECT_EQ(run_together(kernel, tests, 1), run_each(kernel, tests)) << tests[0].name << " tail " << tail;
        }
}

TEST_F(Together, RopesThatDifferAreLaunchedInTurn) {
  const Kernel& kernel = kernel_named("rope.cuda");
  std::vector<KernelCase> tests = ropes(rng, 3, {4}, 32, false);
  const TestOperand table = tests[0].steps[0].inputs[1];
  tests.push_back(ropes(rng, 3, {3}, 64, true)[0]);  // of 32 elements from the 32nd on, and in pairs
  tests[1].steps[0].inputs[1] = table;
  EXPECT_EQ(run_together(kernel, tests, 1), run_each(kernel, tests));
}

// ---- a step and the one that reads its output

struct Chain {
  const Kernel *first, *second;
  OpDesc descs[2];
  std::vector<std::vector<std::byte>> inputs;   // of both
  std::vector<int> in[2];                       // of each step: input i, or output -1 - i
  std::vector<std::vector<std::byte>> outputs;  // of both
  std::vector<int> out[2];
  Bounds now;
  int32_t live_tokens = 0;
};

std::vector<std::vector<std::byte>> run_chain(Chain chain, bool together) {
  Device& device = test_device(Backend::cuda);
  Mirror mirror(Backend::cuda);
  std::vector<std::byte*> inputs, outputs;
  for (auto& bytes : chain.inputs) inputs.push_back(mirror.of(bytes, false));
  for (auto& bytes : chain.outputs) outputs.push_back(mirror.of(bytes, true));
  BatchView batch;
  batch.live_tokens =
      reinterpret_cast<const int32_t*>(mirror.of(std::as_writable_bytes(std::span(&chain.live_tokens, 1)), false));
  std::vector<std::byte*> in[2], out[2];
  std::vector<Args> args;
  for (int i = 0; i < 2; ++i) {
    for (int at : chain.in[i])
      in[i].push_back(at >= 0 ? inputs[static_cast<size_t>(at)] : outputs[static_cast<size_t>(-1 - at)]);
    for (int at : chain.out[i]) out[i].push_back(outputs[static_cast<size_t>(at)]);
    args.push_back({.in = in[i], .out = out[i], .now = chain.now, .batch = &batch, .cache = {}});
  }
  Buffer workspace = device.allocate(1 << 20, "a test's workspace");
  const std::vector<const OpDesc*> descs = {&chain.descs[0], &chain.descs[1]};
  if (together) {
    chain.first->launch_together(descs, args, workspace.data(), device.stream());
  } else {
    chain.first->launch(chain.descs[0], args[0], workspace.data(), device.stream());
    chain.second->launch(chain.descs[1], args[1], workspace.data(), device.stream());
  }
  mirror.finish();
  return chain.outputs;
}

std::vector<std::byte> bytes_of(int64_t floats) {
  return std::vector<std::byte>(static_cast<size_t>(floats) * 4, std::byte{0xA5});
}

Chain route_chain(Rng& rng, int64_t T, int64_t E, int64_t k, const Attrs& attrs) {
  const Bounds now{T, 0};
  KernelCase route = make_case("", Op::route, attrs, {normal_operand(rng, {Symbol::T, E}, now)}, now);
  std::vector<int32_t> none(static_cast<size_t>(T * k), 0);
  KernelCase dispatch = make_case("", Op::dispatch, {{Attr::experts, static_cast<double>(E)}},
                                  {integer_operand({Symbol::T, k}, none)}, now);
  return {.first = &kernel_named("route.cuda"),
          .second = &kernel_named("dispatch.cuda"),
          .descs = {route.desc, dispatch.desc},
          .inputs = {memory_of(route.steps[0].inputs[0])},
          .in = {{0}, {-2}},
          .outputs = {bytes_of(T * k), bytes_of(T * k), bytes_of(T * k), bytes_of(E + 1), bytes_of(T * k)},
          .out = {{0, 1}, {2, 3, 4}},
          .now = now,
          .live_tokens = static_cast<int32_t>(T - T / 3)};
}

TEST_F(Together, RouteAndTheDispatchBehindIt) {
  const Attrs grouped{{Attr::top_k, 8},     {Attr::scoring, static_cast<double>(Scoring::sigmoid)},
                      {Attr::groups, 8},    {Attr::top_groups, 4},
                      {Attr::normalize, 1}, {Attr::routed_scale, 2.5}};
  for (int64_t T : {0, 1, 3, 16, 17, 40}) {
    for (auto [E, k] : {std::pair<int64_t, int64_t>{32, 4}, {128, 4}, {384, 8}, {512, 32}, {896, 16}}) {
      const Chain chain = route_chain(rng, T, E, k, {{Attr::top_k, static_cast<double>(k)}});
      EXPECT_EQ(run_chain(chain, true), run_chain(chain, false)) << T << " tokens, " << E << " experts";
    }
    const Chain chain = route_chain(rng, T, 256, 8, grouped);
    EXPECT_EQ(run_chain(chain, true), run_chain(chain, false)) << T << " tokens, groups";
  }
}

// x, or what is combined, as the first operand of the sum.
Chain combine_chain(Rng& rng, int64_t T, int64_t k, int64_t H, bool combined_first) {
  const Bounds now{T, 0};
  const TestOperand y = normal_operand(rng, {Dim(Symbol::T, k), H}, now),
                    weights = normal_operand(rng, {Symbol::T, k}, now);
  std::vector<int32_t> places;
  for (int64_t i = 0; i < T * k; ++i) places.push_back(static_cast<int32_t>(rng.below(T * k + 1)) - 1);
  const TestOperand at = integer_operand({Dim(Symbol::T, k)}, places), x = normal_operand(rng, {Symbol::T, H}, now);
  const TestOperand weight = vector_operand(rng, {H}, 0.2, 1);
  const KernelCase combine = make_case("", Op::combine, {}, {y, at, weights}, now);
  const KernelCase norm = make_case("", Op::add_rms_norm, {{Attr::eps, 1e-5}}, {x, x, weight}, now);
  std::vector<std::byte> place_bytes(places.size() * 4);
  if (!places.empty()) std::memcpy(place_bytes.data(), places.data(), place_bytes.size());
  return {.first = &kernel_named("combine.cuda"),
          .second = &kernel_named("add_rms_norm.cuda"),
          .descs = {combine.desc, norm.desc},
          .inputs = {memory_of(y), place_bytes, memory_of(weights), memory_of(x), memory_of(weight)},
          .in = {{0, 1, 2}, combined_first ? std::vector<int>{-1, 3, 4} : std::vector<int>{3, -1, 4}},
          .outputs = {bytes_of(T * H), bytes_of(T * H), bytes_of(T * H)},
          .out = {{0}, {1, 2}},
          .now = now};
}

TEST_F(Together, CombineAndTheNormBehindIt) {
  for (int64_t T : {0, 1, 5, 70})
    for (int64_t H : {64, 2880, 7168, 2877})
      for (int64_t k : {1, 4, 9}) {
        const Chain chain = combine_chain(rng, T, k, H, k == 4);
        EXPECT_EQ(run_chain(chain, true), run_chain(chain, false)) << T << " tokens, k " << k << ", H " << H;
      }
}

}  // namespace
}  // namespace moesaic
