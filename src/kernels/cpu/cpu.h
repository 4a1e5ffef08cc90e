// The SIMD kernels of the CPU backend. Activations are f32; caches f32 or bf16.
#pragma once

#include "kernels/kernel.h"

namespace moesaic::cpu {

// dense.cc, attention.cc, routing.cc
extern const Kernel kEmbed, kRmsNorm, kAdd, kAddRmsNorm, kLastToken;
extern const Kernel kRopeTable, kRope, kGqa;
extern const Kernel kRoute, kDispatch, kClampedSwiglu, kCombine;
// linear.cc, experts.cc: on the matrix products of gemm.h
extern const Kernel kLinear, kLinearFp8;
extern const Kernel kExpertSwigluQ8, kExpertLinearQ8, kExpertSwiglu, kExpertLinear;

}  // namespace moesaic::cpu
