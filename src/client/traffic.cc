#include "client/traffic.h"

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "client/event_reader.h"

namespace moesaic {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kErrorBytes = 4096;                   // of a body that is no stream; more is not looked at
constexpr int64_t kShortProbe = 16, kLongProbe = 144;  // words

JsonObject request_body(const TrafficTarget& target, const PlannedRequest& request) {
  JsonObject body{{"model", target.model}, {"temperature", target.temperature}};
  if (target.is_chat()) body["messages"] = JsonArray{JsonObject{{"role", "user"}, {"content", request.prompt}}};
  else body["prompt"] = request.prompt;
  body[target.is_chat() ? "max_completion_tokens" : "max_tokens"] = request.output_tokens;
  body["stream"] = true;
  body["stream_options"] = JsonObject{{"include_usage", true}};
  if (target.ignore_eos) body["ignore_eos"] = true;
  for (const auto& [key, value] : target.extra_body) body[key] = value;
  return body;
}

HttpCall make_call(const TrafficTarget& target, std::string method, const std::string& path, std::string body) {
  HttpCall call{.method = std::move(method), .target = target.server.path + path, .body = std::move(body)};
  call.headers.emplace_back("Content-Type", "application/json");
  if (!target.api_key.empty()) call.headers.emplace_back("Authorization", "Bearer " + target.api_key);
  call.silence_limit = std::chrono::milliseconds(static_cast<int64_t>(target.silence_seconds * 1e3));
  return call;
}

// One line of what a server said about an error: its message where the shape is a known one.
std::string error_text(std::string_view body) {
  boost::system::error_code failed;
  const Json parsed = boost::json::parse(body, failed);
  if (!failed && parsed.is_object()) {
    const JsonObject* object = &parsed.get_object();
    if (const Json* inner = json_find(*object, "error"); inner != nullptr && inner->is_object())
      object = &inner->get_object();
    if (const Json* message = json_find(*object, "message"); message != nullptr && message->is_string())
      return std::string(message->get_string());
  }
  std::string line(body.substr(0, 200));
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return line;
}

bool is_filled(const JsonObject& object, const char* key) {
  const Json* value = json_find(object, key);
  if (value == nullptr) return false;
  if (value->is_string()) return !value->get_string().empty();
  return value->is_array() && !value->get_array().empty();
}

bool carries_tokens(const JsonObject& choice) {
  const Json* delta = json_find(choice, "delta");
  if (delta == nullptr || !delta->is_object()) return is_filled(choice, "text");
  const JsonObject& d = delta->get_object();
  return is_filled(d, "content") || is_filled(d, "reasoning_content") || is_filled(d, "reasoning") ||
         is_filled(d, "tool_calls");
}

// One request under way: reads the events of its answer.
struct Flight {
  RequestOutcome& outcome;
  Clock::time_point zero;
  EventReader events = {};
  std::string refusal = {};  // body of an answer that is not 200
  bool done = false;         // [DONE] was seen
  std::string failure = {};

  double now() const { return std::chrono::duration<double>(Clock::now() - zero).count(); }

  void take(std::string_view bytes) {
    if (outcome.status != 200) {
      refusal += bytes.substr(0, kErrorBytes - std::min(kErrorBytes, refusal.size()));
      return;
    }
    const double at = now();
    events.feed(bytes, [&](std::string_view data) { take_event(data, at); });
  }

  void take_event(std::string_view data, double at) {
    if (data.starts_with("[DONE]")) {
      done = true;
      return;
    }
    boost::system::error_code failed;
    const Json event = boost::json::parse(data, failed);
    if (failed || !event.is_object()) {
      failure = "an event is not a JSON object: " + error_text(data);
      return;
    }
    try {
      take_object(event.get_object(), data, at);
    } catch (const Error& error) {  // a field of another type: this request failed, the test goes on
      failure = error.what();
    }
  }

  void take_object(const JsonObject& event, std::string_view data, double at) {
    if (json_find(event, "error") != nullptr) failure = "error in the stream: " + error_text(data);
    if (const Json* usage = json_find(event, "usage"); usage != nullptr && usage->is_object()) {
      outcome.prompt_tokens = json_int(usage->get_object(), "prompt_tokens", "usage", outcome.prompt_tokens);
      outcome.output_tokens = json_int(usage->get_object(), "completion_tokens", "usage", outcome.output_tokens);
    }
    const Json* choices = json_find(event, "choices");
    if (choices == nullptr || !choices->is_array() || choices->get_array().empty()) return;
    outcome.end = at;
    const Json& choice = choices->get_array()[0];
    if (!choice.is_object() || !carries_tokens(choice.get_object())) return;
    if (outcome.tokens_at.empty()) outcome.first_token = at;
    outcome.tokens_at.push_back(at);
  }

