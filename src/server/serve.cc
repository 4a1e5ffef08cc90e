#include "server/serve.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "server/service.h"

namespace moesaic {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kTick{100};  // between looks at signals
constexpr std::chrono::seconds kSample{1};       // between samples of the counters
constexpr std::chrono::seconds kFlush{2};        // for last answers to leave

// Blocks the signals that end the server, in this thread and those it will start; next() then fetches them.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  // The signal that came within the time, or 0.
  int next(std::chrono::milliseconds time) const {
    const timespec wait{time.count() / 1000, time.count() % 1000 * 1'000'000};
    const int signal = sigtimedwait(&set_, nullptr, &wait);
    return signal > 0 ? signal : 0;
  }

 private:
  sigset_t set_{};
};

// Without destructors: the engine's may wait for what never comes.
[[noreturn]] void leave(int code) {
  std::fflush(nullptr);
  std::_Exit(code);
}

bool wait_for_answers(const http::Server& server, Clock::duration time) {
  const auto end = Clock::now() + time;
  while (server.exchanges() > 0 && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return server.exchanges() == 0;
}

std::string url(const ServeOptions& options, int port) {
  const bool v6 = options.http.host.find(':') != std::string::npos;
  return fmt::format("http://{}:{}", v6 ? "[" + options.http.host + "]" : options.http.host, port);
}

void announce(const ServeOptions& options, int port) {
  const std::string base = url(options, port);
  fmt::print(stderr, "moesaic: serving {} at {}/v1; chat at {}/, dashboard at {}/dashboard\n",
             options.metrics.model_name, base, base, base);
  const std::string& host = options.http.host;
  if (options.api_keys.empty() && host != "localhost" && host != "::1" && !host.starts_with("127."))
    log_warn("everybody who reaches {} may use this server: there is no --api-key", host);
}

void print_facts(const Service& service) {
  if (isatty(STDERR_FILENO) == 0) return;
  const EngineInfo& info = service.engine->info();
  const auto bytes = [](int64_t count) { return human_bytes(static_cast<double>(count)); };
  fmt::print(stderr,
             "  model    {} ({})\n  device   {}\n  context  {} tokens, {} sequences at once\n"
             "  memory   weights {}, cache {}, activations {}, workspace {}\n",
             service.options.engine.model, info.family, info.device, info.max_model_len,
             service.options.engine.max_num_seqs, bytes(info.weight_bytes), bytes(info.cache_bytes),
             bytes(info.activation_bytes), bytes(info.workspace_bytes));
}

// Everything that runs; the members' order is that in which they need each other.
struct Running {
  explicit Running(const ServeOptions& options)
      : service(options),
        server(service.http_options(), service.router(),
               [](int status, const std::string& code, const std::string& message) {
                 return error_response(status, code, message);
               }) {}

  StopSignals signals;
  Service service;
  http::Server server;

  bool load();
  int serve_until_told();
  int drain();
  [[noreturn]] void die();
};

// On a thread of its own, so that signals and probes are answered meanwhile. False when the model cannot be loaded.
bool Running::load() {
  std::atomic<bool> done{false};
  std::string failure;
  std::thread loader([&] {
    try {
      service.load();
    } catch (const std::exception& error) {
      failure = error.what();
    }
    done = true;
  });
  while (!done)
    if (signals.next(kTick) != 0) leave(0);
  loader.join();
  if (!failure.empty()) fmt::print(stderr, "moesaic: {}\n", failure);
  return failure.empty();
}

int Running::serve_until_told() {
  auto sampled = Clock::now();
  int64_t failed = 0;
  while (signals.next(kTick) == 0) {
    // A request may fail alone; whether the engine did shows when it is asked.
    if (service.doubtful.exchange(false) && !service.engine_lives()) die();
    if (Clock::now() - sampled < kSample) continue;
    sampled = Clock::now();
    const EngineStats stats = service.engine->stats();
    service.recent.sample(stats);
    // Clients that left before the failure leave no record of it.
    if (std::exchange(failed, stats.finished_error) != stats.finished_error) service.doubtful = true;
  }
  return drain();
}

void Running::die() {
  service.phase = Service::Phase::dead;
  log(LogLevel::error, "the engine failed in a step; exiting with {} for a supervisor to start anew", kExitDead);
  wait_for_answers(server, kFlush);
  leave(kExitDead);
}

int Running::drain() {
  service.phase = Service::Phase::draining;
  server.stop_accepting();
  log_info("shutting down; requests under way: {}", server.exchanges());
  const auto end = Clock::now() + service.options.drain_timeout;
  while (server.exchanges() > 0 && Clock::now() < end)
    if (const int signal = signals.next(kTick); signal != 0) leave(128 + signal);
  if (server.exchanges() > 0) service.api->abort_all("the server is shutting down");
  wait_for_answers(server, kFlush);
  return 0;
}

}  // namespace

int serve(const ServeOptions& options) {
  Running running(options);
  log_info("listening at {}; loading {}", url(options, running.server.port()), options.engine.model);
  if (!running.load()) return 1;
  announce(options, running.server.port());
  print_facts(running.service);
  return running.serve_until_told();
}

}  // namespace moesaic
