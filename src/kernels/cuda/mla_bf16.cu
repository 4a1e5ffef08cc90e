// mla_absorb and mla_up on the matrix units: x rounded to bf16 (k_pe's part too), kv_b of BF16 or FP8 (whose codes are
// bf16 numbers; the scales multiply sums of 64 products), sums in float32. See mla.cuh. Up to kFewTokens tokens stream
// the weight with the exact kernels, on rounded x: a token's last bits may depend on which of the two its step takes.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/mla.cuh"
#include "kernels/cuda/swizzled.cuh"

namespace moesaic::cuda::folding {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 128, kColumns = 64, kDepth = 64;  // of a tile; a warp has 32 x 32 of it

// Elements [column, column + 4) of a row of kv_b as two pairs of bf16, without their scale.
template <Stored kStored>
__device__ __forceinline__ uint2 load_codes(const KvB<kStored>& w, int64_t row, int column) {
  const int64_t at = row * w.L + column;
  if constexpr (kStored == Stored::bf16) {
    return *reinterpret_cast<const uint2*>(w.data + at * 2);
  } else {
    const unsigned codes = *reinterpret_cast<const unsigned*>(w.data + at);
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = e4m3_to_float(static_cast<uint8_t>(codes >> (8 * i)));
    return make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
  }
}

// Adds the products of a warp's 32 tokens and 32 outputs, sums [16 tokens][8 outputs].
template <bool kUp>
__device__ __forceinline__ void multiply(const uint16_t* xs, const uint16_t* ws, int of_token, int of_column,
                                         float (&sums)[2][4][4]) {
#pragma unroll 1
  for (int k = 0; k < kDepth / 16; k += 2) {
    unsigned a[2][2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) swizzled::load_rows16(a[m][i], xs, of_token + 16 * m, k + i, kDepth);
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      unsigned b[2][4];  // up: of 8 outputs each, and both k; absorb: of one k each, and both outputs
#pragma unroll
      for (int i = 0; i < 2; ++i)
        kUp ? swizzled::load_columns8(b[i], ws, of_column + 8 * (n + i), k, kDepth)
            : swizzled::load_values(b[i], ws, k + i, of_column / 16 + n / 2, kColumns);
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int j = 0; j < 2; ++j)  // k
            mma_bf16(sums[m][n + i], a[m][j], kUp ? b[i][2 * j] : b[j][2 * i], kUp ? b[i][2 * j + 1] : b[j][2 * i + 1]);
    }
  }
}

