#include "client/traffic_summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"

namespace moesaic {
namespace {

LatencySummary summarize_latencies(std::vector<double> seconds, const std::vector<double>& percentiles) {
  std::sort(seconds.begin(), seconds.end());
  LatencySummary s;
  s.count = static_cast<int64_t>(seconds.size());
  const double n = std::max<double>(1, static_cast<double>(seconds.size()));
  s.mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / n * 1e3;
  for (double v : seconds) s.deviation += (v * 1e3 - s.mean) * (v * 1e3 - s.mean) / n;
  s.deviation = std::sqrt(s.deviation);
  s.median = percentile(seconds, 50) * 1e3;
  for (double p : percentiles) s.percentiles.push_back(percentile(seconds, p) * 1e3);
  return s;
}

bool is_good(const RequestOutcome& o, const GoodputLimits& limits) {
  const auto keeps = [](const std::optional<double>& limit, double seconds) {
    return !limit || seconds * 1e3 <= *limit;
  };
  return keeps(limits.ttft, o.ttft()) && keeps(limits.e2el, o.latency()) &&
         (o.output_tokens < 2 || keeps(limits.tpot, o.tpot()));
}

int64_t peak_concurrency(const std::vector<RequestOutcome>& outcomes) {
  std::vector<std::pair<double, int>> changes;
  for (const RequestOutcome& o : outcomes)
    if (o.started && o.ended) changes.insert(changes.end(), {{o.start, 1}, {o.end, -1}});
  std::sort(changes.begin(), changes.end());
  int64_t now = 0, peak = 0;
  for (const auto& [time, change] : changes) peak = std::max(peak, now += change);
  return peak;
}

std::vector<std::pair<std::string, int64_t>> count_errors(const std::vector<RequestOutcome>& outcomes) {
  std::map<std::string, int64_t> counts;
  for (const RequestOutcome& o : outcomes)
    if (!o.ok()) ++counts[o.error];
  std::vector<std::pair<std::string, int64_t>> out(counts.begin(), counts.end());
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return out;
}

struct Latencies {
  std::vector<double> ttft, tpot, itl, e2el;

  void add(const RequestOutcome& o) {
    ttft.push_back(o.ttft());
    e2el.push_back(o.latency());
    if (o.output_tokens > 1) tpot.push_back(o.tpot());
    for (size_t i = 1; i < o.tokens_at.size(); ++i) itl.push_back(o.tokens_at[i] - o.tokens_at[i - 1]);
  }
};

}  // namespace

double percentile(const std::vector<double>& values, double p) {
  if (values.empty()) return 0;
  const double at = p / 100 * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

TrafficSummary summarize(const std::vector<RequestOutcome>& outcomes, double duration,
                         const std::vector<double>& percentiles, const GoodputLimits& limits) {
  TrafficSummary s;
  Latencies latencies;
  int64_t good = 0;
  for (const RequestOutcome& o : outcomes) {
    if (!o.ok()) {
      ++s.failed;
      continue;
    }
    ++s.completed;
    s.input_tokens += o.prompt_tokens, s.output_tokens += o.output_tokens;
    good += is_good(o, limits);
    latencies.add(o);
  }
  const auto rate = [&](int64_t count) { return duration > 0 ? static_cast<double>(count) / duration : 0; };
  s.duration = duration;
  s.request_throughput = rate(s.completed), s.goodput = rate(good), s.output_throughput = rate(s.output_tokens);
  s.total_throughput = rate(s.input_tokens + s.output_tokens);
  const double whole = std::ceil(duration);
  for (double tokens : throughput_over_time(outcomes, whole, static_cast<size_t>(whole)))
    s.peak_output_throughput = std::max(s.peak_output_throughput, tokens);
  s.peak_concurrency = peak_concurrency(outcomes);
  s.ttft = summarize_latencies(std::move(latencies.ttft), percentiles);
  s.tpot = summarize_latencies(std::move(latencies.tpot), percentiles);
  s.itl = summarize_latencies(std::move(latencies.itl), percentiles);
  s.e2el = summarize_latencies(std::move(latencies.e2el), percentiles);
  s.errors = count_errors(outcomes);
  return s;
}

GoodputLimits parse_goodput(const std::vector<std::string>& pairs) {
  GoodputLimits limits;
  const std::map<std::string, std::optional<double>*> places = {
      {"ttft", &limits.ttft}, {"tpot", &limits.tpot}, {"e2el", &limits.e2el}};
  for (const std::string& pair : pairs) {
    const size_t colon = pair.find(':');
    const auto place = places.find(pair.substr(0, colon));
    char* end = nullptr;
    const double value = colon == std::string::npos ? -1 : std::strtod(pair.c_str() + colon + 1, &end);
    if (place == places.end() || !(value > 0) || *end != '\0')
      fail_argument("--goodput \"{}\": expected ttft, tpot or e2el, a colon and milliseconds, as in ttft:500", pair);
    *place->second = value;
  }
  return limits;
}

std::vector<double> throughput_over_time(const std::vector<RequestOutcome>& outcomes, double duration, size_t count) {
  std::vector<double> slices(count, 0.0);
  if (duration <= 0) return slices;
  const double width = duration / static_cast<double>(count);
  for (const RequestOutcome& o : outcomes) {
    if (!o.ok() || o.tokens_at.empty()) continue;
    // An event may carry several tokens; which ones is not known, so they are spread evenly.
    const double tokens = static_cast<double>(o.output_tokens) / static_cast<double>(o.tokens_at.size());
    for (double at : o.tokens_at) slices[std::min(count - 1, static_cast<size_t>(at / width))] += tokens / width;
  }
  return slices;
}

}  // namespace moesaic
