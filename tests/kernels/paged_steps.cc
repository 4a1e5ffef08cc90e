#include "kernels/paged_steps.h"

#include <algorithm>

#include "quant/bf16.h"

namespace moesaic {
namespace {

TestOperand rows_of(const PagedData& data, size_t input, const std::vector<Chunk>& chunks) {
  const int64_t width = data.widths[input];
  std::vector<double> rows;
  for (const Chunk& chunk : chunks) {
    const auto from = data.inputs[chunk.sequence][input].begin();
    rows.insert(rows.end(), from + chunk.begin * width, from + chunk.end * width);
  }
  return value_operand({Symbol::T, width}, std::move(rows));
}

TestOperand positions_of(const PagedData& data, const std::vector<Chunk>& chunks) {
  std::vector<int32_t> rows;
  for (const Chunk& chunk : chunks) {
    const auto from = data.positions[chunk.sequence].begin();
    rows.insert(rows.end(), from + chunk.begin * data.chosen, from + chunk.end * data.chosen);
  }
  return integer_operand({Symbol::T, data.chosen}, std::move(rows));
}

TestOperand table_of(const PagedData& data, const std::vector<Chunk>& chunks) {
  std::vector<double> rows;
  for (const Chunk& chunk : chunks) {
    const auto from = data.tables[chunk.sequence].begin();
    rows.insert(rows.end(), from + chunk.begin * data.pairs * 2, from + chunk.end * data.pairs * 2);
  }
  return value_operand({Symbol::T, data.pairs, 2}, std::move(rows));
}

void round_to_bf16(TestOperand& operand) {
  for (double v : operand.values)
    operand.rounded.push_back(static_cast<double>(bf16_to_float(float_to_bf16(static_cast<float>(v)))));
}

}  // namespace

PagedData random_paged(Rng& rng, const std::vector<int64_t>& widths, const std::vector<int64_t>& lengths) {
  PagedData data;
  data.widths = widths;
  data.places = random_attention(
      rng, {.heads = 1, .kv_heads = 1, .D = 16, .window = 0, .cache = DType::f32, .sinks = false}, lengths);
  for (int64_t length : lengths) {
    auto& inputs = data.inputs.emplace_back();
    for (int64_t width : widths) inputs.push_back(normal_operand(rng, {Symbol::T, width}, {length, 0}).values);
  }
  return data;
}

PagedData integer_paged(Rng& rng, const std::vector<int64_t>& widths, const std::vector<int64_t>& lengths) {
  PagedData data = random_paged(rng, widths, lengths);
  for (auto& sequence : data.inputs)
    for (auto& values : sequence)
      for (double& v : values) v = static_cast<double>(rng.below(7) - 3);
  return data;
}

void choose_positions(Rng& rng, PagedData& data, int64_t chosen) {
  data.chosen = chosen;
  for (const auto& s : data.places.sequences) {
    auto& positions = data.positions.emplace_back();
    for (int64_t t = 0; t < s.length; ++t) {
      std::vector<int32_t> all, row;
      for (int64_t p = 0; p <= t; ++p)
        if (rng.below(t + 1) < chosen) all.push_back(static_cast<int32_t>(p));
      if (t % 5 == 4) std::reverse(all.begin(), all.end());
      for (int64_t i = 0; i < chosen; ++i) {
        const bool none = i >= std::ssize(all) || t % 7 == 6 || rng.below(10) == 0;
        row.push_back(none ? (rng.below(2) == 0 ? -1 : static_cast<int32_t>(t + 1)) : all[static_cast<size_t>(i)]);
      }
      positions.insert(positions.end(), row.begin(), row.end());
    }
  }
}

void choose_all(PagedData& data) {
  for (const auto& s : data.places.sequences) data.chosen = std::max(data.chosen, s.length);
  for (const auto& s : data.places.sequences) {
    auto& positions = data.positions.emplace_back();
    for (int64_t t = 0; t < s.length; ++t)
      for (int64_t i = 0; i < data.chosen; ++i) positions.push_back(i <= t ? static_cast<int32_t>(i) : -1);
  }
}

std::vector<KernelStep> paged_steps(const PagedData& data, const std::vector<std::vector<Chunk>>& steps, DType cache,
                                    const std::vector<size_t>& cached) {
  const KernelCase places = attention_case("", data.places, steps);  // for its batches
  std::vector<KernelStep> made;
  for (size_t i = 0; i < steps.size(); ++i) {
    KernelStep step{.inputs = {}, .now = places.steps[i].now, .batch = places.steps[i].batch};
    for (size_t input = 0; input < data.widths.size(); ++input) step.inputs.push_back(rows_of(data, input, steps[i]));
    if (cache == DType::bf16)
      for (size_t input : cached) round_to_bf16(step.inputs[input]);
    if (data.chosen > 0) step.inputs.push_back(positions_of(data, steps[i]));
    if (data.pairs > 0) step.inputs.push_back(table_of(data, steps[i]));
    made.push_back(std::move(step));
  }
  return made;
}

KernelCase paged_case(const std::string& name, Op op, const Attrs& attrs, const PagedData& data,
                      const std::vector<std::vector<Chunk>>& steps, DType cache, const std::vector<size_t>& cached) {
  std::vector<KernelStep> made = paged_steps(data, steps, cache, cached);
  int64_t largest = 0;
  for (const KernelStep& step : made) largest = std::max(largest, step.now.tokens);
  KernelCase test = make_case(name, op, attrs, made[0].inputs, {largest, 0});
  test.steps = std::move(made);
  test.desc.cache_dtype = cache;
  test.cache_blocks = data.places.cache_blocks;
  return test;
}

std::vector<std::vector<Chunk>> in_chunks(const PagedData& data, int64_t chunk) {
  return in_chunks(data.places, chunk);
}

std::vector<std::vector<Chunk>> together(const PagedData& data, int64_t chunk) {
  return together(data.places, chunk);
}

std::vector<int64_t> latent_widths(const LatentSize& s) {
  return {s.heads * (s.L + s.rope), s.L, s.rope};
}

Attrs latent_attrs(const LatentSize& s, double scale) {
  return {{Attr::heads, static_cast<double>(s.heads)},
          {Attr::rope_dim, static_cast<double>(s.rope)},
          {Attr::scale, scale},
          {Attr::cache, 0}};
}

std::vector<int64_t> index_widths(const IndexSize& s) {
  return {s.heads * s.D, s.D, s.heads};
}

Attrs index_attrs(const IndexSize& s, double scale) {
  Attrs attrs{{Attr::heads, static_cast<double>(s.heads)},
              {Attr::head_dim, static_cast<double>(s.D)},
              {Attr::top_k, static_cast<double>(s.top_k)},
              {Attr::scale, scale},
              {Attr::cache, 0}};
  if (s.hash_bits > 0) attrs.set(Attr::hash_bits, static_cast<double>(s.hash_bits));
  return attrs;
}

}  // namespace moesaic
