// What Kimi delta attention must do in particular: one state layout, two forms that agree, any cut of a prompt, state
// that can be copied; and the convolution and the gate on numbers worked out by hand.
#include "kernels/cpu/kda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"
#include "kernels/state_steps.h"

namespace moesaic {
namespace {

constexpr Isa kIsas[] = {Isa::scalar, Isa::avx2, Isa::avx512};
const float kRootTwo = std::sqrt(2.0f), kLn2 = std::log(2.0f);

// ---- FC-037: key dim 2, value dim 3

struct Example {
  std::vector<float> q{1, 0, 0, 1, 1, 1}, k{1, 0, 0.6f, 0.8f, 0, 1}, v{1, 2, 3, 4, 0, -4, 0, 5, 0};
  std::vector<float> g{-kLn2, 0, -kLn2, -kLn2, 0, -kLn2}, beta{1, 0.5f, 1};
  std::vector<float> out = std::vector<float>(9), state = std::vector<float>(6);

  Example() {
    for (float& x : q) x /= kRootTwo;
  }
  cpu::KdaTokens tokens(int64_t begin, int64_t end) {
    return {.n = end - begin,
            .D = 2,
            .V = 3,
            .q = &q[static_cast<size_t>(2 * begin)],
            .k = &k[static_cast<size_t>(2 * begin)],
            .g = &g[static_cast<size_t>(2 * begin)],
            .beta = &beta[static_cast<size_t>(begin)],
            .v = &v[static_cast<size_t>(3 * begin)],
            .out = &out[static_cast<size_t>(3 * begin)],
            .g_stride = 2,
            .v_stride = 3};
  }
};

constexpr float kWantOut[] = {1, 2, 3, 1.48f, -0.24f, -1.96f, 1.61f, 5.82f, 0.03f};
constexpr float kWantState[] = {1.61f, 0.82f, 0.03f, 0, 5, 0};

void expect_near(const std::vector<float>& got, std::span<const float> want, float scale, float bound) {
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i] * scale, want[i], bound) << "element " << i;
}

using Form = std::function<void(const cpu::KdaTokens&, float* state, float* scratch)>;

void expect_example(const Form& form) {
  for (const std::vector<int64_t>& ends : {std::vector<int64_t>{3}, {1, 3}, {2, 3}, {1, 2, 3}}) {
    Example e;
    std::vector<float> scratch(20000);
    int64_t begin = 0;
    for (int64_t end : ends) {
      form(e.tokens(begin, end), e.state.data(), scratch.data());
      begin = end;
      if (end != 2) continue;
      for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(e.state[3 + i], kWantOut[3 + i], 2e-6f);
    }
    expect_near(e.out, kWantOut, kRootTwo, 3e-6f);
    expect_near(e.state, kWantState, 1, 3e-6f);
  }
}

TEST(Kda, FC037_ChunkedRecurrentAndResumedRunsAgree) {
  for (Isa isa : kIsas) {
    if (isa > cpu_isa()) continue;
    expect_example(
        [&](const auto& tokens, float* state, float* scratch) { kda_recurrent(isa, tokens, state, scratch); });
  }
  expect_example(cpu::kda_chunked);
}

// ---- A kernel with slots of its own

class SlotRunner {
 public:
  SlotRunner(const Kernel& kernel, const StateData& data, const Attrs& attrs, int64_t slot_bytes)
      : kernel_(kernel),
        data_(data),
        attrs_(attrs),
        slot_bytes_(slot_bytes),
        memory_(static_cast<size_t>(slot_bytes * data.cache_slots), std::byte{0xFF}) {}

  std::byte* slot(int64_t s) { return memory_.data() + s * slot_bytes_; }
  const float* state(int64_t s) { return reinterpret_cast<const float*>(slot(s)); }
  void copy(int64_t from, int64_t to) { std::copy_n(slot(from), slot_bytes_, slot(to)); }

