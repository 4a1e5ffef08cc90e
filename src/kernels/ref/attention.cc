#include <algorithm>
#include <cmath>

#include "ir/rope.h"
#include "kernels/ref/ref.h"

namespace moesaic::ref {
namespace {

// cos and sin of every token's angles. The angle is a float32 product, as the reference models compute it.
void rope_table(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t half = desc.attrs.integer(Attr::head_dim) / 2;
  const std::vector<float> frequencies = rope_frequencies(RopeConfig::from(desc.attrs), 2 * half);
  const double factor = desc.attrs.number(Attr::attention_factor);
  const auto ratio = static_cast<int32_t>(desc.attrs.integer(Attr::ratio, 1));
  for (int64_t t = 0; t < args.now.tokens; ++t) {
    const int32_t position = args.batch->positions[t] / ratio * ratio;
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * frequencies[static_cast<size_t>(i)];
      args.output<double>(0)[(t * half + i) * 2] = std::cos(static_cast<double>(angle)) * factor;
      args.output<double>(0)[(t * half + i) * 2 + 1] = std::sin(static_cast<double>(angle)) * factor;
    }
  }
}

// x and y [2 * half], table [half, 2].
void turn(const double* x, const double* table, int64_t half, bool interleaved, double sign, double* y) {
  for (int64_t i = 0; i < half; ++i) {
    const int64_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
    const double cosine = table[2 * i], sine = sign * table[2 * i + 1];
    y[a] = x[a] * cosine - x[b] * sine;
    y[b] = x[b] * cosine + x[a] * sine;
  }
}

void rope(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t heads = desc.attrs.integer(Attr::heads), D = desc.attrs.integer(Attr::head_dim);
  const int64_t half = desc.in(1).type.dim(1).factor, begin = desc.attrs.integer(Attr::begin, 0);
  const bool interleaved = desc.attrs.integer(Attr::interleaved, 0) != 0;
  const double sign = desc.attrs.integer(Attr::inverse, 0) != 0 ? -1 : 1;
  for (int64_t row = 0; row < args.now.tokens * heads; ++row) {
    const double* x = args.input<double>(0) + row * D;
    double* y = args.output<double>(0) + row * D;
    std::copy_n(x, D, y);
    turn(x + begin, args.input<double>(1) + row / heads * half * 2, half, interleaved, sign, y + begin);
  }
}

// Where the key (which = 0) or value (1) of one position and head lies: a block holds keys [64][kv_heads][D] and then
// values; a window's ring holds position p in row p % window.
struct GqaCache {
  const OpDesc& desc;
  const Args& args;
  int64_t kv_heads = desc.attrs.integer(Attr::kv_heads), D = desc.attrs.integer(Attr::head_dim);
  int64_t window = desc.attrs.integer(Attr::window);

  double* at(int64_t sequence, int64_t position, int64_t head, int which) const {
    const BatchView& batch = *args.batch;
    std::byte* base;
    int64_t rows = kBlockTokens, row = position % kBlockTokens;
    if (window > 0) {
      base = args.cache.slot(batch.state_slots[sequence]);
      rows = window, row = position % window;
    } else {
      base = args.cache.block(batch.block_tables[sequence * batch.max_blocks + position / kBlockTokens]);
    }
    return reinterpret_cast<double*>(base) + ((which * rows + row) * kv_heads + head) * D;
  }
};

// One query head over the keys of positions [first, last]; a sink adds to the denominator only.
void attend(const GqaCache& cache, int64_t sequence, int64_t first, int64_t last, int64_t kv_head, const double* q,
            double scale, const double* sink, double* o) {
  std::vector<double> scores;
  double top = sink != nullptr ? *sink : -INFINITY;
  for (int64_t p = first; p <= last; ++p) {
    const double* key = cache.at(sequence, p, kv_head, 0);
    double score = 0;
    for (int64_t d = 0; d < cache.D; ++d) score += q[d] * key[d];
    scores.push_back(score * scale);
    top = std::max(top, scores.back());
  }
  double total = sink != nullptr ? std::exp(*sink - top) : 0;
  for (double& score : scores) total += score = std::exp(score - top);
  std::fill_n(o, cache.D, 0.0);
  for (int64_t p = first; p <= last; ++p)
    for (int64_t d = 0; d < cache.D; ++d)
      o[d] += scores[static_cast<size_t>(p - first)] / total * cache.at(sequence, p, kv_head, 1)[d];
}

void gqa(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const GqaCache cache{desc, args};
  const int64_t heads = desc.attrs.integer(Attr::heads), D = cache.D, group = heads / cache.kv_heads;
  const std::vector<double> q = turned(desc, args, args.input<double>(0), heads, D);
  const std::vector<double> k = turned(desc, args, args.input<double>(1), cache.kv_heads, D);
  stream.pool->run(cache.kv_heads, [&](int64_t kv_head, int) {
    for (int64_t t = 0; t < args.now.tokens; ++t) {  // in order: a ring's old rows are read before they are reused
      const int64_t sequence = args.batch->sequence_of[t], position = args.batch->positions[t];
      const int64_t row = (t * cache.kv_heads + kv_head) * D;
      std::copy_n(k.data() + row, D, cache.at(sequence, position, kv_head, 0));
      std::copy_n(args.input<double>(2) + row, D, cache.at(sequence, position, kv_head, 1));
      const int64_t first = cache.window > 0 ? std::max<int64_t>(0, position - cache.window + 1) : 0;
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const double* sink = desc.inputs_before_table() > 3 ? args.input<double>(3) + head : nullptr;
        attend(cache, sequence, first, position, kv_head, q.data() + (t * heads + head) * D,
               desc.attrs.number(Attr::scale), sink, args.output<double>(0) + (t * heads + head) * D);
      }
    }
  });
}

}  // namespace

std::vector<double> turned(const OpDesc& desc, const Args& args, const double* x, int64_t heads, int64_t D) {
  std::vector<double> y(x, x + args.now.tokens * heads * D);
  if (desc.rotate() == Rotate::none) return y;
  const int last = static_cast<int>(desc.inputs.size()) - 1;
  const int64_t half = desc.in(last).type.dim(1).factor, begin = D - 2 * half;
  for (int64_t row = 0; row < args.now.tokens * heads; ++row)
    turn(x + row * D + begin, args.input<double>(last) + row / heads * half * 2, half,
         desc.rotate() == Rotate::neighbours, 1, y.data() + row * D + begin);
  return y;
}

const Kernel kRopeTable{.name = "rope_table.ref", .op = Op::rope_table, .backend = Backend::ref, .launch = rope_table};
const Kernel kRope{.name = "rope.ref", .op = Op::rope, .backend = Backend::ref, .launch = rope};
const Kernel kGqa{.name = "gqa.ref", .op = Op::gqa, .backend = Backend::ref, .launch = gqa};

}  // namespace moesaic::ref
