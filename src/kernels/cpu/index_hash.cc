// index_topk by hash (SimHash, Charikar 2002): two vectors at angle a have different signs in a share a / pi of random
// projections. A block of the cache holds its 64 keys' sign bits [64][bits / 64] and then their lengths, f32[64].
#include "ir/index_hash.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/index.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/rows.h"

namespace moesaic::cpu {
namespace {

int64_t align64(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// What is shared by the threads, then one thread's part.
struct HashSizes {
  int64_t heads, D, bits, words;
  int64_t projections, cosines, shared;                 // bytes
  int64_t projected, query, lengths, gemm, per_thread;  // bytes

  explicit HashSizes(const OpDesc& desc)
      : heads(desc.attrs.integer(Attr::heads)),
        D(desc.attrs.integer(Attr::head_dim)),
        bits(desc.attrs.integer(Attr::hash_bits)),
        words(bits / 64) {
    projections = align64(bits * D * 4), cosines = align64((bits + 1) * 8), shared = projections + cosines;
    projected = align64(heads * bits * 4), query = align64(heads * words * 8), lengths = align64(heads * 8);
    gemm = scratch_bytes(D);
    per_thread = projected + query + lengths + gemm;
  }
};

struct IndexHash {
  const OpDesc& desc;
  const Args& args;
  std::byte* workspace;
  const HashSizes sizes{desc};

  const std::byte* projections() const { return workspace; }
  double* cosines() const { return reinterpret_cast<double*>(workspace + sizes.projections); }
  std::byte* of_thread(int thread) const { return workspace + sizes.shared + thread * sizes.per_thread; }
  float* projected(int thread) const { return reinterpret_cast<float*>(of_thread(thread)); }
  uint64_t* query(int thread) const { return reinterpret_cast<uint64_t*>(of_thread(thread) + sizes.projected); }
  double* lengths(int thread) const {
    return reinterpret_cast<double*>(of_thread(thread) + sizes.projected + sizes.query);
  }
  std::byte* gemm_scratch(int thread) const { return of_thread(thread) + sizes.per_thread - sizes.gemm; }

  std::byte* block(int64_t t, int64_t position) const {
    const BatchView& batch = *args.batch;
    return args.cache.block(batch.block_tables[batch.sequence_of[t] * batch.max_blocks + position / kBlockTokens]);
  }
  uint64_t* hashes(std::byte* base) const { return reinterpret_cast<uint64_t*>(base); }
  float* key_lengths(std::byte* base) const {
    return reinterpret_cast<float*>(base + kBlockTokens * sizes.words * static_cast<int64_t>(sizeof(uint64_t)));
  }

  // Packed as gemm.h wants it, [D][16] per 16 projections, each +1 or -1.
  void fill_tables() const {
    auto* out = reinterpret_cast<float*>(workspace);
    for (int64_t b = 0; b < sizes.bits; ++b)
      for (int64_t d = 0; d < sizes.D; ++d)
        out[(b / 16 * sizes.D + d) * 16 + b % 16] = hash_projection_sign(b, d, sizes.D) ? -1.0f : 1.0f;
    for (int64_t i = 0; i <= sizes.bits; ++i)
      cosines()[i] = std::cos(std::numbers::pi * static_cast<double>(i) / static_cast<double>(sizes.bits));
  }

  // Sign bits [rows, words] of x [rows, D].
  void hash(const float* x, int64_t rows, int thread, uint64_t* out) const {
    float* p = projected(thread);
    gemm_f32(gemm_kernels(cpu_isa()), {projections(), GemmFormat::f32, sizes.bits, sizes.D}, 0, sizes.bits,
             {x, sizes.D, nullptr, rows}, nullptr, p, sizes.bits, gemm_scratch(thread));
    std::fill_n(out, rows * sizes.words, 0);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t b = 0; b < sizes.bits; ++b)
        out[r * sizes.words + b / 64] |= static_cast<uint64_t>(p[r * sizes.bits + b] < 0) << (b % 64);
  }
  double length(const float* x) const {
    double square = 0;
    for (int64_t d = 0; d < sizes.D; ++d) square += static_cast<double>(x[d]) * static_cast<double>(x[d]);
    return std::sqrt(square);
  }

  void append(int64_t t, int thread) const {
    const float* key = args.input<float>(1) + t * sizes.D;
    const int64_t position = args.batch->positions[t], row = position % kBlockTokens;
    std::byte* base = block(t, position);
    hash(key, 1, thread, hashes(base) + row * sizes.words);
    key_lengths(base)[row] = static_cast<float>(length(key));
  }
  void begin(int64_t t, int thread) const {
    const float* q = args.input<float>(0) + t * sizes.heads * sizes.D;
    hash(q, sizes.heads, thread, query(thread));
    for (int64_t h = 0; h < sizes.heads; ++h) lengths(thread)[h] = length(q + h * sizes.D);
  }
  float score(int64_t t, const uint64_t* key, float key_length, int thread) const {
    const double scale = desc.attrs.number(Attr::scale);
    double total = 0;
    for (int64_t h = 0; h < sizes.heads; ++h) {
      int different = 0;
      for (int64_t w = 0; w < sizes.words; ++w) different += std::popcount(query(thread)[h * sizes.words + w] ^ key[w]);
      const double product = lengths(thread)[h] * static_cast<double>(key_length) * cosines()[different] * scale;
      total += static_cast<double>(args.input<float>(2)[t * sizes.heads + h]) * (product < 0 ? 0 : product);
    }
    return static_cast<float>(total);
  }
};

const char* refuse(const OpDesc& desc, const DeviceInfo& device) {
  if (!desc.attrs.has(Attr::hash_bits)) return "chooses by hash, not by exact scores";
  const int64_t bits = desc.attrs.integer(Attr::hash_bits);
  if (bits <= 0 || bits % 64 != 0) return "hash_bits must be a multiple of 64";
  if (desc.attrs.has(Attr::ratio)) return "keys of several tokens are not hashed";
  return refuse_types(desc, device);
}

int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo& device) {
  const HashSizes sizes(desc);
  return sizes.shared + device.threads * sizes.per_thread + select_workspace(desc, device);
}

void launch(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const IndexHash index{desc, args, workspace};
  index.fill_tables();
  stream.pool->run(args.now.tokens, [&](int64_t t, int thread) { index.append(t, thread); });
  const auto begin_token = [&](int64_t t, int thread) { index.begin(t, thread); };
  const auto score = [&](int64_t t, int64_t first, int64_t count, float* scores, int thread) {
    std::byte* base = index.block(t, first);
    for (int64_t i = 0; i < count; ++i)
      scores[i] = index.score(t, index.hashes(base) + i * index.sizes.words, index.key_lengths(base)[i], thread);
  };
  select_positions(desc, args, index.of_thread(stream.pool->threads()), stream, begin_token, score);
}

}  // namespace

const Kernel kIndexHash{.name = "index_topk.hash.cpu",
                        .op = Op::index_topk,
                        .backend = Backend::cpu,
                        .refuse = refuse,
                        .workspace_bytes = workspace_bytes,
                        .launch = launch};

}  // namespace moesaic::cpu
