// moesaic: the command line. Flags carry the names that users know from vLLM, SGLang and llama.cpp.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/log.h"
#include "cli/bench_serve.h"
#include "cli/commands.h"
#include "cli/flag_checks.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/serve_flags.h"
#include "engine/load_options.h"
#include "engine/sampling_check.h"

namespace moesaic {
namespace {

constexpr const char* kModelHelp =
    "Directory of a model in Hugging Face's layout, or a name such as openai/gpt-oss-20b that the local Hugging Face "
    "cache holds";

// What every command that loads a model takes.
struct LoadFlags {
  EngineOptions engine;
  std::string load_format = "auto", speculative_config;

  void add(CLI::App& app) {
    app.add_option("model,-m,--model", engine.model, kModelHelp)->required();
    app.add_option("--device", engine.device,
                   "auto: cuda where there is a Hopper GPU, else cpu; ref: a slow float64 reference to check against")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "cpu", "cuda", "ref"}));
    app.add_option("--precision", engine.precision,
                   "fast: inputs of MXFP4 experts are rounded to 8 bits, on a GPU those of all products to bf16; "
                   "fp8: as fast, and prompts' inputs of MXFP4 experts to FP8; float32: they are not")
        ->capture_default_str()
        ->check(CLI::IsMember({"fast", "fp8", "float32"}));
    app.add_option(
           "--kv-cache-dtype", engine.kv_cache_dtype,
           "Keys and values of past tokens in f32, or in bf16: half the memory, rounded; auto: bf16 on a GPU in "
           "fast precision, else f32")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "f32", "bf16"}));
    app.add_option("-t,--threads", engine.threads, "Threads; 0: one per available core")
        ->capture_default_str()
        ->check(CLI::Range(0, 1024));
    app.add_option("--load-format", load_format,
                   "auto: the checkpoint's weights; dummy: random ones, for which config.json is enough")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "dummy"}));
    app.add_option("-c,--max-model-len,--context-length,--ctx-size", engine.max_model_len,
                   "Longest sequence in tokens; 0: what the model allows, at most 8192")
        ->capture_default_str()
        ->check(kZeroOrMore);
  }
  void add_engine(CLI::App& app) {
    add(app);
    app.add_option("--max-num-batched-tokens,--chunked-prefill-size", engine.max_num_batched_tokens,
                   "Prompt tokens computed at once: more is faster and takes more memory")
        ->capture_default_str()
        ->check(kAboveZero);
    auto* drafts = app.add_option("--num-speculative-tokens,--speculative-num-steps", engine.num_speculative_tokens,
                                  "Tokens that the model's multi-token prediction layer drafts at a time and the model "
                                  "verifies: faster where it guesses well, greedy text stays the same; 0: off")
                       ->capture_default_str()
                       ->check(CLI::Range(int64_t{0}, kMaxSpeculativeTokens));
    app.add_option("--speculative-config", speculative_config,
                   "The same as vLLM writes it: {\"method\": \"mtp\", \"num_speculative_tokens\": 3}")
        ->excludes(drafts);
  }
  const EngineOptions& get() {
    engine.dummy_weights = load_format == "dummy";
    if (!speculative_config.empty()) engine.num_speculative_tokens = parse_speculative_config(speculative_config);
    return engine;
  }
  LoadOptions load() {
    LoadOptions options = load_options(get());
    options.progress = true;
    return options;
  }
};

void add_sampling(CLI::App& app, SamplingFlags& s) {
  app.add_option("--temperature,--temp", s.temperature, "Randomness: 0 takes the best token; default: the model's");
  app.add_option("--top-p", s.top_p, "Sample from the fewest tokens with this much probability");
  app.add_option("--top-k", s.top_k, "Sample from the k best tokens");
  app.add_option("--min-p", s.min_p, "Sample from tokens at least this share as probable as the best");
  app.add_option("-s,--seed", s.seed, "Seed of the random choices: the same one gives the same text")
      ->check(kZeroOrMore);
  app.add_option("--repeat-penalty,--repetition-penalty", s.repetition_penalty,
                 "Above 1: discourage tokens seen before");
  app.add_option("--presence-penalty", s.presence_penalty, "Above 0: discourage tokens in the answer so far");
  app.add_option("--frequency-penalty", s.frequency_penalty, "The same, per occurrence");
}

