// Asynchronous copies into shared memory and the barriers that announce them (sm_90). The emulated branches copy at
// once; their barriers live in the same 8 bytes, and waiting yields to the other threads of the block.
#pragma once

#include <cstdint>

#include "kernels/cuda/mma.cuh"

namespace moesaic::cuda {

#ifdef MOESAIC_EMULATED_CUDA
// Relative to the dynamic shared memory, which is all that barriers and wgmma tiles may lie in.
inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const std::byte*>(p) - ::emulated_cuda::dynamic_shared());
}

namespace emulated {

// What the 8 bytes of a barrier hold.
struct BarrierState {
  int32_t bytes;  // expected by this phase and not copied yet
  uint16_t phase : 1, pending : 15;
  uint16_t count;
};
static_assert(sizeof(BarrierState) == 8);

template <typename Change>
inline void change_barrier(uint64_t* barrier, Change change) {
  BarrierState state;
  std::memcpy(&state, barrier, sizeof state);
  change(state);
  if (state.pending == 0 && state.bytes == 0) {
    state.phase = static_cast<uint16_t>(state.phase ^ 1) & 1;
    state.pending = state.count & 0x7FFF;
  }
  std::memcpy(barrier, &state, sizeof state);
  ::emulated_cuda::note_progress();
}

}  // namespace emulated
#endif

// ---- barriers: 8 aligned bytes of shared memory each. A phase ends when `count` threads have arrived and all expected
// bytes have been copied. One thread initialises; then fence_barrier_init() by it and __syncthreads() by all.

__device__ __forceinline__ void barrier_init(uint64_t* barrier, unsigned count) {
#ifdef MOESAIC_EMULATED_CUDA
  const auto threads = static_cast<uint16_t>(count);
  const emulated::BarrierState state{0, 0, static_cast<uint16_t>(threads & 0x7FFF), threads};
  std::memcpy(barrier, &state, sizeof state);
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
#endif
}
__device__ __forceinline__ void fence_barrier_init() {
#ifndef MOESAIC_EMULATED_CUDA
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
#ifdef MOESAIC_EMULATED_CUDA
  emulated::change_barrier(barrier, [](emulated::BarrierState& s) { s.pending = (s.pending - 1) & 0x7FFF; });
#else
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}
// Arrives and expects `bytes` more of bulk copies in this phase.
__device__ __forceinline__ void barrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
#ifdef MOESAIC_EMULATED_CUDA
  emulated::change_barrier(barrier, [bytes](emulated::BarrierState& s) {
    s.bytes += static_cast<int32_t>(bytes);
    s.pending = (s.pending - 1) & 0x7FFF;
  });
#else
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#endif
}
// Whether the phase of this parity has ended: the first phase has parity 0, and one before it counts as ended.
__device__ __forceinline__ bool barrier_ended(uint64_t* barrier, unsigned parity) {
#ifdef MOESAIC_EMULATED_CUDA
  emulated::BarrierState state;
  std::memcpy(&state, barrier, sizeof state);
  return state.phase != (parity & 1);
#else
  uint32_t ended;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(ended)
      : "r"(shared_address(barrier)), "r"(parity & 1)
      : "memory");
  return ended != 0;
#endif
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, unsigned parity) {
  while (!barrier_ended(barrier, parity)) {
#ifdef MOESAIC_EMULATED_CUDA
    ::emulated_cuda::yield();
#endif
  }
}

// ---- copies

// bytes from global to shared memory, both 16-byte aligned, bytes a multiple of 16; counted by `barrier`.
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
#ifdef MOESAIC_EMULATED_CUDA
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  if (!aligned(to) || !aligned(from) || bytes % 16 != 0) std::abort();
  std::memcpy(to, from, bytes);
  emulated::change_barrier(barrier, [bytes](emulated::BarrierState& s) { s.bytes -= static_cast<int32_t>(bytes); });
#else
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
#endif
}
// The same for bytes that are read once: they leave the L2 cache first.
__device__ __forceinline__ void bulk_load_once(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
#ifdef MOESAIC_EMULATED_CUDA
  bulk_load(to, from, bytes, barrier);
#else
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
#endif
}

// Makes this thread's ordinary writes to shared memory visible to wgmma and bulk copies that follow a barrier.
__device__ __forceinline__ void fence_proxy_async() {
#ifndef MOESAIC_EMULATED_CUDA
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// ---- warp roles

// A barrier of `threads` threads (whole warps) of the block; id 1 .. 15, since 0 is __syncthreads().
__device__ __forceinline__ void named_barrier(int id, int threads) {
#ifdef MOESAIC_EMULATED_CUDA
  ::emulated_cuda::named_barrier(id, threads);
#else
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// Registers a thread of this warpgroup may use from here on, 24 .. 256 in steps of 8; the kernel needs
// __launch_bounds__(threads, 1).
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
#ifndef MOESAIC_EMULATED_CUDA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
#ifndef MOESAIC_EMULATED_CUDA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

}  // namespace moesaic::cuda
