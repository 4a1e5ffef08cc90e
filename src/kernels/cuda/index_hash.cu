// index_topk by hash: see ir/index_hash.h and kernels/cpu/index_hash.cc. A block of the cache holds its 64 keys' sign
// bits [64][bits / 64] and then their lengths, f32[64]. Scores are made in float64 and rounded once, as the definition
// says, so that ties are those of the other backends.
#include <algorithm>

#include "ir/index_hash.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/index_select.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowsAtOnce = 8;     // that share a thread's projection
constexpr int64_t kBlocks = 1056;  // eight of 256 threads an SM
constexpr double kPi = 3.14159265358979323846;

struct HashSizes {
  int heads, D, bits;

  __host__ __device__ int words() const { return bits / 64; }
};

// What lies in the workspace before the scores.
struct HashQueries {
  uint64_t* hashes;  // [T, heads, words]
  double* lengths;   // [T, heads]
  double* cosines;   // [bits + 1]
};

__device__ __forceinline__ float* key_lengths(std::byte* block, int words) {
  return reinterpret_cast<float*>(block + int64_t{kBlockTokens} * words * 8);
}

// Sign bits of rows x[count, D], count <= kRowsAtOnce: this thread makes bit `bit` of all of them, its warp a half
// word. Row r's halves go to out + r * stride.
__device__ __forceinline__ void hash_rows(const float* x, int count, int D, int bit, unsigned* out, int stride) {
  float sums[kRowsAtOnce] = {};
  uint64_t word = 0;
  for (int d = 0; d < D; ++d) {
    const uint64_t index = static_cast<uint64_t>(bit) * static_cast<uint64_t>(D) + static_cast<uint64_t>(d);
    if (d == 0 || index % 64 == 0) word = hash_projection_word(index / 64);
    const unsigned sign = static_cast<unsigned>(word >> (index % 64) & 1) << 31;
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) sums[r] += __uint_as_float(__float_as_uint(x[r * D + d]) ^ sign);
  }
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    const unsigned half = __ballot_sync(kAllLanes, sums[r] < 0 ? 1 : 0);
    if (r < count && bit % 32 == 0) out[r * stride + bit / 32] = half;
  }
}

__device__ __forceinline__ double length(const float* x, int D) {
  double square = 0;
  for (int d = 0; d < D; ++d) square += static_cast<double>(x[d]) * static_cast<double>(x[d]);
  return sqrt(square);
}

// Hashes 8 heads of a token's query (blockIdx.x the token), the last block of gridDim.y its key, which goes to the
// cache. Shared memory: the rows, [8][D].
__global__ void __launch_bounds__(kThreads) hash_kernel(std::byte* blocks, IndexEntries entries, HashSizes sizes,
                                                        const float* q, const float* k, HashQueries out) {
  after_previous();
  float* x = dynamic_shared<float>();
  const int64_t t = blockIdx.x;
  const int tid = static_cast<int>(threadIdx.x), words = sizes.words();
  const bool is_key = blockIdx.y + 1 == gridDim.y;
  const int first = static_cast<int>(blockIdx.y) * kRowsAtOnce;
  const int count = is_key ? 1 : min(kRowsAtOnce, sizes.heads - first);
  const float* from = is_key ? k + t * sizes.D : q + (t * sizes.heads + first) * sizes.D;
  for (int i = tid; i < kRowsAtOnce * sizes.D; i += kThreads) x[i] = i < count * sizes.D ? from[i] : 0.0f;
  __syncthreads();
  const int p = entries.positions[t], row = p % static_cast<int>(kBlockTokens);
  std::byte* block = blocks + entries.table(t)[p / kBlockTokens] * entries.block_stride;
  uint64_t* hashes =
      is_key ? reinterpret_cast<uint64_t*>(block) + row * words : out.hashes + (t * sizes.heads + first) * words;
  for (int bit = tid; bit < sizes.bits; bit += kThreads)  // whole warps
    hash_rows(x, count, sizes.D, bit, reinterpret_cast<unsigned*>(hashes), 2 * words);
  if (tid < count) {
    const double l = length(x + tid * sizes.D, sizes.D);
    if (is_key) key_lengths(block, words)[row] = static_cast<float>(l);
    else out.lengths[t * sizes.heads + first + tid] = l;
  }
  if (t == 0 && is_key)
    for (int i = tid; i <= sizes.bits; i += kThreads)
      out.cosines[i] = cos(kPi * static_cast<double>(i) / static_cast<double>(sizes.bits));
}

