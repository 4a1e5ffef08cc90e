#include "cli/serve_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cli/config_file.h"
#include "cli/flag_checks.h"
#include "engine/load_options.h"
#include "ir/cache_spec.h"
#include "server/media_hosts.h"

namespace moesaic {
namespace {

// Flags of other servers that need nothing here: what they ask for is so anyway, or does not exist.
struct ForeignFlag {
  const char* names;
  bool takes_value;
  const char* why;
};
constexpr ForeignFlag kForeign[] = {
    {"--gpu-memory-utilization,--mem-fraction-static", true,
     "the cache is sized by --max-num-seqs or --kv-cache-tokens"},
    {"--dtype", true, "weights stay as the checkpoint has them"},
    {"--quantization", true, "the checkpoint says how it is quantised"},
    {"--trust-remote-code", false, "no code of a checkpoint is ever run"},
    {"--tokenizer,--tokenizer-mode,--revision,--download-dir", true, "everything is read from the model's directory"},
    {"--attention-backend", true, "kernels are chosen for the device"},
    {"--deterministic", false, "on a CPU it is always so, and a GPU has no such mode"},
    {"--seed,--random-seed", true, "requests bring their own"},
    {"--enforce-eager,--disable-cuda-graph", false, "steps are replayed where the device can"},
    {"--enable-auto-tool-choice,--jinja", false, "tools work without it"},
    {"--tool-call-parser,--reasoning-parser,--reasoning-format", true, "the format follows from the checkpoint"},
    {"--chat-template-content-format", true, "templates get what they ask for"},
    {"--enable-metrics,--metrics", false, "metrics are always on"},
    {"--enable-log-requests", false, "requests are logged; see --log-requests"},
    {"--enable-chunked-prefill,--cont-batching,--enable-prompt-tokens-details,--enable-cache-report", false,
     "it is always so"},
    {"--gpu-layers,--n-gpu-layers,--override-tensor,--n-cpu-moe,--expert-offload,--expert-cache-bytes", true,
     "weights live on one device"},
    {"--split-mode,--tensor-split,--kt-num-gpu-experts,--moe-cache-mib", true, "weights live on one device"},
    {"--cpu-moe,--enable-dp-attention", false, "weights live on one device"},
    {"--cache-type-k,--cache-type-v", true, "--kv-cache-dtype says how keys and values are kept"},
    {"--cache-prompt", false, "it is always so; see --no-enable-prefix-caching"},
    {"--cache-reuse", true, "blocks of the same beginning are used again; see --no-enable-prefix-caching"},
    {"--speculative-algorithm,--model-draft", true, "the model drafts for itself; see --num-speculative-tokens"},
    {"--swap-space,--cpu-offload-gb,--flash-attn,--fit,--fit-target,--uvicorn-log-level,--log-level", true,
     "there is nothing like it here"}};

// Spellings with one dash, which the parser would take for several flags.
constexpr std::pair<std::string_view, std::string_view> kShort[] = {{"-tp", "--tensor-parallel-size"},
                                                                    {"-pp", "--pipeline-parallel-size"},
                                                                    {"-dp", "--data-parallel-size"},
                                                                    {"-np", "--parallel"},
                                                                    {"-ngl", "--gpu-layers"},
                                                                    {"-ot", "--override-tensor"},
                                                                    {"-cmoe", "--cpu-moe"},
                                                                    {"-ncmoe", "--n-cpu-moe"},
                                                                    {"-sm", "--split-mode"},
                                                                    {"-ts", "--tensor-split"},
                                                                    {"-ctk", "--cache-type-k"},
                                                                    {"-ctv", "--cache-type-v"},
                                                                    {"-md", "--model-draft"},
                                                                    {"-hf", "--model"},
                                                                    {"-ub", "--max-num-batched-tokens"},
                                                                    {"-fa", "--flash-attn"}};

// a,b or ["a", "b"]. [::1]:8080,b is not JSON, though it looks so.
std::vector<std::string> split_list(const std::string& text) {
  if (text.starts_with('[') && !parse_media_host(text.substr(0, text.find(',')))) {
    const Json list = parse_json(text, "a list among the flags");
    std::vector<std::string> items;
    for (const Json& item : list.as_array()) {
      if (!item.is_string()) fail_argument("a list among the flags is {}; expected strings in it", text);
      items.emplace_back(item.as_string());
    }
    return items;
  }
  std::vector<std::string> items;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string item = text.substr(begin, end - begin);
    item.erase(0, item.find_first_not_of(' '));
    if (!item.empty()) items.push_back(std::move(item));
    begin = end + 1;
  }
  return items;
}

// vLLM's {"image": 16} or image=16.
int parse_image_limit(const std::string& text) {
  if (text.starts_with('{')) {
    const Json limits = parse_json(text, "--limit-mm-per-prompt");
    return static_cast<int>(json_int(limits.as_object(), "image", "--limit-mm-per-prompt"));
  }
  char* end = nullptr;
  const long limit = text.starts_with("image=") ? std::strtol(text.c_str() + 6, &end, 10) : -1;
  if (end == nullptr || *end != 0 || limit < 0)
    fail_argument("--limit-mm-per-prompt is \"{}\"; expected image=16 or {{\"image\": 16}}", text);
  return static_cast<int>(limit);
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t best = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1] ? 1 : 0)});
      diagonal = std::exchange(row[j], best);
    }
  }
  return row.back();
}

}  // namespace