  std::vector<float> run(const std::vector<Chunk>& chunks) {
    KernelCase test = state_case("", kernel_.op, attrs_, data_, {chunks});
    KernelStep& step = test.steps[0];
    std::vector<std::vector<float>> inputs;
    std::vector<std::byte*> in, out;
    for (const TestOperand& operand : step.inputs) inputs.emplace_back(operand.values.begin(), operand.values.end());
    for (auto& input : inputs) in.push_back(reinterpret_cast<std::byte*>(input.data()));
    std::vector<float> result(static_cast<size_t>(test.desc.outputs[0].type.bytes(step.now) / 4));
    out.push_back(reinterpret_cast<std::byte*>(result.data()));
    DeviceInfo device;
    device.threads = pool_.threads();
    const auto& need = kernel_.workspace_bytes;
    std::vector<std::byte> workspace(static_cast<size_t>(need != nullptr ? need(test.desc, device) : 0));
    const BatchView batch = step.batch.view();
    const Args args{.in = in,
                    .out = out,
                    .now = step.now,
                    .batch = &batch,
                    .cache = {.slots = memory_.data(), .slot_stride = slot_bytes_}};
    Stream stream{&pool_};
    kernel_.launch(test.desc, args, workspace.data(), stream);
    return result;
  }

 private:
  const Kernel& kernel_;
  const StateData& data_;
  Attrs attrs_;
  int64_t slot_bytes_;
  std::vector<std::byte> memory_;
  ThreadPool pool_{2};
};

// The example through the whole op, which scales q and k to unit length itself and takes beta before its sigmoid.
StateData example_data() {
  const Example e;
  StateData data;
  data.widths = {2, 2, 3, 2, 1};
  data.cache_slots = 2;
  data.sequences.push_back({.length = 3, .inputs = {}, .slot = 1});
  for (const auto* values : {&e.q, &e.k, &e.v, &e.g})
    data.sequences[0].inputs.emplace_back(values->begin(), values->end());
  data.sequences[0].inputs.push_back({100, 0, 100});
  return data;
}

TEST(Kda, FC037_WholeOp) {
  const StateData data = example_data();
  const Attrs attrs = kda_attrs({1, 2, 3});
  for (const std::vector<Chunk>& steps : {std::vector<Chunk>{{0, 0, 3}},
                                          {{0, 0, 1}, {0, 1, 3}},
                                          {{0, 0, 2}, {0, 2, 3}},
                                          {{0, 0, 1}, {0, 1, 2}, {0, 2, 3}}}) {
    SlotRunner cpu_runner(cpu::kKda, data, attrs, 24);
    std::vector<std::vector<Chunk>> cut;
    std::vector<float> got, reference_got;
    for (const Chunk& chunk : steps) {
      cut.push_back({chunk});
      const std::vector<float> rows = cpu_runner.run({chunk});
      got.insert(got.end(), rows.begin(), rows.end());
    }
    for (const Values& step : reference(state_case("", Op::kda, attrs, data, cut)))
      reference_got.insert(reference_got.end(), step[0].begin(), step[0].end());
    for (auto* rows : {&got, &reference_got}) {
      for (size_t i = 6; i < 9; ++i) (*rows)[i] *= kRootTwo;  // the third query was longer
      expect_near(*rows, kWantOut, kRootTwo, 2e-5f);
    }
    const float* state = cpu_runner.state(1);
    expect_near({state, state + 6}, kWantState, 1, 2e-5f);
  }
}

// ---- The two forms

struct Tokens {
  std::vector<float> q, k, g, beta, v;
  int64_t n, D, V;

  Tokens(Rng& rng, int64_t count, int64_t keys, int64_t values, double low, double high)
      : n(count), D(keys), V(values) {
    const auto fill = [&](std::vector<float>& to, int64_t size, auto draw) {
      for (int64_t i = 0; i < size; ++i) to.push_back(static_cast<float>(draw()));
    };
    fill(q, n * D, [&] { return rng.normal() / static_cast<double>(D); });
    fill(k, n * D, [&] { return rng.normal(); });
    fill(g, n * D, [&] { return rng.uniform(low, high); });
    fill(v, n * V, [&] { return rng.normal(); });
    fill(beta, n, [&] { return rng.uniform(); });
    for (int64_t t = 0; t < n; ++t) {
      float square = 0;
      for (int64_t d = 0; d < D; ++d) square += k[at(t * D + d)] * k[at(t * D + d)];
      for (int64_t d = 0; d < D; ++d) k[at(t * D + d)] /= std::sqrt(square);
    }
  }
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  cpu::KdaTokens view(std::vector<float>& out) const {
    out.assign(at(n * V), 0.0f);
    return {.n = n,
            .D = D,
            .V = V,
            .q = q.data(),
            .k = k.data(),
            .g = g.data(),
            .beta = beta.data(),
            .v = v.data(),
            .out = out.data(),
            .g_stride = D,
            .v_stride = V};
  }
};

