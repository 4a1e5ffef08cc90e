// Cases of expert_linear, expert_swiglu and clamped_swiglu.
#include <algorithm>
#include <cmath>

#include "kernels/kernel_harness.h"
#include "kernels/ref/ref.h"

namespace moesaic {
namespace {

constexpr double kLimit = 7, kAlpha = 1.702;

struct ExpertShape {
  int64_t tokens, experts, top_k, N, K;
  Skew skew;
  bool gather;
};

std::vector<ExpertShape> expert_shapes() {
  std::vector<ExpertShape> shapes;
  constexpr Skew kSkews[] = {Skew::even, Skew::favourites, Skew::first};
  int i = 0;
  for (int64_t tokens : kCaseTokens) {
    for (auto [experts, top_k] : {std::pair<int64_t, int64_t>{8, 3}, {16, 1}, {32, 4}}) {
      const int64_t N = i % 3 == 0 ? 64 : i % 3 == 1 ? 34 : 200, K = i % 2 == 0 ? 96 : 32;
      shapes.push_back({tokens, experts, top_k, N, K, kSkews[i / 2 % 3], i % 2 == 0});
      ++i;
    }
  }
  shapes.push_back({5, 8, 8, 48, 64, Skew::even, true});     // every expert for every token
  shapes.push_back({129, 8, 1, 48, 64, Skew::first, true});  // one expert with all tokens
  shapes.push_back({7, 128, 4, 32, 64, Skew::even, false});
  shapes.push_back({3, 4, 2, 96, 2880, Skew::even, true});
  shapes.push_back({300, 2, 1, 160, 160, Skew::first, true});  // one expert with many tokens, one with none
  for (int64_t tokens : {90, 120, 180, 200, 256})              // tiles of every width
    shapes.push_back({tokens, 2, 1, 32, 96, Skew::first, tokens % 3 == 0});
  shapes.push_back({70, 3, 2, 208, 160, Skew::even, false});
  shapes.push_back({40, 2, 2, 64, 608, Skew::even, true});
  shapes.push_back({6, 16, 2, 48, 160, Skew::favourites, false});
  shapes.push_back({20, 4, 2, 36, 256, Skew::even, true});
  shapes.push_back({9, 4, 2, 33, 512, Skew::even, false});  // an odd number of outputs
  return shapes;
}

enum class Weights { bf16, f16, f32, mxfp4, mxfp4_extreme, int4 };

std::string weights_name(Weights weights) {
  constexpr const char* kNames[] = {"bf16", "f16", "f32", "mxfp4", "mxfp4 with extreme scales", "int4"};
  return kNames[static_cast<int>(weights)];
}

// Per matrix random codes, then bf16 scales.
TestOperand int4_experts(Rng& rng, const ExpertShape& s) {
  TestOperand operand;
  operand.desc.type = {DType::f32, {s.experts, s.N, s.K}};
  operand.desc.is_weight = true, operand.desc.kind = WeightKind::experts, operand.desc.format = Format::int4;
  for (int64_t e = 0; e < s.experts; ++e) {
    for (int64_t i = 0; i < s.N * s.K / 2; ++i) operand.stored.push_back(static_cast<std::byte>(rng.below(256)));
    for (int64_t i = 0; i < s.N * s.K / kMxGroup; ++i) {
      const uint16_t scale = float_to_bf16(static_cast<float>(0.05 * std::exp(rng.normal())));
      operand.stored.push_back(static_cast<std::byte>(scale & 255));
      operand.stored.push_back(static_cast<std::byte>(scale >> 8));
    }
  }
  return operand;
}

TestOperand expert_weights(Rng& rng, Weights weights, const ExpertShape& s) {
  const std::vector<int64_t> shape{s.experts, s.N, s.K};
  if (weights == Weights::int4) return int4_experts(rng, s);
  if (weights == Weights::mxfp4_extreme) {
    constexpr uint8_t kScales[] = {0, 1, 127, 254};
    return mxfp4_operand(rng, WeightKind::experts, shape, kScales);
  }
  if (weights == Weights::mxfp4) {
    std::vector<uint8_t> scales;
    for (int s8 = 120; s8 <= 134; ++s8) scales.push_back(static_cast<uint8_t>(s8));
    return mxfp4_operand(rng, WeightKind::experts, shape, scales);
  }
  constexpr DType kTypes[] = {DType::bf16, DType::f16, DType::f32};
  return weight_operand(rng, WeightKind::experts, shape, kTypes[static_cast<int>(weights)], 0.2);
}

// x, rows, offsets, weight and bias. Values of x are scaled so that products with the largest scale stay finite.
std::vector<TestOperand> expert_inputs(Rng& rng, const ExpertShape& s, Weights weights) {
  const Bounds now{s.tokens, 0};
  const std::vector<Values> sorted =
      reference(make_case("", Op::dispatch, {{Attr::experts, static_cast<double>(s.experts)}},
                          {random_ids(rng, s.tokens, s.top_k, s.experts, s.skew)}, now));
  const std::vector<double>&rows = sorted[0][0], &offsets = sorted[0][1];
  const double scale = weights == Weights::mxfp4_extreme ? 0x1p-24 : weights == Weights::mxfp4 ? 0x1p-5 : 1;
  std::vector<TestOperand> inputs{
      normal_operand(rng, {s.gather ? Dim(Symbol::T) : Dim(Symbol::T, s.top_k), s.K}, now, scale),
      integer_operand({Dim(Symbol::T, s.top_k)}, {rows.begin(), rows.end()}),
      integer_operand({s.experts + 1}, {offsets.begin(), offsets.end()}), expert_weights(rng, weights, s)};
  if (s.tokens != 2) inputs.push_back(vector_operand(rng, {s.experts, s.N}, 0.3));
  return inputs;
}

// One sum of K products and a bias, K + 1 roundings; with int8 activations K / 32 sums of exact integers, each times a
// rounded product of two scales, which is less. Terms below 2^-126 lose up to 2^-149 each.
Tolerance dot_tolerance(int64_t K) {
  return {.per_magnitude = static_cast<double>(K + 2) * kUnit, .absolute = static_cast<double>(K) * 0x1p-149};
}

// Relative error of silu(gate) * (up + 1) in units, for exact gate and up: the exponent is a product of two rounded
// factors (2 |alpha gate|), e^x adds 3, and 5 operations follow.
double swiglu_units(double gate) {
  return 2 * kAlpha * std::abs(gate) + 8;
}
// e^(-alpha gate) overflows float32 where the result is below 2^-127 |gate (up + 1)|: that much may be lost.
double swiglu_floor(double gate, double up) {
  return 0x1p-126 / kUnit * std::abs(gate * (up + 1));
}

// What errors of `gate_error` and `up_error` in the two products, and the activation itself, can do. The slope of
// g * sigmoid(alpha g) is at most 1.1.
double swiglu_magnitude(double gate, double up, double gate_error, double up_error, double units) {
  const double g = std::min(gate, kLimit), u = std::clamp(up, -kLimit, kLimit);
  const double y = std::abs(ref::clamped_swiglu(gate, up, kLimit, kAlpha));
  const double silu = std::abs(g / (1 + std::exp(-kAlpha * g)));
  const double own = (y * swiglu_units(g) + swiglu_floor(g, u)) * kUnit / units;
  return own + 1.1 * (std::abs(u + 1) + up_error * units) * gate_error + silu * up_error;
}

// The products of expert_swiglu as expert_linear gives them, and their magnitudes.
Values expert_swiglu_magnitude(const KernelCase& test, size_t step) {
  OpDesc linear = test.desc;
  linear.op = Op::expert_linear;
  linear.outputs[0].type.dims[1] = linear.in(3).type.dim(1);
  const std::vector<double> h = reference_of_step(linear, test.steps[step])[0];
  const std::vector<double> size = reference_of_step(linear, absolute(test.steps[step]))[0];
  Values out(1);
  for (size_t i = 0; i < h.size(); i += 2)
    out[0].push_back(swiglu_magnitude(h[i], h[i + 1], size[i], size[i + 1], test.tolerance.per_magnitude));
  return out;
}

Attrs expert_attrs(bool gather, bool swiglu) {
  Attrs attrs{{Attr::gather, gather ? 1 : 0}};
  if (swiglu) attrs.set(Attr::limit, kLimit), attrs.set(Attr::alpha, kAlpha);
  return attrs;
}

void add_experts(Rng& rng, std::vector<KernelCase>& out, bool swiglu) {
  for (const ExpertShape& s : expert_shapes()) {
    for (Weights weights :
         {Weights::bf16, Weights::f16, Weights::f32, Weights::mxfp4, Weights::mxfp4_extreme, Weights::int4}) {
      if (swiglu && weights == Weights::mxfp4_extreme) continue;  // its products are no input of an activation
      if (swiglu && s.N % 2 != 0) continue;
      if (s.K == 2880 && weights != Weights::bf16 && weights != Weights::mxfp4) continue;
      const std::vector<TestOperand> inputs = expert_inputs(rng, s, weights);
      for (Precision precision : {Precision::float32, Precision::fast}) {
        if (precision == Precision::fast && weights != Weights::mxfp4 && weights != Weights::mxfp4_extreme) continue;
        out.push_back(make_case(
            fmt::format("T={} E={} k={} N={} K={} {} gather={} {}", s.tokens, s.experts, s.top_k, s.N, s.K,
                        weights_name(weights), s.gather, precision == Precision::fast ? "fast" : "float32"),
            swiglu ? Op::expert_swiglu : Op::expert_linear, expert_attrs(s.gather, swiglu), inputs, {s.tokens, 0}));
        out.back().desc.precision = precision;
        out.back().tolerance = dot_tolerance(s.K);
        if (swiglu) out.back().magnitude = expert_swiglu_magnitude;
      }
    }
  }
}

// The same with inputs in FP8. The matrix units align products to the largest and keep some 13 bits of each.
void add_quantized_experts(Rng& rng, std::vector<KernelCase>& out, bool swiglu) {
  for (const ExpertShape& s : expert_shapes()) {
    if (swiglu && s.N % 2 != 0) continue;
    for (Weights weights : {Weights::mxfp4, Weights::mxfp4_extreme}) {
      if (weights == Weights::mxfp4_extreme && (swiglu || s.K == 2880)) continue;
      std::vector<TestOperand> inputs = expert_inputs(rng, s, weights);
      inputs[0] = quantized_operand(inputs[0]);
      out.push_back(make_case(fmt::format("T={} E={} k={} N={} K={} {} gather={} quantised", s.tokens, s.experts,
                                          s.top_k, s.N, s.K, weights_name(weights), s.gather),
                              swiglu ? Op::expert_swiglu : Op::expert_linear, expert_attrs(s.gather, swiglu),
                              std::move(inputs), {s.tokens, 0}));
      out.back().desc.precision = Precision::fp8;
      out.back().tolerance = dot_tolerance(s.K);
      out.back().tolerance.per_magnitude += 0x1p-11;
      if (swiglu) out.back().magnitude = expert_swiglu_magnitude;
    }
  }
}

void add_quantize(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t tokens : kCaseTokens) {
    for (int64_t K : {32, 128, 200, 2880, 5001}) {
      if (K > 1000 && tokens > 5) continue;
      const Bounds now{tokens, 0};
      TestOperand x = normal_operand(rng, {Symbol::T, K}, now, tokens % 2 == 0 ? 1e-3 : 30);
      for (size_t i = 0; i + 256 < x.values.size(); i += 701)
        std::fill_n(x.values.begin() + static_cast<ptrdiff_t>(i), 256, 0);
      out.push_back(make_case(fmt::format("T={} K={}", tokens, K), Op::quantize, {}, {std::move(x)}, now));
      out.back().magnitude = [](const KernelCase& test, size_t step) {  // bytes have no tolerance
        const OperandDesc& y = test.desc.out(0);
        return Values{std::vector<double>(static_cast<size_t>(y.type.bytes(test.steps[step].now)))};
      };
    }
  }
}

Values swiglu_op_magnitude(const KernelCase& test, size_t step) {
  const std::vector<double>& h = test.steps[step].inputs[0].values;
  Values out(1);
  for (size_t i = 0; i < h.size(); i += 2) {
    const double limit = test.desc.attrs.number(Attr::limit), huge = limit > 0 ? limit : INFINITY;
    const double gate = std::min(h[i], huge), up = std::clamp(h[i + 1], -huge, huge);
    out[0].push_back(std::abs(ref::clamped_swiglu(gate, up, 0, kAlpha)) * swiglu_units(gate) + swiglu_floor(gate, up));
  }
  return out;
}

void add_clamped_swiglu(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t tokens : kCaseTokens) {
    for (int64_t I : {16, 48, 50, 1440}) {
      if (I == 1440 && tokens != 3) continue;
      for (double limit : {kLimit, 0.0}) {
        const Bounds now{tokens, 0};
        const double scale = tokens % 3 == 0 ? 40 : 4;  // both clamps fire, and e^x overflows
        out.push_back(make_case(fmt::format("T={} I={} limit={}", tokens, I, limit), Op::clamped_swiglu,
                                {{Attr::limit, limit}, {Attr::alpha, kAlpha}},
                                {normal_operand(rng, {Dim(Symbol::T, 2), 2 * I}, now, scale)}, now));
        out.back().tolerance = {.per_magnitude = kUnit};
        out.back().magnitude = swiglu_op_magnitude;
      }
    }
  }
}

}  // namespace

std::vector<KernelCase> expert_cases(Op op, Rng& rng) {
  std::vector<KernelCase> out;
  if (op == Op::expert_linear) add_experts(rng, out, false), add_quantized_experts(rng, out, false);
  if (op == Op::expert_swiglu) add_experts(rng, out, true), add_quantized_experts(rng, out, true);
  if (op == Op::quantize) add_quantize(rng, out);
  if (op == Op::clamped_swiglu) add_clamped_swiglu(rng, out);
  return out;
}

}  // namespace moesaic