struct ServeFlags::State {
  CLI::App* app = nullptr;
  RunServeOptions run;
  ServeOptions& serve = run.serve;
  std::string load_format = "auto", speculative_config, moe_activation, moe_backend = "auto", kv_cache_dtype = "auto";
  std::string origins = "*", methods = "GET,POST,OPTIONS", headers = "*", compat = "vllm";
  std::string log_requests = "meta", log_format = "text", key_file, template_file, template_kwargs, image_limit;
  std::string media_domains, config_path, generation_config = "auto";
  double drain_seconds = 30;
  int64_t block_size = kBlockTokens, tensor_parallel = 1, pipeline_parallel = 1, data_parallel = 1;
  int64_t expert_parallel_size = 1;
  int64_t ping_seconds = 15;
  bool expert_parallel = false, no_request_log = false;
  std::vector<std::pair<CLI::Option*, const char*>> ignored;

  void add_model();
  void add_network();
  void add_engine();
  void add_parallel();
  void add_answers();
  void add_logs();
  void add_foreign();
  void finish_options();
  void check_parallel() const;
  void read_engine(ServeOptions& out) const;
  void read_api(ServeOptions& out) const;
  void read_server(ServeOptions& out) const;
  std::vector<std::string> warnings() const;

  template <typename T>
  CLI::Option* option(const char* group, const char* names, T& value, const char* help) {
    return app->add_option(names, value, help)->group(group)->capture_default_str();
  }
  template <typename T>
  CLI::Option* count(const char* group, const char* names, T& value, const char* help) {
    return option(group, names, value, help)->check(kZeroOrMore);
  }
};

void ServeFlags::State::add_model() {
  constexpr const char* kGroup = "Model";
  EngineOptions& e = serve.engine;
  app->add_option("model,-m,--model,--model-path", e.model,
                  "Directory in Hugging Face's layout, or a name in its local cache; default: the demo model")
      ->group(kGroup);
  app->add_option("--served-model-name,-a,--alias", serve.api.served_names,
                  "Names that clients use; default: the model's")
      ->group(kGroup);
  option(kGroup, "--load-format", load_format, "auto, or dummy: random weights")
      ->check(CLI::IsMember({"auto", "dummy"}));
  option(kGroup, "--chat-template-kwargs", template_kwargs, "JSON object that every chat template gets");
  option(kGroup, "--chat-template,--chat-template-file", template_file,
         "File with a template instead of the checkpoint's");
  app->add_flag("--dry-run", run.dry_run, "Print what would live where in memory, and exit: 1 where it does not fit")
      ->group(kGroup);
}

