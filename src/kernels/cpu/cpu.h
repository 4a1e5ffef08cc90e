// The SIMD kernels of the CPU backend. Activations are f32; caches f32 or bf16.
#pragma once

#include "kernels/kernel.h"

namespace moesaic::cpu {

// dense.cc, attention.cc, routing.cc
extern const Kernel kEmbed, kRmsNorm, kAdd, kAddRmsNorm, kLastToken, kJoinHidden;
extern const Kernel kRopeTable, kRope, kGqa;
// mla.cc, mla_attend.cc, index_topk.cc, index_hash.cc, layer_norm.cc
extern const Kernel kMlaAbsorb, kMlaAttend, kMlaUp, kIndexTopk, kIndexHash, kLayerNorm;
extern const Kernel kSlice, kGlu, kSigmoidGate, kRopeGeneral, kAttnRes, kRouteScored;
extern const Kernel kShortConv, kKdaGate, kKda, kGatedRmsNorm;  // kda.cc
extern const Kernel kRoute, kDispatch, kClampedSwiglu, kCombine;
// hyper_connections.cc, compressor.cc, entry_attention.cc, grouped_linear.cc (DeepSeek-V4)
extern const Kernel kHcExpand, kHcPre, kHcPost, kHcHead, kCompress, kEntryAttend, kGroupedLinear, kGroupedLinearWiden;
// vision.cc, full_attention.cc
extern const Kernel kPatches, kGridEmbed, kGridRopeTable, kFullAttention, kGelu, kMergePatches;
// linear.cc, experts.cc: on the matrix products of gemm.h
extern const Kernel kLinear, kLinearWiden, kExpertLinearWiden;
extern const Kernel kQuantize, kExpertSwigluFp8, kExpertLinearFp8;  // quantize.cc
extern const Kernel kExpertSwigluQ8, kExpertLinearQ8, kExpertSwiglu, kExpertLinear;

}  // namespace moesaic::cpu
