// moesaic synth: a checkpoint of a config's shapes with random weights.
#include "weights/synth.h"

#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "base/progress.h"
#include "cli/commands.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kShardBytes = 4'000'000'000;
constexpr const char* kIndexName = "model.safetensors.index.json";
// Files beside a config that a checkpoint needs for text.
constexpr const char* kTextFiles[] = {"tokenizer.json",
                                      "tokenizer_config.json",
                                      "special_tokens_map.json",
                                      "added_tokens.json",
                                      "vocab.json",
                                      "merges.txt",
                                      "tokenizer.model",
                                      "chat_template.jinja",
                                      "chat_template.json",
                                      "generation_config.json"};
constexpr const char* kLayerFields[] = {"num_hidden_layers", "num_layers", "n_layer"};
constexpr const char* kExpertFields[] = {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"};

// Lists of names and of token ids may happen to be as long as the model is deep.
bool is_per_layer(std::string_view name) {
  return name != "architectures" && name.find("token") == std::string_view::npos;
}

// Lists with one entry per layer (layer_types) are cut, or go on as they began.
void resize_lists(JsonObject& config, int64_t before, int64_t layers) {
  for (auto& member : config) {
    if (!is_per_layer(member.key()) || !member.value().is_array() ||
        static_cast<int64_t>(member.value().get_array().size()) != before)
      continue;
    const JsonArray old = member.value().get_array();
    JsonArray list;
    for (int64_t i = 0; i < layers; ++i) list.push_back(old[static_cast<size_t>(i % before)]);
    member.value() = std::move(list);
  }
}

bool set_layers(JsonObject& config, int64_t layers, const std::string& where) {
  for (const char* field : kLayerFields) {
    if (json_find(config, field) == nullptr) continue;
    const int64_t before = json_int(config, field, where);
    config[field] = layers;
    if (before > 1) resize_lists(config, before, layers);
    return true;
  }
  return false;
}

bool set_experts(JsonObject& config, int64_t experts, const std::string& where) {
  bool found = false;
  for (const char* field : kExpertFields) {
    if (json_find(config, field) == nullptr) continue;
    config[field] = experts;
    found = true;
  }
  for (const char* field : {"num_experts_per_tok", "experts_per_token"}) {
    const int64_t chosen = found ? json_int(config, field, where, 0) : 0;
    if (chosen > experts)
      fail_argument("--experts is {}; {} says {} = {}, so at least that many are needed", experts, where, field,
                    chosen);
  }
  return found;
}

// Multimodal configs keep the language model's fields one level down.
JsonObject& text_part(JsonObject& config) {
  Json* part = config.if_contains("text_config");
  return part != nullptr && part->is_object() ? part->get_object() : config;
}

JsonObject edited_config(const SynthOptions& options, const std::string& path) {
  JsonObject config = json_object(read_json_file(path, {.python_constants = true}), path);
  JsonObject& part = text_part(config);
  if (options.layers > 0 && !set_layers(part, options.layers, path))
    fail_data(path, "has no num_hidden_layers for --layers to change");
  if (options.experts > 0 && !set_experts(part, options.experts, path))
    fail_data(path, "has no num_local_experts, num_experts or n_routed_experts for --experts to change");
  return config;
}

bool is_checkpoint_file(const fs::path& path) {
  return path.extension() == ".safetensors" || path.filename() == kIndexName || path.filename() == "config.json";
}

// The files of an older checkpoint, which would be mixed up with ours. Throws unless they may be removed.
std::vector<fs::path> older_files(const fs::path& out, const fs::path& config_directory, bool force) {
  if (fs::exists(out) && !fs::is_directory(out))
    fail_argument("{} is a file; expected a directory to write", out.string());
  fs::create_directories(out);
  if (fs::equivalent(out, config_directory))
    fail_argument("{} is where the config itself lies; name another directory to write", out.string());
  std::vector<fs::path> old;
  for (const fs::directory_entry& entry : fs::directory_iterator(out))
    if (is_checkpoint_file(entry.path())) old.push_back(entry.path());
  if (!old.empty() && !force)
    fail_argument("{} holds a checkpoint already ({}); --force overwrites it", out.string(),
                  old[0].filename().string());
  return old;
}

void check_space(const fs::path& out, int64_t bytes, const std::vector<fs::path>& old) {
  auto available = static_cast<double>(fs::space(out).available);
  for (const fs::path& path : old) available += static_cast<double>(fs::file_size(path));
  if (static_cast<double>(bytes) <= available) return;
  throw Error(StatusCode::resource_exhausted,
              fmt::format("needs {}; the disk has {} left. --layers and --experts make it smaller",
                          human_bytes(static_cast<double>(bytes)), human_bytes(available)),
              out.string());
}

void copy_text_files(const fs::path& from, const fs::path& to) {
  for (const char* name : kTextFiles)
    if (fs::is_regular_file(from / name)) fs::copy_file(from / name, to / name, fs::copy_options::overwrite_existing);
}

void write_config(const fs::path& path, const JsonObject& config) {
  std::ofstream file(path, std::ios::binary);
  file << write_json(config, {.indent = 2}) << '\n';
  if (!file.flush()) throw Error(StatusCode::internal, "cannot be written", path.string());
}

}  // namespace

int run_synth(const SynthOptions& options) {
  const ModelSource original = open_model(options.config, false);
  const JsonObject config = edited_config(options, original.config_path);
  ModelSource source;
  source.config_path = original.config_path;
  source.model = parse_model(config, original.config_path);
  source.quantization = parse_quantization(config, original.config_path);
  const BoundGraph bound = build_graph(source, Backend::cpu, DType::bf16);
  const fs::path out = options.out;
  const int64_t bytes = random_checkpoint_bytes(bound.graph);
  const std::vector<fs::path> old = older_files(out, original.directory, options.force);
  check_space(out, bytes, old);
  for (const fs::path& path : old) fs::remove(path);
  ThreadPool pool;
  SynthResult result;
  {
    Progress bar("writing " + options.out, bytes, ProgressUnit::bytes);
    result = write_random_checkpoint(bound.graph, out, options.seed, kShardBytes, pool, bar);
  }
  copy_text_files(original.directory, out);
  write_config(out / "config.json", config);
  fmt::print("{}: {} layers, {} tensors, {} in {} file{}\n", options.out, source.model.layers, result.tensors,
             human_bytes(static_cast<double>(result.bytes)), result.files, result.files == 1 ? "" : "s");
  return 0;
}

}  // namespace moesaic