void ServeFlags::State::add_network() {
  constexpr const char* kGroup = "Network";
  http::ServerOptions& h = serve.http;
  option(kGroup, "--host", h.host, "Address to listen at; 0.0.0.0: all");
  option(kGroup, "--port", h.port, "Port; 0: any free one")->check(CLI::Range(0, 65535));
  app->add_option("--api-key", serve.api_keys, "Key that clients must send; may be given several times")
      ->group(kGroup)
      ->allow_extra_args(false);
  option(kGroup, "--api-key-file", key_file, "File with one key on a line");
  app->add_flag("--protect-metrics", serve.protect_metrics, "/metrics and /stats want a key too")->group(kGroup);
  option(kGroup, "--allowed-origins,--cors-origins", origins, "Origins whose pages may read answers: a list, or *");
  option(kGroup, "--allowed-methods,--cors-methods", methods, "Methods that they may use");
  option(kGroup, "--allowed-headers,--cors-headers", headers, "Headers that they may send; *: any");
  app->add_flag("--allow-credentials,--cors-credentials", serve.cors.credentials, "They may send cookies")
      ->group(kGroup);
  count(kGroup, "--max-body-bytes", h.max_body_bytes, "Longest request body");
  count(kGroup, "--max-connections", h.max_connections, "Connections at once");
  option(kGroup, "--http-threads", h.threads, "Threads for connections")->check(CLI::Range(1, 64));
  count(kGroup, "--sse-ping-interval", ping_seconds, "Seconds of silence after which a stream gets a comment");
  count(kGroup, "--drain-timeout", drain_seconds, "Seconds that running requests have after SIGTERM");
}

void ServeFlags::State::add_engine() {
  constexpr const char* kGroup = "Engine";
  EngineOptions& e = serve.engine;
  option(kGroup, "--device", e.device, "auto, cpu, cuda, ref")->check(CLI::IsMember({"auto", "cpu", "cuda", "ref"}));
  option(kGroup, "--precision", e.precision, "fast, fp8 or float32")->check(CLI::IsMember({"fast", "fp8", "float32"}));
  option(kGroup, "--moe-activation,--flashinfer-mxfp4-moe-precision", moe_activation,
         "Inputs of MXFP4 experts: fp8 or bf16 (--precision fp8 or fast)")
      ->check(CLI::IsMember({"fp8", "bf16"}));
  option(kGroup, "--moe-backend,--moe-runner-backend", moe_backend, "auto, w4a8, w4a16 or reference");
  option(kGroup, "--kv-cache-dtype", kv_cache_dtype, "auto, f32 or bf16");
  option(kGroup, "-t,--threads", e.threads, "Threads; 0: one per available core")->check(CLI::Range(0, 1024));
  count(kGroup, "-c,--max-model-len,--context-length,--ctx-size", e.max_model_len,
        "Longest sequence; 0: what the model allows, at most 8192");
  option(kGroup, "--max-num-seqs,--max-running-requests,--parallel", e.max_num_seqs, "Sequences at once")
      ->check(kAboveZero);
  option(kGroup, "--max-num-batched-tokens,--chunked-prefill-size,--max-prefill-tokens,-b,--batch-size",
         e.max_num_batched_tokens, "Prompt tokens of a step")
      ->check(kAboveZero);
  count(kGroup, "--max-queue,--max-queued-requests", e.max_queue, "Requests waiting; more get 429");
  count(kGroup, "--kv-cache-tokens,--max-total-tokens", e.kv_cache_tokens, "Size of the cache; 0: for all sequences");
  count(kGroup, "--kv-cache-bytes", run.kv_cache_bytes, "The same in bytes");
  option(kGroup, "--block-size,--page-size", block_size, "Tokens of a cache block")->check(kAboveZero);
  app->add_flag("--enable-prefix-caching,!--no-enable-prefix-caching,!--disable-radix-cache", e.prefix_caching,
                "Blocks of earlier prompts are used again; on unless --no-enable-prefix-caching")
      ->group(kGroup);
  count(kGroup, "--host-cache-bytes", e.host_cache_bytes, "Host memory for blocks that leave the device");
  count(kGroup, "--prefix-cache-slots", e.prefix_cache_slots, "Snapshots of recurrent state; 0: two per sequence");
  option(kGroup, "--admission", e.admission, "preempt or worst_case")->check(CLI::IsMember({"preempt", "worst_case"}));
  option(kGroup, "--schedule-policy,--scheduling-policy", e.schedule_policy, "fcfs or priority")
      ->check(CLI::IsMember({"fcfs", "priority"}));
  auto* drafts = option(kGroup, "--num-speculative-tokens,--speculative-num-steps", e.num_speculative_tokens,
                        "Tokens drafted at a time; 0: off");
  option(kGroup, "--speculative-config", speculative_config, "The same as vLLM writes it, in JSON")->excludes(drafts);
}

