// The CUDA kernels, for sm_90a. Activations are f32 in memory; matrix units read them as bf16 unless float32 is asked
// for; caches are f32 or bf16. Batch arrays and everything else a kernel reads lie in device memory; what a launch is
// shaped by (tokens, rows, sequences) comes from the step and is fixed within a captured graph.
#pragma once

#include "kernels/kernel.h"

namespace moesaic::cuda {

// elementwise.cu, norm.cu, quantize.cu
extern const Kernel kEmbed, kAdd, kSlice, kGlu, kSigmoidGate, kClampedSwiglu, kGelu, kLastToken;
extern const Kernel kRmsNorm, kAddRmsNorm, kLayerNorm, kGatedRmsNorm, kAttnRes, kJoinHidden, kQuantize;
// rope.cu
extern const Kernel kRopeTable, kRope;
// routing.cu
extern const Kernel kRoute, kDispatch, kCombine;
// linear.cu: x rounded to bf16, on the matrix units
extern const Kernel kLinearBf16, kGroupedLinearBf16;
// linear.cu, experts.cu: any weight format, float32 arithmetic
extern const Kernel kLinear, kGroupedLinear, kExpertLinear, kExpertSwiglu;
// experts_mxfp4.cu: activations rounded to bf16, or FP8 as quantize makes them
extern const Kernel kExpertLinearMxfp4, kExpertSwigluMxfp4;
// gqa.cu; gqa_prefill.cu: bf16 caches on the matrix units
extern const Kernel kGqa, kGqaBf16;
// mla.cu, mla_attend.cu, index_topk.cu, index_hash.cu; *_bf16.cu: the same on the matrix units
extern const Kernel kMlaAbsorb, kMlaAbsorbBf16, kMlaAttend, kMlaAttendBf16, kMlaUp, kMlaUpBf16;
extern const Kernel kIndexTopk, kIndexTopkBf16, kIndexHash;
// kda.cu
extern const Kernel kShortConv, kKdaGate, kKda;
// hyper_connections.cu, compressor.cu, entry_attention.cu
extern const Kernel kHcExpand, kHcPre, kHcPost, kHcHead, kCompress, kEntryAttend, kEntryAttendBf16;
// vision.cu
extern const Kernel kPatches, kGridEmbed, kGridRopeTable, kFullAttention, kMergePatches;

}  // namespace moesaic::cuda
