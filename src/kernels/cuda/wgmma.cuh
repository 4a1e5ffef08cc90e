// Warpgroup matrix products of sm_90a: D[64, N] += A[64, K] * B[N, K]^T by the four warps of a warpgroup, with N = 8,
// 16 .. 256 and 32 bytes of K. A lies in registers (RS) or in shared memory (SS), B in shared memory, both K-major with
// the 128-byte swizzle. Sources: PTX ISA "wgmma", and the fragments below were checked bit for bit on an H200.
//
// Lane 4g + q of warp w holds, of A, bytes 4q .. 4q+3 and 16+4q .. 16+4q+3 of K:
//   a[0] row 16w+g, first half    a[1] row 16w+g+8, first half    a[2] row 16w+g, second half    a[3] row 16w+g+8,
//   second
// and of D, for j = 0 .. N/8-1:
//   d[4j], d[4j+1]  row 16w+g, columns 8j+2q, 8j+2q+1             d[4j+2], d[4j+3]  row 16w+g+8, the same columns
//
// Use: wgmma_fence(); some wgmma_*(); wgmma_commit(); ... wgmma_wait<n>(), which leaves n groups in flight. Fence again
// whenever ordinary code touched d or a; a may not change before the group that reads it has retired. Writes to shared
// memory by ordinary code need fence_proxy_async() and a barrier before a wgmma reads them.
//
// The emulated branches do the same at once, warp by warp; addresses are relative to the dynamic shared memory.
#pragma once

#include "kernels/cuda/async.cuh"
#include "kernels/cuda/numbers.cuh"

namespace moesaic::cuda {

constexpr int kSwizzleRow = 128;    // bytes of K in one row of a tile: 64 bf16 or 128 e4m3
constexpr int kSwizzleAtom = 1024;  // eight such rows; tiles start at multiples of it

// Where byte `offset` of a tile of 128-byte rows lies: in row r, 16-byte chunk c is at chunk c ^ (r % 8).
__host__ __device__ constexpr int swizzle128(int offset) {
  return offset ^ (offset >> 3 & 0x70);
}

// Describes a K-major tile [rows][128 bytes] at `tile`, which is a multiple of 1024 into shared memory. 32 more bytes
// of K: + kDescriptorStep; eight more rows: + kDescriptorRows8.
constexpr uint64_t kDescriptorStep = 2, kDescriptorRows8 = kSwizzleAtom >> 4;
__device__ __forceinline__ uint64_t k_major_descriptor(const void* tile) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kStride = uint64_t{kSwizzleAtom >> 4} << 32;
  return kSwizzle128 | kStride | (shared_address(tile) >> 4 & 0x3FFFu);
}

