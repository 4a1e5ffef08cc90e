#include "runtime/loaded_model.h"

#include <algorithm>

#include "base/log.h"
#include "weights/load.h"
#include "weights/model_files.h"

namespace moesaic {
namespace {

// Weights of a graph: the checkpoint's, or random ones.
void fill(const WeightMap& map, const Binding& binding, const ModelSource& source, std::span<std::byte> arena,
          ThreadPool& pool, Progress& bar) {
  if (source.shards) load_weights(map, binding, *source.shards, arena, pool, bar);
  else fill_dummy_weights(map, arena, pool, bar);
}

void fill_weights(LoadedModel& loaded, const ModelSource& source, const BoundGraph& bound, bool progress) {
  const WeightMap& map = loaded.compiled.weights;
  Progress bar("loading " + source.directory.filename().string(), map.bytes, ProgressUnit::bytes, progress);
  const std::span<std::byte> arena{loaded.weights.data(), static_cast<size_t>(loaded.weights.bytes())};
  fill(map, bound.binding, source, arena, *loaded.device->stream().pool, bar);
}

void allocate(LoadedModel& loaded, const LoadOptions& options) {
  Device& device = *loaded.device;
  const Compiled& c = loaded.compiled;
  loaded.weights = device.allocate(c.weights.bytes, "the model's weights");
  loaded.activations = device.allocate(c.activation_bytes(), "activations");
  loaded.workspace = device.allocate(c.workspace_bytes(), "the workspace");
  loaded.slots = options.max_sequences;
  const int64_t all = options.max_sequences * loaded.max_blocks();
  loaded.blocks = options.cache_tokens > 0 ? (options.cache_tokens + kBlockTokens - 1) / kBlockTokens : all;
  loaded.cache_blocks = device.allocate(loaded.blocks * c.cache.block_stride, "the key-value cache");
  loaded.cache_slots = device.allocate(loaded.slots * c.cache.slot_stride, "sequence state");
}

int64_t context_length(const LoadOptions& options, const Model& model) {
  if (options.max_model_len > model.max_positions)
    fail_argument("--max-model-len is {}; this model's config.json allows at most {} (max_position_embeddings)",
                  options.max_model_len, model.max_positions);
  return options.max_model_len > 0 ? options.max_model_len : std::min(model.max_positions, kDefaultContext);
}

}  // namespace

ModelSource open_model(const std::string& name, bool need_weights) {
  ModelSource source;
  std::filesystem::path path(name);
  // A config of any file name is accepted where no weights are needed.
  const bool lone_config = !need_weights && path.extension() == ".json" && std::filesystem::is_regular_file(path);
  source.directory = lone_config ? std::filesystem::absolute(path).parent_path() : resolve_model(name);
  source.config_path = lone_config ? path.string() : (source.directory / "config.json").string();
  const Json config = read_json_file(source.config_path, {.python_constants = true});
  source.model = parse_model(json_object(config, source.config_path), source.config_path);
  source.quantization = parse_quantization(config.get_object(), source.config_path);
  if (need_weights) source.shards = Shards::open(source.directory);
  return source;
}

DType activation_dtype(Backend backend) {
  return backend == Backend::ref ? DType::f64 : DType::f32;
}

DType cache_dtype(const LoadOptions& options) {
  if (options.backend == Backend::ref) return DType::f64;
  return options.cache_dtype == DType::none ? DType::f32 : options.cache_dtype;
}

namespace {

BoundGraph bind_graph(const ModelSource& source, const BuildOptions& wanted, const std::function<void(Builder&)>& build,
                      const std::vector<std::string>& skipped) {
  BoundGraph bound;
  BuildOptions options = wanted;
  if (source.shards)
    options.has_tensor = [&](const std::string& name) { return source.shards->find(name).has_value(); };
  Builder builder(bound.graph, options);
  build(builder);
  bound.graph.family = source.model.family;
  if (source.shards) bound.binding = bind_weights(bound.graph, *source.shards, skipped);
  else assume_formats(bound.graph, source.quantization);
  return bound;
}

}  // namespace

BoundGraph build_graph(const ModelSource& source, Backend backend, DType cache) {
  const BuildOptions options{.activation = activation_dtype(backend), .cache = cache, .has_tensor = {}};
  return bind_graph(source, options, source.model.build, source.model.skipped);
}

BoundGraph build_vision_graph(const ModelSource& source, Backend backend) {
  CHECK(source.model.vision.has_value());
  const DType activation = activation_dtype(backend);
  return bind_graph(source, {.activation = activation, .cache = activation, .has_tensor = {}},
                    source.model.vision->build, source.model.vision->skipped);
}

CompileOptions compile_options(const LoadOptions& options, const Model& model, const DeviceInfo& device) {
  CompileOptions compile;
  compile.device = device;
  compile.precision = options.precision;
  compile.cache_dtype = cache_dtype(options);
  compile.skip = options.skip_passes;
  const int64_t context = context_length(options, model);
  const int64_t tokens = std::min(std::max(options.prefill_tokens, int64_t{1}), context * options.max_sequences);
  const int64_t sequences = std::min(options.max_sequences, tokens);
  compile.prefill = {tokens, options.prefill_rows > 0 ? std::min(options.prefill_rows, tokens) : sequences, sequences};
  compile.decode = {options.max_sequences, options.max_sequences, options.max_sequences};
  return compile;
}

namespace {

std::unique_ptr<VisionTower> load_vision(const ModelSource& source, const LoadOptions& options, Device& device) {
  BoundGraph bound = build_vision_graph(source, options.backend);
  if (source.shards && bound.binding.missing.size() == bound.graph.weights.size()) {
    log_info("{} holds the text model alone; it will see no images", source.directory.string());
    return nullptr;
  }
  check_binding(bound.binding, source.directory.string());
  CompileOptions compile;
  compile.device = device.info();
  compile.precision = options.precision;
  compile.cache_dtype = activation_dtype(options.backend);
  auto tower = std::make_unique<VisionTower>(std::move(bound.graph), compile, source.model.vision->merge, device);
  Progress bar("loading the vision tower", tower->weight_map().bytes, ProgressUnit::bytes, options.progress);
  fill(tower->weight_map(), bound.binding, source, tower->weight_memory(), *device.stream().pool, bar);
  return tower;
}

}  // namespace

LoadedModel load_model(const LoadOptions& options) {
  if (options.max_sequences < 1) fail_argument("--max-num-seqs is {}; expected at least 1", options.max_sequences);
  LoadedModel loaded;
  ModelSource source = open_model(options.model, !options.dummy_weights);
  const BoundGraph bound = build_graph(source, options.backend, cache_dtype(options));
  check_binding(bound.binding, source.directory.string());
  loaded.device = make_cpu_device(options.backend, options.threads);
  loaded.compiled = compile(bound.graph, compile_options(options, source.model, loaded.device->info()));
  loaded.max_model_len = context_length(options, source.model);
  loaded.directory = source.directory;
  allocate(loaded, options);
  fill_weights(loaded, source, bound, options.progress);
  if (source.model.vision) loaded.vision = load_vision(source, options, *loaded.device);
  loaded.model = std::move(source.model);
  if (loaded.vision == nullptr) loaded.model.vision.reset();
  return loaded;
}

}  // namespace moesaic
