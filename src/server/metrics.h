// /metrics: what Prometheus reads (text format 0.0.4). The registry is prometheus-cpp's, in metrics.cc alone.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/engine.h"
#include "server/api.h"

namespace moesaic {

struct MetricsOptions {
  std::string model_name;
  // Whose names the values are repeated under: vllm, sglang. moesaic's own are always there.
  std::vector<std::string> compat = {"vllm"};
  bool experts = false;  // moesaic:expert_tokens_total{layer,expert}: one series for each expert
  int64_t max_model_len = 8192;
};

// What does not change once the engine is open.
struct EngineFacts {
  EngineInfo info;
  std::string cache_dtype;
  bool prefix_caching = true;
  int64_t block_tokens = 64;
  double load_seconds = 0;
};

// Any thread may call.
class Metrics {
 public:
  explicit Metrics(const MetricsOptions& options);
  ~Metrics();

  void record(const RequestRecord& record);
  // `route` as route_name() has it.
  void answered(std::string_view route, std::string_view method, int status, double seconds);
  void loading(int64_t done_bytes, int64_t total_bytes);
  void opened(const EngineFacts& facts, const EngineStats& stats);
  // The page. `stats`: the engine's, null while there is none. `generation_rate`: tokens per second, lately.
  std::string text(const EngineStats* stats, double generation_rate = 0);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moesaic