// Outputs and then the state, in float64.
std::vector<double> exact(const Tokens& x, const std::vector<float>& before) {
  std::vector<double> state(before.begin(), before.end()), out;
  for (int64_t t = 0; t < x.n; ++t) {
    for (int64_t i = 0; i < x.V; ++i) {
      double read = 0, o = 0;
      for (int64_t d = 0; d < x.D; ++d) {
        double& s = state[Tokens::at(d * x.V + i)];
        s *= std::exp(static_cast<double>(x.g[Tokens::at(t * x.D + d)]));
        read += s * static_cast<double>(x.k[Tokens::at(t * x.D + d)]);
      }
      const double delta =
          static_cast<double>(x.beta[Tokens::at(t)]) * (static_cast<double>(x.v[Tokens::at(t * x.V + i)]) - read);
      for (int64_t d = 0; d < x.D; ++d) {
        double& s = state[Tokens::at(d * x.V + i)];
        s += static_cast<double>(x.k[Tokens::at(t * x.D + d)]) * delta;
        o += s * static_cast<double>(x.q[Tokens::at(t * x.D + d)]);
      }
      out.push_back(o);
    }
  }
  out.insert(out.end(), state.begin(), state.end());
  return out;
}

std::vector<double> run_form(const Tokens& x, const std::vector<float>& before, const Form& form) {
  std::vector<float> out, state = before,
                          scratch(static_cast<size_t>(std::max(x.n * x.D, cpu::kda_chunked_scratch_floats(x.D, x.V))));
  form(x.view(out), state.data(), scratch.data());
  std::vector<double> all(out.begin(), out.end());
  all.insert(all.end(), state.begin(), state.end());
  return all;
}

// `floor`: a norm below which the wanted values are what is left of larger ones that cancelled.
double relative_l2(std::span<const double> got, std::span<const double> want, double floor) {
  double difference = 0, square = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    square += want[i] * want[i];
  }
  return std::sqrt(difference / std::max(square, floor * floor));
}

TEST(Kda, ChunkedAgreesWithRecurrent) {
  Rng rng = fresh_rng();
  constexpr std::pair<double, double> kGates[] = {{-1e-4, 0}, {-5, -4.99}, {-5, 0}, {-0.1, 0}, {-90, -20}, {-30, 0}};
  for (int64_t n : {1, 15, 16, 17, 63, 64, 65, 130}) {
    for (auto [low, high] : kGates) {
      for (auto [D, V] : {std::pair<int64_t, int64_t>{16, 24}, {33, 7}}) {
        const Tokens x(rng, n, D, V, low, high);
        std::vector<float> before(static_cast<size_t>(D * V));
        for (float& s : before) s = static_cast<float>(0.3 * rng.normal());
        const std::vector<double> want = exact(x, before);
        const std::vector<double> chunked = run_form(x, before, cpu::kda_chunked);
        const std::vector<double> recurrent = run_form(x, before, [](const auto& t, float* state, float* scratch) {
          kda_recurrent(cpu_isa(), t, state, scratch);
        });
        const auto split = static_cast<size_t>(n * V);
        for (auto [begin, end] : {std::pair<size_t, size_t>{0, split}, {split, want.size()}}) {
          const auto part = [&](const std::vector<double>& all) { return std::span(all).subspan(begin, end - begin); };
          const std::string where = fmt::format("{} tokens, gates {} to {}, D={} V={}", n, low, high, D, V);
          // With a decayed state an output is v times q . k, which may all but vanish.
          double values = 0;
          for (float v : x.v) values += static_cast<double>(v) * static_cast<double>(v);
          const double floor = 0.1 * std::sqrt(values);
          EXPECT_LE(relative_l2(part(chunked), part(recurrent), floor), 1e-6) << where;
          EXPECT_LE(relative_l2(part(chunked), part(want), floor), 1e-6) << where;
          EXPECT_LE(relative_l2(part(recurrent), part(want), floor), 1e-6) << where;
        }
      }
    }
  }
}

