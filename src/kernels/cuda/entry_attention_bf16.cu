// entry_attend on the matrix units, for bf16 caches: q and the weights of the softmax are rounded to bf16, sums are
// float32. Rows, chunks and parts are those of entry_attention.cuh.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/entry_attention.cuh"
#include "kernels/cuda/folds.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/rows.cuh"

namespace moesaic::cuda {
namespace {

using namespace entry;

constexpr int kHeads = 16;  // of a block: the rows of a matrix product
constexpr int kSlice = 64;  // channels of a warp, of q in the scores and of the output in the weighted sum
constexpr int kSteps = kSlice / 16;
constexpr int kMostWarps = kMostDim / kSlice;
constexpr int kPad = 8;  // elements after a row of shared memory, so that 8 rows lie in different banks
constexpr int kScoreStride = kChunk + 8;

// Shared memory after the rows: scores of each warp's slice, weights, and what a head's sums are multiplied with.
struct Scratch {
  float scores[kMostWarps][kHeads][kScoreStride];
  uint16_t weights[kHeads][kChunk + kPad];
  float rescale[kHeads];
  float2 merge[kHeads];
  Softmax part[kHeads], whole[kHeads];
  uintptr_t address[3][kChunk];  // of a chunk and the two after it
  Visible seen;
};

// Starts to copy the rows of a chunk, [kChunk][padded + kPad]; zeros where there is none and beyond D.
__device__ __forceinline__ void copy_rows(const EntryAttend& a, const uintptr_t* address, uint16_t* rows) {
  const int units = a.padded / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * units; i += static_cast<int>(blockDim.x)) {
    const int d = i % units * 8;
    const uintptr_t row = d < a.D ? address[i / units] : 0;
    uint16_t* to = rows + i / units * (a.padded + kPad) + d;
    if ((row & 1) == 0) {
      copy_async(to, row != 0 ? reinterpret_cast<const uint16_t*>(row) + d : reinterpret_cast<const uint16_t*>(a.q),
                 row != 0 ? 16 : 0);
    } else {  // few rows: those of a step of few tokens
      const auto* from = reinterpret_cast<const float4*>(row - 1) + d / 4;
      const float4 low = from[0], high = from[1];
      *reinterpret_cast<uint4*>(to) =
          uint4{pack_bf16(low.x, low.y), pack_bf16(low.z, low.w), pack_bf16(high.x, high.y), pack_bf16(high.z, high.w)};
    }
  }
  commit_copies();
}

// Turns the scores of one head into weights, a lane a row; by one warp. The total is that of the exact weights.
__device__ __forceinline__ void soften(const EntryAttend& a, Scratch& s, const uintptr_t* address, int head) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
  float score = s.scores[0][head][lane];
  for (int w = 1; w < warps; ++w) score += s.scores[w][head][lane];
  score = address[lane] != 0 ? __fmul_rn(score, a.scale) : -INFINITY;
  float top[1] = {score};
  warp_maxima(top);
  const Softmax before = s.part[head];
  top[0] = fmaxf(before.top, top[0]);
  const float base = top[0] == -INFINITY ? 0.0f : top[0];  // every row so far is absent
  const float rescale = expf(before.top - base);
  float total[1] = {expf(score - base)};
  s.weights[head][lane] = float_to_bf16(total[0]);
  warp_sums(total);
  __syncwarp();
  if (lane == 0) s.part[head] = {top[0], fmaf(before.total, rescale, total[0])}, s.rescale[head] = rescale;
}

