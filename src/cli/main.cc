// moesaic: the command line. Flags carry the names that users know from vLLM, SGLang and llama.cpp.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands.h"
#include "engine/load_options.h"

namespace moesaic {
namespace {

constexpr const char* kModelHelp =
    "Directory of a model in Hugging Face's layout, or a name such as openai/gpt-oss-20b that the local Hugging Face "
    "cache holds";

// What every command that loads a model takes.
struct LoadFlags {
  EngineOptions engine;
  std::string load_format = "auto";

  void add(CLI::App& app) {
    app.add_option("model", engine.model, kModelHelp)->required();
    app.add_option("--device", engine.device, "auto, cpu, or ref (float64 reference, slow)")->capture_default_str();
    app.add_option("--precision", engine.precision,
                   "fast: int8 inputs of MXFP4 experts; float32: exact")->capture_default_str();
    app.add_option("--kv-cache-dtype", engine.kv_cache_dtype, "auto (f32), f32, or bf16: half the memory, rounded")
        ->capture_default_str();
    app.add_option("-t,--threads", engine.threads, "Threads; 0: one per available core")->capture_default_str()
        ->check(CLI::Range(0, 1024));
    app.add_option("--load-format", load_format, "auto, or dummy: random weights, only config.json is read")
        ->capture_default_str()->check(CLI::IsMember({"auto", "dummy"}));
    app.add_option("-c,--max-model-len,--context-length,--ctx-size", engine.max_model_len,
                   "Longest sequence in tokens; 0: what the model allows, at most 8192")->capture_default_str()
        ->check(CLI::NonNegativeNumber);
  }
  void add_engine(CLI::App& app) {
    add(app);
    app.add_option("--max-num-batched-tokens,--chunked-prefill-size", engine.max_num_batched_tokens,
                   "Prompt tokens of one step")->capture_default_str()->check(CLI::PositiveNumber);
  }
  const EngineOptions& get() {
    engine.dummy_weights = load_format == "dummy";
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
  app.add_option("-s,--seed", s.seed, "Same seed, same text");
  app.add_option("--repeat-penalty,--repetition-penalty", s.repetition_penalty, "Above 1: discourage tokens seen before");
  app.add_option("--presence-penalty", s.presence_penalty, "Above 0: discourage tokens in the answer so far");
  app.add_option("--frequency-penalty", s.frequency_penalty, "The same, per occurrence");
}

void add_run(CLI::App& main, LoadFlags& load, RunOptions& o) {
  CLI::App& app = *main.add_subcommand("run", "Continue one prompt, streaming the text to stdout");
  load.add_engine(app);
  add_sampling(app, o.sampling);
  auto* prompt = app.add_option("-p,--prompt", o.prompt, "The prompt");
  app.add_option("-f,--file", o.prompt_file, "Read the prompt from a file; - is standard input")->excludes(prompt);
  app.add_flag("--chat", o.chat, "Ask the prompt as a user's message, through the model's chat template");
  app.add_option("--system,--sys", o.system, "System message (with --chat)");
  app.add_option("-n,--max-tokens", o.max_tokens, "Tokens to generate at most; 0: up to the context's end")
      ->capture_default_str()->check(CLI::NonNegativeNumber);
  app.add_option("--stop", o.stop, "End the text before this string; may be given several times");
  app.add_flag("--ignore-eos", o.ignore_eos, "Go on after the model's end-of-text tokens");
}

void add_chat(CLI::App& main, LoadFlags& load, ChatOptions& o) {
  CLI::App& app = *main.add_subcommand("chat", "Talk to the model; empty line or Ctrl-D ends, /help lists commands");
  load.add_engine(app);
  add_sampling(app, o.sampling);
  app.add_option("--system,--sys", o.system, "System message");
  app.add_option("-n,--max-tokens", o.max_tokens, "Tokens per answer at most")->check(CLI::NonNegativeNumber);
}

void add_inspect(CLI::App& main, InspectOptions& o) {
  CLI::App& app = *main.add_subcommand("inspect", "What a checkpoint or a config.json alone holds and needs");
  app.add_option("model", o.model, std::string(kModelHelp) + "; or a config.json")->required();
  app.add_flag("--tensors", o.tensors, "List every tensor");
  app.add_flag("--json", o.json, "Machine-readable output");
}

void add_explain(CLI::App& main, LoadFlags& load, ExplainOptions& o) {
  CLI::App& app = *main.add_subcommand(
      "explain", "How a model is compiled: its graph after each pass, the kernel of each op and why, the memory map");
  load.add(app);
  app.add_option("--phase", o.phase, "prefill or decode; default: both")->check(CLI::IsMember({"prefill", "decode"}));
  app.add_option("--dump-after", o.dump_after, "Print the graph after this pass (build: as the model file made it)");
  app.add_option("--skip", o.load.skip_passes, "Leave out a pass");
  app.add_flag("--json", o.json, "Machine-readable output");
}

void add_diff(CLI::App& main, LoadFlags& load, DiffOptions& o) {
  CLI::App& app = *main.add_subcommand("diff", "Compare every layer with reference values, or with another backend");
  load.add(app);
  app.add_option("-r,--reference", o.reference, "safetensors file with input_ids, hidden.<i> and logits")->required();
  app.add_option("--against", o.against, "Compare with this backend (ref) on the file's input_ids instead");
  app.add_option("--write", o.write, "Save our values here under the same names");
  app.add_option("--bound", o.bound, "Relative L2 allowed; default 1e-5 in float32, 3e-2 in the fast mode");
  app.add_option("--skip", o.load.skip_passes, "Leave out a compiler pass");
  app.add_flag("--json", o.json, "Machine-readable output");
}

void add_bench(CLI::App& main, LoadFlags& load, BenchOptions& o) {
  CLI::App& app = *main.add_subcommand("bench", "Speed of prompts and of generation, beside the memory bandwidth");
  load.add(app);
  app.add_option("-p,--n-prompt", o.prompt_lengths, "Prompt lengths; default 128 512")->check(CLI::PositiveNumber);
  app.add_option("-n,--n-gen", o.generate, "Tokens to generate; 0: none")->capture_default_str()->check(CLI::NonNegativeNumber);
  app.add_option("-b,--batch", o.batch_sizes, "Sequences that generate together; default 1 4")->check(CLI::PositiveNumber);
  app.add_option("-d,--depth", o.depths, "Tokens in the cache before generation starts; default 0")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--reps", o.repetitions, "Repetitions")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--csv", o.csv, "Append the rows to this CSV file");
  app.add_flag("--json", o.json, "Machine-readable output");
}

void add_eval(CLI::App& main, LoadFlags& load, EvalOptions& o) {
  CLI::App& app = *main.add_subcommand("eval", "Mean negative log-likelihood and perplexity of a text");
  load.add(app);
  auto* text = app.add_option("--text", o.text, "Text file, tokenized with the model's tokenizer");
  app.add_option("--tokens", o.tokens, "safetensors file with eval.tokens or tokens (I64); `golden`: the model's own")
      ->excludes(text);
  app.add_option("--window", o.window, "Tokens per window; windows are independent")->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--max-windows", o.max_windows, "Stop after so many windows; 0: all")->check(CLI::NonNegativeNumber);
  app.add_flag("--json", o.json, "Machine-readable output");
}

void add_synth(CLI::App& main, SynthOptions& o) {
  CLI::App& app = *main.add_subcommand("synth", "Write a checkpoint of a config's shapes with random weights");
  app.add_option("config", o.config, "config.json of the model to imitate")->required();
  app.add_option("out", o.out, "Directory to write")->required();
  app.add_option("--layers", o.layers, "Layers instead of the config's")->check(CLI::PositiveNumber);
  app.add_option("--experts", o.experts, "Experts per layer instead of the config's")->check(CLI::PositiveNumber);
  app.add_option("--seed", o.seed, "Seed of the random weights")->capture_default_str();
  app.add_flag("--force", o.force, "Overwrite a checkpoint that is there already");
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
  EvalOptions eval;
  SynthOptions synth;
  add_run(app, run_load, run), add_chat(app, chat_load, chat), add_inspect(app, inspect);
  add_explain(app, explain_load, explain), add_diff(app, diff_load, diff), add_bench(app, bench_load, bench);
  add_eval(app, eval_load, eval), add_synth(app, synth);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  if (verbose) set_log_level(LogLevel::info);
  const auto with_skips = [](LoadFlags& flags, const LoadOptions& own) {
    LoadOptions load = flags.load();
    load.skip_passes = own.skip_passes;
    return load;
  };
  const std::string command = app.get_subcommands().front()->get_name();
  run.engine = run_load.get(), chat.engine = chat_load.get();
  run.engine.progress = chat.engine.progress = true;
  if (command == "run") return run_run(run);
  if (command == "chat") return run_chat(chat);
  if (command == "inspect") return run_inspect(inspect);
  if (command == "synth") return run_synth(synth);
  if (command == "explain") return explain.load = with_skips(explain_load, explain.load), run_explain(explain);
  if (command == "diff") return diff.load = with_skips(diff_load, diff.load), run_diff(diff);
  if (command == "bench") return bench.load = bench_load.load(), run_bench(bench);
  return eval.load = eval_load.load(), run_eval(eval);
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  try {
    return moesaic::run_command(argc, argv);
  } catch (const std::exception& error) {  // every Error carries one readable line
    std::fprintf(stderr, "moesaic: %s\n", error.what());
    return 1;
  }
}
