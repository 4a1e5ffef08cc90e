// Launching kernels, and what every .cu file starts from. The same sources compile with nvcc for sm_90a and, for tests
// on machines without a GPU, as C++ against tests/emulated_cuda.
#pragma once

#include <cuda_runtime.h>

#include "device/cuda/check.h"
#include "kernels/kernel.h"

namespace moesaic::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

template <typename A, typename B>
constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

// A launch need not wait for the one before to end: its blocks start as soon as there is room. Every kernel begins with
// after_previous(), which waits until everything before is done and visible. One that reads weights, which no launch
// writes, ahead of that calls the halves: first let_next_begin(), then the first loads of weights, then
// wait_for_previous() before anything that a launch has written is read or overwritten.
__device__ __forceinline__ void let_next_begin() {
#ifndef MOESAIC_EMULATED_CUDA
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#ifndef MOESAIC_EMULATED_CUDA
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void after_previous() {
  let_next_begin();
  wait_for_previous();
}

// Runs kernel<<<grid, block, shared_bytes, stream>>>(args...); nothing for an empty grid.
template <typename... Parameters, typename... Given>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, Stream& stream,
            const Given&... given) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
#ifdef MOESAIC_EMULATED_CUDA
  static_cast<void>(stream);
  emulated_cuda::launch(grid, block, shared_bytes, [=] { kernel(static_cast<Parameters>(given)...); });
#else
  // The 48 KB that need no permission count static memory too, of which kernels have up to 36 KB.
  if (shared_bytes > 8 * 1024)
    check_cuda(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
        "the shared memory of a kernel");
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.cuda;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(given)...), "a kernel's launch");
#endif
}

// The block's dynamic shared memory, aligned to 1024 bytes.
template <typename T>
__device__ __forceinline__ T* dynamic_shared() {
#ifdef MOESAIC_EMULATED_CUDA
  return reinterpret_cast<T*>(emulated_cuda::dynamic_shared());
#else
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  return reinterpret_cast<T*>(shared_bytes);
#endif
}

}  // namespace moesaic::cuda
