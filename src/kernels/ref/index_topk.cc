#include <algorithm>
#include <cmath>
#include <numbers>

#include "ir/index_hash.h"
#include "kernels/ref/ref.h"

namespace moesaic::ref {
namespace {

std::byte* block(const Args& args, int64_t t, int64_t position) {
  const BatchView& batch = *args.batch;
  return args.cache.block(batch.block_tables[batch.sequence_of[t] * batch.max_blocks + position / kBlockTokens]);
}

double relu(double x) {
  return x < 0 ? 0 : x;  // NaN stays
}

// Keys [64][D] in each block.
struct ExactScores {
  const OpDesc& desc;
  const Args& args;
  int64_t heads = desc.attrs.integer(Attr::heads), D = desc.attrs.integer(Attr::head_dim);

  int64_t ratio = desc.attrs.integer(Attr::ratio, 1);

  double* key(int64_t t, int64_t entry) const {
    const EntryPlace place = entry_place(entry, ratio);
    return reinterpret_cast<double*>(block(args, t, place.block * kBlockTokens)) + place.row * D;
  }
  void append(int64_t t) const {
    const int64_t position = args.batch->positions[t];
    if ((position + 1) % ratio == 0) std::copy_n(args.input<double>(1) + t * D, D, key(t, position / ratio));
  }
  double score(int64_t t, int64_t position) const {
    double total = 0;
    for (int64_t h = 0; h < heads; ++h) {
      double dot = 0;
      for (int64_t d = 0; d < D; ++d) dot += args.input<double>(0)[(t * heads + h) * D + d] * key(t, position)[d];
      total += args.input<double>(2)[t * heads + h] * relu(dot * desc.attrs.number(Attr::scale));
    }
    return total;
  }
};

// Sign bits [64][bits / 64] and then lengths f32[64] in each block; scores are rounded to float32 like the lengths.
struct HashScores {
  const OpDesc& desc;
  const Args& args;
  int64_t heads = desc.attrs.integer(Attr::heads), D = desc.attrs.integer(Attr::head_dim);
  int64_t bits = desc.attrs.integer(Attr::hash_bits), words = bits / 64;
  std::vector<bool> query_signs = signs_of_queries();  // [T, heads, bits]

  std::vector<bool> signs_of_queries() const {
    std::vector<bool> out;
    for (int64_t row = 0; row < args.now.tokens * heads; ++row)
      for (int64_t b = 0; b < bits; ++b) out.push_back(sign(args.input<double>(0) + row * D, b));
    return out;
  }
  bool sign(const double* x, int64_t bit) const {
    double sum = 0;
    for (int64_t d = 0; d < D; ++d) sum += hash_projection_sign(bit, d, D) ? -x[d] : x[d];
    return sum < 0;
  }
  double length(const double* x) const {
    double square = 0;
    for (int64_t d = 0; d < D; ++d) square += x[d] * x[d];
    return std::sqrt(square);
  }
  uint64_t* hash(int64_t t, int64_t position) const {
    return reinterpret_cast<uint64_t*>(block(args, t, position)) + position % kBlockTokens * words;
  }
  float& key_length(int64_t t, int64_t position) const {
    std::byte* lengths = block(args, t, position) + kBlockTokens * bits / 8;
    return reinterpret_cast<float*>(lengths)[position % kBlockTokens];
  }
  void append(int64_t t) const {
    const int64_t position = args.batch->positions[t];
    const double* key = args.input<double>(1) + t * D;
    std::fill_n(hash(t, position), words, 0);
    for (int64_t b = 0; b < bits; ++b) hash(t, position)[b / 64] |= static_cast<uint64_t>(sign(key, b)) << (b % 64);
    key_length(t, position) = static_cast<float>(length(key));
  }
  double score(int64_t t, int64_t position) const {
    double total = 0;
    for (int64_t h = 0; h < heads; ++h) {
      const double* q = args.input<double>(0) + (t * heads + h) * D;
      int64_t different = 0;
      for (int64_t b = 0; b < bits; ++b)
        different += query_signs[static_cast<size_t>((t * heads + h) * bits + b)] !=
                             ((hash(t, position)[b / 64] >> (b % 64) & 1) != 0)
                         ? 1
                         : 0;
      const double cosine = std::cos(std::numbers::pi * static_cast<double>(different) / static_cast<double>(bits));
      const double product =
          length(q) * static_cast<double>(key_length(t, position)) * cosine * desc.attrs.number(Attr::scale);
      total += args.input<double>(2)[t * heads + h] * relu(product);
    }
    return static_cast<double>(static_cast<float>(total));
  }
};

struct Scored {
  double score;
  int64_t position;
};
bool ranks_before(const Scored& a, const Scored& b) {
  if (std::isnan(a.score) != std::isnan(b.score)) return std::isnan(b.score);
  if (a.score != b.score && !std::isnan(a.score)) return a.score > b.score;
  return a.position < b.position;
}

template <typename Scores>
void choose(const Scores& scores, const OpDesc& desc, const Args& args, Stream& stream) {
  const int64_t top_k = desc.attrs.integer(Attr::top_k), ratio = desc.attrs.integer(Attr::ratio, 1);
  for (int64_t t = 0; t < args.now.tokens; ++t) scores.append(t);
  stream.pool->run(args.now.tokens, [&](int64_t t, int) {
    std::vector<Scored> all;
    for (int64_t p = 0; p < (args.batch->positions[t] + 1) / ratio; ++p) all.push_back({scores.score(t, p), p});
    std::sort(all.begin(), all.end(), ranks_before);
    all.resize(std::min(all.size(), static_cast<size_t>(top_k)));
    std::sort(all.begin(), all.end(), [](const Scored& a, const Scored& b) { return a.position < b.position; });
    for (int64_t i = 0; i < top_k; ++i)
      args.output<int32_t>(0)[t * top_k + i] =
          i < std::ssize(all) ? static_cast<int32_t>(all[static_cast<size_t>(i)].position) : -1;
  });
}

void index_topk(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  if (desc.attrs.has(Attr::hash_bits)) return choose(HashScores{desc, args}, desc, args, stream);
  choose(ExactScores{desc, args}, desc, args, stream);
}

void layer_norm(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const WeightReader weight(args, desc, 1), bias(args, desc, 2);
  const int64_t H = desc.out(0).type.dim(-1).factor;
  int64_t rows = 1;
  for (int i = 0; i + 1 < desc.out(0).type.rank(); ++i) rows *= args.now.of(desc.out(0).type.dim(i));
  for (int64_t row = 0; row < rows; ++row) {
    const double* x = args.input<double>(0) + row * H;
    double mean = 0, variance = 0;
    for (int64_t h = 0; h < H; ++h) mean += x[h] / static_cast<double>(H);
    for (int64_t h = 0; h < H; ++h) variance += (x[h] - mean) * (x[h] - mean) / static_cast<double>(H);
    for (int64_t h = 0; h < H; ++h)
      args.output<double>(0)[row * H + h] =
          (x[h] - mean) / std::sqrt(variance + desc.attrs.number(Attr::eps)) * weight[h] + bias[h];
  }
}

}  // namespace

const Kernel kIndexTopk{.name = "index_topk.ref", .op = Op::index_topk, .backend = Backend::ref, .launch = index_topk};
const Kernel kLayerNorm{.name = "layer_norm.ref", .op = Op::layer_norm, .backend = Backend::ref, .launch = layer_norm};

}  // namespace moesaic::ref