void ServeFlags::State::add_parallel() {
  constexpr const char* kGroup = "Several devices";
  constexpr const char* kOne = "1: this version serves from one device";
  option(kGroup, "--tensor-parallel-size,--tp-size,--tp", tensor_parallel, kOne);
  option(kGroup, "--pipeline-parallel-size,--pp-size", pipeline_parallel, kOne);
  option(kGroup, "--data-parallel-size,--dp-size", data_parallel, kOne);
  option(kGroup, "--ep-size,--ep", expert_parallel_size, kOne);
  app->add_flag("--enable-expert-parallel", expert_parallel, "Not yet")->group(kGroup);
}

void ServeFlags::State::add_answers() {
  constexpr const char* kGroup = "Answers";
  ApiOptions& a = serve.api;
  app->add_flag("--any-model-name", a.any_model_name, "Take any model name in a request")->group(kGroup);
  option(kGroup, "--reasoning-field", a.reasoning_field, "reasoning_content, reasoning or both")
      ->check(CLI::IsMember({"reasoning_content", "reasoning", "both"}));
  option(kGroup, "--generation-config", generation_config,
         "auto: sampling that a request leaves open is generation_config.json's; none (or vllm): OpenAI's")
      ->check(CLI::IsMember({"auto", "none", "vllm"}));
  option(kGroup, "--max-n", a.max_n, "Most answers to one request")->check(CLI::Range(1, 128));
  option(kGroup, "--max-logprobs", a.max_logprobs, "Most alternatives to a token")->check(CLI::Range(0, 20));
  option(kGroup, "--stream-interval", a.stream_interval, "Tokens in one event")->check(CLI::Range(1, 1024));
  count(kGroup, "--max-input-tokens", a.max_input_tokens, "Longest prompt; 0: the context");
  count(kGroup, "--request-timeout", a.request_timeout_seconds, "Seconds until the first token; 0: any");
  app->add_flag("--trust-request-chat-template", a.trust_request_chat_template, "Requests may bring templates")
      ->group(kGroup);
  app->add_flag("--timings", a.timings, "Answers carry timings as llama.cpp's")->group(kGroup);
  option(kGroup, "--limit-mm-per-prompt", image_limit, "Most images in a request: image=16");
  option(kGroup, "--allowed-media-domains", media_domains, "Hosts that images may be fetched from: a list");
  option(kGroup, "--allowed-local-media-path", a.allowed_local_media_path, "Directory that images may be read from");
  count(kGroup, "--response-store-size", a.response_store_size, "Answers of /v1/responses to keep");
}

void ServeFlags::State::add_logs() {
  constexpr const char* kGroup = "Logs and metrics";
  // SGLang's --log-requests has no value.
  option(kGroup, "--log-requests", log_requests, "none, meta or full (bodies too)")
      ->expected(0, 1)
      ->default_str("meta");
  app->add_flag("--disable-log-requests", no_request_log, "As --log-requests none")->group(kGroup);
  option(kGroup, "--log-format", log_format, "text or json")->check(CLI::IsMember({"text", "json"}));
  option(kGroup, "--metrics-compat", compat, "Names of metrics beside our own: vllm, sglang, both, none");
  app->add_flag("--expert-metrics", serve.metrics.experts, "A series for the tokens of each expert")->group(kGroup);
  option(kGroup, "--health-stall-seconds", serve.stall_seconds, "Without a step for so long, /health is 503")
      ->check(kAboveZero);
}

