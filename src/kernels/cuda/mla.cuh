// What the kernels of mla_absorb and mla_up share: kv_b [heads * (nope + v), L] in its own format, and where the heads'
// rows lie. y[t, h, n] = sum over k of x[t, h, k] w[h][k, n], where
//
//   absorb  w[k, n] = kv_b[h * (nope + v) + k, n]          K = nope, N = L; and k_pe's part of the query is copied
//   up      w[k, n] = kv_b[h * (nope + v) + nope + n, k]   K = L,    N = v
#pragma once

#include "kernels/cuda/numbers.cuh"

namespace moesaic::cuda::folding {

enum class Stored : uint8_t { bf16, f16, f32, fp8 };

// kv_b as it lies in memory; L % 16 == 0.
template <Stored kStored>
struct KvB {
  const std::byte* data;
  int L;
  const float* scales;  // of fp8: one for each scale_rows x scale_columns
  int scale_rows, scale_columns, scale_stride;

  // Elements [column, column + kCount) of a row, kCount 4 or 16 and a divisor of `column`.
  template <int kCount>
  __device__ __forceinline__ void load(int64_t row, int column, float (&out)[kCount]) const {
    const int64_t at = row * L + column;
    if constexpr (kStored == Stored::f32) {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const float4 v = *reinterpret_cast<const float4*>(data + (at + i) * 4);
        out[i] = v.x, out[i + 1] = v.y, out[i + 2] = v.z, out[i + 3] = v.w;
      }
    } else if constexpr (kStored == Stored::fp8) {
      load_fp8(at, row, column, out);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += (kCount < 8 ? 4 : 8)) load_halves(data + (at + i) * 2, out + i, kCount < 8);
    }
  }

 private:
  static __device__ __forceinline__ float half(unsigned bits) {
    const auto h = static_cast<uint16_t>(bits);
    return kStored == Stored::bf16 ? bf16_to_float(h) : f16_to_float(h);
  }
  static __device__ __forceinline__ void load_halves(const std::byte* from, float* out, bool four) {
    unsigned words[4] = {};
    if (four) {
      const uint2 v = *reinterpret_cast<const uint2*>(from);
      words[0] = v.x, words[1] = v.y;
    } else {
      const uint4 v = *reinterpret_cast<const uint4*>(from);
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (four && i >= 2) continue;
      out[2 * i] = half(words[i] & 0xFFFFu);
      out[2 * i + 1] = half(words[i] >> 16);
    }
  }
  template <int kCount>
  __device__ __forceinline__ void load_fp8(int64_t at, int64_t row, int column, float (&out)[kCount]) const {
    unsigned words[kCount / 4];
    if constexpr (kCount == 16) {
      const uint4 v = *reinterpret_cast<const uint4*>(data + at);
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) words[i / 4] = *reinterpret_cast<const unsigned*>(data + at + i);
    }
    const float* of_row = scales + row / scale_rows * scale_stride;
    const int first = column / scale_columns;
    const bool one = first == (column + kCount - 1) / scale_columns;
    const float scale = of_row[first];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float code = e4m3_to_float(static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4))));
      out[i] = code * (one ? scale : of_row[(column + i) / scale_columns]);
    }
  }
};

// Where x and y of a head lie, in floats: rows of tokens, `offset` to a head.
struct HeadRows {
  int x_token, x_head, y_token, y_head;
  int heads, K, N;
  int head_rows, first_row;  // rows of kv_b per head, and the first of them that takes part
  bool rounded;              // x to bf16
};

// ---- on the host

inline HeadRows head_rows(const OpDesc& desc, bool up) {
  const auto attr = [&](Attr a) { return static_cast<int>(desc.attrs.integer(a, 0)); };
  const int heads = attr(Attr::heads), nope = attr(Attr::nope_dim), rope = attr(Attr::rope_dim), v = attr(Attr::v_dim);
  const int L = static_cast<int>(desc.in(1).type.dim(1).factor);
  const int x = up ? L : nope + rope, y = up ? v : L + rope;
  return {.x_token = heads * x,
          .x_head = x,
          .y_token = heads * y,
          .y_head = y,
          .heads = heads,
          .K = up ? L : nope,
          .N = up ? v : L,
          .head_rows = nope + v,
          .first_row = up ? nope : 0,
          .rounded = false};
}

template <Stored kStored>
KvB<kStored> kv_b(const OpDesc& desc, const Args& args) {
  const OperandDesc& w = desc.in(1);
  const int64_t N = w.type.dim(0).factor, L = w.type.dim(1).factor;
  KvB<kStored> out{args.in[1], static_cast<int>(L), nullptr, 1, 1, 0};
  if (kStored != Stored::fp8) return out;
  out.scales = reinterpret_cast<const float*>(args.in[1] + ceil_div(N * L, 4) * 4);
  out.scale_rows = static_cast<int>(w.scale_rows), out.scale_columns = static_cast<int>(w.scale_cols);
  out.scale_stride = static_cast<int>(ceil_div(L, w.scale_cols));
  return out;
}

// mla.cu: the product of at most kFewTokens tokens, with x rounded to bf16.
constexpr int kFewTokens = 32;
void stream_product(const OpDesc& desc, const Args& args, bool up, Stream& stream);
const char* refuse_kv_b(const OpDesc& desc);

}  // namespace moesaic::cuda::folding
