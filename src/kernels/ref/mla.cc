#include <algorithm>
#include <cmath>

#include "kernels/ref/ref.h"

namespace moesaic::ref {
namespace {

// Rows of the cache: [latent (L) | k_pe (rope)] of each token, 64 tokens a block.
struct LatentCache {
  const Args& args;
  int64_t L, rope;

  double* at(int64_t sequence, int64_t position) const {
    const BatchView& batch = *args.batch;
    std::byte* base = args.cache.block(batch.block_tables[sequence * batch.max_blocks + position / kBlockTokens]);
    return reinterpret_cast<double*>(base) + position % kBlockTokens * (L + rope);
  }
  void append(const double* latent, const double* k_pe) const {
    for (int64_t t = 0; t < args.now.tokens; ++t) {
      double* row = at(args.batch->sequence_of[t], args.batch->positions[t]);
      std::copy_n(latent + t * L, L, row);
      std::copy_n(k_pe + t * rope, rope, row + L);
    }
  }
};

// The positions token t attends to: those of input `input` that exist, or all up to its own.
std::vector<int64_t> visible(const OpDesc& desc, const Args& args, int input, int64_t t) {
  const int64_t own = args.batch->positions[t];
  std::vector<int64_t> out;
  if (desc.inputs_before_table() <= static_cast<size_t>(input)) {
    for (int64_t p = 0; p <= own; ++p) out.push_back(p);
    return out;
  }
  const int64_t n = desc.in(input).type.dim(1).factor;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t p = args.input<int32_t>(input)[t * n + i];
    if (p >= 0 && p <= own) out.push_back(p);
  }
  return out;
}

// Scores become softmax weights.
void soften(std::vector<double>& scores) {
  double top = -INFINITY, total = 0;
  for (double s : scores) top = std::max(top, s);
  for (double& s : scores) total += s = std::exp(s - top);
  for (double& s : scores) s /= total;
}

struct MlaSizes {
  int64_t heads, nope, rope, v, L;
  explicit MlaSizes(const OpDesc& desc, int64_t latent)
      : heads(desc.attrs.integer(Attr::heads)),
        nope(desc.attrs.integer(Attr::nope_dim, 0)),
        rope(desc.attrs.integer(Attr::rope_dim, 0)),
        v(desc.attrs.integer(Attr::v_dim, 0)),
        L(latent) {}
};

// The key [nope | rope] and value [v] of one head, expanded from a cached latent.
struct Expanded {
  std::vector<double> key, value;
};
Expanded expand(const MlaSizes& s, const WeightReader& kv_b, int64_t head, const double* row) {
  Expanded out{std::vector<double>(static_cast<size_t>(s.nope)), std::vector<double>(static_cast<size_t>(s.v))};
  const int64_t first = head * (s.nope + s.v);
  for (int64_t n = 0; n < s.nope + s.v; ++n) {
    double sum = 0;
    for (int64_t l = 0; l < s.L; ++l) sum += kv_b[(first + n) * s.L + l] * row[l];
    (n < s.nope ? out.key[static_cast<size_t>(n)] : out.value[static_cast<size_t>(n - s.nope)]) = sum;
  }
  out.key.insert(out.key.end(), row + s.L, row + s.L + s.rope);
  return out;
}

// As the definition says: every head has keys and values of its own, expanded from the latents.
void mla(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const MlaSizes s(desc, desc.in(1).type.dim(1).factor);
  const LatentCache cache{args, s.L, s.rope};
  cache.append(args.input<double>(1), args.input<double>(2));
  const WeightReader kv_b(args, desc, 3);
  const int64_t width = s.nope + s.rope;
  stream.pool->run(s.heads, [&](int64_t head, int) {
    std::vector<Expanded> rows;  // of the sequence of the token before, by position
    for (int64_t t = 0; t < args.now.tokens; ++t) {
      const int64_t sequence = args.batch->sequence_of[t];
      if (t == args.batch->sequence_offsets[sequence]) rows.clear();
      while (std::ssize(rows) <= args.batch->positions[t])
        rows.push_back(expand(s, kv_b, head, cache.at(sequence, std::ssize(rows))));
      const std::vector<int64_t> positions = visible(desc, args, 4, t);
      std::vector<double> scores;
      const double* q = args.input<double>(0) + (t * s.heads + head) * width;
      for (int64_t p : positions) {
        double score = 0;
        for (int64_t d = 0; d < width; ++d) score += q[d] * rows[static_cast<size_t>(p)].key[static_cast<size_t>(d)];
        scores.push_back(score * desc.attrs.number(Attr::scale));
      }
      soften(scores);
      double* o = args.output<double>(0) + (t * s.heads + head) * s.v;
      std::fill_n(o, s.v, 0.0);
      for (size_t i = 0; i < positions.size(); ++i)
        for (int64_t d = 0; d < s.v; ++d)
          o[d] += scores[i] * rows[static_cast<size_t>(positions[i])].value[static_cast<size_t>(d)];
    }
  });
}

// Queries against latents instead of keys: q_nope W_k, then q_pe.
void mla_absorb(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const MlaSizes s(desc, desc.in(1).type.dim(1).factor);
  const WeightReader kv_b(args, desc, 1);
  stream.pool->run(s.heads, [&](int64_t head, int) {
    const int64_t first = head * (s.nope + s.v);
    for (int64_t t = 0; t < args.now.tokens; ++t) {
      const double* q = args.input<double>(0) + (t * s.heads + head) * (s.nope + s.rope);
      double* out = args.output<double>(0) + (t * s.heads + head) * (s.L + s.rope);
      for (int64_t l = 0; l < s.L; ++l) {
        out[l] = 0;
        for (int64_t n = 0; n < s.nope; ++n) out[l] += q[n] * kv_b[(first + n) * s.L + l];
      }
      std::copy_n(q + s.nope, s.rope, out + s.L);
    }
  });
}

void mla_attend(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const MlaSizes s(desc, desc.in(1).type.dim(1).factor);
  const LatentCache cache{args, s.L, s.rope};
  cache.append(args.input<double>(1), turned(desc, args, args.input<double>(2), 1, s.rope).data());
  const std::vector<double> queries = turned(desc, args, args.input<double>(0), s.heads, s.L + s.rope);
  stream.pool->run(args.now.tokens, [&](int64_t t, int) {
    const std::vector<int64_t> positions = visible(desc, args, 3, t);
    const int64_t sequence = args.batch->sequence_of[t];
    for (int64_t head = 0; head < s.heads; ++head) {
      const double* q = queries.data() + (t * s.heads + head) * (s.L + s.rope);
      std::vector<double> scores;
      for (int64_t p : positions) {
        double score = 0;
        for (int64_t d = 0; d < s.L + s.rope; ++d) score += q[d] * cache.at(sequence, p)[d];
        scores.push_back(score * desc.attrs.number(Attr::scale));
      }
      soften(scores);
      double* o = args.output<double>(0) + (t * s.heads + head) * s.L;
      std::fill_n(o, s.L, 0.0);
      for (size_t i = 0; i < positions.size(); ++i)
        for (int64_t l = 0; l < s.L; ++l) o[l] += scores[i] * cache.at(sequence, positions[i])[l];
    }
  });
}

// From a head's sum of latents to its values: W_v o.
void mla_up(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const MlaSizes s(desc, desc.in(1).type.dim(1).factor);
  const WeightReader kv_b(args, desc, 1);
  stream.pool->run(s.heads, [&](int64_t head, int) {
    const int64_t first = head * (s.nope + s.v) + s.nope;
    for (int64_t t = 0; t < args.now.tokens; ++t) {
      const double* o = args.input<double>(0) + (t * s.heads + head) * s.L;
      for (int64_t d = 0; d < s.v; ++d) {
        double sum = 0;
        for (int64_t l = 0; l < s.L; ++l) sum += kv_b[(first + d) * s.L + l] * o[l];
        args.output<double>(0)[(t * s.heads + head) * s.v + d] = sum;
      }
    }
  });
}

}  // namespace

const Kernel kMla{.name = "mla.ref", .op = Op::mla, .backend = Backend::ref, .launch = mla};
const Kernel kMlaAbsorb{.name = "mla_absorb.ref", .op = Op::mla_absorb, .backend = Backend::ref, .launch = mla_absorb};
const Kernel kMlaAttend{.name = "mla_attend.ref", .op = Op::mla_attend, .backend = Backend::ref, .launch = mla_attend};
const Kernel kMlaUp{.name = "mla_up.ref", .op = Op::mla_up, .backend = Backend::ref, .launch = mla_up};

}  // namespace moesaic::ref
