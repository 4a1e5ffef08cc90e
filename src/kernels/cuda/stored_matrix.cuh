// Weight matrices [N, K] on the device, row_major, in the format they are stored in; WeightReader of kernels/ref/ref.h
// defines the bytes of each.
#pragma once

#include <type_traits>

#include "kernels/cuda/numbers.cuh"

namespace moesaic::cuda {

enum class Stored : uint8_t { f32, bf16, f16, fp8, int4, mxfp4 };

struct StoredMatrix {
  const std::byte *codes = nullptr, *scales = nullptr;
  int K = 0;
  int scale_rows = 1, scale_cols = 1;  // the block of one fp8 scale
};

inline Stored stored_as(const OperandDesc& weight) {
  switch (weight.format) {
    case Format::fp8: return Stored::fp8;
    case Format::int4: return Stored::int4;
    case Format::mxfp4: return Stored::mxfp4;
    case Format::plain: break;
  }
  return weight.stored == DType::bf16 ? Stored::bf16 : weight.stored == DType::f16 ? Stored::f16 : Stored::f32;
}

// `weight`: a matrix [N, K] at `memory`, or a stack of them, of which the first.
inline StoredMatrix stored_matrix(const OperandDesc& weight, const std::byte* memory) {
  StoredMatrix m{memory, nullptr, static_cast<int>(weight.type.dim(-1).factor), 1, 1};
  const int64_t elements = weight.type.dim(-2).factor * weight.type.dim(-1).factor;
  if (weight.format == Format::fp8) {
    m.scales = memory + ceil_div(elements, int64_t{4}) * 4;
    m.scale_rows = static_cast<int>(weight.scale_rows), m.scale_cols = static_cast<int>(weight.scale_cols);
  } else if (weight.format != Format::plain) {
    m.scales = memory + elements / 2;
  }
  return m;
}

// Calls f(std::integral_constant<Stored, ..>) for a format known at run time.
template <typename F>
void with_format(Stored stored, F f) {
  switch (stored) {
    case Stored::f32: return f(std::integral_constant<Stored, Stored::f32>());
    case Stored::bf16: return f(std::integral_constant<Stored, Stored::bf16>());
    case Stored::f16: return f(std::integral_constant<Stored, Stored::f16>());
    case Stored::fp8: return f(std::integral_constant<Stored, Stored::fp8>());
    case Stored::int4: return f(std::integral_constant<Stored, Stored::int4>());
    case Stored::mxfp4: return f(std::integral_constant<Stored, Stored::mxfp4>());
  }
}

// Elements in 16 bytes of codes.
template <Stored kStored>
constexpr int kInVector = kStored == Stored::f32                                ? 4
                          : kStored == Stored::fp8                              ? 16
                          : kStored == Stored::int4 || kStored == Stored::mxfp4 ? 32
                                                                                : 8;

// 16 bytes that are read once: they do not push others out of L1.
__device__ __forceinline__ uint4 load_once(const std::byte* p) {
#ifdef MOESAIC_EMULATED_CUDA
  return *reinterpret_cast<const uint4*>(p);
#else
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
#endif
}

// Two neighbouring E4M3 codes, finite, as bf16, exactly: exponent and mantissa move to where bf16 has them, and the
// product makes up for its other bias.
__device__ __forceinline__ unsigned e4m3_pair(unsigned low_codes) {
#ifdef MOESAIC_EMULATED_CUDA
  return pack_bf16(e4m3_to_float(static_cast<uint8_t>(low_codes & 0xFF)),
                   e4m3_to_float(static_cast<uint8_t>(low_codes >> 8 & 0xFF)));
#else
  const unsigned spread = __byte_perm(low_codes, 0, 0x1404);  // codes in the upper bytes of the halves
  const unsigned bits = (spread & 0x80008000u) | (spread >> 4 & 0x07F007F0u);
  unsigned result;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(bits), "r"(0x7B807B80u));  // 2^120
  return result;
#endif
}