void add_run(CLI::App& main, LoadFlags& load, RunOptions& o) {
  CLI::App& app =
      *main.add_subcommand("run", "Continue one prompt (or answer it, with --chat); the text streams to stdout");
  load.add_engine(app);
  add_sampling(app, o.sampling);
  auto* prompt = app.add_option("-p,--prompt", o.prompt, "The prompt");
  app.add_option("-f,--file", o.prompt_file, "Read the prompt from a file; - is standard input")->excludes(prompt);
  auto* as_chat =
      app.add_flag("--chat", o.chat, "Ask the prompt as a user's message, through the model's chat template");
  app.add_flag("--no-conversation")
      ->description("Continue the prompt as it stands; so it is without --chat")
      ->excludes(as_chat);
  app.add_option(
         "--image", o.images,
         "JPEG, PNG or WebP file for a model that sees images; may be given several times. The prompt says where "
         "they go with the model's image token, or they come first")
      ->allow_extra_args(false);
  app.add_option("--system,--sys", o.system, "System message (with --chat)")->needs(as_chat);
  app.add_option("-n,--max-tokens", o.max_tokens, "Tokens to generate at most; 0: up to the context's end")
      ->capture_default_str()
      ->check(kZeroOrMore);
  app.add_option("--stop", o.stop, "End the text before this string; may be given several times")
      ->allow_extra_args(false);
  app.add_flag("--ignore-eos", o.ignore_eos, "Go on after the model's end-of-text tokens");
}

void add_chat(CLI::App& main, LoadFlags& load, ChatOptions& o) {
  CLI::App& app = *main.add_subcommand("chat", "Talk to the model; Ctrl-D ends, /help lists commands");
  load.add_engine(app);
  add_sampling(app, o.sampling);
  app.add_option("--system,--sys", o.system, "System message");
  app.add_option("-n,--max-tokens", o.max_tokens, "Tokens per answer at most; 0: up to the context's end")
      ->capture_default_str()
      ->check(kZeroOrMore);
}

void add_inspect(CLI::App& main, InspectOptions& o) {
  CLI::App& app = *main.add_subcommand(
      "inspect", "Show a model's layers, parameters, formats and sizes, and check that its checkpoint is complete");
  app.add_option("model", o.model, std::string(kModelHelp) + "; or a config.json")->required();
  app.add_flag("--tensors", o.tensors, "List every weight");
  app.add_flag("--json", o.json, "Machine-readable output");
}

void add_explain(CLI::App& main, LoadFlags& load, ExplainOptions& o) {
  CLI::App& app = *main.add_subcommand(
      "explain", "Show how a model is compiled: passes over its graph, the kernel of each op and why, the memory map");
  load.add(app);
  app.add_option("--phase", o.phase, "prefill or decode; default: both")->check(CLI::IsMember({"prefill", "decode"}));
  app.add_option("--dump-after", o.dump_after, "Print the graph after this pass (build: as the model file made it)");
  app.add_option("--skip", o.load.skip_passes, "Leave out this pass; may be given several times")
      ->allow_extra_args(false);
  app.add_option("--max-num-seqs,--max-running-requests", load.engine.max_num_seqs, "Sequences in flight")
      ->capture_default_str()
      ->check(kAboveZero);
  app.add_option("--max-num-batched-tokens,--chunked-prefill-size", load.engine.max_num_batched_tokens,
                 "Prompt tokens of one step")
      ->capture_default_str()
      ->check(kAboveZero);
  app.add_flag("--json", o.json, "Machine-readable output");
}

void add_diff(CLI::App& main, LoadFlags& load, DiffOptions& o) {
  CLI::App& app = *main.add_subcommand(
      "diff",
      "Compare every layer's values with those of a file or of another backend; exit code 1 when one differs too much");
  load.add(app);
  app.add_option("-r,--reference", o.reference, "safetensors file with input_ids, hidden.<i> and logits")->required();
  app.add_option("--against", o.against,
                 "Compare with this device on the file's input_ids, and find the first op that differs")
      ->check(CLI::IsMember({"cpu", "ref"}));
  app.add_option("--write", o.write, "Save our values here under the same names");
  app.add_option("--bound", o.bound, "Relative L2 difference allowed; default 1e-5 in float32, 3e-2 in the fast mode")
      ->check(kAboveZero);
  app.add_option("--skip", o.load.skip_passes, "Leave out this compiler pass; may be given several times")
      ->allow_extra_args(false);
  app.add_flag("--json", o.json, "Machine-readable output");
}

