#include "engine/taps.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "cache/cache_pool.h"

namespace moesaic {
namespace {

Tap copy(Device& device, const ValueType& type, const Bounds& now, std::byte* there) {
  Tap tap;
  Buffer scratch;
  const std::byte* data = on_host(device, there, type.bytes(now), scratch);
  int64_t n = 1;
  for (Dim d : type.dims) tap.shape.push_back(now.of(d)), n *= now.of(d);
  tap.values.resize(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    double& to = tap.values[static_cast<size_t>(i)];
    if (type.dtype == DType::f64) to = reinterpret_cast<const double*>(data)[i];
    else if (type.dtype == DType::f32) to = reinterpret_cast<const float*>(data)[i];
    else to = reinterpret_cast<const int32_t*>(data)[i];
  }
  return tap;
}

}  // namespace

LoadOptions forward_limits(LoadOptions options, int64_t sequences, int64_t tokens_each) {
  options.max_sequences = sequences;
  options.max_model_len = tokens_each;
  options.prefill_tokens = options.prefill_rows = sequences * tokens_each;
  return options;
}

namespace {

// Where each token's embedding comes from; empty without images.
std::vector<std::vector<const float*>> place_rows(const Model& model,
                                                  const std::vector<std::vector<int32_t>>& input_ids,
                                                  std::span<const float> image_rows) {
  std::vector<std::vector<const float*>> places(input_ids.size());
  if (image_rows.empty()) return places;
  const float* next = image_rows.data();
  for (size_t i = 0; i < input_ids.size(); ++i)
    for (int32_t id : input_ids[i]) {
      const bool image = model.vision && id == model.vision->placeholder;
      places[i].push_back(image ? next : nullptr);
      if (image) next += model.hidden;
    }
  CHECK(next == image_rows.data() + image_rows.size(), "{} image rows do not fit the image tokens",
        image_rows.size() / static_cast<size_t>(model.hidden));
  return places;
}

// One prefill step of all sequences from position 0.
BatchView run_whole(LoadedModel& loaded, Batch& batch, const std::vector<std::vector<int32_t>>& input_ids,
                    std::span<const float> image_rows, const StepHook& hook) {
  CachePool pool(loaded.blocks, loaded.compiled.cache.block_stride, loaded.slots, loaded.compiled.cache.slot_stride);
  std::vector<SequenceCache> caches(input_ids.size());
  const auto places = place_rows(loaded.model, input_ids, image_rows);
  for (size_t i = 0; i < input_ids.size(); ++i) {
    const int64_t count = static_cast<int64_t>(input_ids[i].size());
    CHECK(pool.open(caches[i], count), "no room for {} tokens", count);
    batch.add(input_ids[i], 0, caches[i].blocks, caches[i].slot, count, places[i]);
  }
  const BatchView view = batch.view();
  loaded.run_step(loaded.compiled.prefill, view, &hook);
  return view;
}

Batch batch_for(const LoadedModel& loaded) {
  return {loaded.compiled.prefill.limits, loaded.compiled.decode.limits, loaded.max_blocks()};
}

// The scores of one index_topk from its inputs, which hold every key of a step that starts at position 0. An entry
// stands for `ratio` tokens; its key is the row of the last of them.
struct IndexScores {
  const Attrs& attrs;
  const BatchView& batch;
  const Tap queries, keys, weights;
  int64_t heads = attrs.integer(Attr::heads), D = attrs.integer(Attr::head_dim);
  int64_t ratio = attrs.integer(Attr::ratio, 1);