// The scale of element k of a row; 1 where the format has none.
template <Stored kStored>
__device__ __forceinline__ float scale_at(const StoredMatrix& m, int64_t row, int k) {
  if constexpr (kStored == Stored::fp8) {
    const int64_t down = static_cast<int>(row) / m.scale_rows;  // rows are few enough for the faster division
    return __ldg(reinterpret_cast<const float*>(m.scales) + down * ceil_div(m.K, m.scale_cols) + k / m.scale_cols);
  } else if constexpr (kStored == Stored::int4) {
    return bf16_to_float(__ldg(reinterpret_cast<const uint16_t*>(m.scales) + (row * m.K + k) / 32));
  } else if constexpr (kStored == Stored::mxfp4) {
    return e8m0_to_f32(__ldg(reinterpret_cast<const uint8_t*>(m.scales) + (row * m.K + k) / 32));
  } else {
    return 1;
  }
}

// Element i of the codes that begin at `p`, without its scale.
template <Stored kStored>
__device__ __forceinline__ float code_at(const std::byte* p, int64_t i) {
  if constexpr (kStored == Stored::f32) return __ldg(reinterpret_cast<const float*>(p) + i);
  if constexpr (kStored == Stored::bf16) return bf16_to_float(__ldg(reinterpret_cast<const uint16_t*>(p) + i));
  if constexpr (kStored == Stored::f16) return f16_to_float(__ldg(reinterpret_cast<const uint16_t*>(p) + i));
  if constexpr (kStored == Stored::fp8) return e4m3_to_float(__ldg(reinterpret_cast<const uint8_t*>(p) + i));
  const unsigned code = __ldg(reinterpret_cast<const uint8_t*>(p) + i / 2) >> (i % 2 * 4) & 15u;
  return kStored == Stored::int4 ? static_cast<float>(static_cast<int>(code) - 8) : e2m1_to_f32(code);
}

template <Stored kStored>
__device__ __forceinline__ float element_at(const StoredMatrix& m, int64_t row, int k) {
  const float code = code_at<kStored>(m.codes, row * m.K + k);
  return kStored == Stored::fp8 || kStored == Stored::int4 || kStored == Stored::mxfp4
             ? code * scale_at<kStored>(m, row, k)
             : code;
}

// Element i of up to 32 in the words of a 16-byte vector, without its scale; i is known when the loop is unrolled.
template <Stored kStored>
__device__ __forceinline__ float code_of(const unsigned* words, int i) {
  if constexpr (kStored == Stored::f32) return __uint_as_float(words[i]);
  const unsigned half = words[i / 2 % 16] >> (i % 2 * 16);
  if constexpr (kStored == Stored::bf16) return __uint_as_float(i % 2 == 0 ? half << 16 : words[i / 2] & 0xFFFF0000u);
  if constexpr (kStored == Stored::f16) return f16_to_float(static_cast<uint16_t>(half & 0xFFFFu));
  if constexpr (kStored == Stored::fp8) return e4m3_to_float(static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8) & 0xFFu));
  const unsigned code = words[i / 8] >> (i % 8 * 4) & 15u;
  return kStored == Stored::int4 ? static_cast<float>(static_cast<int>(code) - 8) : e2m1_to_f32(code);
}

// Bytes of eight elements.
template <Stored kStored>
constexpr int kEightBytes = 8 * 16 / kInVector<kStored>;

// Whether load_eight() may read this matrix.
inline bool in_eights(Stored stored, const StoredMatrix& m) {
  return m.K % 8 == 0 && reinterpret_cast<uintptr_t>(m.codes) % 16 == 0 &&
         (stored != Stored::fp8 || m.scale_cols % 8 == 0);
}

// w = elements k to k + 7 of a row, k a multiple of 8.
template <Stored kStored>
__device__ __forceinline__ void load_eight(const StoredMatrix& m, int64_t row, int k, float (&w)[8]) {
  constexpr int kBytes = kEightBytes<kStored>;
  unsigned words[kBytes / 4];
  const std::byte* p = m.codes + (row * m.K + k) / 8 * kBytes;
  if constexpr (kBytes >= 16) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(p) + i);
      words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kBytes / 4; ++i) words[i] = __ldg(reinterpret_cast<const unsigned*>(p) + i);
  }
  const float scale = scale_at<kStored>(m, row, k);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    w[i] = code_of<kStored>(words, i);
    if constexpr (kStored == Stored::fp8 || kStored == Stored::int4 || kStored == Stored::mxfp4) w[i] *= scale;
  }
}

}  // namespace moesaic::cuda
