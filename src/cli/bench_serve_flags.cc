// Flags of `moesaic bench serve`: names that users of `vllm bench serve` have in their fingers.
#include <CLI/CLI.hpp>

#include "cli/bench_serve.h"
#include "cli/flag_checks.h"

namespace moesaic {
namespace {

void add_server_flags(CLI::App& app, BenchServeOptions& o) {
  auto* url = app.add_option("--base-url", o.base_url, "Where the server is, as in http://127.0.0.1:8000");
  app.add_option("--host", o.host, "Where it is, without --base-url")->capture_default_str()->excludes(url);
  app.add_option("--port", o.port, "Its port, without --base-url")
      ->capture_default_str()
      ->check(CLI::Range(1, 65535))
      ->excludes(url);
  app.add_option("--backend", o.backend, "openai-chat asks /v1/chat/completions; the others /v1/completions")
      ->capture_default_str()
      ->check(CLI::IsMember({"openai", "openai-chat", "vllm", "sglang-oai"}));
  app.add_option("--endpoint", o.endpoint, "/v1/completions or /v1/chat/completions");
  app.add_option("--model", o.model, "Its name; without it, the first that the server lists");
  app.add_option("--api-key", o.api_key, "Sent as a bearer token; without it, the environment's OPENAI_API_KEY");
}

void add_traffic_flags(CLI::App& app, BenchServeOptions& o) {
  app.add_option("--num-prompts", o.random.count, "Requests")->capture_default_str()->check(kAboveZero);
  app.add_option("--request-rate", o.request_rate, "Requests a second; inf: all at once")
      ->capture_default_str()
      ->check(kAboveZero);
  app.add_option("--burstiness", o.burstiness, "1: a Poisson process; less: bursts; more: even")
      ->capture_default_str()
      ->check(kAboveZero);
  app.add_option("--max-concurrency", o.max_concurrency, "Most requests in flight; more wait here; 0: no limit")
      ->check(kZeroOrMore);
  app.add_option("--num-warmups", o.warmups, "Requests before the clock starts")->check(kZeroOrMore);
  app.add_option("--seed", o.random.seed, "Of prompts, lengths and arrivals")->capture_default_str();
}

void add_prompt_flags(CLI::App& app, BenchServeOptions& o) {
  app.add_option("--dataset-name", o.dataset_name, "Prompts of random words, or conversations of a ShareGPT file")
      ->capture_default_str()
      ->check(CLI::IsMember({"random", "sharegpt"}));
  app.add_option("--dataset-path", o.dataset_path, "The ShareGPT file");
  app.add_option("--sharegpt-output-len", o.sharegpt_output_len, "Tokens of each answer; 0: as the file's answers")
      ->check(kZeroOrMore);
  app.add_option("--random-input-len", o.random.input_tokens, "Tokens of each prompt")
      ->capture_default_str()
      ->check(kAboveZero);
  app.add_option("--random-output-len", o.random.output_tokens, "Tokens of each answer")
      ->capture_default_str()
      ->check(kAboveZero);
  app.add_option("--random-range-ratio", o.random.range_ratio, "Lengths vary by this part, up and down")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 0.999));
  app.add_option("--random-prefix-len", o.random.prefix_tokens, "Tokens that begin every prompt alike, besides")
      ->capture_default_str()
      ->check(kZeroOrMore);
}

void add_request_flags(CLI::App& app, BenchServeOptions& o) {
  app.add_flag("--ignore-eos", o.ignore_eos, "Answers have their full length");
  app.add_option("--temperature", o.temperature, "0: greedy")->capture_default_str()->check(kZeroOrMore);
  app.add_option("--extra-body", o.extra_body, "A JSON object of further fields of each request");
  app.add_option("--silence-timeout", o.silence_seconds, "A request fails after so many seconds without a byte")
      ->capture_default_str()
      ->check(kAboveZero);
}

void add_report_flags(CLI::App& app, BenchServeOptions& o) {
  app.add_option("--goodput", o.goodput, "Count requests within limits in ms: ttft:500 tpot:50 e2el:2000")
      ->expected(1, 3);
  app.add_option("--percentile-metrics", o.percentile_metrics, "Latencies to print")->capture_default_str();
  app.add_option("--metric-percentiles", o.metric_percentiles, "Percentiles of them")->capture_default_str();
  app.add_option("--save-result,--result-filename", o.save_result, "Write the result to this file, as JSON");
  app.add_flag("--save-detailed", o.save_detailed, "With each request's lengths, times and errors");
  app.add_option("--plot", o.plot, "Draw latencies and throughput into this file, as SVG");
  app.add_flag("--disable-tqdm,--no-progress", o.no_progress, "No progress bar");
}

}  // namespace

CLI::App& add_bench_serve(CLI::App& bench, BenchServeOptions& options) {
  CLI::App& app = *bench.add_subcommand("serve", "Load a running OpenAI-compatible server and measure what it does");
  app.fallthrough(false);  // flags of `bench` mean other things
  add_server_flags(app, options), add_traffic_flags(app, options), add_prompt_flags(app, options);
  add_request_flags(app, options), add_report_flags(app, options);
  // CLI11 takes the first word after `bench` for a positional that is required: it is required here instead.
  bench.get_option("model")->required(false);
  bench.final_callback([&bench] {
    if (!bench.got_subcommand("serve") && bench.count("model") == 0) throw CLI::RequiredError("model");
  });
  return app;
}

}  // namespace moesaic