void ServeFlags::State::add_foreign() {
  for (const ForeignFlag& flag : kForeign)
    for (const std::string& name : split_list(flag.names)) {
      CLI::Option* option = app->add_flag(name)->group("");
      if (flag.takes_value) option->expected(1)->type_size(1);
      ignored.emplace_back(option, flag.why);
    }
}

// The last of several settings wins, and each has a name in the environment: MOESAIC_MAX_MODEL_LEN.
void ServeFlags::State::finish_options() {
  for (CLI::Option* option : app->get_options()) {
    if (option->get_lnames().empty() || option->get_lnames()[0] == "help") continue;
    if (option->get_expected_max() <= 1) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    std::string name = "MOESAIC_";
    for (char c : option->get_lnames()[0]) name += c == '-' ? '_' : static_cast<char>(std::toupper(c));
    if (!option->get_group().empty()) option->envname(name);
  }
}

void ServeFlags::State::check_parallel() const {
  const std::pair<const char*, int64_t> sizes[] = {{"--tensor-parallel-size", tensor_parallel},
                                                   {"--pipeline-parallel-size", pipeline_parallel},
                                                   {"--data-parallel-size", data_parallel},
                                                   {"--ep-size", expert_parallel_size}};
  for (const auto& [name, size] : sizes)
    if (size != 1) fail_argument("{} is {}; this version serves from one device: leave it out or say 1", name, size);
  if (expert_parallel) fail_argument("--enable-expert-parallel needs several devices; this version serves from one");
  if (block_size != kBlockTokens)
    fail_argument("--block-size is {}; cache blocks have {} tokens here: leave it out", block_size, kBlockTokens);
}

void ServeFlags::State::read_engine(ServeOptions& out) const {
  EngineOptions& e = out.engine;
  e.dummy_weights = load_format == "dummy";
  if (!speculative_config.empty()) e.num_speculative_tokens = parse_speculative_config(speculative_config);
  e.kv_cache_dtype = kv_cache_dtype == "bfloat16" ? "bf16" : kv_cache_dtype == "float32" ? "f32" : kv_cache_dtype;
  parse_cache_dtype(e.kv_cache_dtype);
  if (!moe_activation.empty()) e.precision = moe_activation == "fp8" ? "fp8" : "fast";
  if (moe_backend == "w4a8") e.precision = "fp8";
  else if (moe_backend == "w4a16") e.precision = "fast";
  else if (moe_backend == "reference") e.device = "ref";
}

void ServeFlags::State::read_api(ServeOptions& out) const {
  ApiOptions& a = out.api;
  a.model_sampling = generation_config == "auto";
  a.priorities = out.engine.schedule_policy == "priority";
  if (!template_file.empty()) a.chat_template = read_text_file(template_file);
  if (!template_kwargs.empty()) {
    const Json kwargs = parse_json(template_kwargs, "--chat-template-kwargs");
    a.chat_template_kwargs = json_object(kwargs, "--chat-template-kwargs");
  }
  if (!image_limit.empty()) a.max_images = parse_image_limit(image_limit);
  a.allowed_media_domains = split_list(media_domains);
  for (const std::string& entry : a.allowed_media_domains)
    if (!parse_media_host(entry))
      fail_argument(
          "--allowed-media-domains has \"{}\"; expected a host without scheme and path, like "
          "images.example.com, .example.com for all below it, or 10.0.0.7:8080",
          entry);
}

