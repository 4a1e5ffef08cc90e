// What happened lately, for /stats: percentiles of latencies over the last minute, and rates of counters.
#pragma once

#include <chrono>
#include <deque>
#include <mutex>
#include <string>

#include "base/json.h"
#include "server/api.h"

namespace moesaic {

using RecentClock = std::chrono::steady_clock;

struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0;  // 0 where there were no values
};

// Values of the last minute, at most kMost of them: the oldest go first.
class RecentValues {
 public:
  static constexpr size_t kMost = 1 << 16;
  void add(double value, RecentClock::time_point now);
  Percentiles percentiles(RecentClock::time_point now) const;

 private:
  std::deque<std::pair<RecentClock::time_point, float>> values_;
};

// How fast a counter grew over the last five seconds; sampled at least once a second.
class RecentRate {
 public:
  void sample(int64_t total, RecentClock::time_point now);
  double per_second() const;

 private:
  std::deque<std::pair<RecentClock::time_point, int64_t>> samples_;
};

// All of it behind one lock.
class Recent {
 public:
  void record(const RequestRecord& record);
  void sample(const EngineStats& stats);
  // The keys of /stats that come from here: rates and "latency".
  void add_to(JsonObject& stats) const;
  double generation_rate() const;  // tokens per second

 private:
  mutable std::mutex mutex_;
  RecentValues first_token_, between_, whole_;
  RecentRate prompt_, generated_;
};

// The page /stats, for the dashboard. `stats` null: the engine is not there yet.
JsonObject stats_object(const std::string& model, double uptime_seconds, const EngineStats* stats,
                        const Recent& recent);

}  // namespace moesaic
