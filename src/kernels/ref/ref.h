// The float64 reference: one slow, obvious kernel per op. Activations and caches are f64, weights row_major as stored.
// Every faster kernel and every pass answers to these.
#pragma once

#include "kernels/kernel.h"
#include "quant/bf16.h"
#include "quant/fp4.h"
#include "quant/fp8.h"

namespace moesaic::ref {

// Rows x [T * heads, D], their last channels turned by the table in desc's last input (Attr::rotate), or as they are.
std::vector<double> turned(const OpDesc& desc, const Args& args, const double* x, int64_t heads, int64_t D);

// Element `i` (row-major) of a weight that is stored row_major.
class WeightReader {
 public:
  WeightReader(const Args& args, const OpDesc& desc, int input)
      : data_(args.in[static_cast<size_t>(input)]), desc_(desc.in(input)) {
    if (desc_.format == Format::plain) return;
    K_ = desc_.type.dim(-1).factor;
    elements_ = K_ * desc_.type.dim(-2).factor;
    const int64_t grid =
        desc_.format == Format::fp8 ? ceil(elements_ / K_, desc_.scale_rows) * ceil(K_, desc_.scale_cols) : 0;
    scales_ = desc_.format == Format::fp8 ? ceil(elements_, 4) * 4 : elements_ / 2;
    bytes_ = scales_ +
             (desc_.format == Format::fp8 ? 4 * grid : elements_ / kMxGroup * (desc_.format == Format::int4 ? 2 : 1));
  }

  double operator[](int64_t i) const {
    if (desc_.format != Format::plain) return coded(data_ + i / elements_ * bytes_, i % elements_);
    switch (desc_.stored) {
      case DType::f64: return reinterpret_cast<const double*>(data_)[i];
      case DType::f32: return static_cast<double>(reinterpret_cast<const float*>(data_)[i]);
      case DType::bf16: return static_cast<double>(bf16_to_float(reinterpret_cast<const uint16_t*>(data_)[i]));
      case DType::f16: return static_cast<double>(f16_to_float(reinterpret_cast<const uint16_t*>(data_)[i]));
      default: CHECK(false, "weight of type {}", dtype_name(desc_.stored)); return 0;
    }
  }

 private:
  static int64_t ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

  // Element i of one matrix [N, K].
  double coded(const std::byte* matrix, int64_t i) const {
    const std::byte* scales = matrix + scales_;
    if (desc_.format == Format::fp8) {
      const int64_t block = i / K_ / desc_.scale_rows * ceil(K_, desc_.scale_cols) + i % K_ / desc_.scale_cols;
      return static_cast<double>(e4m3_to_float(static_cast<uint8_t>(matrix[i]))) *
             static_cast<double>(reinterpret_cast<const float*>(scales)[block]);
    }
    const auto code = static_cast<uint8_t>(static_cast<uint8_t>(matrix[i / 2]) >> (i % 2 * 4) & 15);
    if (desc_.format == Format::int4)
      return (code - 8) * static_cast<double>(bf16_to_float(reinterpret_cast<const uint16_t*>(scales)[i / kMxGroup]));
    return static_cast<double>(e2m1_to_float(code)) *
           static_cast<double>(e8m0_to_float(static_cast<uint8_t>(scales[i / kMxGroup])));
  }

  const std::byte* data_;
  const OperandDesc& desc_;
  int64_t K_ = 1, elements_ = 1, scales_ = 0, bytes_ = 0;
};

extern const Kernel kEmbed, kRmsNorm, kAdd, kAddRmsNorm, kLinear, kLastToken, kJoinHidden;
extern const Kernel kRopeTable, kRope, kGqa;
extern const Kernel kMla, kMlaAbsorb, kMlaAttend, kMlaUp, kIndexTopk, kLayerNorm;
extern const Kernel kSlice, kGlu, kSigmoidGate, kAttnRes;
extern const Kernel kShortConv, kKdaGate, kKda, kGatedRmsNorm;
extern const Kernel kHcExpand, kHcPre, kHcPost, kHcHead, kCompress, kEntryAttend, kGroupedLinear;
extern const Kernel kPatches, kGridEmbed, kGridRopeTable, kFullAttention, kGelu, kMergePatches;
extern const Kernel kMoe, kRoute, kDispatch, kExpertLinear, kExpertSwiglu, kQuantize, kClampedSwiglu, kCombine;

// The activation of gpt-oss's experts (transformers modeling_gpt_oss.py, _apply_gate): the gate is capped above, the up
// projection both ways; limit 0 means no clamp.
double clamped_swiglu(double gate, double up, double limit, double alpha);

double silu_glu(double gate, double up, double limit);
// SiTU (Kimi K3): smooth caps on both sides; linear_beta 0 leaves `up` as it is.
double situ_glu(double gate, double up, double beta, double linear_beta);

struct Choice {
  int32_t id;
  double weight;
};
// The top_k largest of `logits`, best first, ties to the lower index; weights are the softmax over the chosen.
std::vector<Choice> choose_experts(const double* logits, int64_t experts, int64_t top_k);

}  // namespace moesaic::ref