void ServeFlags::State::read_server(ServeOptions& out) const {
  out.http.ping_interval = std::chrono::seconds(ping_seconds > 0 ? ping_seconds : 86400);
  out.drain_timeout = std::chrono::milliseconds(static_cast<int64_t>(drain_seconds * 1000));
  if (!key_file.empty())
    for (std::string& key : read_key_file(key_file)) out.api_keys.push_back(std::move(key));
  if (const char* key = std::getenv("VLLM_API_KEY"); key != nullptr && *key != 0 && out.api_keys.empty())
    out.api_keys.emplace_back(key);
  out.cors.origins = split_list(origins);
  out.cors.methods = split_list(methods);
  out.cors.headers = split_list(headers);
  out.metrics.compat = split_list(compat);
  out.log_requests = no_request_log ? RequestLog::none : parse_request_log(log_requests);
}

std::vector<std::string> ServeFlags::State::warnings() const {
  std::vector<std::string> out;
  for (const auto& [option, why] : ignored)
    if (option->count() > 0) out.push_back(fmt::format("--{} is ignored: {}", option->get_lnames()[0], why));
  if (moe_backend != "auto" && moe_backend != "w4a8" && moe_backend != "w4a16" && moe_backend != "reference")
    out.push_back(
        fmt::format("--moe-backend {} is ignored: kernels are chosen for the device; auto, w4a8, w4a16 and "
                    "reference are known",
                    moe_backend));
  return out;
}

ServeFlags::ServeFlags() : state_(std::make_unique<State>()) {}
ServeFlags::~ServeFlags() = default;

void ServeFlags::add(CLI::App& main) {
  State& s = *state_;
  s.app = main.add_subcommand(
      "serve",
      "Serve a model over HTTP as OpenAI's API does; flags of vLLM, SGLang and llama.cpp's server are understood");
  s.app->add_option("--config", s.config_path, "File with flags: \"max-model-len: 4096\" on a line")->group("Model");
  s.add_model(), s.add_network(), s.add_engine(), s.add_parallel(), s.add_answers(), s.add_logs(), s.add_foreign();
  s.finish_options();
}

RunServeOptions ServeFlags::get() const {
  const State& s = *state_;
  s.check_parallel();
  RunServeOptions out = s.run;
  out.json_logs = s.log_format == "json";
  s.read_engine(out.serve), s.read_api(out.serve), s.read_server(out.serve);
  out.warnings = s.warnings();
  return out;
}

namespace {

std::string normalised(const std::string& argument) {
  for (const auto& [from, to] : kShort)
    if (argument == from) return std::string(to);
  if (!argument.starts_with("--")) return argument;
  const auto end = argument.begin() + static_cast<ptrdiff_t>(std::min(argument.find('='), argument.size()));
  std::string out = argument;
  std::replace(out.begin(), out.begin() + (end - argument.begin()), '_', '-');
  return out;
}

std::vector<std::string> config_arguments(const std::string& path) {
  std::vector<std::string> out;
  for (const ConfigEntry& entry : parse_config(read_text_file(path), path))
    for (const std::string& value : entry.values) out.push_back("--" + entry.name + "=" + value);
  return out;
}

}  // namespace

std::vector<std::string> serve_arguments(std::vector<std::string> arguments) {
  if (arguments.empty() || arguments[0] != "serve") return arguments;
  std::vector<std::string> own, config;
  if (const char* path = std::getenv("MOESAIC_CONFIG"); path != nullptr && *path != 0) config = config_arguments(path);
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string argument = normalised(arguments[i]);
    own.push_back(argument);
    std::string path;
    if (argument == "--config" && i + 1 < arguments.size()) path = arguments[i + 1];
    else if (argument.starts_with("--config=")) path = argument.substr(9);
    if (!path.empty()) config = config_arguments(path);
  }
  std::vector<std::string> out = {"serve"};
  out.insert(out.end(), config.begin(), config.end());
  out.insert(out.end(), own.begin(), own.end());
  return out;
}

std::string nearest_flag(const CLI::App& app, const std::string& unknown) {
  std::string best;
  size_t least = unknown.size() / 3 + 1;  // farther names are no misspelling
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames())
      if (const size_t distance = edit_distance("--" + name, unknown); distance < least)
        least = distance, best = "--" + name;
  return best;
}

}  // namespace moesaic