// A block for each (token, 16 heads), and for each part unless kWhole. In the scores a warp multiplies 64 channels of
// q, which stay in registers, with those of all rows of the chunk; in the weighted sum it has 64 output channels.
template <bool kWhole>
__global__ void __launch_bounds__(kMostWarps* kWarp, 2) entry_bf16_kernel(EntryAttend a) {
  after_previous();
  auto& s = *dynamic_shared<Scratch>();
  auto* rows = reinterpret_cast<uint16_t*>(dynamic_shared<std::byte>() + ceil_div(sizeof(Scratch), size_t{16}) * 16);
  const int tid = static_cast<int>(threadIdx.x), warp = tid / kWarp, lane = tid % kWarp, g = lane / 4, q = lane % 4;
  const int warps = static_cast<int>(blockDim.x) / kWarp, stride = a.padded + kPad;
  const int first_head = static_cast<int>(blockIdx.x) % a.groups * kHeads;
  if (tid == 0) s.seen.look(a, static_cast<int>(blockIdx.x) / a.groups);
  __syncthreads();
  const int part_begin = kWhole ? 0 : static_cast<int>(blockIdx.y);
  if (part_begin >= s.seen.parts) return;
  const int t = s.seen.t, chunks = s.seen.chunks, chunks_of_part = s.seen.chunks_of_part;
  const int begin = part_begin * chunks_of_part, end = kWhole ? chunks : min(chunks, begin + chunks_of_part);

  unsigned query[kSteps][4];
#pragma unroll
  for (int i = 0; i < kSteps * 4; ++i) {
    const int head = first_head + g + i % 2 * 8, d = warp * kSlice + i / 4 * 16 + i % 4 / 2 * 8 + 2 * q;
    const bool there = head < a.heads && d < a.D;
    const float2 pair =
        there ? *reinterpret_cast<const float2*>(a.q + (static_cast<int64_t>(t) * a.heads + head) * a.D + d) : float2{};
    query[i / 4][i % 4] = pack_bf16(pair.x, pair.y);
  }
  if (tid < kHeads) {
    s.part[tid] = {-INFINITY, 0};
    s.whole[tid] = {first_head + tid < a.heads ? a.sinks[first_head + tid] : 0.0f, 1};
  }
  const auto locate = [&](int chunk) {
    if (tid < kChunk) s.address[chunk % 3][tid] = chunk < end ? s.seen.address<uint16_t>(a, chunk * kChunk + tid) : 0;
  };
  locate(begin);
  locate(begin + 1);
  __syncthreads();
  const auto buffer = [&](int chunk) { return rows + chunk % 2 * kChunk * stride; };
  copy_rows(a, s.address[begin % 3], buffer(begin));

  float sum[kSlice / 8][4] = {}, result[kWhole ? kSlice / 8 : 1][4] = {};
  for (int chunk = begin; chunk < end; ++chunk) {
    const uintptr_t* address = s.address[chunk % 3];
    const uint16_t* keys = buffer(chunk);
    const bool ends = (chunk + 1) % chunks_of_part == 0 || chunk + 1 == chunks;
    if (chunk + 1 < end) copy_rows(a, s.address[(chunk + 1) % 3], buffer(chunk + 1));
    else commit_copies();
    wait_copies<1>();
    __syncthreads();
    locate(chunk + 2);
    float scores[kChunk / 8][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int n = 0; n < kChunk / 8; n += 2) {
        unsigned b[4];
        load_matrices(b,
                      keys + (8 * n + lane / 16 * 8 + lane % 8) * stride + warp * kSlice + k * 16 + lane / 8 % 2 * 8);
        mma_bf16(scores[n], query[k], b[0], b[1]);
        mma_bf16(scores[n + 1], query[k], b[2], b[3]);
      }
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      *reinterpret_cast<float2*>(&s.scores[warp][g][8 * n + 2 * q]) = make_float2(scores[n][0], scores[n][1]);
      *reinterpret_cast<float2*>(&s.scores[warp][g + 8][8 * n + 2 * q]) = make_float2(scores[n][2], scores[n][3]);
    }
    __syncthreads();
    for (int head = warp; head < kHeads; head += warps) {
      soften(a, s, address, head);
      if (ends && lane == 0) {
        if (kWhole) s.merge[head] = merge(s.whole[head], s.part[head]);
        else if (first_head + head < a.heads)
          a.totals[(static_cast<int64_t>(t) * kMostParts + part_begin) * a.heads + first_head + head] =
              make_float2(s.part[head].top, s.part[head].total);
        s.part[head] = {-INFINITY, 0};
      }
    }
    __syncthreads();
    const float rescale[2] = {s.rescale[g], s.rescale[g + 8]};
#pragma unroll
    for (int n = 0; n < kSlice / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] *= rescale[i / 2];
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k) {
      unsigned weights[4];
      load_matrices(weights, &s.weights[lane % 16][16 * k + lane / 16 * 8]);
#pragma unroll
      for (int n = 0; n < kSlice / 8; n += 2) {
        unsigned b[4];
        load_matrices_transposed(b, keys + (16 * k + lane % 16) * stride + warp * kSlice + 8 * n + lane / 16 * 8);
        mma_bf16(sum[n], weights, b[0], b[1]);
        mma_bf16(sum[n + 1], weights, b[2], b[3]);
      }
    }
    if (kWhole && ends) {
      const float2 factors[2] = {s.merge[g], s.merge[g + 8]};
#pragma unroll
      for (int n = 0; n < kSlice / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& to = result[kWhole ? n : 0][i];
          to = merged(to, sum[n][i], factors[i / 2]);
          sum[n][i] = 0;
        }
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = first_head + g + 8 * i;
    if (head >= a.heads) break;
    const int64_t at = kWhole ? static_cast<int64_t>(t) * a.heads + head
                              : (static_cast<int64_t>(t) * kMostParts + part_begin) * a.heads + head;
    float* to = (kWhole ? a.out : a.sums) + at * a.D + warp * kSlice + 2 * q;
    const float total = kWhole ? s.whole[g + 8 * i].total : 1.0f;
#pragma unroll
    for (int n = 0; n < kSlice / 8; ++n) {
      if (warp * kSlice + 8 * n >= a.D) break;
      const float* values = kWhole ? &result[kWhole ? n : 0][2 * i] : &sum[n][2 * i];
      *reinterpret_cast<float2*>(to + 8 * n) = make_float2(values[0] / total, values[1] / total);
    }
  }
}