// How many of the bits of two hashes differ. kWords 0: `words` of them, read again for every head.
template <int kWords>
struct KeyHash {
  uint64_t key[kWords];

  __device__ __forceinline__ KeyHash(const uint64_t* from, int) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) key[i] = from[i];
  }
  __device__ __forceinline__ int differing(const uint64_t* query) const {
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kWords; ++i) sum += __popcll(query[i] ^ key[i]);
    return sum;
  }
};
template <>
struct KeyHash<0> {
  const uint64_t* key;
  int words;

  __device__ __forceinline__ KeyHash(const uint64_t* from, int count) : key(from), words(count) {}
  __device__ __forceinline__ int differing(const uint64_t* query) const {
    int sum = 0;
    for (int i = 0; i < words; ++i) sum += __popcll(query[i] ^ key[i]);
    return sum;
  }
};

// scores[local token, entry] of every gridDim.y-th tile of 256 entries, an entry a thread. Shared memory: the token's
// hashes [heads][words], lengths and weights f64[heads], and the cosines.
template <int kWords>
__global__ void __launch_bounds__(kThreads)
    score_kernel(IndexEntries entries, HashSizes sizes, int64_t first_token, int top_k, double scale, const float* w,
                 HashQueries from, float* all_scores, int64_t stride) {
  after_previous();
  const int tid = static_cast<int>(threadIdx.x), words = sizes.words(), heads = sizes.heads;
  uint64_t* queries = dynamic_shared<uint64_t>();
  double* lengths = reinterpret_cast<double*>(queries + heads * words);
  double *weights = lengths + heads, *cosines = weights + heads;
  const int64_t t = first_token + blockIdx.x;
  const int n = entries.visible(t);
  if (n <= top_k) return;  // all are chosen
  for (int i = tid; i < heads * words; i += kThreads) queries[i] = from.hashes[t * heads * words + i];
  for (int i = tid; i <= sizes.bits; i += kThreads) cosines[i] = from.cosines[i];
  for (int i = tid; i < heads; i += kThreads) {
    lengths[i] = from.lengths[t * heads + i];
    weights[i] = static_cast<double>(w[t * heads + i]);
  }
  __syncthreads();
  const int32_t* table = entries.table(t);
  for (int64_t e = static_cast<int64_t>(blockIdx.y) * kThreads + tid; e < n; e += int64_t{gridDim.y} * kThreads) {
    const std::byte* block = entries.blocks + table[e / kBlockTokens] * entries.block_stride;
    const int64_t row = e % kBlockTokens;
    const KeyHash<kWords> key(reinterpret_cast<const uint64_t*>(block) + row * words, words);
    const auto key_length =
        static_cast<double>(reinterpret_cast<const float*>(block + int64_t{kBlockTokens} * words * 8)[row]);
    double total = 0;
    for (int h = 0; h < heads; ++h) {
      const double product = lengths[h] * key_length * cosines[key.differing(queries + h * words)] * scale;
      total += weights[h] * (product < 0 ? 0 : product);  // NaN stays
    }
    all_scores[blockIdx.x * stride + e] = static_cast<float>(total);
  }
}

HashSizes hash_sizes(const OpDesc& desc) {
  const auto attr = [&](Attr a) { return static_cast<int>(desc.attrs.integer(a)); };
  return {attr(Attr::heads), attr(Attr::head_dim), attr(Attr::hash_bits)};
}

