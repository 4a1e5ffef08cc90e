#include "runtime/loaded_model.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "kernels/dummy.h"
#include "runtime/arena_upload.h"
#include "weights/load.h"
#include "weights/model_files.h"

namespace moesaic {
namespace {

// Weights of a graph: the checkpoint's, or random ones.
void fill(const WeightMap& map, const Binding& binding, const ModelSource& source, const Buffer& arena, Device& device,
          Progress& bar) {
  ThreadPool& pool = *device.stream().pool;
  const std::span<std::byte> memory{arena.data(), static_cast<size_t>(arena.bytes())};
  if (device.shares_host_memory()) {
    if (!source.shards) return fill_dummy_weights(map, memory, pool, bar);
    MemorySink sink(memory);
    return load_weights(map, binding, *source.shards, sink, pool, bar);
  }
  if (!source.shards) {
    fill_dummy_on_gpu(map, arena.data(), device.stream());
    return device.synchronize();
  }
  ArenaUpload upload(device, arena.data(), map.bytes);
  load_weights(map, binding, *source.shards, upload, pool, bar);
  upload.finish();
}

void fill_weights(LoadedModel& loaded, const ModelSource& source, const BoundGraph& bound, const LoadOptions& options) {
  const WeightMap& map = loaded.compiled.weights;
  Progress bar("loading " + source.directory.filename().string(), map.bytes, ProgressUnit::bytes, options.progress);
  bar.on_advance(options.on_load);
  const auto start = std::chrono::steady_clock::now();
  fill(map, bound.binding, source, loaded.weights, *loaded.device, bar);
  loaded.fill_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Two for each sequence, unless they are large.
int64_t snapshot_count(const LoadOptions& options, int64_t slot_bytes, int64_t memory_bytes) {
  if (options.snapshots >= 0 || slot_bytes == 0) return slot_bytes == 0 ? 0 : options.snapshots;
  const auto share = static_cast<int64_t>(kSnapshotShare * static_cast<double>(memory_bytes));
  return std::clamp<int64_t>(share / slot_bytes, 1, 2 * options.max_sequences);
}

void allocate(LoadedModel& loaded, const LoadOptions& options) {
  Device& device = *loaded.device;
  const Compiled& c = loaded.compiled;
  loaded.weights = device.allocate(c.weights.bytes, "the model's weights");
  loaded.activations = device.allocate(c.activation_bytes(), "activations");
  loaded.workspace = device.allocate(c.workspace_bytes(), "the workspace");
  loaded.sequences = options.max_sequences;
  loaded.snapshots = snapshot_count(options, c.cache.slot_stride, device.info().memory_bytes);
  loaded.slots = loaded.sequences + loaded.snapshots;
  const int64_t all = options.max_sequences * loaded.max_blocks();
  loaded.blocks = options.cache_tokens > 0 ? (options.cache_tokens + kBlockTokens - 1) / kBlockTokens : all;
  // On a GPU one more of each, for the padding of captured steps.
  const int64_t spare = device.shares_host_memory() ? 0 : 1;
  loaded.cache_blocks = device.allocate((loaded.blocks + spare) * c.cache.block_stride, "the key-value cache");
  loaded.cache_slots = device.allocate((loaded.slots + spare) * c.cache.slot_stride, "sequence state");
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
  if (options.cache_dtype != DType::none) return options.cache_dtype;
  return options.backend == Backend::cuda && options.precision != Precision::float32 ? DType::bf16 : DType::f32;
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

BoundGraph build_graph(const ModelSource& source, Backend backend, DType cache, bool hidden) {
  const BuildOptions options{
      .activation = activation_dtype(backend), .cache = cache, .has_tensor = {}, .hidden = hidden};
  return bind_graph(source, options, source.model.build, source.model.skipped);
}

BoundGraph build_vision_graph(const ModelSource& source, Backend backend) {
  CHECK(source.model.vision.has_value());
  const DType activation = activation_dtype(backend);
  return bind_graph(source, {.activation = activation, .cache = activation, .has_tensor = {}},
                    source.model.vision->build, source.model.vision->skipped);
}

BoundGraph build_draft_graph(const ModelSource& source, Backend backend, DType cache) {
  CHECK(source.model.mtp.has_value());
  return bind_graph(source, {.activation = activation_dtype(backend), .cache = cache, .has_tensor = {}},
                    source.model.mtp->build, source.model.mtp->skipped);
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
  // A sequence that decodes brings its last token and what was drafted after it.
  const int64_t verified = options.max_sequences * (1 + options.speculative_tokens);
  compile.decode = {verified, verified, options.max_sequences};
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
  fill(tower->weight_map(), bound.binding, source, tower->weights(), device, bar);
  return tower;
}

void check_draft(const ModelSource& source, int64_t tokens, Backend backend) {
  if (tokens < 0 || tokens > kMaxSpeculativeTokens)
    fail_argument("--num-speculative-tokens is {}; expected 0 (off) to {}", tokens, kMaxSpeculativeTokens);
  if (tokens == 0) return;
  if (backend == Backend::cuda)
    fail_argument("--num-speculative-tokens is {}, but drafting does not run on --device cuda yet; leave the flag out",
                  tokens);
  if (!source.model.mtp)
    fail_argument(
        "--num-speculative-tokens is {}, but this {} model has no multi-token prediction layer to draft with: that "
        "needs num_nextn_predict_layers in the config.json of a deepseek_v3, deepseek_v32 or glm_moe_dsa model; leave "
        "the flag out",
        tokens, source.model.family);
  if (!source.shards) return;
  const auto names = source.shards->names();
  const auto of_layer = [&](std::string_view name) { return name.starts_with(source.model.mtp->prefix); };
  if (std::none_of(names.begin(), names.end(), of_layer))
    fail_argument(
        "--num-speculative-tokens is {}, but the checkpoint {} was published without its multi-token prediction layer: "
        "it has no tensors {}*; leave the flag out",
        tokens, source.directory.string(), source.model.mtp->prefix);
}

std::unique_ptr<DraftModel> load_draft(const ModelSource& source, const LoadOptions& options,
                                       const LoadedModel& loaded) {
  Device& device = *loaded.device;
  const BoundGraph bound = build_draft_graph(source, options.backend, cache_dtype(options));
  check_binding(bound.binding, source.directory.string());
  CompileOptions compile = compile_options(options, source.model, device.info());
  compile.prefill.tokens = std::max(compile.prefill.tokens, compile.decode.tokens);  // it follows either plan
  compile.decode = {options.max_sequences, options.max_sequences, options.max_sequences};
  auto draft = std::make_unique<DraftModel>(bound.graph, compile, loaded.blocks, device);
  Progress bar("loading the prediction layer", draft->weight_map().bytes, ProgressUnit::bytes, options.progress);
  fill(draft->weight_map(), bound.binding, source, draft->weights(), device, bar);
  return draft;
}

}  // namespace

void LoadedModel::run_step(const Plan& plan, const BatchView& batch, const StepHook* hook) {
  if (steps == nullptr) return run(plan, compiled.cache, memory(), batch, device->stream(), hook);
  steps->run(plan, batch, hook);
  device->synchronize();
}

namespace {

std::unique_ptr<StepRunner> make_steps(const LoadedModel& loaded) {
  return std::make_unique<StepRunner>(*loaded.device, loaded.compiled, loaded.memory(), loaded.max_blocks(),
                                      loaded.blocks, loaded.slots, loaded.model.vocab,
                                      loaded.vision != nullptr ? loaded.model.hidden : 0);
}

}  // namespace

LoadedModel load_model(const LoadOptions& options) {
  if (options.max_sequences < 1) fail_argument("--max-num-seqs is {}; expected at least 1", options.max_sequences);
  LoadedModel loaded;
  ModelSource source = open_model(options.model, !options.dummy_weights);
  check_draft(source, options.speculative_tokens, options.backend);
  const bool speculate = options.speculative_tokens > 0;
  const BoundGraph bound = build_graph(source, options.backend, cache_dtype(options), speculate);
  check_binding(bound.binding, source.directory.string());
  loaded.device = make_device(options.backend, options.threads);
  loaded.compiled = compile(bound.graph, compile_options(options, source.model, loaded.device->info()));
  loaded.max_model_len = context_length(options, source.model);
  loaded.directory = source.directory;
  allocate(loaded, options);
  fill_weights(loaded, source, bound, options);
  if (source.model.vision) loaded.vision = load_vision(source, options, *loaded.device);
  if (speculate) loaded.draft = load_draft(source, options, loaded);
  loaded.speculative_tokens = options.speculative_tokens;
  loaded.model = std::move(source.model);
  if (!loaded.device->shares_host_memory()) loaded.steps = make_steps(loaded);
  if (loaded.vision == nullptr) loaded.model.vision.reset();
  return loaded;
}

}  // namespace moesaic
