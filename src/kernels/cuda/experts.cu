// expert_linear and expert_swiglu in float32 arithmetic for every weight format, shape and routing. Eight lanes compute
// two neighbouring output rows for eight routed rows at a time, striding over K eight elements each, so every sum has
// one order whatever else is in the step.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/stored_matrix.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kWarps = 4;   // of a block
constexpr int kTokens = 8;  // routed rows whose sums a lane holds
constexpr int kChunk = 8;   // elements of K a lane takes at a time
constexpr int kLanes = 8;   // that share two output rows
constexpr int kBlockRows = kWarps * kWarp / kLanes * 2;

// Reads kBytes at any address; in one access where it is aligned.
template <int kBytes>
__device__ __forceinline__ void read_bytes(const std::byte* p, unsigned (&words)[kBytes / 4]) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  if (kBytes % 16 == 0 && address % 16 == 0) {
    for (int i = 0; i < kBytes / 16; ++i) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(p) + i);
      words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
  } else if (address % 4 == 0) {
    for (int i = 0; i < kBytes / 4; ++i) words[i] = __ldg(reinterpret_cast<const unsigned*>(p) + i);
  } else {
    for (int i = 0; i < kBytes / 4; ++i) {
      words[i] = 0;
      for (int b = 0; b < 4; ++b) words[i] |= static_cast<unsigned>(p[4 * i + b]) << (8 * b);
    }
  }
}

// w = elements k .. k + count - 1 of row n, and zeros. What load_eight() does, at any address and for any K.
template <Stored kStored>
__device__ __forceinline__ void read_chunk(const StoredMatrix& m, int n, int k, int count, float (&w)[kChunk]) {
  constexpr int kBytes = kEightBytes<kStored>;
  constexpr bool kScaled = kStored == Stored::fp8 || kStored == Stored::mxfp4 || kStored == Stored::int4;
  const std::byte* from = m.codes + (static_cast<int64_t>(n) * m.K + k) * kBytes / kChunk;
  unsigned words[kBytes / 4] = {};
  if (count == kChunk) {
    read_bytes<kBytes>(from, words);
  } else {  // only formats of whole bytes have such an end
#pragma unroll
    for (int b = 0; b < kBytes; ++b)
      if (b < count * kBytes / kChunk) words[b / 4] |= static_cast<unsigned>(from[b]) << (b % 4 * 8);
  }
  const bool one_scale = kStored != Stored::fp8 || m.scale_cols % kChunk == 0;
  const float scale = scale_at<kStored>(m, n, k);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    w[i] = code_of<kStored>(words, i);
    if (kScaled) w[i] *= one_scale ? scale : i < count ? scale_at<kStored>(m, n, k + i) : 0;
  }
}

__device__ __forceinline__ void read_x(const float* x, int count, bool fours, float (&v)[kChunk]) {
  if (fours && count == kChunk) {
    const float4 a = *reinterpret_cast<const float4*>(x), b = *reinterpret_cast<const float4*>(x + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) v[i] = i < count ? x[i] : 0;
}

// Adds up lanes that differ in bit kBit; each keeps half of the 4 kBit sums.
template <int kBit>
__device__ __forceinline__ void fold_lanes(float (&v)[2 * kTokens]) {
  const bool upper = (threadIdx.x & kBit) != 0;
#pragma unroll
  for (int i = 0; i < 2 * kBit; ++i) {
    const float kept = upper ? v[i + 2 * kBit] : v[i], sent = upper ? v[i] : v[i + 2 * kBit];
    v[i] = kept + __shfl_xor_sync(kAllLanes, sent, kBit);
  }
}

// Products of rows n and n + 1, n even and different in every kLanes lanes, with `count` routed rows from r.
template <Stored kStored>
__device__ void multiply(const ExpertCall& call, const StoredMatrix& m, int e, int n, int64_t r, int count) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, last = call.N - 1;
  const bool fours = call.K % 4 == 0 && reinterpret_cast<uintptr_t>(call.x) % 16 == 0;
  const float* x[kTokens];
  float sums[2 * kTokens] = {};  // of routed row t and row n + i: 2 t + i
#pragma unroll
  for (int t = 0; t < kTokens; ++t) x[t] = call.x_row(r + min(t, count - 1));
  for (int k = lane * kChunk; k < call.K; k += kLanes * kChunk) {
    const int here = min(kChunk, call.K - k);
    float w[2][kChunk], v[kChunk];
    read_chunk<kStored>(m, min(n, last), k, here, w[0]);
    read_chunk<kStored>(m, min(n + 1, last), k, here, w[1]);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (t >= count) continue;
      read_x(x[t] + k, here, fours, v);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) sums[2 * t] += w[0][i] * v[i], sums[2 * t + 1] += w[1][i] * v[i];
    }
  }
  __syncwarp();
  fold_lanes<4>(sums), fold_lanes<2>(sums), fold_lanes<1>(sums);  // lane t now has those of routed row t
  if (lane >= count || n > last) return;
  const float2 bias = bias_pair(call, e, n);
  write_pair(call, n, r + lane, sums[0] + bias.x, sums[1] + bias.y);
}

// Grid: (output rows / kBlockRows, experts reached).
template <Stored kStored>
__global__ void __launch_bounds__(kWarps* kWarp) experts_kernel(ExpertCall call, StoredMatrix first) {
  after_previous();
  const int e = expert_with_rows(call.offsets, call.E, static_cast<int>(blockIdx.y));
  if (e == call.E) return;
  StoredMatrix m = first;
  m.codes += e * call.matrix_bytes, m.scales += e * call.matrix_bytes;
  const int n = static_cast<int>(blockIdx.x) * kBlockRows + static_cast<int>(threadIdx.x) / kLanes * 2;
  const int begin = call.offsets[e], end = call.offsets[e + 1];
  for (int r = begin; r < end; r += kTokens) multiply<kStored>(call, m, e, n, r, min(kTokens, end - r));
}

const char* refuse(const OpDesc& desc, const DeviceInfo& device) {
  const OperandDesc& w = desc.in(3);
  if (w.format == Format::plain && w.stored != DType::f32 && w.stored != DType::bf16 && w.stored != DType::f16)
    return "expert weights are not F32, BF16 or F16";
  if (w.type.dim(0).factor > 65535) return "more than 65535 experts";
  return refuse_types(desc, device);
}

void experts(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const ExpertCall call = expert_call(desc, args);
  const OperandDesc& w = desc.in(3);
  const dim3 grid(static_cast<unsigned>(ceil_div(call.N, kBlockRows)),
                  static_cast<unsigned>(experts_reached(call.E, routed_rows(desc, args))));
  const StoredMatrix first = stored_matrix(w, call.weight);  // of expert 0
  with_format(stored_as(w), [&](auto stored) {
    launch(experts_kernel<decltype(stored)::value>, grid, kWarps * kWarp, 0, stream, call, first);
  });
}

}  // namespace

const Kernel kExpertLinear{.name = "expert_linear.cuda",
                           .op = Op::expert_linear,
                           .backend = Backend::cuda,
                           .refuse = refuse,
                           .launch = experts};
const Kernel kExpertSwiglu{.name = "expert_swiglu.cuda",
                           .op = Op::expert_swiglu,
                           .backend = Backend::cuda,
                           .refuse = refuse,
                           .launch = experts};

}  // namespace moesaic::cuda
