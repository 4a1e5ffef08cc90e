#include "kernels/attention_steps.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "quant/bf16.h"

namespace moesaic {
namespace {

std::vector<int32_t> shuffled(Rng& rng, int64_t n) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = n - 1; i > 0; --i)
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(rng.below(i + 1))]);
  return order;
}

std::vector<double> normals(Rng& rng, int64_t n) {
  std::vector<double> values(static_cast<size_t>(n));
  for (double& v : values) v = static_cast<double>(static_cast<float>(rng.normal()));
  return values;
}

void append(const std::vector<double>& from, int64_t width, const Chunk& chunk, std::vector<double>& to) {
  to.insert(to.end(), from.begin() + chunk.begin * width, from.begin() + chunk.end * width);
}

// What a bf16 cache keeps of k and v.
void round_to_bf16(TestOperand& operand) {
  for (double v : operand.values)
    operand.rounded.push_back(static_cast<double>(bf16_to_float(float_to_bf16(static_cast<float>(v)))));
}

TestBatch batch_of(const AttentionData& data, const std::vector<Chunk>& chunks) {
  TestBatch batch;
  for (const auto& s : data.sequences) batch.max_blocks = std::max(batch.max_blocks, std::ssize(s.blocks));
  for (const Chunk& chunk : chunks) {
    const AttentionData::Sequence& s = data.sequences[chunk.sequence];
    for (int64_t p = chunk.begin; p < chunk.end; ++p) {
      batch.positions.push_back(static_cast<int32_t>(p));
      batch.sequence_of.push_back(static_cast<int32_t>(batch.state_slots.size()));
      batch.token_ids.push_back(0);
    }
    batch.sequence_offsets.push_back(static_cast<int32_t>(batch.positions.size()));
    std::vector<int32_t> row = s.blocks;
    row.resize(static_cast<size_t>(batch.max_blocks), -1);
    batch.block_tables.insert(batch.block_tables.end(), row.begin(), row.end());
    batch.state_slots.push_back(s.slot);
  }
  return batch;
}

KernelStep step_of(const AttentionData& data, const std::vector<Chunk>& chunks) {
  const AttentionShape& shape = data.shape;
  const int64_t wide = shape.heads * shape.D, narrow = shape.kv_heads * shape.D;
  std::vector<double> q, k, v, table;
  for (const Chunk& chunk : chunks) {
    append(data.sequences[chunk.sequence].q, wide, chunk, q);
    append(data.sequences[chunk.sequence].k, narrow, chunk, k);
    append(data.sequences[chunk.sequence].v, narrow, chunk, v);
    if (shape.rotate) append(data.sequences[chunk.sequence].table, shape.D, chunk, table);
  }
  KernelStep step{.inputs = {value_operand({Symbol::T, wide}, q), value_operand({Symbol::T, narrow}, k),
                             value_operand({Symbol::T, narrow}, v)},
                  .now = {static_cast<int64_t>(q.size()) / wide, 0},
                  .batch = batch_of(data, chunks)};
  if (shape.cache == DType::bf16) round_to_bf16(step.inputs[1]), round_to_bf16(step.inputs[2]);
  if (shape.sinks) step.inputs.push_back(data.sinks);
  if (shape.rotate) step.inputs.push_back(value_operand({Symbol::T, shape.D / 2, 2}, table));
  return step;
}

double longest_row(const std::vector<double>& values, int64_t D) {
  double longest = 0;
  for (size_t i = 0; i < values.size(); i += static_cast<size_t>(D)) {
    double square = 0;
    for (int64_t d = 0; d < D; ++d) square += values[i + static_cast<size_t>(d)] * values[i + static_cast<size_t>(d)];
    longest = std::max(longest, square);
  }
  return std::sqrt(longest);
}

// A score is wrong by at most (D + 2) units of scale |q| |k| (and 6 for turning both), which the exponential turns into
// a relative error of weight and of total; so does rounding score - largest, at most twice the largest score. The sums
// over n keys add n roundings each, e^x 3 units, and each merge of blocks or splits a few more.
double attention_units(const AttentionData& data) {
  double q = 0, k = 0, length = 0;
  for (const auto& s : data.sequences) {
    q = std::max(q, longest_row(s.q, data.shape.D));
    k = std::max(k, longest_row(s.k, data.shape.D));
    length = std::max(length, static_cast<double>(s.length));
  }
  double score = data.shape.scale * q * k;
  for (double sink : data.sinks.values) score = std::max(score, std::min(std::abs(sink), 200.0));
  const double rescales = length / 64 + 10;
  return 2 * (score * static_cast<double>(data.shape.D + (data.shape.rotate ? 8 : 2)) + 2 * score + 3 +
              rescales * (2 * score + 5)) +
         2 * length;
}

// The sum over |v| with the exact weights.
Values attention_magnitude(const KernelCase& test, size_t step) {
  KernelCase copy = test;
  for (KernelStep& s : copy.steps)
    for (auto* values : {&s.inputs[2].values, &s.inputs[2].rounded})
      for (double& v : *values) v = std::abs(v);
  return reference(copy)[step];
}

}  // namespace

