#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/bench_serve.h"
#include "cli/output.h"

namespace moesaic {
namespace {

constexpr size_t kBlockWidth = 50, kErrorsShown = 5;

struct Metric {
  const char* name;     // in flags
  const char* label;    // in lines
  const char* heading;  // of the group
  LatencySummary TrafficSummary::*summary;
};

constexpr Metric kMetrics[] = {
    {"ttft", "TTFT", "Time to First Token", &TrafficSummary::ttft},
    {"tpot", "TPOT", "Time per Output Token (excl. 1st token)", &TrafficSummary::tpot},
    {"itl", "ITL", "Inter-token Latency", &TrafficSummary::itl},
    {"e2el", "E2EL", "End-to-end Latency", &TrafficSummary::e2el},
};

std::string row(const std::string& label, const std::string& value) {
  return fmt::format("{:<40} {:<10}\n", label, value);
}
std::string row(const std::string& label, int64_t value) {
  return row(label, fmt::format("{}", value));
}
std::string row(const std::string& label, double value) {
  return row(label, fmt::format("{:.2f}", value));
}

std::string heading(std::string_view text, char fill) {
  const size_t rest = kBlockWidth - std::min(kBlockWidth, text.size()), before = rest / 2;
  return fmt::format("{}{}{}\n", std::string(before, fill), text, std::string(rest - before, fill));
}

std::string group(const Metric& metric, const LatencySummary& s, const std::vector<double>& percentiles) {
  std::string out = heading(metric.heading, '-');
  out += row(fmt::format("Mean {} (ms):", metric.label), s.mean);
  out += row(fmt::format("Median {} (ms):", metric.label), s.median);
  for (size_t i = 0; i < percentiles.size(); ++i)
    out += row(fmt::format("P{:g} {} (ms):", percentiles[i], metric.label), s.percentiles[i]);
  return out;
}

std::string totals(const BenchServeSetting& setting, const TrafficSummary& s) {
  const BenchServeOptions& o = setting.options;
  std::string out = row("Successful requests:", s.completed);
  out += row("Failed requests:", s.failed);
  if (o.max_concurrency > 0) out += row("Maximum request concurrency:", o.max_concurrency);
  if (!std::isinf(o.request_rate)) out += row("Request rate configured (RPS):", o.request_rate);
  out += row("Benchmark duration (s):", s.duration);
  out += row("Total input tokens:", s.input_tokens);
  out += row("Total generated tokens:", s.output_tokens);
  out += row("Request throughput (req/s):", s.request_throughput);
  if (!o.goodput.empty()) out += row("Request goodput (req/s):", s.goodput);
  out += row("Output token throughput (tok/s):", s.output_throughput);
  out += row("Peak output token throughput (tok/s):", s.peak_output_throughput);
  out += row("Peak concurrent requests:", s.peak_concurrency);
  return out + row("Total Token throughput (tok/s):", s.total_throughput);
}

std::string failures(const TrafficSummary& s) {
  std::string out;
  for (size_t i = 0; i < std::min(kErrorsShown, s.errors.size()); ++i)
    out += fmt::format("{} failed: {}\n", s.errors[i].second, s.errors[i].first);
  if (s.errors.size() > kErrorsShown) out += fmt::format("and {} other kinds\n", s.errors.size() - kErrorsShown);
  return out;
}

void add_metric(JsonObject& out, const Metric& metric, const LatencySummary& s, const std::vector<double>& ps) {
  const std::string key = fmt::format("_{}_ms", metric.name);
  out["mean" + key] = s.mean, out["median" + key] = s.median, out["std" + key] = s.deviation;
  for (size_t i = 0; i < ps.size(); ++i) out[fmt::format("p{:g}{}", ps[i], key)] = s.percentiles[i];
}

// Lists with one entry for each request, as vLLM names them.
void add_details(JsonObject& out, const std::vector<RequestOutcome>& outcomes) {
  JsonArray inputs, outputs, ttfts, itls, starts, latencies, errors;
  for (const RequestOutcome& o : outcomes) {
    JsonArray gaps;
    for (size_t i = 1; i < o.tokens_at.size(); ++i) gaps.emplace_back(o.tokens_at[i] - o.tokens_at[i - 1]);
    inputs.emplace_back(o.prompt_tokens), outputs.emplace_back(o.output_tokens);
    ttfts.emplace_back(o.tokens_at.empty() ? 0 : o.ttft()), itls.emplace_back(gaps), starts.emplace_back(o.start);
    latencies.emplace_back(o.ok() ? o.latency() : 0), errors.emplace_back(o.error);
  }
  out["input_lens"] = inputs, out["output_lens"] = outputs, out["ttfts"] = ttfts, out["itls"] = itls;
  out["start_times"] = starts, out["latencies"] = latencies, out["errors"] = errors;
}

JsonObject setting_json(const BenchServeSetting& setting) {
  const BenchServeOptions& o = setting.options;
  const bool unlimited = std::isinf(o.request_rate);
  return {{"date", setting.date},
          {"backend", o.backend},
          {"endpoint", setting.target.endpoint},
          {"model_id", setting.target.model},
          {"dataset_name", o.dataset_name},
          {"num_prompts", o.random.count},
          {"request_rate", unlimited ? Json("inf") : Json(o.request_rate)},
          {"burstiness", o.burstiness},
          {"max_concurrency", o.max_concurrency > 0 ? Json(o.max_concurrency) : Json(nullptr)},
          {"seed", o.random.seed}};
}

}  // namespace

std::string result_block(const BenchServeSetting& setting, const TrafficSummary& summary) {
  std::string out = heading(" Serving Benchmark Result ", '=') + totals(setting, summary);
  for (const Metric& metric : kMetrics)
    if (std::find(setting.metrics.begin(), setting.metrics.end(), metric.name) != setting.metrics.end())
      out += group(metric, summary.*metric.summary, setting.percentiles);
  return out + heading("", '=') + failures(summary);
}

JsonObject result_json(const BenchServeSetting& setting, const TrafficSummary& s,
                       const std::vector<RequestOutcome>& outcomes) {
  JsonObject out = setting_json(setting);
  const JsonObject totals{{"duration", s.duration},
                          {"completed", s.completed},
                          {"failed", s.failed},
                          {"total_input_tokens", s.input_tokens},
                          {"total_output_tokens", s.output_tokens},
                          {"request_throughput", s.request_throughput},
                          {"request_goodput", setting.options.goodput.empty() ? Json(nullptr) : Json(s.goodput)},
                          {"output_throughput", s.output_throughput},
                          {"max_output_tokens_per_s", s.peak_output_throughput},
                          {"max_concurrent_requests", s.peak_concurrency},
                          {"total_token_throughput", s.total_throughput}};
  for (const auto& [key, value] : totals) out[key] = value;
  for (const Metric& metric : kMetrics) add_metric(out, metric, s.*metric.summary, setting.percentiles);
  JsonObject kinds;
  for (const auto& [error, count] : s.errors) kinds[error] = count;
  out["error_counts"] = kinds;
  if (setting.options.save_detailed) add_details(out, outcomes);
  return out;
}

}  // namespace moesaic