void add_bench(CLI::App& main, LoadFlags& load, BenchOptions& o, BenchServeOptions& serve) {
  CLI::App& app =
      *main.add_subcommand("bench", "Measure the speed of prompts and of generation, beside what the machine can do");
  load.add(app);
  app.add_option("-p,--n-prompt", o.prompt_lengths, "Prompt lengths; default 128,512; 0: none")
      ->check(kZeroOrMore)
      ->allow_extra_args(false)
      ->delimiter(',');
  app.add_option("-n,--n-gen", o.generate, "Tokens to generate; 0: none")->capture_default_str()->check(kZeroOrMore);
  app.add_option("-b,--batch", o.batch_sizes, "Sequences that generate together; default 1,4")
      ->check(kAboveZero)
      ->allow_extra_args(false)
      ->delimiter(',');
  app.add_option("-d,--depth", o.depths, "Tokens in the cache before generation starts; default 0")
      ->check(kZeroOrMore)
      ->allow_extra_args(false)
      ->delimiter(',');
  app.add_option("--max-num-batched-tokens,--chunked-prefill-size", load.engine.max_num_batched_tokens,
                 "Prompt tokens computed at once")
      ->capture_default_str()
      ->check(kAboveZero);
  app.add_option("--reps", o.repetitions, "Repetitions")->capture_default_str()->check(kAboveZero);
  app.add_option("--csv", o.csv, "Append the rows to this CSV file");
  app.add_flag("--profile", o.profile, "Time each kind of op: bytes, FLOPs, share of the step, percent of the ceiling");
  app.add_option("--trace", o.trace, "Write every launch of a repetition of each test to this file, as a Chrome trace");
  app.add_flag("--json", o.json, "Machine-readable output");
  add_bench_serve(app, serve);
}

void add_eval(CLI::App& main, LoadFlags& load, EvalOptions& o) {
  CLI::App& app = *main.add_subcommand(
      "eval", "Measure how well the model predicts a text: mean negative log-likelihood, perplexity");
  load.add(app);
  auto* text = app.add_option("--text", o.text, "Text file, tokenized with the model's tokenizer");
  app.add_option("--tokens", o.tokens, "safetensors file with eval.tokens or tokens (I64); `golden`: the model's own")
      ->excludes(text);
  app.add_option("--window", o.window, "Tokens per window; windows are independent")
      ->capture_default_str()
      ->check(kAboveZero);
  app.add_option("--max-windows", o.max_windows, "Stop after so many windows; 0: all")->check(kZeroOrMore);
  app.add_option(
         "--against", o.against,
         "Compare every token's distribution with that of this precision: KL divergence, same most likely token")
      ->check(CLI::IsMember({"fast", "fp8", "float32"}));
  app.add_flag("--json", o.json, "Machine-readable output");
}

void add_synth(CLI::App& main, SynthOptions& o) {
  CLI::App& app = *main.add_subcommand(
      "synth", "Write a checkpoint with random weights in the shapes of a config, to try out a model's size and speed");
  app.add_option("config", o.config, "config.json of the model to imitate, or its directory")->required();
  app.add_option("out", o.out, "Directory to write")->required();
  app.add_option("--layers", o.layers, "Layers instead of the config's")->check(kAboveZero);
  app.add_option("--experts", o.experts, "Experts per layer instead of the config's")->check(kAboveZero);
  app.add_option("--seed", o.seed, "Seed of the random weights")->capture_default_str()->check(kZeroOrMore);
  app.add_flag("--force", o.force, "Overwrite a checkpoint that is there already");
}

void add_plan(CLI::App& main, PlanOptions& o) {
  CLI::App& app = *main.add_subcommand(
      "plan",
      "Show what would live where on accelerators, and how fast reading it could be; exit code 1 when it does not fit");
  app.add_option("model", o.model, std::string(kModelHelp) + "; or a config.json")->required();
  app.add_option("--device", o.device, "h200, h100, h20 (96 GB) or h20-141")->capture_default_str();
  app.add_option("--devices,--tensor-parallel-size", o.devices, "How many")->capture_default_str()->check(kAboveZero);
  app.add_option("-c,--context,--max-model-len", o.context,
                 "Tokens of each sequence; 0: what the model allows, at most 8192")
      ->capture_default_str()
      ->check(kZeroOrMore);
  app.add_option("-b,--batch", o.batch, "Sequences in flight")->capture_default_str()->check(kAboveZero);
  app.add_option("--max-num-batched-tokens,--chunked-prefill-size", o.prefill_tokens, "Prompt tokens of one step")
      ->capture_default_str()
      ->check(kAboveZero);
  app.add_option("--host-memory", o.host_memory_gb, "GB of host memory for experts that do not fit on the devices")
      ->capture_default_str()
      ->check(kZeroOrMore);
  app.add_option("--kv-cache-dtype", o.kv_cache_dtype, "Keys and values in bf16 or f32")
      ->capture_default_str()
      ->check(CLI::IsMember({"bf16", "f32"}));
  app.add_flag("--json", o.json, "Machine-readable output");
}

// llama-cli's spellings with one dash, which the parser would take for -s ys and -n o-cnv.
void replace_llama_spellings(std::vector<std::string>& arguments) {
  if (arguments.empty() || (arguments[0] != "run" && arguments[0] != "chat")) return;
  std::replace(arguments.begin(), arguments.end(), std::string("-sys"), std::string("--system"));
  std::replace(arguments.begin(), arguments.end(), std::string("-no-cnv"), std::string("--no-conversation"));
}

