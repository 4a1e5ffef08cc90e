// The two ways in which experts_mxfp4.cu computes expert_linear and expert_swiglu: MXFP4 weights, activations rounded
// to bf16, sums in float32.
#pragma once

#include "kernels/cuda/experts.cuh"

namespace moesaic::cuda {

// Few rows per expert: reads the packed weights once for every 8 or 16 of them. R routed rows, tokens of the step.
void launch_mxfp4_decode(const ExpertCall& call, int64_t R, int64_t tokens, Stream& stream);
// Many. The workspace takes the activations.
int64_t mxfp4_prefill_workspace(int64_t E, int64_t K, int64_t R);
void launch_mxfp4_prefill(const ExpertCall& call, int64_t R, std::byte* workspace, Stream& stream);
// Many, of FP8 activations, on FP8 matrix units. The workspace takes the activations and what is known of the scales.
int64_t mxfp4_fp8_workspace(int64_t E, int64_t N, int64_t K, int64_t R);
void launch_mxfp4_fp8(const ExpertCall& call, int64_t R, std::byte* workspace, Stream& stream);

}  // namespace moesaic::cuda