// ---- Any cut, any neighbours, any threads: the same bits

void expect_same_bits(const Kernel& kernel, const StateData& data, const Attrs& attrs) {
  const auto outputs = [&](const std::vector<std::vector<Chunk>>& steps, int threads) {
    const KernelRun run = run_kernel(kernel, state_case("", kernel.op, attrs, data, steps), 0xFF, threads);
    EXPECT_EQ(run.violation, "");
    return state_outputs(run, data, steps);
  };
  const auto want = outputs(whole(data), 1);
  EXPECT_TRUE(outputs(whole(data), 3) == want);
  for (int64_t chunk : {1, 2, 3, 7, 16, 63, 64, 65, 1000}) {
    EXPECT_TRUE(outputs(in_chunks(data, chunk), 3) == want) << kernel.name << " in chunks of " << chunk;
    EXPECT_TRUE(outputs(together(data, chunk), 2) == want) << kernel.name << " together, chunks of " << chunk;
  }
  for (int64_t cut = 1; cut < data.sequences[0].length; ++cut) {
    const auto& s = data.sequences[0];
    const std::vector<std::vector<Chunk>> steps = {{{0, 0, cut}}, {{0, cut, s.length}}};
    EXPECT_TRUE(outputs(steps, 1)[0] == want[0]) << kernel.name << " cut at " << cut;
  }
}

TEST(Kda, AnyCutGivesTheSameBits) {
  Rng rng = fresh_rng();
  const KdaSize size{2, 24, 37};
  expect_same_bits(cpu::kKda, random_kda(rng, size, {67, 1, 3, 130}, -5), kda_attrs(size));
}

TEST(ShortConv, AnyCutGivesTheSameBits) {
  Rng rng = fresh_rng();
  StateData data = random_state_data(rng, {70}, {67, 1, 3, 130});
  data.weights = {vector_operand(rng, {70, 1, 4})};
  expect_same_bits(cpu::kShortConv, data, {{Attr::cache, 0}});
}

// ---- State can be copied and resumed

// Sequence 0 up to `cut`, a copy of its slot, then other work in the slot; the copy goes on as if never stopped.
void expect_resumes(const Kernel& kernel, StateData data, const Attrs& attrs, int64_t slot_bytes) {
  const int64_t length = data.sequences[0].length, home = data.sequences[0].slot;
  const std::vector<float> want = SlotRunner(kernel, data, attrs, slot_bytes).run({{0, 0, length}});
  for (int64_t cut : {int64_t{1}, int64_t{2}, int64_t{10}, length - 1}) {
    data.sequences[0].slot = static_cast<int32_t>(home);
    const int64_t other = (home + 1) % data.cache_slots;
    SlotRunner runner(kernel, data, attrs, slot_bytes);
    std::vector<float> got = runner.run({{0, 0, cut}});
    runner.copy(home, other);
    runner.run({{0, cut, length}});
    data.sequences[0].slot = static_cast<int32_t>(other);
    const std::vector<float> rest = runner.run({{0, cut, length}});
    got.insert(got.end(), rest.begin(), rest.end());
    EXPECT_EQ(got, want) << kernel.name << " resumed at " << cut;
    EXPECT_TRUE(std::equal(runner.slot(home), runner.slot(home) + slot_bytes, runner.slot(other)));
    EXPECT_EQ(runner.run({{0, 0, length}}), want) << "a used slot starts anew";
  }
}

TEST(Kda, FC039_CopiedStateResumes) {
  Rng rng = fresh_rng();
  const KdaSize size{2, 20, 33};
  expect_resumes(cpu::kKda, random_kda(rng, size, {70}, -5), kda_attrs(size), 2 * 20 * 33 * 4);
}

TEST(ShortConv, FC039_CopiedStateResumes) {
  Rng rng = fresh_rng();
  StateData data = random_state_data(rng, {50}, {70});
  data.weights = {vector_operand(rng, {50, 1, 4})};
  expect_resumes(cpu::kShortConv, data, {{Attr::cache, 0}}, 3 * 50 * 4);
}