// One line for whatever is wrong with the command line; exit code 2.
int fail_usage(const CLI::App& app, const std::string& message) {
  std::string command;
  for (const CLI::App* a = &app; !a->get_subcommands().empty();) {
    a = a->get_subcommands().front();
    command += " " + a->get_name();
  }
  fmt::print(stderr, "moesaic: {}; see moesaic{} --help\n", message, command);
  return 2;
}

int fail_parse(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);  // --help, --version
  if (const auto parsed = app.get_subcommands(); !parsed.empty()) {
    const auto rest = app.remaining(true);
    const auto unknown = std::find_if(rest.begin(), rest.end(), [](auto& text) { return text.starts_with("--"); });
    const bool extras = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
    const std::string message = error.what();
    const bool mismatch = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ArgumentMismatch);
    if (mismatch && message.ends_with(" missing"))  // CLI11 names types and ranges of what it has not got
      return fail_usage(app, message.substr(0, message.find(':')) + " needs a value");
    if (!extras || unknown == rest.end()) return fail_usage(app, message);
    const std::string flag = unknown->substr(0, unknown->find('=')), near = nearest_flag(*parsed.front(), flag);
    return fail_usage(
        app, fmt::format("there is no flag {}{}", flag, near.empty() ? "" : fmt::format("; did you mean {}", near)));
  }
  const auto rest = app.remaining();
  return fail_usage(app,
                    rest.empty() ? "no command was given" : fmt::format("there is no command \"{}\"", rest.front()));
}

int run_command(int argc, char** argv) {
  CLI::App app("moesaic: an inference engine for very large mixture-of-experts models", "moesaic");
  app.set_version_flag("--version", MOESAIC_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  bool verbose = false;
  app.add_flag("-v,--verbose", verbose, "Say what is going on, on stderr");
  LoadFlags run_load, chat_load, explain_load, diff_load, bench_load, eval_load;
  RunOptions run;
  ChatOptions chat;
  InspectOptions inspect;
  ExplainOptions explain;
  DiffOptions diff;
  BenchOptions bench;
  BenchServeOptions bench_serve;
  EvalOptions eval;
  SynthOptions synth;
  PlanOptions plan;
  ServeFlags serve;
  serve.add(app);
  add_run(app, run_load, run), add_chat(app, chat_load, chat), add_inspect(app, inspect);
  add_explain(app, explain_load, explain), add_diff(app, diff_load, diff),
      add_bench(app, bench_load, bench, bench_serve);
  add_eval(app, eval_load, eval), add_synth(app, synth), add_plan(app, plan);
  try {
    std::vector<std::string> arguments = serve_arguments({argv + 1, argv + argc});
    replace_llama_spellings(arguments);
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return fail_parse(app, error);
  }
  for (const SamplingFlags& flags : {run.sampling, chat.sampling})
    if (const Status status = check_sampling(flags.over({}), INT32_MAX); !status.ok())
      return fail_usage(app, status.message());
  clear_line_on_interrupt();
  if (verbose) set_log_level(LogLevel::info);
  const auto with_skips = [](LoadFlags& flags, const LoadOptions& own) {
    LoadOptions load = flags.load();
    load.skip_passes = own.skip_passes;
    return load;
  };
  const std::string command = app.get_subcommands().front()->get_name();
  run.engine = run_load.get(), chat.engine = chat_load.get();
  run.engine.progress = chat.engine.progress = true;
  if (command == "serve") {
    RunServeOptions options = serve.get();
    options.serve.version = MOESAIC_VERSION;
    return run_serve(std::move(options));
  }
  if (command == "run") return run_run(run);
  if (command == "chat") return run_chat(chat);
  if (command == "inspect") return run_inspect(inspect);
  if (command == "synth") return run_synth(synth);
  if (command == "plan") return run_plan(plan);
  if (command == "explain") return explain.load = with_skips(explain_load, explain.load), run_explain(explain);
  if (command == "diff") return diff.load = with_skips(diff_load, diff.load), run_diff(diff);
  if (command == "bench" && app.get_subcommand("bench")->got_subcommand("serve")) return run_bench_serve(bench_serve);
  if (command == "bench") return bench.load = bench_load.load(), run_bench(bench);
  return eval.load = eval_load.load(), run_eval(eval);
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  try {
    const int code = moesaic::run_command(argc, argv);
    moesaic::flush_stdout();
    return code;
  } catch (const std::exception& error) {  // every Error carries one readable line
    std::fprintf(stderr, "moesaic: %s\n", error.what());
    return 1;
  }
}