std::vector<double> quarter_turns(Rng& rng, int64_t count) {
  constexpr double kTurns[4][2] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
  std::vector<double> table;
  for (int64_t i = 0; i < count; ++i) {
    const double* turn = kTurns[rng.below(4)];
    table.insert(table.end(), turn, turn + 2);
  }
  return table;
}

std::vector<double> random_turns(Rng& rng, int64_t count) {
  std::vector<double> table;
  for (int64_t i = 0; i < count; ++i) {
    const double angle = 3 * rng.normal();
    for (double v : {std::cos(angle), std::sin(angle)}) table.push_back(static_cast<double>(static_cast<float>(v)));
  }
  return table;
}

AttentionData random_attention(Rng& rng, const AttentionShape& shape, const std::vector<int64_t>& lengths) {
  AttentionData data;
  data.shape = shape;
  int64_t blocks = 3;
  for (int64_t length : lengths) blocks += (length + kBlockTokens - 1) / kBlockTokens;
  data.cache_blocks = blocks, data.cache_slots = std::ssize(lengths) + 2;
  const std::vector<int32_t> block_order = shuffled(rng, blocks), slot_order = shuffled(rng, data.cache_slots);
  auto next = block_order.begin();
  for (int64_t length : lengths) {
    AttentionData::Sequence s;
    s.length = length;
    s.q = normals(rng, length * shape.heads * shape.D);
    s.k = normals(rng, length * shape.kv_heads * shape.D);
    s.v = normals(rng, length * shape.kv_heads * shape.D);
    if (shape.rotate)
      s.table = shape.cache == DType::bf16 ? quarter_turns(rng, length * shape.D / 2)
                                           : random_turns(rng, length * shape.D / 2);
    s.slot = slot_order[data.sequences.size()];
    const int64_t needed = (length + kBlockTokens - 1) / kBlockTokens;
    s.blocks.assign(next, next + needed);
    next += needed;
    data.sequences.push_back(std::move(s));
  }
  if (shape.sinks) data.sinks = vector_operand(rng, {shape.heads}, 2);
  return data;
}

KernelCase attention_case(const std::string& name, const AttentionData& data,
                          const std::vector<std::vector<Chunk>>& steps) {
  const AttentionShape& s = data.shape;
  Attrs attrs{{Attr::heads, static_cast<double>(s.heads)},   {Attr::kv_heads, static_cast<double>(s.kv_heads)},
              {Attr::head_dim, static_cast<double>(s.D)},    {Attr::scale, s.scale},
              {Attr::window, static_cast<double>(s.window)}, {Attr::cache, 0}};
  KernelStep first = step_of(data, steps[0]);
  if (s.rotate) attrs.set(Attr::rotate, static_cast<double>(Rotate::halves));
  KernelCase test = make_case(name, Op::gqa, attrs, first.inputs, first.now);
  test.steps.clear();
  for (const std::vector<Chunk>& chunks : steps) {
    test.steps.push_back(step_of(data, chunks));
    test.desc.bounds.tokens = std::max(test.desc.bounds.tokens, test.steps.back().now.tokens);
  }
  test.desc.cache_dtype = s.cache;
  test.cache_blocks = data.cache_blocks, test.cache_slots = data.cache_slots;
  test.tolerance = {.per_magnitude = attention_units(data) * kUnit, .absolute = 0x1p-140};
  test.magnitude = attention_magnitude;
  return test;
}

std::vector<std::vector<Chunk>> in_chunks(const AttentionData& data, int64_t chunk) {
  std::vector<std::vector<Chunk>> steps;
  for (size_t s = 0; s < data.sequences.size(); ++s)
    for (int64_t begin = 0; begin < data.sequences[s].length; begin += chunk)
      steps.push_back({{s, begin, std::min(begin + chunk, data.sequences[s].length)}});
  return steps;
}

std::vector<std::vector<Chunk>> together(const AttentionData& data, int64_t chunk) {
  std::vector<std::vector<Chunk>> steps;
  std::vector<int64_t> done(data.sequences.size(), 0);
  for (bool left = true; left;) {
    std::vector<Chunk> chunks;
    for (size_t s = 0; s < done.size(); ++s) {
      const int64_t end = std::min(data.sequences[s].length, done[s] + chunk + static_cast<int64_t>(s));
      if (done[s] < end) chunks.push_back({s, done[s], end});
      done[s] = end;
    }
    left = !chunks.empty();
    if (left) steps.push_back(chunks);
  }
  return steps;
}

std::vector<std::vector<float>> attention_outputs(const KernelRun& run, const AttentionData& data,
                                                  const std::vector<std::vector<Chunk>>& steps) {
  const int64_t width = data.shape.heads * data.shape.D;
  std::vector<std::vector<float>> out(data.sequences.size());
  for (size_t s = 0; s < out.size(); ++s) out[s].resize(static_cast<size_t>(data.sequences[s].length * width));
  for (size_t i = 0; i < steps.size(); ++i) {
    auto from = run.floats(i).begin();
    for (const Chunk& chunk : steps[i]) {
      std::copy_n(from, (chunk.end - chunk.begin) * width, out[chunk.sequence].begin() + chunk.begin * width);
      from += (chunk.end - chunk.begin) * width;
    }
  }
  return out;
}

}  // namespace moesaic
