#include "engine/load_options.h"

namespace moesaic {

Backend parse_backend(const std::string& name) {
  if (name == "auto") return auto_backend();
  if (name == "cpu") return Backend::cpu;
  if (name == "cuda") return Backend::cuda;
  if (name == "ref") return Backend::ref;
  fail_argument("device \"{}\" is unknown; expected auto, cpu, cuda or ref", name);
}

Precision parse_precision(const std::string& name) {
  if (name == "fast") return Precision::fast;
  if (name == "float32") return Precision::float32;
  if (name == "fp8") return Precision::fp8;
  fail_argument("precision \"{}\" is unknown; expected fast, fp8 or float32", name);
}

const char* precision_name(Precision precision) {
  switch (precision) {
    case Precision::fast: return "fast";
    case Precision::fp8: return "fp8";
    case Precision::float32: break;
  }
  return "float32";
}

DType parse_cache_dtype(const std::string& name) {
  if (name == "auto") return DType::none;
  const auto dtype = parse_dtype(name);
  if (dtype == DType::f32 || dtype == DType::bf16) return *dtype;
  fail_argument("key-value cache type \"{}\" is unknown; expected auto, f32 or bf16", name);
}

int64_t parse_speculative_config(const std::string& text) {
  constexpr const char* kWhere = "--speculative-config";
  const Json json = parse_json(text, kWhere);
  const JsonObject& object = json_object(json, kWhere);
  for (const auto& [key, value] : object)
    if (key != "method" && key != "num_speculative_tokens")
      fail_argument("{} has \"{}\"; expected method and num_speculative_tokens alone", kWhere, std::string_view(key));
  const std::string method = json_string(object, "method", kWhere, "mtp");
  if (method != "mtp" && method != "deepseek_mtp")
    fail_argument("{}: method \"{}\" is unknown; expected \"mtp\", the model's own prediction layer", kWhere, method);
  return json_int(object, "num_speculative_tokens", kWhere);
}

LoadOptions load_options(const EngineOptions& options) {
  LoadOptions load;
  load.model = options.model;
  load.backend = parse_backend(options.device);
  load.precision = parse_precision(options.precision);
  load.cache_dtype = parse_cache_dtype(options.kv_cache_dtype);
  load.threads = options.threads;
  load.dummy_weights = options.dummy_weights;
  load.max_model_len = options.max_model_len;
  load.max_sequences = options.max_num_seqs;
  load.prefill_tokens = options.max_num_batched_tokens;
  load.cache_tokens = options.kv_cache_tokens;
  load.speculative_tokens = options.num_speculative_tokens;
  load.progress = options.progress;
  load.on_load = options.on_load;
  // Drafts need hidden states of what was computed, which a cached prefix does not have.
  const bool reuse = options.prefix_caching && options.num_speculative_tokens == 0;
  load.snapshots = !reuse ? 0 : options.prefix_cache_slots > 0 ? options.prefix_cache_slots : -1;
  return load;
}

}  // namespace moesaic