__device__ __forceinline__ void wgmma_fence() {
#ifndef MOESAIC_EMULATED_CUDA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wgmma_commit() {
#ifndef MOESAIC_EMULATED_CUDA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Leaves at most kPending committed groups in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
#ifndef MOESAIC_EMULATED_CUDA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}
// Keeps the compiler from moving uses of the accumulators across this point.
template <size_t kCount>
__device__ __forceinline__ void keep_in_place([[maybe_unused]] float (&d)[kCount]) {
#ifndef MOESAIC_EMULATED_CUDA
#pragma unroll
  for (size_t i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
#endif
}

#ifdef MOESAIC_EMULATED_CUDA

namespace emulated {

// Two rows of A, g and g + 8 of this lane's warp, 32 bytes of K each.
struct RowPair {
  uint8_t bytes[2][32];
};

inline RowPair rows_of_registers(const uint32_t (&a)[4]) {
  const int lane = ::emulated_cuda::lane();
  std::memcpy(::emulated_cuda::lane_slot(lane), a, sizeof a);
  ::emulated_cuda::warp_barrier(kAllLanes);
  RowPair rows;
  for (int q = 0; q < 4; ++q) {
    uint32_t other[4];
    std::memcpy(other, ::emulated_cuda::lane_slot(lane / 4 * 4 + q), sizeof other);
    for (int i = 0; i < 4; ++i) std::memcpy(rows.bytes[i % 2] + 16 * (i / 2) + 4 * q, &other[i], 4);
  }
  ::emulated_cuda::warp_barrier(kAllLanes);
  return rows;
}

// 32 bytes of row `row` of a described tile.
inline void read_row(uint64_t descriptor, int row, uint8_t (&out)[32]) {
  const auto start = static_cast<unsigned>(descriptor & 0x3FFF) << 4;
  const auto stride = static_cast<unsigned>(descriptor >> 32 & 0x3FFF) << 4;
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned plain =
        start + static_cast<unsigned>(row) / 8 * stride + static_cast<unsigned>(row) % 8 * 128 + 16 * half;
    const unsigned at = plain ^ (plain >> 3 & 0x70);
    if (descriptor >> 62 != 1 || at + 16 > ::emulated_cuda::dynamic_shared_bytes()) std::abort();
    std::memcpy(out + 16 * half, ::emulated_cuda::dynamic_shared() + at, 16);
  }
}

inline RowPair rows_of_tile(uint64_t descriptor) {
  RowPair rows;
  for (int i = 0; i < 2; ++i)
    read_row(descriptor, ::emulated_cuda::linear_thread() / 32 % 4 * 16 + ::emulated_cuda::lane() / 4 + 8 * i,
             rows.bytes[i]);
  return rows;
}

inline float dot32(const uint8_t (&a)[32], const uint8_t (&b)[32], bool e4m3) {
  float sum = 0;
  for (int i = 0; i < 32; i += e4m3 ? 1 : 2) {
    if (e4m3) sum += e4m3_to_float(a[i]) * e4m3_to_float(b[i]);
    else sum += __uint_as_float(a[i] << 16 | a[i + 1] << 24) * __uint_as_float(b[i] << 16 | b[i + 1] << 24);
  }
  return sum;
}

template <size_t kCount>
void wgmma(float (&d)[kCount], const RowPair& a, uint64_t b, bool accumulate, bool e4m3) {
  const int q = ::emulated_cuda::lane() % 4;
  for (size_t i = 0; i < kCount; ++i) {
    uint8_t row[32];
    read_row(b, static_cast<int>(i / 4 * 8 + i % 2) + 2 * q, row);
    const float product = dot32(a.bytes[i / 2 % 2], row, e4m3);
    d[i] = accumulate ? d[i] + product : product;
  }
}

}  // namespace emulated

template <size_t kCount>
void wgmma_bf16(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  emulated::wgmma(d, emulated::rows_of_registers(a), b, accumulate, false);
}
template <size_t kCount>
void wgmma_bf16(float (&d)[kCount], uint64_t a, uint64_t b, bool accumulate) {
  emulated::wgmma(d, emulated::rows_of_tile(a), b, accumulate, false);
}
template <size_t kCount>
void wgmma_e4m3(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  emulated::wgmma(d, emulated::rows_of_registers(a), b, accumulate, true);
}

#else

// One overload per N, chosen by the size of d, which is N / 2:
//   wgmma_bf16(d, a registers, b descriptor, accumulate)    m64nNk16, A from registers
//   wgmma_bf16(d, a descriptor, b descriptor, accumulate)   m64nNk16, A from shared memory
//   wgmma_e4m3(d, a registers, b descriptor, accumulate)    m64nNk32, A from registers
// Without `accumulate` d is overwritten.
// clang-format off
#define MOESAIC_REGISTERS_4 "%0,%1,%2,%3"
#define MOESAIC_REGISTERS_8 MOESAIC_REGISTERS_4 ",""%4,%5,%6,%7"
#define MOESAIC_REGISTERS_12 MOESAIC_REGISTERS_8 ",""%8,%9,%10,%11"
#define MOESAIC_REGISTERS_16 MOESAIC_REGISTERS_12 ",""%12,%13,%14,%15"
#define MOESAIC_REGISTERS_20 MOESAIC_REGISTERS_16 ",""%16,%17,%18,%19"
#define MOESAIC_REGISTERS_24 MOESAIC_REGISTERS_20 ",""%20,%21,%22,%23"
#define MOESAIC_REGISTERS_28 MOESAIC_REGISTERS_24 ",""%24,%25,%26,%27"
#define MOESAIC_REGISTERS_32 MOESAIC_REGISTERS_28 ",""%28,%29,%30,%31"
#define MOESAIC_REGISTERS_36 MOESAIC_REGISTERS_32 ",""%32,%33,%34,%35"
#define MOESAIC_REGISTERS_40 MOESAIC_REGISTERS_36 ",""%36,%37,%38,%39"
#define MOESAIC_REGISTERS_44 MOESAIC_REGISTERS_40 ",""%40,%41,%42,%43"
#define MOESAIC_REGISTERS_48 MOESAIC_REGISTERS_44 ",""%44,%45,%46,%47"
#define MOESAIC_REGISTERS_52 MOESAIC_REGISTERS_48 ",""%48,%49,%50,%51"
#define MOESAIC_REGISTERS_56 MOESAIC_REGISTERS_52 ",""%52,%53,%54,%55"
#define MOESAIC_REGISTERS_60 MOESAIC_REGISTERS_56 ",""%56,%57,%58,%59"
#define MOESAIC_REGISTERS_64 MOESAIC_REGISTERS_60 ",""%60,%61,%62,%63"
#define MOESAIC_REGISTERS_68 MOESAIC_REGISTERS_64 ",""%64,%65,%66,%67"
#define MOESAIC_REGISTERS_72 MOESAIC_REGISTERS_68 ",""%68,%69,%70,%71"
#define MOESAIC_REGISTERS_76 MOESAIC_REGISTERS_72 ",""%72,%73,%74,%75"
#define MOESAIC_REGISTERS_80 MOESAIC_REGISTERS_76 ",""%76,%77,%78,%79"
#define MOESAIC_REGISTERS_84 MOESAIC_REGISTERS_80 ",""%80,%81,%82,%83"
#define MOESAIC_REGISTERS_88 MOESAIC_REGISTERS_84 ",""%84,%85,%86,%87"
#define MOESAIC_REGISTERS_92 MOESAIC_REGISTERS_88 ",""%88,%89,%90,%91"
#define MOESAIC_REGISTERS_96 MOESAIC_REGISTERS_92 ",""%92,%93,%94,%95"
#define MOESAIC_REGISTERS_100 MOESAIC_REGISTERS_96 ",""%96,%97,%98,%99"
#define MOESAIC_REGISTERS_104 MOESAIC_REGISTERS_100 ",""%100,%101,%102,%103"
#define MOESAIC_REGISTERS_108 MOESAIC_REGISTERS_104 ",""%104,%105,%106,%107"
#define MOESAIC_REGISTERS_112 MOESAIC_REGISTERS_108 ",""%108,%109,%110,%111"
#define MOESAIC_REGISTERS_116 MOESAIC_REGISTERS_112 ",""%112,%113,%114,%115"
#define MOESAIC_REGISTERS_120 MOESAIC_REGISTERS_116 ",""%116,%117,%118,%119"
#define MOESAIC_REGISTERS_124 MOESAIC_REGISTERS_120 ",""%120,%121,%122,%123"
#define MOESAIC_REGISTERS_128 MOESAIC_REGISTERS_124 ",""%124,%125,%126,%127"
#define MOESAIC_OPERANDS_4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define MOESAIC_OPERANDS_8 MOESAIC_OPERANDS_4, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define MOESAIC_OPERANDS_12 MOESAIC_OPERANDS_8, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define MOESAIC_OPERANDS_16 MOESAIC_OPERANDS_12, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define MOESAIC_OPERANDS_20 MOESAIC_OPERANDS_16, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define MOESAIC_OPERANDS_24 MOESAIC_OPERANDS_20, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define MOESAIC_OPERANDS_28 MOESAIC_OPERANDS_24, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define MOESAIC_OPERANDS_32 MOESAIC_OPERANDS_28, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define MOESAIC_OPERANDS_36 MOESAIC_OPERANDS_32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define MOESAIC_OPERANDS_40 MOESAIC_OPERANDS_36, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define MOESAIC_OPERANDS_44 MOESAIC_OPERANDS_40, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define MOESAIC_OPERANDS_48 MOESAIC_OPERANDS_44, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define MOESAIC_OPERANDS_52 MOESAIC_OPERANDS_48, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define MOESAIC_OPERANDS_56 MOESAIC_OPERANDS_52, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define MOESAIC_OPERANDS_60 MOESAIC_OPERANDS_56, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define MOESAIC_OPERANDS_64 MOESAIC_OPERANDS_60, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define MOESAIC_OPERANDS_68 MOESAIC_OPERANDS_64, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define MOESAIC_OPERANDS_72 MOESAIC_OPERANDS_68, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define MOESAIC_OPERANDS_76 MOESAIC_OPERANDS_72, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define MOESAIC_OPERANDS_80 MOESAIC_OPERANDS_76, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define MOESAIC_OPERANDS_84 MOESAIC_OPERANDS_80, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define MOESAIC_OPERANDS_88 MOESAIC_OPERANDS_84, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define MOESAIC_OPERANDS_92 MOESAIC_OPERANDS_88, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define MOESAIC_OPERANDS_96 MOESAIC_OPERANDS_92, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define MOESAIC_OPERANDS_100 MOESAIC_OPERANDS_96, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define MOESAIC_OPERANDS_104 MOESAIC_OPERANDS_100, "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define MOESAIC_OPERANDS_108 MOESAIC_OPERANDS_104, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define MOESAIC_OPERANDS_112 MOESAIC_OPERANDS_108, "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define MOESAIC_OPERANDS_116 MOESAIC_OPERANDS_112, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define MOESAIC_OPERANDS_120 MOESAIC_OPERANDS_116, "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define MOESAIC_OPERANDS_124 MOESAIC_OPERANDS_120, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define MOESAIC_OPERANDS_128 MOESAIC_OPERANDS_124, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

#define MOESAIC_WGMMA_REGISTERS(function, shape, types, tail, N, half, a0, a1, a2, a3, b, p)                            \
  __device__ __forceinline__ void function(float (&d)[half], const uint32_t (&a)[4], uint64_t b_tile, bool accumulate) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p ", 0;\n"                                                        \
                 "wgmma.mma_async.sync.aligned.m64n" #N shape ".f32." types "\n{" MOESAIC_REGISTERS_##half "},\n"        \
                 "{%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #b ", p, 1, 1" tail ";\n}\n"                                 \
                 : MOESAIC_OPERANDS_##half                                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_tile), "r"(static_cast<int>(accumulate)));          \
  }
