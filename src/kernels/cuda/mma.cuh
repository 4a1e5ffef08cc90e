// Warp-wide matrix products in bf16, the shared-memory loads that feed them, and asynchronous copies to shared memory
// (PTX ISA: mma.m16n8k16, ldmatrix, cp.async). All 32 lanes of the warp call the collectives together.
//
// Fragments of d[16, 8] += a[16, 16] b[16, 8], lane = 4g + q; two bf16 a register, the lower index in the low half:
//   a[0] row g    k 2q, 2q+1      a[2] row g    k 2q+8, 2q+9      d[0], d[1] row g    columns 2q, 2q+1
//   a[1] row g+8  k 2q, 2q+1      a[3] row g+8  k 2q+8, 2q+9      d[2], d[3] row g+8  columns 2q, 2q+1
//   b0   k 2q, 2q+1 of column g   b1   k 2q+8, 2q+9 of column g
// So with a stored [rows][k] and b stored [columns][k], both k-contiguous, load_matrices() without transposition gives
// a[0..3] from the four 8x8 quarters (rows 0-7 k 0-7, rows 8-15 k 0-7, rows 0-7 k 8-15, rows 8-15 k 8-15), and b0, b1
// from (columns 0-7 k 0-7, columns 0-7 k 8-15). The d fragments of two neighbouring n-blocks, packed to bf16, are an a
// fragment: a = {d[0..1], d[2..3], d'[0..1], d'[2..3]}.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cuda/numbers.cuh"

namespace moesaic::cuda {

#ifdef MOESAIC_EMULATED_CUDA

namespace emulated {

struct MmaOperands {
  unsigned a[4], b[2];
};

inline float product(unsigned a, unsigned b, float sum) {
  sum += __uint_as_float(a << 16) * __uint_as_float(b << 16);
  return sum + __uint_as_float(a & 0xFFFF0000u) * __uint_as_float(b & 0xFFFF0000u);
}

// What `lane` put into its slot of the warp's exchange area.
template <typename T>
T from_lane(int lane) {
  T value;
  std::memcpy(&value, emulated_cuda::lane_slot(lane), sizeof(T));
  return value;
}
template <typename T>
void to_warp(const T& value) {
  std::memcpy(emulated_cuda::lane_slot(emulated_cuda::lane()), &value, sizeof(T));
  emulated_cuda::warp_barrier(kAllLanes);
}

inline void mma_bf16(float (&d)[4], const MmaOperands& mine) {
  to_warp(mine);
  const int g = emulated_cuda::lane() / 4, q = emulated_cuda::lane() % 4;
  MmaOperands rows[4];  // k 2i, 2i+1, 2i+8, 2i+9 of rows g and g+8
  for (int i = 0; i < 4; ++i) rows[i] = from_lane<MmaOperands>(4 * g + i);
  for (int column = 0; column < 2; ++column)
    for (int half = 0; half < 2; ++half)
      for (int i = 0; i < 4; ++i) {
        const auto other = from_lane<MmaOperands>(4 * (2 * q + column) + i);
        d[column] = product(rows[i].a[2 * half], other.b[half], d[column]);
        d[2 + column] = product(rows[i].a[2 * half + 1], other.b[half], d[2 + column]);
      }
  emulated_cuda::warp_barrier(kAllLanes);
}

template <int kMatrices, bool kTransposed>
void load_matrices(unsigned (&r)[kMatrices], const void* row) {
  to_warp(static_cast<const uint16_t*>(row));
  const int g = emulated_cuda::lane() / 4, q = emulated_cuda::lane() % 4;
  for (int m = 0; m < kMatrices; ++m) {
    uint16_t pair[2];
    for (int i = 0; i < 2; ++i)
      pair[i] = kTransposed ? from_lane<const uint16_t*>(8 * m + 2 * q + i)[g]
                            : from_lane<const uint16_t*>(8 * m + g)[2 * q + i];
    r[m] = static_cast<unsigned>(pair[1]) << 16 | pair[0];
  }
  emulated_cuda::warp_barrier(kAllLanes);
}

}  // namespace emulated

#else

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

#endif

// d += a b in float32; see the top for the fragments.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#ifdef MOESAIC_EMULATED_CUDA
  emulated::mma_bf16(d, {{a[0], a[1], a[2], a[3]}, {b0, b1}});
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Two or four 8x8 matrices of 16-bit elements from shared memory: lane 8m + i gives the address, 16-byte aligned, of
// row i of matrix m (with two, lanes 16 to 31 give any readable one); r[m] of lane 4g + q gets elements 2q, 2q+1 of row
// g.
__device__ __forceinline__ void load_matrices(unsigned (&r)[2], const void* row) {
#ifdef MOESAIC_EMULATED_CUDA
  emulated::load_matrices<2, false>(r, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
#endif
}
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void* row) {
#ifdef MOESAIC_EMULATED_CUDA
  emulated::load_matrices<4, false>(r, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
#endif
}
// The same of the transposed matrices: r[m] of lane 4g + q gets elements g of rows 2q, 2q+1.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&r)[2], const void* row) {
#ifdef MOESAIC_EMULATED_CUDA
  emulated::load_matrices<2, true>(r, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
#endif
}
__device__ __forceinline__ void load_matrices_transposed(unsigned (&r)[4], const void* row) {
#ifdef MOESAIC_EMULATED_CUDA
  emulated::load_matrices<4, true>(r, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
#endif
}

// Starts a copy of 16 bytes from global to shared memory, both 16-byte aligned, past L1: `bytes` (0 to 16) of them are
// read, the rest becomes zero. This thread sees them after wait_copies(), others after a barrier that follows it.
__device__ __forceinline__ void copy_async(void* shared, const void* global, int bytes = 16) {
#ifdef MOESAIC_EMULATED_CUDA
  emulated_cuda::copy_later(shared, global, static_cast<size_t>(bytes));
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
               : "memory");
#endif
}
// Closes a group of the copies this thread has started since the last one; a group may be empty.
__device__ __forceinline__ void commit_copies() {
#ifdef MOESAIC_EMULATED_CUDA
  emulated_cuda::commit_copies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until all but the last kInFlight groups of this thread are done.
template <int kInFlight>
__device__ __forceinline__ void wait_copies() {
#ifdef MOESAIC_EMULATED_CUDA
  emulated_cuda::wait_copies(kInFlight);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kInFlight) : "memory");
#endif
}

}  // namespace moesaic::cuda
