#include "cli/bench_serve.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "base/error.h"
#include "base/progress.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "client/traffic_plot.h"

namespace moesaic {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) parts.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return parts;
}

std::vector<std::string> parse_metrics(const std::string& text) {
  const std::vector<std::string> metrics = split(text);
  for (const std::string& metric : metrics)
    if (metric != "ttft" && metric != "tpot" && metric != "itl" && metric != "e2el")
      fail_argument("--percentile-metrics \"{}\": expected a list of ttft, tpot, itl and e2el", text);
  return metrics;
}

std::vector<double> parse_percentiles(const std::string& text) {
  std::vector<double> percentiles;
  for (const std::string& part : split(text)) {
    char* end = nullptr;
    const double p = std::strtod(part.c_str(), &end);
    if (*end != '\0' || !(p >= 0 && p <= 100))
      fail_argument("--metric-percentiles \"{}\": expected numbers from 0 to 100, as in 90,99", text);
    percentiles.push_back(p);
  }
  return percentiles;
}

JsonObject parse_extra_body(const std::string& text) {
  if (text.empty()) return {};
  return json_object(parse_json(text, "--extra-body"), "--extra-body");
}

std::string api_key(const BenchServeOptions& o) {
  if (!o.api_key.empty()) return o.api_key;
  const char* key = std::getenv("OPENAI_API_KEY");
  return key != nullptr ? key : "";
}

TrafficTarget make_target(const BenchServeOptions& o) {
  TrafficTarget target;
  const std::string host = o.host.find(':') != std::string::npos ? "[" + o.host + "]" : o.host;
  target.server = parse_url(!o.base_url.empty() ? o.base_url : fmt::format("http://{}:{}", host, o.port));
  const bool chat = o.backend == "openai-chat";
  target.endpoint = !o.endpoint.empty() ? o.endpoint : chat ? "/v1/chat/completions" : "/v1/completions";
  if (!target.endpoint.ends_with("/completions") || !target.endpoint.starts_with('/'))
    fail_argument("--endpoint \"{}\": expected /v1/completions or /v1/chat/completions", target.endpoint);
  target.model = o.model, target.api_key = api_key(o), target.ignore_eos = o.ignore_eos;
  target.temperature = o.temperature, target.silence_seconds = o.silence_seconds;
  target.extra_body = parse_extra_body(o.extra_body);
  if (target.model.empty()) target.model = first_model(target);
  return target;
}

std::vector<PlannedRequest> make_plan(const BenchServeOptions& o, const TokenScale& scale) {
  std::vector<PlannedRequest> plan =
      o.dataset_name == "random"
          ? random_traffic(o.random, scale)
          : sharegpt_traffic(o.dataset_path, o.random.count, o.sharegpt_output_len, o.random.seed);
  const std::vector<double> times = arrival_times(o.random.count, o.request_rate, o.burstiness, o.random.seed);
  for (size_t i = 0; i < plan.size(); ++i) plan[i].start = times[i];
  return plan;
}

void warm_up(const TrafficTarget& target, const std::vector<PlannedRequest>& plan, int64_t count) {
  std::vector<PlannedRequest> first(plan.begin(), plan.begin() + std::min<int64_t>(count, std::ssize(plan)));
  for (PlannedRequest& request : first) request.start = 0;
  std::vector<RequestOutcome> ignored;
  HttpLoop loop(target.server);
  run_traffic(loop, target, first, ignored);
}

// Ctrl-C ends the test early; what was started by then is reported.
double run_plan_interruptibly(const TrafficTarget& target, const std::vector<PlannedRequest>& plan, bool progress,
                              std::vector<RequestOutcome>& outcomes) {
  Progress bar("requests", std::ssize(plan), ProgressUnit::items, progress);
  HttpLoop loop(target.server);
  const InterruptGuard guard([&] { loop.stop(); });
  const double seconds = run_traffic(loop, target, plan, outcomes, [&] { bar.advance(1); });
  std::erase_if(outcomes, [](const RequestOutcome& o) { return !o.started; });
  return seconds;
}

std::string utc_stamp() {
  const std::time_t now = std::time(nullptr);
  std::tm tm{};
  gmtime_r(&now, &tm);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &tm)};
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) throw Error(StatusCode::internal, "could not be written", path);
}

// Before minutes of measuring, not after them.
void check_writable(const std::string& path) {
  if (!path.empty() && !std::ofstream(path, std::ios::app))
    throw Error(StatusCode::invalid_argument, "cannot be written to", path);
}

std::string plot_title(const BenchServeSetting& s) {
  const std::string rate =
      std::isinf(s.options.request_rate) ? "all at once" : fmt::format("{:g} requests/s", s.options.request_rate);
  const std::string most =
      s.options.max_concurrency > 0 ? fmt::format(", at most {} at a time", s.options.max_concurrency) : "";
  return fmt::format("{}: {} requests, {}{}", s.target.model, s.options.random.count, rate, most);
}

}  // namespace

int run_bench_serve(const BenchServeOptions& options) {
  BenchServeSetting setting{.options = options,
                            .target = {},
                            .metrics = parse_metrics(options.percentile_metrics),
                            .percentiles = parse_percentiles(options.metric_percentiles),
                            .date = utc_stamp()};
  const GoodputLimits limits = parse_goodput(options.goodput);
  if (options.dataset_name == "sharegpt" && options.dataset_path.empty())
    fail_argument("--dataset-name sharegpt needs the file: --dataset-path FILE.json");
  check_writable(options.save_result), check_writable(options.plot);
  setting.target = make_target(options);
  setting.target.max_concurrency = options.max_concurrency;
  const std::vector<PlannedRequest> plan = make_plan(options, measure_tokens(setting.target));
  warm_up(setting.target, plan, options.warmups);
  std::vector<RequestOutcome> outcomes;
  const double seconds = run_plan_interruptibly(setting.target, plan, !options.no_progress, outcomes);
  const TrafficSummary summary = summarize(outcomes, seconds, setting.percentiles, limits);
  write_stdout(result_block(setting, summary));
  if (!options.save_result.empty())
    write_file(options.save_result, write_json(result_json(setting, summary, outcomes), {.indent = 2}) + "\n");
  if (!options.plot.empty()) write_file(options.plot, plot_traffic(outcomes, summary, plot_title(setting)));
  return summary.failed > 0 || summary.completed == 0 ? 1 : 0;
}

}  // namespace moesaic
