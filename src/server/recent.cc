#include "server/recent.h"

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

constexpr std::chrono::seconds kWindow{60}, kRateWindow{5};

JsonObject percentiles_object(const Percentiles& p) {
  return {{"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}};
}

JsonArray experts_array(const EngineStats& stats) {
  JsonArray layers;
  const auto experts = static_cast<size_t>(std::max<int64_t>(stats.experts, 0));
  for (size_t at = 0; experts > 0 && at + experts <= stats.expert_tokens.size(); at += experts) {
    const auto row = stats.expert_tokens.begin() + static_cast<ptrdiff_t>(at);
    layers.push_back(JsonArray(row, row + static_cast<ptrdiff_t>(experts)));
  }
  return layers;
}

void add_engine(JsonObject& out, const EngineStats& s) {
  const std::pair<const char*, int64_t> numbers[] = {{"running", s.running},
                                                     {"waiting", s.waiting},
                                                     {"blocks", s.blocks},
                                                     {"blocks_used", s.blocks_used},
                                                     {"blocks_cached", s.blocks_cached},
                                                     {"slots", s.slots},
                                                     {"slots_used", s.slots_used},
                                                     {"host_blocks", s.host_blocks},
                                                     {"host_blocks_used", s.host_blocks_used},
                                                     {"prompt_tokens", s.prompt_tokens},
                                                     {"generation_tokens", s.generated_tokens},
                                                     {"prefix_queries", s.prefix_queries},
                                                     {"prefix_hits", s.prefix_hits},
                                                     {"preemptions", s.preemptions},
                                                     {"step_tokens", s.step_tokens},
                                                     {"prefill_steps", s.prefill_steps},
                                                     {"decode_steps", s.decode_steps},
                                                     {"draft_tokens", s.draft_tokens},
                                                     {"accepted_draft_tokens", s.accepted_draft_tokens}};
  for (const auto& [name, value] : numbers) out[name] = value;
  out["seconds_since_step"] = s.seconds_since_step;
  out["finished"] = {{"stop", s.finished_stop},
                     {"length", s.finished_length},
                     {"cancelled", s.finished_cancelled},
                     {"error", s.finished_error}};
  out["experts"] = experts_array(s);
}

}  // namespace

void RecentValues::add(double value, RecentClock::time_point now) {
  while (!values_.empty() && (values_.size() >= kMost || now - values_.front().first > kWindow)) values_.pop_front();
  values_.emplace_back(now, static_cast<float>(value));
}

Percentiles RecentValues::percentiles(RecentClock::time_point now) const {
  std::vector<float> sorted;
  for (const auto& [when, value] : values_)
    if (now - when <= kWindow) sorted.push_back(value);
  if (sorted.empty()) return {};
  std::sort(sorted.begin(), sorted.end());
  // The smallest value that so many of all are no larger than.
  const auto at = [&](double share) {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
    return static_cast<double>(sorted[std::max<size_t>(rank, 1) - 1]);
  };
  return {at(0.5), at(0.9), at(0.99)};
}

void RecentRate::sample(int64_t total, RecentClock::time_point now) {
  while (samples_.size() > 1 && now - samples_[1].first >= kRateWindow) samples_.pop_front();
  samples_.emplace_back(now, total);
}

double RecentRate::per_second() const {
  if (samples_.size() < 2) return 0;
  const std::chrono::duration<double> time = samples_.back().first - samples_.front().first;
  const auto grown = static_cast<double>(samples_.back().second - samples_.front().second);
  return time.count() > 0 ? grown / time.count() : 0;
}

void Recent::record(const RequestRecord& record) {
  if (record.reasons.empty()) return;
  const auto now = RecentClock::now();
  const std::scoped_lock lock(mutex_);
  if (record.first_token > 0) first_token_.add(record.first_token, now);
  for (double seconds : record.between_tokens) between_.add(seconds, now);
  whole_.add(record.total, now);
}

void Recent::sample(const EngineStats& stats) {
  const auto now = RecentClock::now();
  const std::scoped_lock lock(mutex_);
  prompt_.sample(stats.prompt_tokens, now);
  generated_.sample(stats.generated_tokens, now);
}

void Recent::add_to(JsonObject& stats) const {
  const auto now = RecentClock::now();
  const std::scoped_lock lock(mutex_);
  stats["prompt_tokens_per_second"] = prompt_.per_second();
  stats["generation_tokens_per_second"] = generated_.per_second();
  stats["latency"] = {{"ttft", percentiles_object(first_token_.percentiles(now))},
                      {"itl", percentiles_object(between_.percentiles(now))},
                      {"e2e", percentiles_object(whole_.percentiles(now))}};
}

double Recent::generation_rate() const {
  const std::scoped_lock lock(mutex_);
  return generated_.per_second();
}

JsonObject stats_object(const std::string& model, double uptime_seconds, const EngineStats* stats,
                        const Recent& recent) {
  JsonObject out = {{"model", model}, {"uptime_seconds", uptime_seconds}, {"ready", stats != nullptr}};
  add_engine(out, stats != nullptr ? *stats : EngineStats{});
  recent.add_to(out);
  return out;
}

}  // namespace moesaic
