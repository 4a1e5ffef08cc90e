// Attention over compressed history (DeepSeek-V4): pooling of token windows into entries, attention over the last
// tokens and those entries, and the output product by groups of heads.
#include <algorithm>
#include <cmath>

#include "kernels/ref/ref.h"

namespace moesaic::ref {
namespace {

// The state of a sequence: kv and gate of its last c * ratio tokens, position p in row p % (c * ratio).
void compress(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const WeightReader ape(args, desc, 2);
  const int64_t m = desc.attrs.integer(Attr::ratio), D = desc.out(0).type.dim(1).factor;
  const int64_t width = desc.in(0).type.dim(1).factor, rows = width / D * m;
  for (int64_t t = 0; t < args.now.tokens; ++t) {
    const int64_t p = args.batch->positions[t];
    auto* state = reinterpret_cast<double*>(args.cache.slot(args.batch->state_slots[args.batch->sequence_of[t]]));
    const auto row = [&](int64_t position) { return state + position % rows * 2 * width; };
    std::copy_n(args.input<double>(0) + t * width, width, row(p));
    std::copy_n(args.input<double>(1) + t * width, width, row(p) + width);
    for (int64_t d = 0; d < D; ++d) {
      double& entry = args.output<double>(0)[t * D + d];
      entry = 0;
      if ((p + 1) % m != 0) continue;
      // With overlap the window before contributes its first half of channels, this one its second half.
      std::vector<double> values, gates;
      for (int64_t s = std::max<int64_t>(0, p + 1 - rows); s <= p; ++s) {
        const int64_t channel = s > p - m ? width - D + d : d;
        values.push_back(row(s)[channel]);
        gates.push_back(row(s)[width + channel] + ape[s % m * width + channel]);
      }
      const double top = *std::max_element(gates.begin(), gates.end());
      double total = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        entry += std::exp(gates[i] - top) * values[i];
        total += std::exp(gates[i] - top);
      }
      entry /= total;
    }
  }
}

// The rows a token sees: the last `window` tokens, then entries.
struct EntryCache {
  const OpDesc& desc;
  const Args& args;
  int64_t D = desc.attrs.integer(Attr::head_dim), window = desc.attrs.integer(Attr::window);
  int64_t ratio = desc.attrs.integer(Attr::ratio, 0);

  double* recent(int64_t sequence, int64_t position) const {
    return reinterpret_cast<double*>(args.cache.slot(args.batch->state_slots[sequence])) + position % window * D;
  }
  double* entry(int64_t sequence, int64_t e) const {
    const EntryPlace place = entry_place(e, ratio);
    const int32_t block = args.batch->block_tables[sequence * args.batch->max_blocks + place.block];
    return reinterpret_cast<double*>(args.cache.block(block)) + place.row * D;
  }
  std::vector<const double*> visible(int64_t t) const {
    std::vector<const double*> rows;
    const int64_t sequence = args.batch->sequence_of[t], position = args.batch->positions[t];
    for (int64_t p = std::max<int64_t>(0, position - window + 1); p <= position; ++p)
      rows.push_back(recent(sequence, p));
    if (desc.inputs.size() == 4)
      for (int64_t e = 0; e < (position + 1) / ratio; ++e) rows.push_back(entry(sequence, e));
    if (desc.inputs.size() < 5) return rows;
    const int64_t n = desc.in(4).type.dim(1).factor;
    for (int64_t j = t * n; j < (t + 1) * n; ++j)
      if (args.input<int32_t>(4)[j] >= 0) rows.push_back(entry(sequence, args.input<int32_t>(4)[j]));
    return rows;
  }
};

void attend(const std::vector<const double*>& rows, const double* q, double scale, double sink, int64_t D, double* o) {
  std::vector<double> scores;
  double top = sink;
  for (const double* row : rows) {
    double score = 0;
    for (int64_t d = 0; d < D; ++d) score += q[d] * row[d];
    scores.push_back(score * scale);
    top = std::max(top, scores.back());
  }
  double total = std::exp(sink - top);
  for (double& score : scores) total += score = std::exp(score - top);
  std::fill_n(o, D, 0.0);
  for (size_t i = 0; i < rows.size(); ++i)
    for (int64_t d = 0; d < D; ++d) o[d] += scores[i] / total * rows[i][d];
}

void entry_attend(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const EntryCache cache{desc, args};
  const WeightReader sinks(args, desc, 2);
  const int64_t heads = desc.attrs.integer(Attr::heads), D = cache.D;
  for (int64_t t = 0; t < args.now.tokens; ++t) {  // in order: the ring's old rows are read before they are reused
    const int64_t sequence = args.batch->sequence_of[t], position = args.batch->positions[t];
    std::copy_n(args.input<double>(1) + t * D, D, cache.recent(sequence, position));
    if (desc.inputs.size() > 3 && (position + 1) % cache.ratio == 0)
      std::copy_n(args.input<double>(3) + t * D, D, cache.entry(sequence, position / cache.ratio));
    const std::vector<const double*> rows = cache.visible(t);
    stream.pool->run(heads, [&](int64_t head, int) {
      attend(rows, args.input<double>(0) + (t * heads + head) * D, desc.attrs.number(Attr::scale), sinks[head], D,
             args.output<double>(0) + (t * heads + head) * D);
    });
  }
}

void grouped_linear(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const WeightReader weight(args, desc, 1);
  const int64_t rows = desc.in(1).type.dim(0).factor, K = desc.in(1).type.dim(1).factor;
  const int64_t groups = desc.attrs.integer(Attr::groups);
  stream.pool->run(rows, [&](int64_t j, int) {
    for (int64_t t = 0; t < args.now.tokens; ++t) {
      const double* x = args.input<double>(0) + (t * groups + j / (rows / groups)) * K;
      double sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += weight[j * K + k] * x[k];
      args.output<double>(0)[t * rows + j] = sum;
    }
  });
}

}  // namespace

const Kernel kCompress{.name = "compress.ref", .op = Op::compress, .backend = Backend::ref, .launch = compress};
const Kernel kEntryAttend{
    .name = "entry_attend.ref", .op = Op::entry_attend, .backend = Backend::ref, .launch = entry_attend};
const Kernel kGroupedLinear{
    .name = "grouped_linear.ref", .op = Op::grouped_linear, .backend = Backend::ref, .launch = grouped_linear};

}  // namespace moesaic::ref
