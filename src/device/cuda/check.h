// Errors of the CUDA runtime.
#pragma once

#include <cuda_runtime.h>

#include "base/error.h"

namespace moesaic {

// Throws Error(internal) naming what failed; out of memory is Error(resource_exhausted).
inline void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  const StatusCode code = error == cudaErrorMemoryAllocation ? StatusCode::resource_exhausted : StatusCode::internal;
  throw Error(code,
              fmt::format("{} failed: {} (CUDA error {})", what, cudaGetErrorString(error), static_cast<int>(error)));
}

}  // namespace moesaic
