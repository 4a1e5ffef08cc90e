#include "engine/taps.h"

#include "cache/cache_pool.h"

namespace moesaic {
namespace {

Tap copy(const ValueType& type, const Bounds& now, const std::byte* data) {
  Tap tap;
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

}  // namespace

Forward forward(LoadedModel& loaded, const std::vector<std::vector<int32_t>>& input_ids, bool every_op,
                std::span<const float> image_rows) {
  const Plan& plan = loaded.compiled.prefill;
  CachePool pool(loaded.blocks, loaded.compiled.cache.block_stride, loaded.slots, loaded.compiled.cache.slot_stride);
  Batch batch(plan.limits, loaded.compiled.decode.limits, loaded.max_blocks());
  std::vector<SequenceCache> caches(input_ids.size());
  const auto places = place_rows(loaded.model, input_ids, image_rows);
  for (size_t i = 0; i < input_ids.size(); ++i) {
    const int64_t count = static_cast<int64_t>(input_ids[i].size());
    CHECK(pool.open(caches[i], count), "no room for {} tokens", count);
    batch.add(input_ids[i], 0, caches[i].blocks, caches[i].slot, count, places[i]);
  }
  Forward result;
  const auto record = [&](const Step& step, const Args& args) {
    for (size_t i = 0; i < step.output_names.size(); ++i)
      if (!step.output_names[i].empty())
        result.named.emplace_back(step.output_names[i], copy(step.desc.outputs[i].type, args.now, args.out[i]));
    if (every_op) result.ops.emplace_back(step.label, copy(step.desc.outputs[0].type, args.now, args.out[0]));
  };
  const StepHook hook(record);
  const BatchView view = batch.view();
  run(plan, loaded.compiled.cache, loaded.memory(), view, loaded.device->stream(), &hook);
  const OperandDesc& out = plan.steps.back().desc.outputs[0];
  result.named.emplace_back("logits", copy(out.type, {view.tokens, view.rows}, logits(plan, loaded.memory())));
  return result;
}

}  // namespace moesaic
