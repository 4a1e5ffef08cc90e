#include "kernels/deepseek_v4_steps.h"

#include <algorithm>
#include <cmath>

#include "quant/bf16.h"

namespace moesaic {
namespace {

void append(const std::vector<double>& from, int64_t width, const Chunk& chunk, std::vector<double>& to) {
  to.insert(to.end(), from.begin() + chunk.begin * width, from.begin() + chunk.end * width);
}

TestOperand cached_rows(const EntryData& data, std::vector<double> EntryData::Sequence::*rows,
                        const std::vector<Chunk>& chunks) {
  std::vector<double> values;
  for (const Chunk& chunk : chunks) append(data.sequences[chunk.sequence].*rows, data.size.D, chunk, values);
  TestOperand operand = value_operand({Symbol::T, data.size.D}, std::move(values));
  if (data.size.cache != DType::bf16) return operand;
  for (double v : operand.values)
    operand.rounded.push_back(static_cast<double>(bf16_to_float(float_to_bf16(static_cast<float>(v)))));
  return operand;
}

KernelStep step_of(const EntryData& data, const std::vector<Chunk>& chunks) {
  const int64_t wide = data.size.heads * data.size.D;
  std::vector<double> q;
  std::vector<int32_t> positions;
  for (const Chunk& chunk : chunks) {
    const EntryData::Sequence& s = data.sequences[chunk.sequence];
    append(s.q, wide, chunk, q);
    positions.insert(positions.end(), s.positions.begin() + chunk.begin * data.size.chosen,
                     s.positions.begin() + chunk.end * data.size.chosen);
  }
  KernelStep step;
  step.now = {static_cast<int64_t>(q.size()) / wide, 0};
  step.inputs = {value_operand({Symbol::T, wide}, std::move(q)), cached_rows(data, &EntryData::Sequence::kv, chunks),
                 data.sinks};
  if (data.size.ratio > 0) step.inputs.push_back(cached_rows(data, &EntryData::Sequence::entries, chunks));
  if (data.size.chosen > 0) step.inputs.push_back(integer_operand({Symbol::T, data.size.chosen}, std::move(positions)));
  step.batch = attention_case("", data.places, {chunks}).steps[0].batch;
  return step;
}

// Up to `chosen` of the entries that a token sees, ascending, then -1.
std::vector<int32_t> choose(Rng& rng, const EntrySize& size, int64_t length) {
  std::vector<int32_t> out;
  for (int64_t t = 0; t < length; ++t) {
    const int64_t visible = (t + 1) / size.ratio;
    std::vector<int32_t> row;
    for (int64_t e = 0; e < visible && std::ssize(row) < size.chosen; ++e)
      if (visible <= size.chosen || rng.below(visible) < size.chosen) row.push_back(static_cast<int32_t>(e));
    row.resize(static_cast<size_t>(size.chosen), -1);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
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

constexpr double kScale = 0.2;

// As in attention_units: an error of D + 2 units of a score, of e^x, of n terms in two sums, and of each rescaling.
double entry_units(const EntryData& data) {
  double q = 0, k = 0, rows = 0;
  for (size_t i = 0; i < data.sequences.size(); ++i) {
    const EntryData::Sequence& s = data.sequences[i];
    q = std::max(q, longest_row(s.q, data.size.D));
    k = std::max({k, longest_row(s.kv, data.size.D), longest_row(s.entries, data.size.D)});
    rows = std::max(rows, static_cast<double>(2 * data.places.sequences[i].length));
  }
  double score = kScale * q * k;
  for (double sink : data.sinks.values) score = std::max(score, std::abs(sink));
  return 2 * (score * static_cast<double>(data.size.D + 2) + 2 * score + 3 + (rows / 64 + 10) * (2 * score + 5)) +
         2 * rows;
}

// No weighted mean of values exceeds the largest.
Values largest_value(const KernelCase& test, size_t step) {
  double largest = 0;
  for (const KernelStep& s : test.steps)
    for (size_t i : {size_t{1}, size_t{3}})
      if (i < s.inputs.size())
        for (double v : s.inputs[i].values) largest = std::max(largest, std::abs(v));
  return {std::vector<double>(test.steps[step].inputs[0].values.size(), largest)};
}

}  // namespace

StateData random_compress(Rng& rng, const CompressSize& size, const std::vector<int64_t>& lengths) {
  const int64_t width = size.overlap ? 2 * size.D : size.D;
  StateData data = random_state_data(rng, {width, width}, lengths);
  data.weights = {vector_operand(rng, {size.ratio, width})};
  return data;
}

Attrs compress_attrs(const CompressSize& size) {
  return {{Attr::ratio, static_cast<double>(size.ratio)}, {Attr::overlap, size.overlap ? 1.0 : 0.0}, {Attr::cache, 0}};
}

EntryData random_entries(Rng& rng, const EntrySize& size, const std::vector<int64_t>& lengths) {
  EntryData data;
  data.size = size;
  data.places = random_attention(
      rng, {.heads = 1, .kv_heads = 1, .D = 16, .window = 0, .cache = DType::f32, .sinks = false}, lengths);
  data.sinks = vector_operand(rng, {size.heads}, 2);
  for (int64_t length : lengths) {
    const Bounds now{length, 0};
    EntryData::Sequence& s = data.sequences.emplace_back();
    s.q = normal_operand(rng, {Symbol::T, size.heads * size.D}, now).values;
    s.kv = normal_operand(rng, {Symbol::T, size.D}, now).values;
    s.entries = normal_operand(rng, {Symbol::T, size.D}, now).values;
    if (size.chosen > 0) s.positions = choose(rng, size, length);
  }
  return data;
}

KernelCase entry_case(const std::string& name, const EntryData& data, const std::vector<std::vector<Chunk>>& steps) {
  Attrs attrs{{Attr::heads, static_cast<double>(data.size.heads)},
              {Attr::head_dim, static_cast<double>(data.size.D)},
              {Attr::scale, kScale},
              {Attr::window, static_cast<double>(data.size.window)},
              {Attr::cache, 0}};
  if (data.size.ratio > 0) attrs.set(Attr::ratio, static_cast<double>(data.size.ratio));
  KernelStep first = step_of(data, steps[0]);
  KernelCase test = make_case(name, Op::entry_attend, attrs, first.inputs, first.now);
  test.steps.clear();
  for (const std::vector<Chunk>& chunks : steps) {
    test.steps.push_back(step_of(data, chunks));
    test.desc.bounds.tokens = std::max(test.desc.bounds.tokens, test.steps.back().now.tokens);
  }
  test.desc.cache_dtype = data.size.cache;
  test.cache_blocks = data.places.cache_blocks, test.cache_slots = data.places.cache_slots;
  test.tolerance = {.per_magnitude = entry_units(data) * kUnit, .absolute = 0x1p-140};
  test.magnitude = largest_value;
  return test;
}

}  // namespace moesaic