  double score(int64_t t, int64_t entry) const {
    const int64_t key = batch.sequence_offsets[batch.sequence_of[t]] + (entry + 1) * ratio - 1;
    double total = 0;
    for (int64_t h = 0; h < heads; ++h) {
      const double* q = queries.values.data() + (t * heads + h) * D;
      const double dot = std::inner_product(q, q + D, keys.values.data() + key * D, 0.0);
      total += weights.values[static_cast<size_t>(t * heads + h)] * std::max(0.0, dot * attrs.number(Attr::scale));
    }
    return total;
  }
  double gap(int64_t t) const {
    std::vector<double> all;
    for (int64_t e = 0; e < (batch.positions[t] + 1) / ratio; ++e) all.push_back(score(t, e));
    const auto top_k = static_cast<size_t>(attrs.integer(Attr::top_k));
    if (all.size() <= top_k) return std::numeric_limits<double>::infinity();
    std::sort(all.begin(), all.end(), std::greater<>());
    const double largest = std::max(std::abs(all.front()), std::abs(all.back()));
    return largest > 0 ? (all[top_k - 1] - all[top_k]) / largest : 0;
  }
};

bool mixes_tokens(Op op) {
  switch (op) {
    case Op::gqa:
    case Op::mla:
    case Op::mla_attend:
    case Op::entry_attend:
    case Op::compress:
    case Op::short_conv:
    case Op::kda: return true;
    default: return false;
  }
}

// What a step contributes to Forward::events, apart from names.
void record_event(Device& device, const Step& step, const Args& args, std::vector<ForwardEvent>& events) {
  const Op op = step.desc.op;
  if (mixes_tokens(op)) events.push_back({ForwardEvent::Kind::mix, {}});
  if (op != Op::route && op != Op::index_topk) return;
  const size_t ids = op == Op::route ? 1 : 0;
  const Tap tap = copy(device, step.desc.outputs[ids].type, args.now, args.out[ids]);
  const auto width = static_cast<ptrdiff_t>(tap.shape[1]);
  ForwardEvent event{ForwardEvent::Kind::choice, {}};
  for (auto row = tap.values.begin(); row != tap.values.end(); row += width) {
    event.chosen.emplace_back(row, row + width);
    std::sort(event.chosen.back().begin(), event.chosen.back().end());
  }
  events.push_back(std::move(event));
}

}  // namespace

std::vector<std::vector<bool>> diverged_rows(const Forward& a, const Forward& b, int64_t tokens_each) {
  std::vector<std::vector<bool>> out;
  std::vector<bool> diverged(static_cast<size_t>(a.named.front().second.shape[0]));
  CHECK(a.events.size() == b.events.size(), "runs of different graphs");
  for (size_t i = 0; i < a.events.size(); ++i) {
    const ForwardEvent &ours = a.events[i], &theirs = b.events[i];
    for (size_t t = 0; t < ours.chosen.size(); ++t)
      if (ours.chosen[t] != theirs.chosen[t]) diverged[t] = true;
    for (size_t t = 1; ours.kind == ForwardEvent::Kind::mix && t < diverged.size(); ++t)
      if (static_cast<int64_t>(t) % tokens_each != 0 && diverged[t - 1]) diverged[t] = true;
    if (ours.kind == ForwardEvent::Kind::named) out.push_back(diverged);
  }
  return out;
}

std::vector<double> rows_without(const std::vector<double>& values, const std::vector<bool>& left_out) {
  const size_t width = values.size() / left_out.size();
  std::vector<double> out;
  for (size_t row = 0; row < left_out.size(); ++row)
    if (!left_out[row])
      out.insert(out.end(), values.begin() + static_cast<ptrdiff_t>(row * width),
                 values.begin() + static_cast<ptrdiff_t>((row + 1) * width));
  return out;
}

Forward forward(LoadedModel& loaded, const std::vector<std::vector<int32_t>>& input_ids, bool every_op,
                std::span<const float> image_rows) {
  Forward result;
  Device& device = *loaded.device;
  const auto record = [&](const Step& step, const Args& args) {
    record_event(device, step, args, result.events);
    for (size_t i = 0; i < step.output_names.size(); ++i)
      if (!step.output_names[i].empty())
        result.events.push_back({ForwardEvent::Kind::named, {}}),
            result.named.emplace_back(step.output_names[i],
                                      copy(device, step.desc.outputs[i].type, args.now, args.out[i]));
    if (every_op) result.ops.emplace_back(step.label, copy(device, step.desc.outputs[0].type, args.now, args.out[0]));
  };
  Batch batch = batch_for(loaded);
  const BatchView view = run_whole(loaded, batch, input_ids, image_rows, StepHook(record));
  const Plan& plan = loaded.compiled.prefill;
  const OperandDesc& out = plan.steps.back().desc.outputs[0];
  result.events.push_back({ForwardEvent::Kind::named, {}});
  result.named.emplace_back("logits", copy(device, out.type, {view.tokens, view.rows}, logits(plan, loaded.memory())));
  return result;
}

std::vector<IndexGaps> index_gaps(LoadedModel& loaded, const std::vector<std::vector<int32_t>>& input_ids, size_t named,
                                  std::span<const float> image_rows) {
  std::vector<IndexGaps> out;
  size_t seen = 0;
  const auto record = [&](const Step& step, const Args& args) {
    for (const std::string& name : step.output_names) seen += name.empty() ? 0 : 1;
    if (seen != named || step.desc.op != Op::index_topk || step.desc.attrs.has(Attr::hash_bits)) return;
    const auto input = [&](int i) {
      return copy(*loaded.device, step.desc.in(i).type, args.now, args.in[static_cast<size_t>(i)]);
    };
    const IndexScores scores{step.desc.attrs, *args.batch, input(0), input(1), input(2)};
    IndexGaps& gaps = out.emplace_back(IndexGaps{step.label, {}});
    for (int64_t t = 0; t < args.now.tokens; ++t) gaps.of_token.push_back(scores.gap(t));
  };
  Batch batch = batch_for(loaded);
  run_whole(loaded, batch, input_ids, image_rows, StepHook(record));
  return out;
}

}  // namespace moesaic
