// Where a sequence's slot and a cache block lie, for kernels: what CacheView says on the host.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace moesaic::cuda {

__device__ __forceinline__ std::byte* slot_of(const CacheView& cache, int64_t slot) {
  return cache.slots + slot * cache.slot_stride;
}
__device__ __forceinline__ std::byte* block_of(const CacheView& cache, int64_t block) {
  return cache.blocks + block * cache.block_stride;
}
// Whether everything in slots and blocks whose offset there is a multiple of 16 is 16-byte aligned.
inline bool in_sixteens(const CacheView& cache) {
  return reinterpret_cast<uintptr_t>(cache.slots) % 16 == 0 && cache.slot_stride % 16 == 0 &&
         reinterpret_cast<uintptr_t>(cache.blocks) % 16 == 0 && cache.block_stride % 16 == 0;
}

}  // namespace moesaic::cuda
