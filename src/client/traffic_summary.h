// What a load test found: rates, and percentiles of latencies. Definitions are those of vLLM's `bench serve`
// (docs of vllm.benchmarks.serve), so that numbers can be laid side by side.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/traffic.h"

namespace moesaic {

// Milliseconds.
struct LatencySummary {
  int64_t count = 0;
  double mean = 0, median = 0, deviation = 0;
  std::vector<double> percentiles;  // one for each asked for
};

// Limits in milliseconds that a good request keeps.
struct GoodputLimits {
  std::optional<double> ttft, tpot, e2el;
  bool any() const { return ttft || tpot || e2el; }
};

struct TrafficSummary {
  int64_t completed = 0, failed = 0;
  double duration = 0;  // seconds
  int64_t input_tokens = 0, output_tokens = 0;
  double request_throughput = 0, goodput = 0, output_throughput = 0, total_throughput = 0;  // per second
  double peak_output_throughput = 0;                                                        // tokens of the best second
  int64_t peak_concurrency = 0;
  // First token; mean time of the others; between two events of one stream; the whole answer.
  LatencySummary ttft, tpot, itl, e2el;
  std::vector<std::pair<std::string, int64_t>> errors;  // and how often, most frequent first
};

// The p-th percentile with linear interpolation, as numpy's default; 0 of nothing. `values` must be sorted.
double percentile(const std::vector<double>& values, double p);

TrafficSummary summarize(const std::vector<RequestOutcome>& outcomes, double duration,
                         const std::vector<double>& percentiles, const GoodputLimits& limits);

// "ttft:500", "tpot:50", "e2el:2000". Throws Error(invalid_argument).
GoodputLimits parse_goodput(const std::vector<std::string>& pairs);

// Tokens per second in each of `count` equal slices of the test.
std::vector<double> throughput_over_time(const std::vector<RequestOutcome>& outcomes, double duration, size_t count);

}  // namespace moesaic
