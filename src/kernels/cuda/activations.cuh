// Activations that several kernels end with.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace moesaic::cuda {

__device__ __forceinline__ float sigmoid(float x) {
  return 1 / (1 + expf(-x));
}

// As std::min and std::clamp: a NaN stays one.
__device__ __forceinline__ float at_most(float x, float limit) {
  return x > limit ? limit : x;
}
__device__ __forceinline__ float within(float x, float limit) {
  return x > limit ? limit : x < -limit ? -limit : x;
}

// gpt-oss: g = min(gate, limit), u = clamp(up, -limit, limit), g sigmoid(alpha g) (u + 1); limit 0: no clamp.
__device__ __forceinline__ float clamped_swiglu(float gate, float up, float limit, float alpha) {
  if (limit > 0) gate = at_most(gate, limit), up = within(up, limit);
  return (up + 1) * gate / (1 + expf(-alpha * gate));
}

}  // namespace moesaic::cuda