// Four elements of kv, or of entries, a thread.
__global__ void round_kernel(const float* kv, const float* entries, int64_t count, uint16_t* to) {
  after_previous();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 4;
  if (i >= count) return;
  const float4 x = *reinterpret_cast<const float4*>((blockIdx.y == 0 ? kv : entries) + i);
  *reinterpret_cast<uint2*>(to + blockIdx.y * count + i) = make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w));
}

const char* refuse(const OpDesc& desc, const DeviceInfo& device) {
  if (desc.precision == Precision::float32) return "rounds queries and weights to bf16; float32 was asked for";
  if (desc.cache_dtype != DType::bf16) return "the cache must be bf16";
  return refuse_entries(desc, device);
}

int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo& device) {
  const int64_t rounded = 2 * desc.bounds.tokens * desc.attrs.integer(Attr::head_dim);
  return std::max(entry_workspace(desc, device), rounded * static_cast<int64_t>(sizeof(uint16_t)));
}

// Steps of many tokens round their own rows first, so that all rows can be copied as they are.
void attend_whole(EntryAttend& a, unsigned threads, size_t shared, std::byte* workspace, Stream& stream) {
  constexpr unsigned kThreads = 256;
  auto* rounded = reinterpret_cast<uint16_t*>(workspace);
  const int64_t count = static_cast<int64_t>(a.tokens) * a.D;
  a.rounded = rounded;
  launch(round_kernel,
         dim3(static_cast<unsigned>(ceil_div(count / 4, int64_t{kThreads})), a.entries != nullptr ? 2 : 1), kThreads, 0,
         stream, a.kv, a.entries, count, rounded);
  launch(entry_bf16_kernel<true>, static_cast<unsigned>(a.tokens) * static_cast<unsigned>(a.groups), threads, shared,
         stream, a);
  append(a, DType::bf16, a.tokens, stream);
}

void entry_attend(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const int64_t tokens = args.now.tokens;
  if (tokens == 0) return;
  EntryAttend a = entry_arguments(desc, args, workspace, kHeads, 1);
  const auto threads = static_cast<unsigned>(a.padded / kSlice * kWarp);
  const size_t shared = sizeof(Scratch) + 16 + 2 * sizeof(uint16_t) * static_cast<size_t>(kChunk * (a.padded + kPad));
  if (tokens > kSpreadTokens) return attend_whole(a, threads, shared, workspace, stream);
  launch(entry_bf16_kernel<false>, dim3(static_cast<unsigned>(tokens * a.groups), kMostParts), threads, shared, stream,
         a);
  merge_and_append(a, desc.cache_dtype, tokens, stream);
}

}  // namespace

const Kernel kEntryAttendBf16{.name = "entry_attend.bf16.cuda",
                              .op = Op::entry_attend,
                              .backend = Backend::cuda,
                              .refuse = refuse,
                              .workspace_bytes = workspace_bytes,
                              .launch = entry_attend};

}  // namespace moesaic::cuda
