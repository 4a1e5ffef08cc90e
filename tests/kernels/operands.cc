// Random operands and step batches for kernel tests.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/kernel_harness.h"
#include "kernels/ref/ref.h"
#include "quant/quantized_row.h"

namespace moesaic {
namespace {

int64_t elements(const std::vector<Dim>& dims, const Bounds& now) {
  int64_t n = 1;
  for (Dim d : dims) n *= now.of(d);
  return n;
}

std::vector<Dim> fixed_dims(const std::vector<int64_t>& shape) {
  return {shape.begin(), shape.end()};
}

double float_normal(Rng& rng, double scale, double offset = 0) {
  return static_cast<double>(static_cast<float>(offset + scale * rng.normal()));
}

// The nearest half for ordinary magnitudes; the tests need some half, not a rounding rule.
uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const int exponent = static_cast<int>(bits >> 23 & 255) - 127 + 15;
  const uint32_t sign = bits >> 16 & 0x8000;
  if (exponent <= 0) return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::lround(std::abs(value) * 0x1p24)));
  return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::min(exponent, 30)) << 10 | (bits >> 13 & 0x3FF));
}

OperandDesc weight_desc(WeightKind kind, const std::vector<int64_t>& shape, Format format, DType stored) {
  return {.type = {DType::f32, fixed_dims(shape)}, .is_weight = true, .kind = kind, .format = format, .stored = stored};
}

}  // namespace

TestOperand value_operand(std::vector<Dim> dims, std::vector<double> values) {
  TestOperand operand;
  operand.desc.type = {DType::f32, std::move(dims)};
  operand.values = std::move(values);
  return operand;
}

TestOperand normal_operand(Rng& rng, std::vector<Dim> dims, const Bounds& now, double scale) {
  std::vector<double> values(static_cast<size_t>(elements(dims, now)));
  for (double& v : values) v = float_normal(rng, scale);
  return value_operand(std::move(dims), std::move(values));
}

TestOperand quantized_operand(const TestOperand& rows) {
  const int64_t K = rows.desc.type.dim(-1).factor, width = quantized_width(K);
  const std::vector<float> x(rows.values.begin(), rows.values.end());
  TestOperand out;
  out.desc.type = {DType::e4m3, rows.desc.type.dims};
  out.desc.type.dims.back() = width;
  out.stored.resize(x.size() / static_cast<size_t>(K) * static_cast<size_t>(width));
  for (int64_t r = 0; r * K < std::ssize(x); ++r) quantize_row(x.data() + r * K, K, out.stored.data() + r * width);
  return out;
}

TestOperand integer_operand(std::vector<Dim> dims, std::vector<int32_t> integers) {
  TestOperand operand;
  operand.desc.type = {DType::i32, std::move(dims)};
  operand.integers = std::move(integers);
  return operand;
}

TestOperand vector_operand(Rng& rng, std::vector<int64_t> shape, double scale, double offset) {
  TestOperand operand;
  operand.desc = weight_desc(WeightKind::vector, shape, Format::plain, DType::f32);
  operand.values.resize(static_cast<size_t>(elements(operand.desc.type.dims, {})));
  for (double& v : operand.values) v = float_normal(rng, scale, offset);
  return operand;
}

TestOperand weight_operand(Rng& rng, WeightKind kind, std::vector<int64_t> shape, DType stored, double scale) {
  TestOperand operand;
  operand.desc = weight_desc(kind, shape, Format::plain, stored);
  const int64_t n = elements(operand.desc.type.dims, {}), size = dtype_bytes(stored);
  operand.stored.resize(static_cast<size_t>(n * size));
  for (int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<float>(scale * rng.normal());
    const uint16_t half = stored == DType::f16 ? to_f16(value) : float_to_bf16(value);
    const void* from = stored == DType::f32 ? static_cast<const void*>(&value) : &half;
    std::memcpy(operand.stored.data() + i * size, from, static_cast<size_t>(size));
  }
  return operand;
}

TestOperand mxfp4_operand(Rng& rng, WeightKind kind, std::vector<int64_t> shape, std::span<const uint8_t> scales) {
  TestOperand operand;
  operand.desc = weight_desc(kind, shape, Format::mxfp4, DType::none);
  const int64_t groups = elements(operand.desc.type.dims, {}) / kMxGroup;
  const int64_t in_matrix = shape[shape.size() - 2] * shape.back() / kMxGroup;  // per matrix codes, then scales
  operand.stored.resize(static_cast<size_t>(groups * 17));
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t scale = scales[static_cast<size_t>(rng.below(static_cast<int64_t>(scales.size())))];
    std::byte* matrix = operand.stored.data() + g / in_matrix * in_matrix * 17;
    matrix[in_matrix * 16 + g % in_matrix] = std::byte{scale};
    const uint64_t mask = scale == 254 ? 0xAAAAAAAAAAAAAAAAu : ~uint64_t{0};  // +-1 and +-4 become +-1 and +-0 below
    for (int64_t half = 0; half < 2; ++half) {
      uint64_t codes = rng.bits() & mask;
      if (scale == 254) codes &= 0xBBBBBBBBBBBBBBBBu;  // sign and 1.0 only: 6 * 2^127 is no float
      std::memcpy(matrix + g % in_matrix * 16 + half * 8, &codes, 8);
    }
  }
  return operand;
}

