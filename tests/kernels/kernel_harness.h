// Runs kernels on random inputs between guard bytes and compares them with the float64 reference kernel of the same op.
//
// With MOESAIC_BREAK=element|sign|row in the environment every result is corrupted before it is compared: a test that
// still passes then is worthless.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/fresh_rng.h"
#include "kernels/kernel.h"

namespace moesaic {

class Mirror;

// One input: what the kernel sees and what the reference sees.
struct TestOperand {
  OperandDesc desc;
  std::vector<double> values;     // activations and vector weights; each is a float
  std::vector<double> rounded;    // what the reference reads where the op promises a rounding; else empty
  std::vector<int32_t> integers;  // i32 operands
  std::vector<std::byte> stored;  // weights, row_major in their own format; quantised activations
};

// Activations f32[dims]: float(scale * normal).
TestOperand normal_operand(Rng& rng, std::vector<Dim> dims, const Bounds& now, double scale = 1);
TestOperand value_operand(std::vector<Dim> dims, std::vector<double> values);
TestOperand integer_operand(std::vector<Dim> dims, std::vector<int32_t> integers);
// Rows of value_operand as the op quantize makes them.
TestOperand quantized_operand(const TestOperand& rows);
// A vector weight: f32 for the kernel, f64 for the reference.
TestOperand vector_operand(Rng& rng, std::vector<int64_t> shape, double scale = 1, double offset = 0);
// A weight of bf16, f16 or f32 elements, scale * normal.
TestOperand weight_operand(Rng& rng, WeightKind kind, std::vector<int64_t> shape, DType stored, double scale = 1);
// MXFP4 [.., N, K]: random codes, one scale byte per group from `scales`; with scale byte 254 codes stay within 1.
TestOperand mxfp4_operand(Rng& rng, WeightKind kind, std::vector<int64_t> shape, std::span<const uint8_t> scales);
// FP8 [.., N, K]: random finite E4M3 codes and a positive scale per block of scale_rows x scale_cols.
TestOperand fp8_operand(Rng& rng, WeightKind kind, std::vector<int64_t> shape, int64_t scale_rows, int64_t scale_cols);
// The elements of a weight as float64.
std::vector<double> decode(const TestOperand& operand);

// The arrays behind a BatchView.
struct TestBatch {
  std::vector<int32_t> token_ids, positions, sequence_of, sequence_offsets{0}, block_tables, state_slots, output_rows;
  int64_t max_blocks = 0;
  std::shared_ptr<const std::vector<float>> images;  // what image_rows points into
  std::vector<const float*> image_rows;
  std::vector<float> patches;
  int64_t grid_rows = 0, grid_columns = 0;
  std::vector<float> hidden;  // and the same for the reference
  std::vector<double> hidden_wide;
  std::vector<int32_t> hidden_rows;

  mutable std::vector<const float*> device_rows;  // of the view made last

  BatchView view(Backend backend = Backend::cpu) const;
  BatchView view(Backend backend, Mirror& mirror) const;  // on the mirror's device
};

struct KernelStep {
  std::vector<TestOperand> inputs;
  Bounds now;
  TestBatch batch;
};

// |got - want| <= ulps * ulp(want) + per_magnitude * magnitude + absolute
struct Tolerance {
  double ulps = 0, per_magnitude = 0, absolute = 0;
};

using Values = std::vector<std::vector<double>>;  // one per output

// An op with everything fixed, and the steps to run in order on one cache.
struct KernelCase {
  std::string name;
  OpDesc desc;
  std::vector<KernelStep> steps;
  int64_t cache_blocks = 0, cache_slots = 0;
  Tolerance tolerance;
  // Size of what cancels, per output element; empty: the reference run on the absolute values of all inputs.
  std::function<Values(const KernelCase&, size_t step)> magnitude;
};

// A case of one step; output types follow from the op table. `bounds` are a little above `now`.
KernelCase make_case(std::string name, Op op, Attrs attrs, std::vector<TestOperand> inputs, const Bounds& now,
                     TestBatch batch = {});

// One run of a case: the outputs of every step, and what was wrong with the memory around them.
struct KernelRun {
  std::vector<std::vector<std::vector<std::byte>>> outputs;  // [step][output]
  std::string violation;

  std::span<const float> floats(size_t step, int output = 0) const;
};
// Outputs, workspace and cache are filled with `fill` first. Inputs must come back unchanged.
KernelRun run_kernel(const Kernel& kernel, const KernelCase& test, uint8_t fill = 0xFF, int threads = 3);

// What the reference gives for one step (all steps before it included); kernels that round the activations of
// experts (those that refuse Precision::float32) are compared with `rounded_experts`.
std::vector<Values> reference(const KernelCase& test);
Values reference_of_step(const OpDesc& desc, const KernelStep& step);
KernelCase rounded_experts(const KernelCase& test);
// The same for CUDA kernels that refuse Precision::float32: their first operand is rounded to bf16.
KernelCase rounded_bf16(const KernelCase& test);
KernelStep absolute(const KernelStep& step);

// Why the kernel does not take the case; null when it does.
const char* refusal(const Kernel& kernel, const KernelCase& test);
// Runs the case twice, with different fill patterns, and compares: with the reference, and bit for bit.
void expect_matches(const Kernel& kernel, const KernelCase& test);

// The cases of an op: several shapes with fresh inputs, every one of which all kernels of the op must get right or
// refuse.
std::vector<KernelCase> kernel_cases(Op op, Rng& rng);
std::vector<KernelCase> dense_cases(Op op, Rng& rng);
std::vector<KernelCase> attention_cases(Op op, Rng& rng);
std::vector<KernelCase> routing_cases(Op op, Rng& rng);
std::vector<KernelCase> expert_cases(Op op, Rng& rng);
std::vector<KernelCase> elementwise_cases(Op op, Rng& rng);
std::vector<KernelCase> vision_cases(Op op, Rng& rng);
std::vector<KernelCase> mla_cases(Op op, Rng& rng);
std::vector<KernelCase> kda_cases(Op op, Rng& rng);
std::vector<KernelCase> deepseek_v4_cases(Op op, Rng& rng);

// T of the cases.
inline constexpr int64_t kCaseTokens[] = {0, 1, 2, 3, 17, 63, 64, 65, 129};
inline constexpr double kUnit = 0x1p-24;  // half an ulp of 1: the error of one float32 operation

// ids[T, k]: k distinct experts per token, drawn evenly, from a few favourites only, or always the first k.
enum class Skew { even, favourites, first };
TestOperand random_ids(Rng& rng, int64_t tokens, int64_t top_k, int64_t experts, Skew skew);

}  // namespace moesaic
