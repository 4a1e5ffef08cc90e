// moesaic serve without its flags: the port is bound, the weights load, requests are answered until a signal.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "moesaic/engine.h"
#include "server/api.h"
#include "server/auth.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/request_log.h"

namespace moesaic {

struct ServeOptions {
  EngineOptions engine;
  ApiOptions api;
  http::ServerOptions http;
  std::vector<std::string> api_keys;
  bool protect_metrics = false;
  CorsOptions cors;
  MetricsOptions metrics;
  RequestLog log_requests = RequestLog::meta;
  std::chrono::milliseconds drain_timeout{30'000};
  double stall_seconds = 5;  // without a step, after which /health says so
  std::string version;
};

constexpr int kExitDead = 70;  // the engine failed; a supervisor should start the server anew

// Returns the exit code: 0 after SIGTERM or SIGINT, 1 where the model cannot be loaded. Ends the process itself where
// waiting for the engine could hang: with kExitDead after it failed, 0 when told to stop while weights load, 128 + the
// signal at a second one. Throws Error when the port cannot be bound. Blocks SIGTERM and SIGINT in the whole process.
int serve(const ServeOptions& options);

}  // namespace moesaic