// A tile of 128 tokens and 64 outputs of one head, 64 products at a time. The next operands are on their way to
// registers while these are multiplied. x tile [token][k]; weight tile as it is stored: [k][output] of absorb, [output]
// [k] of up.
template <Stored kStored, bool kUp>
__global__ void __launch_bounds__(kThreads, 2)
    product_kernel(KvB<kStored> w, HeadRows rows, int tokens, int rope, const float* x, float* y) {
  after_previous();
  __shared__ __align__(128) uint16_t xs[kTokens * kDepth];
  __shared__ __align__(128) uint16_t ws[kColumns * kDepth];
  const int tid = static_cast<int>(threadIdx.x), warp = tid / kWarp, lane = tid % kWarp;
  const int head = static_cast<int>(blockIdx.x) % rows.heads;
  const int first = static_cast<int>(blockIdx.x) / rows.heads * kColumns;
  const int token = static_cast<int>(blockIdx.y) * kTokens;
  const float* from = x + static_cast<int64_t>(token) * rows.x_token + head * rows.x_head;
  float* to = y + static_cast<int64_t>(token) * rows.y_token + head * rows.y_head;
  const int64_t row = static_cast<int64_t>(head) * rows.head_rows + rows.first_row;
  const int tx = tid % 16 * 4, ty = tid / 16;  // four neighbours of row ty + 16 i of either tile

  unsigned next_x[kTokens / 16][2];
  uint2 next_w[4];
  const auto fetch = [&](int begin) {
    const int k = begin + tx;
#pragma unroll
    for (int i = 0; i < kTokens / 16; ++i) {
      const int t = ty + 16 * i;
      const float* p = from + static_cast<int64_t>(t) * rows.x_token + k;
      float v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = token + t < tokens && k + j < rows.K ? p[j] : 0.0f;
      next_x[i][0] = pack_bf16(v[0], v[1]), next_x[i][1] = pack_bf16(v[2], v[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = ty + 16 * i;  // of kv_b's rows: outputs of up, k of absorb
      const bool exists = kUp ? first + r < rows.N && k < rows.K : begin + r < rows.K && first + tx < rows.N;
      next_w[i] = exists ? load_codes(w, row + (kUp ? first : begin) + r, kUp ? k : first + tx) : make_uint2(0, 0);
    }
  };
  const auto put = [&] {
#pragma unroll
    for (int i = 0; i < kTokens / 16; ++i)
      *reinterpret_cast<uint2*>(xs + swizzled::at(ty + 16 * i, tx / 8, kDepth) + tx % 8) =
          make_uint2(next_x[i][0], next_x[i][1]);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<uint2*>(ws + swizzled::at(ty + 16 * i, tx / 8, kDepth) + tx % 8) = next_w[i];
  };

  const int of_token = warp % 4 * 32, of_column = warp / 4 * 32;
  float totals[2][4][4] = {};
  fetch(0);
  for (int begin = 0; begin < rows.K; begin += kDepth) {
    __syncthreads();
    put();
    __syncthreads();
    if (begin + kDepth < rows.K) fetch(begin + kDepth);
    if constexpr (kStored == Stored::fp8) {  // one scale for the whole tile: see refuse_rounded
      float sums[2][4][4] = {};
      multiply<kUp>(xs, ws, of_token, of_column, sums);
      const int64_t of_row = row + (kUp ? first : begin);
      const float scale = w.scales[of_row / w.scale_rows * w.scale_stride + (kUp ? begin : first) / w.scale_columns];
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        float& total = totals[i / 16][i / 4 % 4][i % 4];
        total = fmaf(sums[i / 16][i / 4 % 4][i % 4], scale, total);
      }
    } else {
      multiply<kUp>(xs, ws, of_token, of_column, totals);
    }
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int t = of_token + i / 16 * 16 + i % 4 / 2 * 8 + lane / 4;
    const int n = first + of_column + i / 4 % 4 * 8 + lane % 4 * 2 + i % 2;
    if (token + t < tokens && n < rows.N)
      to[static_cast<int64_t>(t) * rows.y_token + n] = totals[i / 16][i / 4 % 4][i % 4];
  }
  if (first == 0)
    for (int i = tid; i < min(kTokens, tokens - token) * rope; i += kThreads)
      to[static_cast<int64_t>(i / rope) * rows.y_token + rows.N + i % rope] =
          through<uint16_t>(from[static_cast<int64_t>(i / rope) * rows.x_token + rows.K + i % rope]);
}

template <Stored kStored, bool kUp>
void tile(const OpDesc& desc, const Args& args, Stream& stream) {
  const HeadRows rows = head_rows(desc, kUp);
  const int tokens = static_cast<int>(args.now.tokens);
  const dim3 grid(static_cast<unsigned>(rows.heads * ceil_div(rows.N, kColumns)),
                  static_cast<unsigned>(ceil_div(tokens, kTokens)));
  launch(product_kernel<kStored, kUp>, grid, kThreads, 0, stream, kv_b<kStored>(desc, args), rows, tokens,
         static_cast<int>(kUp ? 0 : desc.attrs.integer(Attr::rope_dim)), args.input<float>(0), args.output<float>(0));
}

template <bool kUp>
void rounded_product(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  if (args.now.tokens <= kFewTokens) return stream_product(desc, args, kUp, stream);
  desc.in(1).format == Format::fp8 ? tile<Stored::fp8, kUp>(desc, args, stream)
                                   : tile<Stored::bf16, kUp>(desc, args, stream);
}

const char* refuse_rounded(const OpDesc& desc, const DeviceInfo&) {
  if (desc.precision == Precision::float32) return "rounds activations to bf16";
  const OperandDesc& w = desc.in(1);
  const int64_t nope = desc.attrs.integer(Attr::nope_dim), v = desc.attrs.integer(Attr::v_dim);
  if (w.format == Format::fp8 && (nope % 64 != 0 || v % 64 != 0 || w.scale_rows % 64 != 0 || w.scale_cols % 64 != 0))
    return "a tile of 64 x 64 weights would have several scales";
  if (w.format != Format::fp8 && w.stored != DType::bf16) return "kv_b_proj is neither BF16 nor FP8";
  return refuse_kv_b(desc);
}

}  // namespace
}  // namespace moesaic::cuda::folding

namespace moesaic::cuda {

const Kernel kMlaAbsorbBf16{.name = "mla_absorb.bf16.cuda",
                            .op = Op::mla_absorb,
                            .backend = Backend::cuda,
                            .refuse = folding::refuse_rounded,
                            .launch = folding::rounded_product<false>};
const Kernel kMlaUpBf16{.name = "mla_up.bf16.cuda",
                        .op = Op::mla_up,
                        .backend = Backend::cuda,
                        .refuse = folding::refuse_rounded,
                        .launch = folding::rounded_product<true>};

}  // namespace moesaic::cuda
