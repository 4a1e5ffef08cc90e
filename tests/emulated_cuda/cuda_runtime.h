// CUDA on the processor, for tests on machines without a GPU: kernels compile as ordinary C++, every thread of a block
// is a fiber, blocks run one after the other. Barriers, warp collectives, atomics, streams (at once, in order), events
// and graph capture behave as documented; a block whose threads wait for each other aborts with a message, and shared
// memory is filled with NaN bytes before a block. What it cannot show: speed, races between warps, and memory that a
// kernel reaches outside its buffers (the kernel harness puts guard bytes there; compute-sanitizer has the last word).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>

#define MOESAIC_EMULATED_CUDA 1

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static thread_local  // blocks run one after the other, all threads of a block on one OS thread

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define MOESAIC_VECTOR_TYPES(T, name)                          \
  struct alignas(2 * sizeof(T)) name##2 {                      \
    T x, y;                                                    \
  };                                                           \
  struct name##3 {                                             \
    T x, y, z;                                                 \
  };                                                           \
  struct alignas(sizeof(T) < 8 ? 4 * sizeof(T) : 16) name##4 { \
    T x, y, z, w;                                              \
  };                                                           \
  inline name##2 make_##name##2(T x, T y) {                    \
    return {x, y};                                             \
  }                                                            \
  inline name##4 make_##name##4(T x, T y, T z, T w) {          \
    return {x, y, z, w};                                       \
  }
MOESAIC_VECTOR_TYPES(float, float)
MOESAIC_VECTOR_TYPES(double, double)
MOESAIC_VECTOR_TYPES(int, int)
#undef MOESAIC_VECTOR_TYPES
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

namespace emulated_cuda {

// What the running thread sees.
struct Thread {
  uint3 thread, block;
  dim3 threads, blocks;
};
extern thread_local Thread current;

void block_barrier();
// Waits for the lanes of `mask` of this warp that still run.
void warp_barrier(unsigned mask);
// A barrier of the first `threads` threads that come to `id`, 0 .. 15.
void named_barrier(int id, int threads);
// Lets the other threads of the block run; waiting for what nobody changes aborts, so whoever changes something that
// others may be waiting for notes it.
void yield();
void note_progress();
// This lane's slot of the warp's exchange area, kLaneBytes each.
constexpr size_t kLaneBytes = 256;
std::byte* lane_slot(int lane);
unsigned alive_lanes();
std::byte* dynamic_shared();  // 1024-aligned
size_t dynamic_shared_bytes();

inline int linear_thread() {
  const auto& c = current;
  return static_cast<int>(c.thread.x + c.threads.x * (c.thread.y + c.threads.y * c.thread.z));
}
inline int lane() {
  return linear_thread() % 32;
}

// cp.async: 16 bytes, `bytes` of them from `from` and zeros, that arrive no sooner than this thread waits for their
// group.
void copy_later(void* to, const void* from, size_t bytes);
void commit_copies();
void wait_copies(int in_flight);

// Runs `body` in every thread of the grid, or notes it where the stream is being captured.
void launch(dim3 grid, dim3 block, size_t shared_bytes, std::function<void()> body);

// Every lane of `mask` gives a value and gets that of `source(lane)`, which may be its own.
template <typename T>
T exchange(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= kLaneBytes);
  std::memcpy(lane_slot(lane()), &value, sizeof(T));
  warp_barrier(mask);
  T result;
  std::memcpy(&result, lane_slot(source), sizeof(T));
  warp_barrier(mask);
  return result;
}

template <typename T, typename Combine>
T fold(unsigned mask, T value, Combine combine) {
  std::memcpy(lane_slot(lane()), &value, sizeof(T));
  warp_barrier(mask);
  const unsigned lanes = mask & alive_lanes();
  T result{};
  bool first = true;
  for (int i = 0; i < 32; ++i) {
    if ((lanes >> i & 1) == 0) continue;
    T other;
    std::memcpy(&other, lane_slot(i), sizeof(T));
    result = first ? other : combine(result, other);
    first = false;
  }
  warp_barrier(mask);
  return result;
}

}  // namespace emulated_cuda

#define threadIdx (::emulated_cuda::current.thread)
#define blockIdx (::emulated_cuda::current.block)
#define blockDim (::emulated_cuda::current.threads)
#define gridDim (::emulated_cuda::current.blocks)
constexpr int warpSize = 32;