#define MOESAIC_WGMMA(N, half, i0, i1, i2, i3, i4, i5)                                                                  \
  MOESAIC_WGMMA_REGISTERS(wgmma_bf16, "k16", "bf16.bf16", ", 0", N, half, i0, i1, i2, i3, i4, i5)                        \
  MOESAIC_WGMMA_REGISTERS(wgmma_e4m3, "k32", "e4m3.e4m3", "", N, half, i0, i1, i2, i3, i4, i5)                           \
  __device__ __forceinline__ void wgmma_bf16(float (&d)[half], uint64_t a_tile, uint64_t b_tile, bool accumulate) {      \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #i2 ", 0;\n"                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16\n{" MOESAIC_REGISTERS_##half "},\n"           \
                 "%" #i0 ", %" #i1 ", p, 1, 1, 0, 0;\n}\n"                                                               \
                 : MOESAIC_OPERANDS_##half                                                                               \
                 : "l"(a_tile), "l"(b_tile), "r"(static_cast<int>(accumulate)));                                         \
  }
MOESAIC_WGMMA(8, 4, 4, 5, 6, 7, 8, 9) MOESAIC_WGMMA(16, 8, 8, 9, 10, 11, 12, 13)
MOESAIC_WGMMA(24, 12, 12, 13, 14, 15, 16, 17) MOESAIC_WGMMA(32, 16, 16, 17, 18, 19, 20, 21)
MOESAIC_WGMMA(40, 20, 20, 21, 22, 23, 24, 25) MOESAIC_WGMMA(48, 24, 24, 25, 26, 27, 28, 29)
MOESAIC_WGMMA(56, 28, 28, 29, 30, 31, 32, 33) MOESAIC_WGMMA(64, 32, 32, 33, 34, 35, 36, 37)
MOESAIC_WGMMA(72, 36, 36, 37, 38, 39, 40, 41) MOESAIC_WGMMA(80, 40, 40, 41, 42, 43, 44, 45)
MOESAIC_WGMMA(88, 44, 44, 45, 46, 47, 48, 49) MOESAIC_WGMMA(96, 48, 48, 49, 50, 51, 52, 53)
MOESAIC_WGMMA(104, 52, 52, 53, 54, 55, 56, 57) MOESAIC_WGMMA(112, 56, 56, 57, 58, 59, 60, 61)
MOESAIC_WGMMA(120, 60, 60, 61, 62, 63, 64, 65) MOESAIC_WGMMA(128, 64, 64, 65, 66, 67, 68, 69)
MOESAIC_WGMMA(136, 68, 68, 69, 70, 71, 72, 73) MOESAIC_WGMMA(144, 72, 72, 73, 74, 75, 76, 77)
MOESAIC_WGMMA(152, 76, 76, 77, 78, 79, 80, 81) MOESAIC_WGMMA(160, 80, 80, 81, 82, 83, 84, 85)
MOESAIC_WGMMA(168, 84, 84, 85, 86, 87, 88, 89) MOESAIC_WGMMA(176, 88, 88, 89, 90, 91, 92, 93)
MOESAIC_WGMMA(184, 92, 92, 93, 94, 95, 96, 97) MOESAIC_WGMMA(192, 96, 96, 97, 98, 99, 100, 101)
MOESAIC_WGMMA(200, 100, 100, 101, 102, 103, 104, 105) MOESAIC_WGMMA(208, 104, 104, 105, 106, 107, 108, 109)
MOESAIC_WGMMA(216, 108, 108, 109, 110, 111, 112, 113) MOESAIC_WGMMA(224, 112, 112, 113, 114, 115, 116, 117)
MOESAIC_WGMMA(232, 116, 116, 117, 118, 119, 120, 121) MOESAIC_WGMMA(240, 120, 120, 121, 122, 123, 124, 125)
MOESAIC_WGMMA(248, 124, 124, 125, 126, 127, 128, 129) MOESAIC_WGMMA(256, 128, 128, 129, 130, 131, 132, 133)

#undef MOESAIC_WGMMA
#undef MOESAIC_WGMMA_REGISTERS
// clang-format on

#endif

}  // namespace moesaic::cuda
