// Runs a small graph of a test's own on a checkpoint of its own.
#pragma once

#include <functional>

#include "engine/taps.h"
#include "support/checkpoint.h"
#include "weights/load.h"

namespace moesaic {

inline OwnedTensor f32_tensor(Shape shape, const std::vector<float>& values) {
  OwnedTensor t{DType::f32, shape, {}};
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  t.bytes.assign(bytes, bytes + values.size() * 4);
  return t;
}

// Builds with `build`, binds to `tensors` (throws Error when they do not fit), and returns the logits of every token of
// one sequence that fits a cache block.
inline std::vector<double> logits_of(TensorMap tensors, const std::function<void(Builder&)>& build, Backend backend,
                                     const std::vector<int32_t>& ids = {0}) {
  const TempDir dir;
  write_tensors(dir.path() / "model.safetensors", tensors);
  const Shards shards = Shards::open(dir.path());
  const DType cache_type = backend == Backend::ref ? DType::f64 : DType::f32;
  Graph graph;
  const BuildOptions options{.activation = activation_dtype(backend),
                             .cache = cache_type,
                             .has_tensor = [&](const std::string& name) { return shards.find(name).has_value(); }};
  Builder builder(graph, options);
  build(builder);
  const Binding binding = bind_weights(graph, shards);
  check_binding(binding, "checkpoint");

  LoadedModel loaded;
  loaded.device = make_cpu_device(backend, 1);
  CompileOptions compile_options;
  compile_options.device = loaded.device->info();
  compile_options.cache_dtype = cache_type;
  const int64_t tokens = std::ssize(ids);
  compile_options.prefill = compile_options.decode = {.tokens = tokens, .rows = tokens, .sequences = 1};
  loaded.compiled = compile(graph, compile_options);
  loaded.weights = loaded.device->allocate(loaded.compiled.weights.bytes, "weights");
  loaded.activations = loaded.device->allocate(loaded.compiled.activation_bytes(), "activations");
  loaded.workspace = loaded.device->allocate(loaded.compiled.workspace_bytes(), "workspace");
  loaded.cache_blocks = loaded.device->allocate(loaded.compiled.cache.block_stride, "cache");
  loaded.cache_slots = loaded.device->allocate(loaded.compiled.cache.slot_stride, "state");
  loaded.max_model_len = tokens;
  loaded.blocks = loaded.slots = 1;
  Progress progress("", 0, ProgressUnit::bytes, false);
  MemorySink sink({loaded.weights.data(), static_cast<size_t>(loaded.weights.bytes())});
  load_weights(loaded.compiled.weights, binding, shards, sink, *loaded.device->stream().pool, progress);
  return forward(loaded, {ids}).named.back().second.values;
}

}  // namespace moesaic
