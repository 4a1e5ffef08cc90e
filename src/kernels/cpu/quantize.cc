// FP8 activations on the CPU, to show what a GPU's rounding does: quantize, and expert products that widen its rows in
// the workspace and go on in float32.
#include <algorithm>
#include <array>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/rows.h"
#include "quant/quantized_row.h"

namespace moesaic::cpu {
namespace {

int64_t rows_of(const OpDesc& desc, const Bounds& bounds) {
  return bounds.of(desc.in(0).type.dim(0));
}

const char* refuse_quantize(const OpDesc& desc, const DeviceInfo&) {
  return desc.in(0).type.dtype == DType::f32 ? nullptr : "activations must be f32";
}

void quantize(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t K = desc.in(0).type.dim(-1).factor, width = quantized_width(K);
  for_ranges(stream, rows_of(desc, args.now), row_grain(K), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) quantize_row(args.input<float>(0) + r * K, K, args.out[0] + r * width);
  });
}

// The same product of float32 rows.
OpDesc widened(const OpDesc& desc) {
  OpDesc out = desc;
  out.precision = Precision::float32;
  out.inputs[0].type.dtype = DType::f32;
  out.inputs[0].type.dims.back() = desc.in(3).type.dim(2);
  return out;
}

int64_t widened_bytes(const OpDesc& desc, const Bounds& bounds) {
  return (rows_of(desc, bounds) * desc.in(3).type.dim(2).factor * 4 + 255) / 256 * 256;
}

template <const Kernel& kExact>
const char* refuse(const OpDesc& desc, const DeviceInfo& device) {
  if (desc.in(0).type.dtype != DType::e4m3) return "activations must be e4m3";
  return kExact.refuse(widened(desc), device);
}

template <const Kernel& kExact>
int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo& device) {
  return widened_bytes(desc, desc.bounds) + kExact.workspace_bytes(widened(desc), device);
}

template <const Kernel& kExact>
void launch(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const int64_t K = desc.in(3).type.dim(2).factor, width = quantized_width(K);
  auto* x = reinterpret_cast<float*>(workspace);
  for_ranges(stream, rows_of(desc, args.now), row_grain(K), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) dequantize_row(args.in[0] + r * width, K, x + r * K);
  });
  std::array<std::byte*, 5> in{};
  std::copy(args.in.begin(), args.in.end(), in.begin());
  in[0] = workspace;
  Args wide = args;
  wide.in = {in.data(), args.in.size()};
  kExact.launch(widened(desc), wide, workspace + widened_bytes(desc, args.now), stream);
}

template <const Kernel& kExact>
constexpr Kernel on_fp8(const char* name, Op op) {
  return {.name = name,
          .op = op,
          .backend = Backend::cpu,
          .refuse = refuse<kExact>,
          .layout = packed_weight<3>,
          .workspace_bytes = workspace_bytes<kExact>,
          .launch = launch<kExact>};
}

}  // namespace

const Kernel kQuantize{
    .name = "quantize.cpu", .op = Op::quantize, .backend = Backend::cpu, .refuse = refuse_quantize, .launch = quantize};
const Kernel kExpertSwigluFp8 = on_fp8<kExpertSwiglu>("expert_swiglu.fp8.cpu", Op::expert_swiglu);
const Kernel kExpertLinearFp8 = on_fp8<kExpertLinear>("expert_linear.fp8.cpu", Op::expert_linear);

}  // namespace moesaic::cpu
