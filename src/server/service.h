// What the server serves while it lives: the engine once it is loaded, and what is known before and after.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "server/recent.h"
#include "server/routes.h"
#include "server/serve.h"

namespace moesaic {

struct Service {
  explicit Service(const ServeOptions& given);

  enum class Phase { loading, ready, draining, dead };

  const ServeOptions options;
  const std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  std::atomic<Phase> phase{Phase::loading};
  std::atomic<int64_t> loaded_bytes{0}, total_bytes{0};
  std::atomic<bool> doubtful{false};  // a request ended with an error of the server's: does the engine live?
  Metrics metrics;
  Recent recent;
  std::optional<Engine> engine;  // these two are there from Phase::ready on, and stay
  std::unique_ptr<Api> api;

  // Opens the engine; throws what Engine::open() throws.
  void load();
  bool loaded() const { return phase != Phase::loading; }
  double uptime_seconds() const;
  // Whether the engine takes requests; false after it failed in a step. Costs a request of one token.
  bool engine_lives();

  http::Handler router();
  // What the HTTP server calls.
  http::ServerOptions http_options();
};

}  // namespace moesaic