// Two sequences in turns, each in its own slot, as if the other were not there.
TEST(Kda, FC039_SlotsDoNotMix) {
  Rng rng = fresh_rng();
  const KdaSize size{1, 16, 20};
  const StateData data = random_kda(rng, size, {40, 40}, -1);
  std::vector<std::vector<Chunk>> turns;
  for (int64_t p = 0; p < 40; p += 5)
    for (size_t s : {0, 1}) turns.push_back({{s, p, p + 5}});
  const auto outputs = [&](const std::vector<std::vector<Chunk>>& steps) {
    return state_outputs(run_kernel(cpu::kKda, state_case("", Op::kda, kda_attrs(size), data, steps)), data, steps);
  };
  EXPECT_TRUE(outputs(turns) == outputs(in_chunks(data, 40)));
}

// ---- By hand

float silu(float x) {
  return x / (1 + std::exp(-x));
}

TEST(ShortConv, LastTapIsTheTokenAndTheSlotHoldsRawRows) {
  StateData data;
  data.widths = {2};
  data.cache_slots = 1;
  data.sequences.push_back({.length = 5, .inputs = {{1, -1, 2, -2, 3, -3, 4, -4, 5, -5}}, .slot = 0});
  Rng rng = fresh_rng();
  data.weights = {vector_operand(rng, {2, 1, 4})};
  data.weights[0].values = {0.001, 0.01, 0.1, 1, 0, 0, 1, 0};
  SlotRunner runner(cpu::kShortConv, data, {{Attr::cache, 0}}, 3 * 2 * 4);
  const std::vector<float> got = runner.run({{0, 0, 5}});
  constexpr float kSums[] = {1, 0, 2.1f, -1, 3.21f, -2, 4.321f, -3, 5.432f, -4};
  for (size_t i = 0; i < 10; ++i) EXPECT_NEAR(got[i], silu(kSums[i]), 1e-6f) << i;
  constexpr float kState[] = {3, -3, 4, -4, 5, -5};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(runner.state(0)[i], kState[i]) << i;
}

std::vector<float> gate(std::vector<double> z, std::vector<double> logs, Attrs attrs) {
  Rng rng = fresh_rng();
  const int64_t n = std::ssize(z);
  attrs.set(Attr::heads, 1);
  TestOperand rate = vector_operand(rng, {std::ssize(logs)}), bias = vector_operand(rng, {n});
  rate.values = std::move(logs);
  std::fill(bias.values.begin(), bias.values.end(), 0.5);
  const KernelRun run =
      run_kernel(cpu::kKdaGate,
                 make_case("", Op::kda_gate, attrs, {value_operand({Symbol::T, n}, std::move(z)), rate, bias}, {1, 0}));
  return {run.floats(0).begin(), run.floats(0).end()};
}

// A_log comes padded: what follows the heads' numbers does not count.
TEST(KdaGate, TwoFormulas) {
  const double log3 = std::log(3.0);
  const std::vector<float> open = gate({-0.5, 24.5, -30.5, 0.5, 1e4}, {log3, NAN, NAN}, {});
  EXPECT_NEAR(open[0], -3 * kLn2, 1e-6f);
  EXPECT_NEAR(open[1], -75, 1e-4f);
  EXPECT_NEAR(open[2] / std::exp(-30.0f), -3, 1e-5f);
  EXPECT_NEAR(open[3], -3 * std::log1p(std::exp(1.0f)), 2e-6f);
  EXPECT_NEAR(open[4], -30001.5f, 0.01f);
  const std::vector<float> bounded = gate({-0.5, 24.5, -20.5, 0.5, 1e4}, {log3, NAN}, {{Attr::lower_bound, -5}});
  EXPECT_NEAR(bounded[0], -2.5f, 1e-6f);
  EXPECT_NEAR(bounded[1], -5, 1e-6f);
  EXPECT_NEAR(bounded[2] / std::exp(-60.0), -5, 1e-4);
  EXPECT_NEAR(bounded[3], -5 / (1 + std::exp(-3.0f)), 1e-6f);
  EXPECT_EQ(bounded[4], -5.0f);
}

}  // namespace
}  // namespace moesaic
