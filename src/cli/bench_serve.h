// moesaic bench serve: load on a running OpenAI-compatible server, with the flags and labels of `vllm bench serve`.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "client/traffic_summary.h"

namespace CLI {
class App;
}

namespace moesaic {

struct BenchServeOptions {
  std::string base_url, host = "127.0.0.1", backend = "openai", endpoint, model, api_key;
  int port = 8000;
  std::string dataset_name = "random", dataset_path;
  RandomTraffic random;
  int64_t sharegpt_output_len = 0;
  double request_rate = std::numeric_limits<double>::infinity(), burstiness = 1;
  int64_t max_concurrency = 0, warmups = 0;  // 0: no limit
  bool ignore_eos = false, no_progress = false, save_detailed = false;
  double temperature = 0, silence_seconds = 600;
  std::string extra_body;  // a JSON object
  std::vector<std::string> goodput;
  std::string percentile_metrics = "ttft,tpot,itl,e2el", metric_percentiles = "90,99";
  std::string save_result, plot;  // files
};

// Adds `serve` below `bench`.
CLI::App& add_bench_serve(CLI::App& bench, BenchServeOptions& options);

// Exit code 1 when a request failed; each kind of failure is told and counted.
int run_bench_serve(const BenchServeOptions& options);

// How the test was run, for the report.
struct BenchServeSetting {
  BenchServeOptions options;
  TrafficTarget target;
  std::vector<std::string> metrics;  // of ttft, tpot, itl, e2el
  std::vector<double> percentiles;
  std::string date;
};

// The block that users know from vLLM, with its labels.
std::string result_block(const BenchServeSetting& setting, const TrafficSummary& summary);
// The same as JSON, with vLLM's keys; with --save-detailed also each request's times.
JsonObject result_json(const BenchServeSetting& setting, const TrafficSummary& summary,
                       const std::vector<RequestOutcome>& outcomes);

}  // namespace moesaic
