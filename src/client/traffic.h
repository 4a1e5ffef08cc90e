// Sends planned requests to an OpenAI-compatible server and notes when what came back.
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/json.h"
#include "client/http_client.h"
#include "client/traffic_plan.h"

namespace moesaic {

struct TrafficTarget {
  Url server;
  std::string endpoint = "/v1/completions";  // or one that ends with /chat/completions
  std::string model = {}, api_key = {};
  bool ignore_eos = false;
  double temperature = 0;
  JsonObject extra_body = {};    // further fields of each request; they win
  int64_t max_concurrency = 0;   // 0: no limit
  double silence_seconds = 600;  // a request fails when the server says nothing for so long

  bool is_chat() const { return endpoint.ends_with("/chat/completions"); }
};

// Times in seconds since the test began. Only a request with `error` empty counts as completed.
struct RequestOutcome {
  bool started = false, ended = false;
  int status = 0;                              // of HTTP; 0: none came
  std::string error = "was not finished";      // one line
  double start = 0, first_token = 0, end = 0;  // end: the last event with a choice
  std::vector<double> tokens_at;               // each event that carried text, reasoning or a call
  int64_t prompt_tokens = 0, output_tokens = 0;

  bool ok() const { return error.empty(); }
  double ttft() const { return first_token - start; }
  double latency() const { return end - start; }
  // Mean time per token after the first; meaningful with two tokens or more.
  double tpot() const { return (latency() - ttft()) / static_cast<double>(output_tokens - 1); }
};

// Runs `loop` until every request has ended, or somebody stops it. Outcomes are in the order of the plan; `on_end` is
// called after each request. Returns the seconds that the test took.
double run_traffic(HttpLoop& loop, const TrafficTarget& target, const std::vector<PlannedRequest>& plan,
                   std::vector<RequestOutcome>& outcomes, const std::function<void()>& on_end = {});

// The first model that the server lists. Throws Error when it lists none or cannot be reached.
std::string first_model(const TrafficTarget& target);
// Two requests for one token, which also show that the endpoint works: how long texts are in the server's tokens.
// Throws Error with what the server answered when it refuses; {0, 1} when it reports no usage.
TokenScale measure_tokens(const TrafficTarget& target);

}  // namespace moesaic
