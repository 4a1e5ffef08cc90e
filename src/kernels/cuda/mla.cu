// mla_absorb and mla_up in float32: see mla.cuh.
//
// A sum is always made of chains of kSegment products in ascending k, whose results are added in ascending order; so
// the few-token kernels, which spread the segments over warps and lanes, and the tiled ones give the same bits.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/mla.cuh"

namespace moesaic::cuda::folding {
namespace {

constexpr int kSegment = 16;
constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kStreamColumns = 128;  // of absorb: columns of a block, 4 a lane
constexpr int kStreamRows = 32;      // of up: weight rows of a block, 4 a warp
constexpr int kRowsPerWarp = kStreamRows / kWarps;
constexpr int kTileColumns = 64;  // outputs of a tile

// ---- few tokens

// x as the product reads it.
__device__ __forceinline__ float factor_of(const HeadRows& rows, float x) {
  return rows.rounded ? through<uint16_t>(x) : x;
}

// Adds up the partial sums of the segments, in order. partial: [segments][kTokens * width], output i of them.
__device__ __forceinline__ float add_segments(const float* partial, int segments, int stride, int i) {
  float sum = partial[i];
  for (int s = 1; s < segments; ++s) sum += partial[s * stride + i];
  return sum;
}

// absorb of kTokens tokens: a block takes one head and 128 columns; a warp takes every eighth segment of 16 rows.
// Shared memory: x [kTokens][K], then partial sums [segments][kTokens][128].
template <Stored kStored, int kTokens>
__global__ void __launch_bounds__(kThreads)
    absorb_stream_kernel(KvB<kStored> w, HeadRows rows, int tokens, int rope, const float* x, float* y) {
  after_previous();
  float* xs = dynamic_shared<float>();
  float* partial = xs + kTokens * rows.K;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / kWarp, lane = tid % kWarp;
  const int head = static_cast<int>(blockIdx.x) % rows.heads, first = static_cast<int>(blockIdx.x) / rows.heads;
  const int token = static_cast<int>(blockIdx.y) * kTokens, count = min(kTokens, tokens - token);
  const int column = first * kStreamColumns + lane * 4, segments = ceil_div(rows.K, kSegment);
  const float* from = x + static_cast<int64_t>(token) * rows.x_token + head * rows.x_head;
  float* to = y + static_cast<int64_t>(token) * rows.y_token + head * rows.y_head;
  for (int i = tid; i < kTokens * rows.K; i += kThreads) {
    const int t = i / rows.K;
    xs[i] = t < count ? factor_of(rows, from[static_cast<int64_t>(t) * rows.x_token + i % rows.K]) : 0.0f;
  }
  if (first == 0)
    for (int i = tid; i < count * rope; i += kThreads)
      to[static_cast<int64_t>(i / rope) * rows.y_token + rows.N + i % rope] =
          factor_of(rows, from[static_cast<int64_t>(i / rope) * rows.x_token + rows.K + i % rope]);
  __syncthreads();
  const int64_t row = static_cast<int64_t>(head) * rows.head_rows + rows.first_row;
  for (int s = warp; column < rows.N && s < segments; s += kWarps) {
    const int begin = s * kSegment, n = min(kSegment, rows.K - begin);
    float weight[kSegment][4], sums[kTokens][4] = {};
#pragma unroll
    for (int k = 0; k < kSegment; ++k)
      if (k < n) w.load(row + begin + k, column, weight[k]);
#pragma unroll
    for (int k = 0; k < kSegment; ++k) {
      if (k >= n) continue;
#pragma unroll
      for (int t = 0; t < kTokens; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[t][i] = fmaf(xs[t * rows.K + begin + k], weight[k][i], sums[t][i]);
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
      *reinterpret_cast<float4*>(partial + (s * kTokens + t) * kStreamColumns + lane * 4) =
          make_float4(sums[t][0], sums[t][1], sums[t][2], sums[t][3]);
  }
  __syncthreads();
  for (int i = tid; i < count * kStreamColumns; i += kThreads) {
    const int n = first * kStreamColumns + i % kStreamColumns;
    if (n < rows.N)
      to[static_cast<int64_t>(i / kStreamColumns) * rows.y_token + n] =
          add_segments(partial, segments, kTokens * kStreamColumns, i);
  }
}

// up of kTokens tokens: a block takes 32 rows of one head, a warp four of them; a lane takes one segment of every 32.
// Shared memory: x [kTokens][4][segments] in float4, which a warp reads without bank conflicts, then partial sums
// [segments][kTokens][32 + 1].
template <Stored kStored, int kTokens>
__global__ void __launch_bounds__(kThreads)
    up_stream_kernel(KvB<kStored> w, HeadRows rows, int tokens, const float* x, float* y) {
  after_previous();
  constexpr int kStride = kTokens * (kStreamRows + 1);
  const int segments = rows.K / kSegment;
  float* xs = dynamic_shared<float>();
  float* partial = xs + kTokens * rows.K;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / kWarp, lane = tid % kWarp;
  const int head = static_cast<int>(blockIdx.x) % rows.heads;
  const int first = static_cast<int>(blockIdx.x) / rows.heads * kStreamRows;
  const int token = static_cast<int>(blockIdx.y) * kTokens, count = min(kTokens, tokens - token);
  const float* from = x + static_cast<int64_t>(token) * rows.x_token + head * rows.x_head;
  const int64_t row = static_cast<int64_t>(head) * rows.head_rows + rows.first_row;
  for (int i = tid; i < kTokens * rows.K; i += kThreads) {
    const int t = i / rows.K, k = i % rows.K;
    xs[t * rows.K + (k % kSegment / 4 * segments + k / kSegment) * 4 + k % 4] =
        t < count ? factor_of(rows, from[static_cast<int64_t>(t) * rows.x_token + k]) : 0.0f;
  }
  __syncthreads();
  for (int s = lane; s < segments; s += kWarp) {
    float weight[kRowsPerWarp][kSegment];
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const int n = first + warp * kRowsPerWarp + r;
      w.load(row + min(n, rows.N - 1), s * kSegment, weight[r]);
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float sums[kRowsPerWarp] = {};
#pragma unroll
      for (int g = 0; g < kSegment / 4; ++g) {
        const float4 v = *reinterpret_cast<const float4*>(xs + t * rows.K + (g * segments + s) * 4);
#pragma unroll
        for (int r = 0; r < kRowsPerWarp; ++r) {
          sums[r] = fmaf(v.x, weight[r][4 * g], sums[r]);
          sums[r] = fmaf(v.y, weight[r][4 * g + 1], sums[r]);
          sums[r] = fmaf(v.z, weight[r][4 * g + 2], sums[r]);
          sums[r] = fmaf(v.w, weight[r][4 * g + 3], sums[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRowsPerWarp; ++r)
        partial[s * kStride + t * (kStreamRows + 1) + warp * kRowsPerWarp + r] = sums[r];
    }
  }
  __syncthreads();
  float* to = y + static_cast<int64_t>(token) * rows.y_token + head * rows.y_head;
  for (int i = tid; i < count * kStreamRows; i += kThreads) {
    const int t = i / kStreamRows, n = i % kStreamRows;
    if (first + n < rows.N)
      to[static_cast<int64_t>(t) * rows.y_token + first + n] =
          add_segments(partial, segments, kStride, t * (kStreamRows + 1) + n);
  }
}

// ---- many tokens

// A tile of 16 kPerThread tokens and 64 outputs of one head, a segment at a time; a thread has kPerThread x 4 sums.
// The next segment's operands are on their way to registers while this one is multiplied.
template <Stored kStored, bool kUp, int kPerThread>
__global__ void __launch_bounds__(kThreads)
    tile_kernel(KvB<kStored> w, HeadRows rows, int tokens, int rope, const float* x, float* y) {
  after_previous();
  constexpr int kTokens = 16 * kPerThread;
  __shared__ __align__(16) float xs[kSegment][kTokens + 4];
  __shared__ __align__(16) float ws[kSegment][kTileColumns + 4];
  const int tid = static_cast<int>(threadIdx.x), tx = tid % 16, ty = tid / 16;
  const int head = static_cast<int>(blockIdx.x) % rows.heads;
  const int first = static_cast<int>(blockIdx.x) / rows.heads * kTileColumns;
  const int token = static_cast<int>(blockIdx.y) * kTokens;
  const float* from = x + static_cast<int64_t>(token) * rows.x_token + head * rows.x_head;
  float* to = y + static_cast<int64_t>(token) * rows.y_token + head * rows.y_head;
  const int64_t row = static_cast<int64_t>(head) * rows.head_rows + rows.first_row;

  float next_x[kPerThread], next_w[4];
  const auto fetch = [&](int k) {  // x: 16 neighbouring threads read a token's segment
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int t = ty + 16 * i;
      next_x[i] = token + t < tokens && k + tx < rows.K ? from[static_cast<int64_t>(t) * rows.x_token + k + tx] : 0.0f;
    }
    const int n = first + (kUp ? tid / 4 : tx * 4), of_k = k + (kUp ? tid % 4 * 4 : ty);
    if (n < rows.N && of_k < rows.K) kUp ? w.load(row + n, of_k, next_w) : w.load(row + of_k, n, next_w);
    else next_w[0] = next_w[1] = next_w[2] = next_w[3] = 0.0f;
  };
  const auto put = [&] {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) xs[tx][ty + 16 * i] = next_x[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) (kUp ? ws[tid % 4 * 4 + i][tid / 4] : ws[ty][tx * 4 + i]) = next_w[i];
  };

  float totals[kPerThread][4];
  fetch(0);
  for (int begin = 0; begin < rows.K; begin += kSegment) {
    const int n = min(kSegment, rows.K - begin);
    __syncthreads();
    put();
    __syncthreads();
    if (begin + kSegment < rows.K) fetch(begin + kSegment);
    float sums[kPerThread][4] = {};
#pragma unroll
    for (int k = 0; k < kSegment; ++k) {
      if (k >= n) continue;
      const float4 v = *reinterpret_cast<const float4*>(&ws[k][tx * 4]);
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const float a = xs[k][ty * kPerThread + i];
        sums[i][0] = fmaf(a, v.x, sums[i][0]);
        sums[i][1] = fmaf(a, v.y, sums[i][1]);
        sums[i][2] = fmaf(a, v.z, sums[i][2]);
        sums[i][3] = fmaf(a, v.w, sums[i][3]);
      }
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) totals[i][j] = begin == 0 ? sums[i][j] : totals[i][j] + sums[i][j];
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int t = ty * kPerThread + i;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (token + t < tokens && first + tx * 4 + j < rows.N)
        to[static_cast<int64_t>(t) * rows.y_token + first + tx * 4 + j] = totals[i][j];
  }
  if (first == 0)
    for (int i = tid; i < min(kTokens, tokens - token) * rope; i += kThreads)
      to[static_cast<int64_t>(i / rope) * rows.y_token + rows.N + i % rope] =
          from[static_cast<int64_t>(i / rope) * rows.x_token + rows.K + i % rope];
}

// ---- launches

template <Stored kStored, bool kUp, int kTokens>
void stream(const OpDesc& desc, const Args& args, bool rounded, Stream& stream) {
  HeadRows rows = head_rows(desc, kUp);
  rows.rounded = rounded;
  const int tokens = static_cast<int>(args.now.tokens), segments = ceil_div(rows.K, kSegment);
  const int slices = ceil_div(rows.N, kUp ? kStreamRows : kStreamColumns);
  const int width = kUp ? kStreamRows + 1 : kStreamColumns;
  const dim3 grid(static_cast<unsigned>(rows.heads * slices), static_cast<unsigned>(ceil_div(tokens, kTokens)));
  const size_t shared = sizeof(float) * static_cast<size_t>(kTokens * (rows.K + segments * width));
  const KvB<kStored> w = kv_b<kStored>(desc, args);
  const float* x = args.input<float>(0);
  float* y = args.output<float>(0);
  if constexpr (kUp) launch(up_stream_kernel<kStored, kTokens>, grid, kThreads, shared, stream, w, rows, tokens, x, y);
  else
    launch(absorb_stream_kernel<kStored, kTokens>, grid, kThreads, shared, stream, w, rows, tokens,
           static_cast<int>(desc.attrs.integer(Attr::rope_dim)), x, y);
}

template <Stored kStored, bool kUp, int kPerThread>
void tile(const OpDesc& desc, const Args& args, Stream& stream) {
  const HeadRows rows = head_rows(desc, kUp);
  const int tokens = static_cast<int>(args.now.tokens);
  const dim3 grid(static_cast<unsigned>(rows.heads * ceil_div(rows.N, kTileColumns)),
                  static_cast<unsigned>(ceil_div(tokens, 16 * kPerThread)));
  launch(tile_kernel<kStored, kUp, kPerThread>, grid, kThreads, 0, stream, kv_b<kStored>(desc, args), rows, tokens,
         static_cast<int>(kUp ? 0 : desc.attrs.integer(Attr::rope_dim)), args.input<float>(0), args.output<float>(0));
}

template <Stored kStored, bool kUp>
void product_of(const OpDesc& desc, const Args& args, bool rounded, Stream& s) {
  const int64_t tokens = args.now.tokens;
  if (tokens == 0) return;
  if (tokens == 1) return stream<kStored, kUp, 1>(desc, args, rounded, s);
  if (tokens <= kFewTokens) return stream<kStored, kUp, 8>(desc, args, rounded, s);
  tokens <= 64 ? tile<kStored, kUp, 4>(desc, args, s) : tile<kStored, kUp, 8>(desc, args, s);
}

template <bool kUp>
void product(const OpDesc& desc, const Args& args, bool rounded, Stream& stream) {
  const OperandDesc& w = desc.in(1);
  if (w.format == Format::fp8) return product_of<Stored::fp8, kUp>(desc, args, rounded, stream);
  if (w.stored == DType::bf16) return product_of<Stored::bf16, kUp>(desc, args, rounded, stream);
  if (w.stored == DType::f16) return product_of<Stored::f16, kUp>(desc, args, rounded, stream);
  product_of<Stored::f32, kUp>(desc, args, rounded, stream);
}

template <bool kUp>
void exact_product(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  product<kUp>(desc, args, false, stream);
}

const char* refuse(const OpDesc& desc, const DeviceInfo&) {
  return refuse_kv_b(desc);
}

}  // namespace

void stream_product(const OpDesc& desc, const Args& args, bool up, Stream& stream) {
  CHECK(args.now.tokens <= kFewTokens, "{} tokens are too many to stream", args.now.tokens);
  up ? product<true>(desc, args, true, stream) : product<false>(desc, args, true, stream);
}

const char* refuse_kv_b(const OpDesc& desc) {
  const OperandDesc& w = desc.in(1);
  const bool plain =
      w.format == Format::plain && (w.stored == DType::bf16 || w.stored == DType::f16 || w.stored == DType::f32);
  if (!plain && w.format != Format::fp8) return "kv_b_proj must be BF16, F16, F32 or FP8 with block scales";
  if (w.type.dim(1).factor % kSegment != 0) return "kv_lora_rank must be a multiple of 16";
  if (w.type.dim(1).factor > 1024 || desc.attrs.integer(Attr::nope_dim) > 512)
    return "kv_lora_rank is above 1024 or qk_nope_head_dim above 512";
  return nullptr;
}

}  // namespace moesaic::cuda::folding

namespace moesaic::cuda {

const Kernel kMlaAbsorb{.name = "mla_absorb.cuda",
                        .op = Op::mla_absorb,
                        .backend = Backend::cuda,
                        .refuse = folding::refuse,
                        .launch = folding::exact_product<false>};
const Kernel kMlaUp{.name = "mla_up.cuda",
                    .op = Op::mla_up,
                    .backend = Backend::cuda,
                    .refuse = folding::refuse,
                    .launch = folding::exact_product<true>};

}  // namespace moesaic::cuda