  std::string judge(const std::string& error) const {
    if (outcome.status != 200 && outcome.status != 0)
      return fmt::format("HTTP {}: {}", outcome.status, error_text(refusal));
    if (!error.empty()) return error;
    if (!failure.empty()) return failure;
    if (!done) return "the stream ended without [DONE]";
    return outcome.tokens_at.empty() ? "the answer holds no text" : "";
  }

  void end(const std::string& error) {
    outcome.error = judge(error);
    outcome.ended = true;
    if (!outcome.ok()) outcome.end = now();
    if (outcome.output_tokens == 0) outcome.output_tokens = static_cast<int64_t>(outcome.tokens_at.size());
  }
};

struct Traffic {
  HttpLoop& loop;
  const TrafficTarget& target;
  const std::vector<PlannedRequest>& plan;
  std::vector<RequestOutcome>& outcomes;
  const std::function<void()>& on_end;
  Clock::time_point zero;
  std::deque<size_t> waiting = {};
  int64_t in_flight = 0;

  void arrive(size_t index) {
    waiting.push_back(index);
    fill();
  }

  void fill() {
    while (!waiting.empty() && (target.max_concurrency == 0 || in_flight < target.max_concurrency)) {
      const size_t index = waiting.front();
      waiting.pop_front();
      ++in_flight;
      send(index);
    }
  }

  void send(size_t index) {
    auto flight = std::make_shared<Flight>(Flight{.outcome = outcomes[index], .zero = zero});
    RequestOutcome& outcome = flight->outcome;
    outcome.prompt_tokens = plan[index].prompt_tokens;
    HttpCall call = make_call(target, "POST", target.endpoint, write_json(request_body(target, plan[index])));
    outcome.started = true, outcome.start = flight->now();
    loop.start(std::move(call), {.on_status = [flight](int status) { flight->outcome.status = status; },
                                 .on_bytes = [flight](std::string_view bytes) { flight->take(bytes); },
                                 .on_end =
                                     [this, flight](const std::string& error) {
                                       flight->end(error);
                                       --in_flight;
                                       if (on_end) on_end();
                                       fill();
                                     }});
  }
};

int64_t probe(const TrafficTarget& target, int64_t words) {
  std::vector<RequestOutcome> outcome;
  HttpLoop loop(target.server);
  run_traffic(loop, target, {{.prompt = random_words(words, 0, static_cast<uint64_t>(words)), .output_tokens = 2}},
              outcome);
  const RequestOutcome& o = outcome.front();
  if (!o.ok() && o.error != "the answer holds no text")
    fail_data(target.server.authority(), "a first request to {} failed: {}", target.endpoint, o.error);
  return o.prompt_tokens;
}

}  // namespace

double run_traffic(HttpLoop& loop, const TrafficTarget& target, const std::vector<PlannedRequest>& plan,
                   std::vector<RequestOutcome>& outcomes, const std::function<void()>& on_end) {
  outcomes.assign(plan.size(), {});
  Traffic traffic{loop, target, plan, outcomes, on_end, Clock::now()};
  for (size_t i = 0; i < plan.size(); ++i) {
    const auto start = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(plan[i].start));
    loop.at(traffic.zero + start, [&traffic, i] { traffic.arrive(i); });
  }
  loop.run();
  return std::chrono::duration<double>(Clock::now() - traffic.zero).count();
}

std::string first_model(const TrafficTarget& target) {
  const std::string where = target.server.authority() + "/v1/models";
  const auto [status, body] = http_fetch(target.server, make_call(target, "GET", "/v1/models", ""));
  if (status != 200) fail_data(where, "HTTP {}: {}; name the model with --model", status, error_text(body));
  const Json list = parse_json(body, where);
  const Json* data = json_find(json_object(list, where), "data");
  if (data == nullptr || !data->is_array() || data->get_array().empty())
    fail_data(where, "lists no model; name it with --model");
  return json_string(json_object(data->get_array()[0], where), "id", where);
}

TokenScale measure_tokens(const TrafficTarget& target) {
  const auto shorter = static_cast<double>(probe(target, kShortProbe));
  const auto longer = static_cast<double>(probe(target, kLongProbe));
  if (longer <= shorter) return {};
  const double per_word = (longer - shorter) / static_cast<double>(kLongProbe - kShortProbe);
  return {.fixed = shorter - per_word * static_cast<double>(kShortProbe), .per_word = per_word};
}

}  // namespace moesaic