inline void __syncthreads() {
  emulated_cuda::block_barrier();
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
  emulated_cuda::warp_barrier(mask);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = emulated_cuda::lane();
  return emulated_cuda::exchange(mask, value, lane / width * width + (source & (width - 1)));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = emulated_cuda::lane(), other = lane ^ bits;
  return emulated_cuda::exchange(mask, value, other / width > lane / width ? lane : other);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, int delta, int width = 32) {
  const int lane = emulated_cuda::lane();
  return emulated_cuda::exchange(mask, value, lane % width + delta < width ? lane + delta : lane);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, int delta, int width = 32) {
  const int lane = emulated_cuda::lane();
  return emulated_cuda::exchange(mask, value, lane % width - delta >= 0 ? lane - delta : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const unsigned bit = predicate != 0 ? 1u << emulated_cuda::lane() : 0;
  return emulated_cuda::fold(mask, bit, [](unsigned a, unsigned b) { return a | b; });
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate == 0) == 0;
}
// The lanes of `mask` that give the same value.
template <typename T>
unsigned __match_any_sync(unsigned mask, T value) {
  std::memcpy(emulated_cuda::lane_slot(emulated_cuda::lane()), &value, sizeof(T));
  emulated_cuda::warp_barrier(mask);
  const unsigned lanes = mask & emulated_cuda::alive_lanes();
  unsigned same = 0;
  for (int i = 0; i < 32; ++i) {
    if ((lanes >> i & 1) == 0) continue;
    T other;
    std::memcpy(&other, emulated_cuda::lane_slot(i), sizeof(T));
    if (other == value) same |= 1u << i;
  }
  emulated_cuda::warp_barrier(mask);
  return same;
}
template <typename T>
T __reduce_add_sync(unsigned mask, T value) {
  return emulated_cuda::fold(mask, value, [](T a, T b) { return static_cast<T>(a + b); });
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value) {
  return emulated_cuda::fold(mask, value, [](T a, T b) { return std::max(a, b); });
}
template <typename T>
T __reduce_min_sync(unsigned mask, T value) {
  return emulated_cuda::fold(mask, value, [](T a, T b) { return std::min(a, b); });
}
inline int __syncthreads_or(int predicate);
inline unsigned __activemask() {
  return emulated_cuda::alive_lanes();
}

template <typename T, typename U>
T atomicAdd(T* address, U value) {
  const T old = *address;
  *address = static_cast<T>(old + static_cast<T>(value));
  return old;
}
template <typename T>
T atomicMax(T* address, T value) {
  const T old = *address;
  *address = std::max(old, value);
  return old;
}
template <typename T>
T atomicMin(T* address, T value) {
  const T old = *address;
  *address = std::min(old, value);
  return old;
}
template <typename T>
T atomicOr(T* address, T value) {
  const T old = *address;
  *address = old | value;
  return old;
}
template <typename T>
T atomicExch(T* address, T value) {
  const T old = *address;
  *address = value;
  return old;
}
template <typename T>
T atomicCAS(T* address, T expected, T value) {
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}

template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}
template <typename T>
T __ldcg(const T* p) {
  return *p;
}
template <typename T>
void __stcs(T* p, T value) {
  *p = value;
}

inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __popcll(unsigned long long x) {
  return std::popcount(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline int __ffs(int x) {
  return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1;
}
inline unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int i = 0; i < 32; ++i) y |= (x >> i & 1) << (31 - i);
  return y;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = (static_cast<uint64_t>(b) << 32) | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = selector >> (4 * i) & 15;
    auto byte = static_cast<unsigned>(bytes >> (8 * (s & 7)) & 0xFF);
    if ((s & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;
    result |= byte << (8 * i);
  }
  return result;
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
  return c;
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __logf(float x) {
  return std::log(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __frcp_rn(float x) {
  return 1 / x;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float rsqrtf(float x) {
  return 1 / std::sqrt(x);
}
inline void sincospif(float x, float* sine, float* cosine) {
  *sine = static_cast<float>(std::sin(static_cast<double>(x) * 3.14159265358979323846));
  *cosine = static_cast<float>(std::cos(static_cast<double>(x) * 3.14159265358979323846));
}
using std::max;
using std::min;

// ---- the host's side

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
enum { cudaDevAttrComputeCapabilityMajor = 75 };
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraphExec_st*;
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  int major, minor, multiProcessorCount, l2CacheSize;
  size_t sharedMemPerBlockOptin;
};

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMalloc(void** data, size_t bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaMallocHost(void** data, size_t bytes);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorString(cudaError_t error);
