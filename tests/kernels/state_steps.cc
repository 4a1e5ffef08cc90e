#include "kernels/state_steps.h"

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

AttentionData lengths_of(const StateData& data) {
  AttentionData out;
  for (const auto& s : data.sequences) out.sequences.emplace_back().length = s.length;
  return out;
}

TestBatch batch_of(const StateData& data, const std::vector<Chunk>& chunks) {
  TestBatch batch;
  for (const Chunk& chunk : chunks) {
    for (int64_t p = chunk.begin; p < chunk.end; ++p) {
      batch.positions.push_back(static_cast<int32_t>(p));
      batch.sequence_of.push_back(static_cast<int32_t>(batch.state_slots.size()));
      batch.token_ids.push_back(0);
    }
    batch.sequence_offsets.push_back(static_cast<int32_t>(batch.positions.size()));
    batch.state_slots.push_back(data.sequences[chunk.sequence].slot);
  }
  return batch;
}

}  // namespace

StateData random_state_data(Rng& rng, const std::vector<int64_t>& widths, const std::vector<int64_t>& lengths) {
  StateData data;
  data.widths = widths;
  data.cache_slots = std::ssize(lengths) + 2;
  const int64_t shift = rng.below(data.cache_slots);
  for (int64_t length : lengths) {
    StateData::Sequence s;
    s.length = length;
    s.slot = static_cast<int32_t>((std::ssize(data.sequences) + shift) % data.cache_slots);
    for (int64_t width : widths) s.inputs.push_back(normal_operand(rng, {Symbol::T, width}, {length, 0}).values);
    data.sequences.push_back(std::move(s));
  }
  return data;
}

std::vector<std::vector<Chunk>> whole(const StateData& data) {
  std::vector<Chunk> all;
  for (size_t s = 0; s < data.sequences.size(); ++s) all.push_back({s, 0, data.sequences[s].length});
  return {all};
}

std::vector<std::vector<Chunk>> in_chunks(const StateData& data, int64_t chunk) {
  return in_chunks(lengths_of(data), chunk);
}

std::vector<std::vector<Chunk>> together(const StateData& data, int64_t chunk) {
  return together(lengths_of(data), chunk);
}

KernelStep state_step(const StateData& data, const std::vector<Chunk>& chunks) {
  KernelStep step;
  for (size_t i = 0; i < data.widths.size(); ++i) {
    const int64_t width = data.widths[i];
    std::vector<double> rows;
    for (const Chunk& chunk : chunks) {
      const auto from = data.sequences[chunk.sequence].inputs[i].begin();
      rows.insert(rows.end(), from + chunk.begin * width, from + chunk.end * width);
    }
    step.now.tokens = std::ssize(rows) / width;
    step.inputs.push_back(value_operand({Symbol::T, width}, std::move(rows)));
  }
  step.inputs.insert(step.inputs.end(), data.weights.begin(), data.weights.end());
  step.batch = batch_of(data, chunks);
  return step;
}

KernelCase state_case(const std::string& name, Op op, const Attrs& attrs, const StateData& data,
                      const std::vector<std::vector<Chunk>>& steps) {
  const KernelStep first = state_step(data, steps[0]);
  KernelCase test = make_case(name, op, attrs, first.inputs, first.now);
  test.steps.clear();
  for (const std::vector<Chunk>& chunks : steps) {
    test.steps.push_back(state_step(data, chunks));
    test.desc.bounds.tokens = std::max(test.desc.bounds.tokens, test.steps.back().now.tokens);
  }
  test.cache_slots = data.cache_slots;
  return test;
}

std::vector<std::vector<float>> state_outputs(const KernelRun& run, const StateData& data,
                                              const std::vector<std::vector<Chunk>>& steps) {
  std::vector<std::vector<float>> out(data.sequences.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto rows = run.floats(i);
    int64_t tokens = 0, from = 0;
    for (const Chunk& chunk : steps[i]) tokens += chunk.end - chunk.begin;
    const int64_t width = std::ssize(rows) / std::max<int64_t>(1, tokens);
    for (const Chunk& chunk : steps[i]) {
      const int64_t count = (chunk.end - chunk.begin) * width;
      out[chunk.sequence].insert(out[chunk.sequence].end(), rows.begin() + from, rows.begin() + from + count);
      from += count;
    }
  }
  return out;
}

StateData random_kda(Rng& rng, const KdaSize& size, const std::vector<int64_t>& lengths, double strongest) {
  const int64_t keys = size.heads * size.D, values = size.heads * size.V;
  StateData data = random_state_data(rng, {keys, keys, values, keys, size.heads}, lengths);
  for (auto& s : data.sequences)
    for (double& g : s.inputs[3]) g = static_cast<double>(static_cast<float>(strongest * rng.uniform()));
  return data;
}

Attrs kda_attrs(const KdaSize& size) {
  return {{Attr::heads, static_cast<double>(size.heads)},
          {Attr::head_dim, static_cast<double>(size.D)},
          {Attr::v_dim, static_cast<double>(size.V)},
          {Attr::cache, 0}};
}

}  // namespace moesaic