TestOperand fp8_operand(Rng& rng, WeightKind kind, std::vector<int64_t> shape, int64_t scale_rows, int64_t scale_cols) {
  TestOperand operand;
  operand.desc = weight_desc(kind, shape, Format::fp8, DType::none);
  operand.desc.scale_rows = scale_rows, operand.desc.scale_cols = scale_cols;
  const int64_t N = shape[shape.size() - 2], K = shape.back(), codes = (N * K + 3) / 4 * 4;
  const int64_t scales = (N + scale_rows - 1) / scale_rows * ((K + scale_cols - 1) / scale_cols);
  const int64_t matrices = shape.size() > 2 ? shape[0] : 1, bytes = codes + scales * 4;
  operand.stored.resize(static_cast<size_t>(matrices * bytes));
  for (int64_t m = 0; m < matrices; ++m) {
    std::byte* matrix = operand.stored.data() + m * bytes;
    for (int64_t i = 0; i < N * K; ++i)  // 0x7F and 0xFF are NaN
      matrix[i] = static_cast<std::byte>(rng.below(0x7F) | (rng.bits() & 0x80));
    for (int64_t i = 0; i < scales; ++i) {
      const auto scale = static_cast<float>(0.01 * std::exp(rng.normal()));
      std::memcpy(matrix + codes + i * 4, &scale, 4);
    }
  }
  return operand;
}

std::vector<double> decode(const TestOperand& operand) {
  OpDesc desc;
  desc.inputs = {operand.desc};
  std::vector<std::byte> bytes = operand.stored;
  std::byte* in[] = {bytes.data()};
  Args args;
  args.in = in;
  const ref::WeightReader reader(args, desc, 0);
  std::vector<double> values(static_cast<size_t>(elements(operand.desc.type.dims, {})));
  for (size_t i = 0; i < values.size(); ++i) values[i] = reader[static_cast<int64_t>(i)];
  return values;
}

TestOperand random_ids(Rng& rng, int64_t tokens, int64_t top_k, int64_t experts, Skew skew) {
  std::vector<int32_t> ids, all(static_cast<size_t>(experts));
  for (int64_t t = 0; t < tokens; ++t) {
    std::iota(all.begin(), all.end(), 0);
    const int64_t among = skew == Skew::first ? top_k : skew == Skew::even ? experts : std::min(experts, top_k + 1);
    for (int64_t j = 0; j < top_k; ++j) {
      std::swap(all[static_cast<size_t>(j)], all[static_cast<size_t>(j + rng.below(among - j))]);
      ids.push_back(all[static_cast<size_t>(j)]);
    }
  }
  return integer_operand({Symbol::T, top_k}, std::move(ids));
}

// As gemm.h promises: per group of 32, q = round_half_even(x * (127 / amax)) and x is q * (amax / 127), in float32.
KernelCase rounded_experts(const KernelCase& test) {
  KernelCase out = test;
  for (KernelStep& step : out.steps) {
    std::vector<double>& x = step.inputs[0].values;
    for (size_t begin = 0; begin < x.size(); begin += kMxGroup) {
      float amax = 0;
      for (size_t i = begin; i < begin + kMxGroup; ++i) amax = std::max(amax, std::abs(static_cast<float>(x[i])));
      const float inverse = 127.0f / amax, half_d = 0.5f * (amax / 127.0f);
      for (size_t i = begin; i < begin + kMxGroup; ++i) {
        const float q = std::isfinite(inverse) ? std::nearbyint(static_cast<float>(x[i]) * inverse) : 0.0f;
        x[i] = static_cast<double>(q) * 2 * static_cast<double>(half_d);
      }
    }
  }
  return out;
}

KernelCase rounded_bf16(const KernelCase& test) {
  KernelCase out = test;
  for (KernelStep& step : out.steps)
    for (double& v : step.inputs[0].values)
      v = static_cast<double>(bf16_to_float(float_to_bf16(static_cast<float>(v))));
  // Attention rounds its weights too, each by 2^-8 of itself at most; their total is that of the exact ones.
  if (out.desc.op == Op::gqa || out.desc.op == Op::mla_attend || out.desc.op == Op::entry_attend)
    out.tolerance.per_magnitude += 0x1p-8;
  return out;
}

}  // namespace moesaic
