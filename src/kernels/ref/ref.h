// The float64 reference: one slow, obvious kernel per op. Activations and caches are f64, weights row_major as stored.
// Every faster kernel and every pass answers to these.
#pragma once

#include "kernels/kernel.h"
#include "quant/bf16.h"
#include "quant/fp4.h"
#include "quant/fp8.h"

namespace moesaic::ref {

// Element `i` (row-major) of a weight that is stored row_major.
class WeightReader {
 public:
  WeightReader(const Args& args, const OpDesc& desc, int input)
      : data_(args.in[static_cast<size_t>(input)]), desc_(desc.in(input)) {
    for (Dim d : desc_.type.dims) elements_ *= d.factor;
  }

  double operator[](int64_t i) const {
    if (desc_.format == Format::mxfp4) return mxfp4(i);
    if (desc_.format == Format::fp8) return fp8(i);
    switch (desc_.stored) {
      case DType::f64: return reinterpret_cast<const double*>(data_)[i];
      case DType::f32: return reinterpret_cast<const float*>(data_)[i];
      case DType::bf16: return bf16_to_float(reinterpret_cast<const uint16_t*>(data_)[i]);
      case DType::f16: return f16_to_float(reinterpret_cast<const uint16_t*>(data_)[i]);
      default: CHECK(false, "weight of type {}", dtype_name(desc_.stored)); return 0;
    }
  }

 private:
  double mxfp4(int64_t i) const {
    const auto* codes = reinterpret_cast<const uint8_t*>(data_);
    const uint8_t code = static_cast<uint8_t>(i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4);
    return static_cast<double>(e2m1_to_float(code)) * e8m0_to_float(codes[elements_ / 2 + i / kMxGroup]);
  }

  double fp8(int64_t i) const {
    const int64_t K = desc_.type.dim(-1).factor, columns = (K + desc_.scale_cols - 1) / desc_.scale_cols;
    const auto* scales = reinterpret_cast<const float*>(data_ + (elements_ + 3) / 4 * 4);
    const float scale = scales[i / K / desc_.scale_rows * columns + i % K / desc_.scale_cols];
    return static_cast<double>(e4m3_to_float(static_cast<uint8_t>(data_[i]))) * static_cast<double>(scale);
  }

  const std::byte* data_;
  const OperandDesc& desc_;
  int64_t elements_ = 1;
};

extern const Kernel kEmbed, kRmsNorm, kAdd, kAddRmsNorm, kLinear, kLastToken;
extern const Kernel kRopeTable, kRope, kGqa;
extern const Kernel kMoe, kRoute, kDispatch, kExpertLinear, kExpertSwiglu, kClampedSwiglu, kCombine;

// The activation of gpt-oss's experts (transformers modeling_gpt_oss.py, _apply_gate): the gate is capped above, the up
// projection both ways; limit 0 means no clamp.
double clamped_swiglu(double gate, double up, double limit, double alpha);

struct Choice {
  int32_t id;
  double weight;
};
// The top_k largest of `logits`, best first, ties to the lower index; weights are the softmax over the chosen.
std::vector<Choice> choose_experts(const double* logits, int64_t experts, int64_t top_k);

}  // namespace moesaic::ref