int64_t align256(int64_t bytes) {
  return ceil_div(bytes, 256) * 256;
}

struct HashBytes {
  int64_t hashes, lengths, cosines;

  explicit HashBytes(const OpDesc& desc) {
    const HashSizes s = hash_sizes(desc);
    const int64_t rows = desc.bounds.tokens * s.heads;
    hashes = align256(rows * s.words() * 8), lengths = align256(rows * 8), cosines = align256((s.bits + 1) * 8);
  }
  int64_t all() const { return hashes + lengths + cosines; }
};

const char* refuse(const OpDesc& desc, const DeviceInfo&) {
  if (!desc.attrs.has(Attr::hash_bits)) return "chooses by hash, not by exact scores";
  const int64_t bits = desc.attrs.integer(Attr::hash_bits);
  if (bits <= 0 || bits % 64 != 0) return "hash_bits must be a multiple of 64";
  if (bits > 4096 || desc.attrs.integer(Attr::head_dim) > 1024) return "hash_bits is above 4096 or head_dim above 1024";
  if (desc.attrs.integer(Attr::heads) * (bits / 8 + 16) + bits * 8 > 200 << 10)
    return "the hashes of a query exceed shared memory";
  if (desc.attrs.has(Attr::ratio)) return "keys of several tokens are not hashed";
  return nullptr;
}

int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo&) {
  return HashBytes(desc).all() + score_bytes(desc);
}

using ScoreKernel = decltype(&score_kernel<0>);
ScoreKernel score_kernel_of(int words) {
  return words == 1    ? score_kernel<1>
         : words == 2  ? score_kernel<2>
         : words == 4  ? score_kernel<4>
         : words == 8  ? score_kernel<8>
         : words == 16 ? score_kernel<16>
                       : score_kernel<0>;
}

void launch_hash(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  if (args.now.tokens == 0) return;
  const HashSizes sizes = hash_sizes(desc);
  const HashBytes bytes(desc);
  const HashQueries queries{reinterpret_cast<uint64_t*>(workspace), reinterpret_cast<double*>(workspace + bytes.hashes),
                            reinterpret_cast<double*>(workspace + bytes.hashes + bytes.lengths)};
  const IndexEntries entries = index_entries(desc, args);
  const IndexTurns turns = index_turns(desc, args, reinterpret_cast<float*>(workspace + bytes.all()));
  const dim3 rows(static_cast<unsigned>(args.now.tokens),
                  static_cast<unsigned>(ceil_div(sizes.heads, kRowsAtOnce) + 1));
  launch(hash_kernel, rows, kThreads, sizeof(float) * static_cast<size_t>(kRowsAtOnce * sizes.D), stream,
         args.cache.blocks, entries, sizes, args.input<float>(0), args.input<float>(1), queries);
  const auto shared = static_cast<size_t>(8 * (sizes.heads * (sizes.words() + 2) + sizes.bits + 1));
  for (int64_t first = 0; first < args.now.tokens; first += turns.chunk) {
    const int64_t tokens = std::min(turns.chunk, args.now.tokens - first);
    const dim3 grid(static_cast<unsigned>(tokens), blocks_per_token(tokens, ceil_div(turns.stride, kThreads), kBlocks));
    launch(score_kernel_of(sizes.words()), grid, kThreads, shared, stream, entries, sizes, first,
           static_cast<int>(desc.attrs.integer(Attr::top_k)), desc.attrs.number(Attr::scale), args.input<float>(2),
           queries, turns.scores, turns.stride);
    select_entries(desc, args, turns, first, tokens, stream);
  }
}

}  // namespace

const Kernel kIndexHash{.name = "index_topk.hash.cuda",
                        .op = Op::index_topk,
                        .backend = Backend::cuda,
                        .refuse = refuse,
                        .workspace_bytes = workspace_bytes,
                        .launch = launch_hash};

}  // namespace moesaic::cuda
