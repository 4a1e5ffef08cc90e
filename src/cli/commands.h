// One struct of options and one function per command; main.cc parses the flags. Each function returns the exit code.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "moesaic/engine.h"
#include "runtime/loaded_model.h"
#include "server/serve.h"

namespace moesaic {

// Flags that override generation_config.json's sampling.
struct SamplingFlags {
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int> top_k;
  std::optional<uint64_t> seed;

  SamplingParams over(SamplingParams defaults) const;
};

struct RunOptions {
  EngineOptions engine;
  SamplingFlags sampling;
  std::string prompt, prompt_file, system;
  std::vector<std::string> images;  // files
  bool chat = false;
  int64_t max_tokens = 0;
  std::vector<std::string> stop;
  bool ignore_eos = false;
};
int run_run(const RunOptions& options);

struct ChatOptions {
  EngineOptions engine;
  SamplingFlags sampling;
  std::string system;
  int64_t max_tokens = 0;
};
int run_chat(const ChatOptions& options);

struct InspectOptions {
  std::string model;
  bool tensors = false;  // list every tensor
  bool json = false;
};
int run_inspect(const InspectOptions& options);

struct ExplainOptions {
  LoadOptions load;
  std::string phase;       // "", "prefill" or "decode"
  std::string dump_after;  // a pass, or "build"
  bool json = false;
};
int run_explain(const ExplainOptions& options);

struct DiffOptions {
  LoadOptions load;
  std::string reference;  // safetensors with input_ids [B, T], hidden.<i> [B, T, H], logits [B, T, V]
  std::string against;    // a second backend to compare with instead of the file's values
  std::string write;
  double bound = 0;  // relative L2 allowed; 0: 1e-5 in float32, 3e-2 in the fast mode
  bool json = false;
};
int run_diff(const DiffOptions& options);

struct BenchOptions {
  LoadOptions load;
  std::vector<int64_t> prompt_lengths, batch_sizes, depths;
  int64_t generate = 32;
  int repetitions = 3;
  std::string csv;       // appended to
  bool profile = false;  // time each kind of op
  std::string trace;     // every launch of one repetition, for a trace viewer
  bool json = false;
};
int run_bench(const BenchOptions& options);

struct EvalOptions {
  LoadOptions load;
  std::string text, tokens;  // a file each, one of them
  int64_t window = 512;
  int64_t max_windows = 0;
  std::string against;  // a precision to compare the distributions with; empty: none
  bool json = false;
};
int run_eval(const EvalOptions& options);

struct PlanOptions {
  std::string model, device = "h200";  // device: see compile/device_models.h
  int devices = 1;
  int64_t context = 0;  // tokens of a sequence; 0: what the model allows, at most kDefaultContext
  int64_t batch = 16, prefill_tokens = 8192;
  double host_memory_gb = 0;  // for experts that do not fit
  std::string kv_cache_dtype = "bf16";
  bool json = false;
};
int run_plan(const PlanOptions& options);

struct RunServeOptions {
  ServeOptions serve;          // its model may be empty: the demo model
  int64_t kv_cache_bytes = 0;  // instead of EngineOptions::kv_cache_tokens
  bool dry_run = false, json_logs = false;
  std::vector<std::string> warnings;  // of flags that have no effect
};
int run_serve(RunServeOptions options);

struct SynthOptions {
  std::string config, out;
  int64_t layers = 0, experts = 0;  // 0: as in the config
  uint64_t seed = 1;
  bool force = false;
};
int run_synth(const SynthOptions& options);

}  // namespace moesaic
