#include "server/service.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "ir/cache_spec.h"
#include "server/pages.h"

namespace moesaic {
namespace {

constexpr int kWorkers = 8;  // enough for some that wait for an image

http::Response json_response(const JsonObject& body, int status = 200) {
  http::Response response;
  response.status = status;
  response.body = write_json(body, {.compact = true});
  return response;
}

const char* why_not_ready(Service::Phase phase) {
  if (phase == Service::Phase::loading) return "Loading model; try again in a moment";
  if (phase == Service::Phase::draining) return "the server is shutting down; ask another one";
  return "the engine has failed; the server is about to exit";
}

// The error shape, and how far loading is beside it.
http::Response not_ready(const Service& service, const std::string& message) {
  const Service::Phase phase = service.phase;
  http::Response response = error_response(503, phase == Service::Phase::dead ? "engine_dead" : "not_ready", message);
  JsonObject body = parse_json(response.body, "error").as_object();
  body["error"].as_object()["details"] = {{"loaded_bytes", service.loaded_bytes.load()},
                                          {"total_bytes", service.total_bytes.load()}};
  response.body = write_json(body, {.compact = true});
  return response;
}

http::Response health(Service& service) {
  const Service::Phase phase = service.phase;
  if (phase != Service::Phase::ready) return not_ready(service, why_not_ready(phase));
  const double silent = service.engine->stats().seconds_since_step;
  if (silent > service.options.stall_seconds)
    return not_ready(service, fmt::format("the engine has not finished a step for {:.0f} seconds", silent));
  return json_response({{"status", "ok"}});
}

http::Response metrics_page(Service& service) {
  std::optional<EngineStats> stats;
  if (service.loaded()) stats = service.engine->stats();
  else service.metrics.loading(service.loaded_bytes, service.total_bytes);
  http::Response response;
  response.body = service.metrics.text(stats ? &*stats : nullptr, service.recent.generation_rate());
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  return response;
}

http::Response stats_page(Service& service) {
  std::optional<EngineStats> stats;
  if (service.loaded()) stats = service.engine->stats();
  JsonObject out = stats_object(service.options.metrics.model_name, service.uptime_seconds(), stats ? &*stats : nullptr,
                                service.recent);
  out["loaded_bytes"] = service.loaded_bytes.load(), out["total_bytes"] = service.total_bytes.load();
  return json_response(out);
}

// Keys as SGLang spells them, and what this server knows besides.
http::Response server_info(Service& service) {
  const EngineOptions& e = service.options.engine;
  JsonObject out = {{"version", service.options.version},
                    {"status", service.phase == Service::Phase::ready ? "ready" : "not_ready"},
                    {"model_path", e.model},
                    {"served_model_name", service.options.metrics.model_name},
                    {"precision", e.precision},
                    {"kv_cache_dtype", e.kv_cache_dtype},
                    {"max_running_requests", e.max_num_seqs},
                    {"max_queued_requests", e.max_queue},
                    {"chunked_prefill_size", e.max_num_batched_tokens},
                    {"schedule_policy", e.schedule_policy},
                    {"num_speculative_tokens", e.num_speculative_tokens},
                    {"disable_radix_cache", !e.prefix_caching}};
  JsonObject internal;
  if (service.loaded()) {
    const EngineInfo& info = service.engine->info();
    const EngineStats stats = service.engine->stats();
    out["device"] = info.device, out["family"] = info.family;
    out["context_length"] = info.max_model_len;
    out["max_total_num_tokens"] = stats.blocks * kBlockTokens;
    out["memory"] = {{"weights", info.weight_bytes},
                     {"cache", info.cache_bytes},
                     {"activations", info.activation_bytes},
                     {"workspace", info.workspace_bytes}};
    if (stats.draft_steps > 0)
      internal["avg_spec_accept_length"] =
          1 + static_cast<double>(stats.accepted_draft_tokens) / static_cast<double>(stats.draft_steps);
  }
  out["internal_states"] = JsonArray{internal};
  return json_response(out);
}

http::Response model_info(Service& service) {
  const EngineInfo& info = service.engine->info();
  return json_response({{"model_path", service.options.engine.model},
                        {"tokenizer_path", service.options.engine.model},
                        {"is_generation", true},
                        {"has_image_understanding", info.image_token >= 0},
                        {"model_type", info.family},
                        {"vocab_size", info.vocab},
                        {"max_model_len", info.max_model_len}});
}

http::Response flush_cache(Service& service) {
  const Status status = service.engine->clear_prefix_cache();
  if (status.ok()) return json_response({{"success", true}, {"message", "the prefix cache is empty"}});
  return error_response(409, "cache_in_use", status.message());
}

http::Response load_page(Service& service) {
  return json_response({{"server_load", service.loaded() ? service.api->in_flight() : 0}});
}

using Answer = http::Response (*)(Service&);

http::Handler answering(Service& service, Answer answer) {
  return [&service, answer](std::shared_ptr<http::Exchange> exchange) { exchange->respond(answer(service)); };
}

http::Handler through(Service& service, void (Api::*function)(std::shared_ptr<http::Exchange>)) {
  return [&service, function](std::shared_ptr<http::Exchange> exchange) {
    log_body(service.options.log_requests, exchange->request());
    (*service.api.*function)(std::move(exchange));
  };
}

// On a worker; a client that has left in the meantime costs nothing more.
http::Handler on_worker(Service& service, http::Handler handler) {
  return [&service, handler = std::move(handler)](std::shared_ptr<http::Exchange> exchange) {
    service.workers.post([handler, exchange = std::move(exchange)] {
      if (!exchange->open()) return;
      try {
        handler(exchange);
      } catch (const std::exception& error) {
        log(LogLevel::error, "request {} failed: {}", exchange->request().request_id, error.what());
        exchange->respond(error_response(500, "internal_error", "the server failed on this request; its log says why"));
      }
    });
  };
}

Endpoints endpoints(Service& s) {
  Endpoints e;
  e.chat_completions = on_worker(s, through(s, &Api::chat_completions));
  e.completions = on_worker(s, through(s, &Api::completions));
  e.responses = on_worker(s, through(s, &Api::responses));
  e.models = through(s, &Api::models);
  e.tokenize = on_worker(s, through(s, &Api::tokenize));
  e.detokenize = on_worker(s, through(s, &Api::detokenize));
  e.apply_template = on_worker(s, through(s, &Api::apply_template));
  e.abort_request = through(s, &Api::abort_request);
  e.health_generate = through(s, &Api::health_generate);
  e.flush_cache = on_worker(s, answering(s, flush_cache));  // waits for the engine
  e.health = answering(s, health);
  e.metrics = answering(s, metrics_page);
  e.stats = answering(s, stats_page);
  e.load = answering(s, load_page);
  e.server_info = answering(s, server_info);
  e.model_info = answering(s, model_info);
  e.version = answering(s, [](Service& service) { return json_response({{"version", service.options.version}}); });
  e.chat_page = answering(s, [](Service&) { return page_response(embedded_page("chat")); });
  e.dashboard = answering(s, [](Service&) { return page_response(embedded_page("dashboard")); });
  return e;
}

std::string device_class(const std::string& device) {
  return device.substr(0, device.find(' '));
}

}  // namespace

Service::Service(const ServeOptions& given) : options(given), metrics(given.metrics), workers(kWorkers) {}

void Service::load() {
  EngineOptions engine_options = options.engine;
  engine_options.on_load = [this](int64_t done, int64_t total) { loaded_bytes = done, total_bytes = total; };
  engine.emplace(Engine::open(engine_options));
  ApiOptions api_options = options.api;
  api_options.stream_buffer_bytes = options.http.stream_buffer_bytes;
  api_options.fingerprint =
      fmt::format("moesaic-{}-{}-{}", options.version, device_class(engine->info().device), engine_options.precision);
  api = std::make_unique<Api>(*engine, std::move(api_options), [this](const RequestRecord& record) {
    metrics.record(record);
    recent.record(record);
    log_record(options.log_requests, record);
    if (record.status >= 500) doubtful = true;
  });
  EngineFacts facts;
  facts.info = engine->info();
  facts.cache_dtype = engine_options.kv_cache_dtype;
  facts.prefix_caching = engine_options.prefix_caching;
  facts.block_tokens = kBlockTokens;
  facts.load_seconds = uptime_seconds();
  loaded_bytes = total_bytes.load();
  metrics.loading(total_bytes, total_bytes);
  metrics.opened(facts, engine->stats());
  Phase was = Phase::loading;
  phase.compare_exchange_strong(was, Phase::ready);
}

double Service::uptime_seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
}

bool Service::engine_lives() {
  Request probe;
  probe.tokens = {0};
  probe.max_new_tokens = 1;
  const auto answer = engine->submit(std::move(probe));
  return answer.ok() || answer.status().code() != StatusCode::internal;
}

http::Handler Service::router() {
  RouterOptions router_options;
  router_options.keys = ApiKeys(options.api_keys);
  router_options.protect_metrics = options.protect_metrics;
  router_options.not_ready = [this]() -> std::optional<http::Response> {
    const Phase now = phase;
    if (now == Phase::ready) return std::nullopt;
    return not_ready(*this, why_not_ready(now));
  };
  return make_router(endpoints(*this), std::move(router_options));
}

http::ServerOptions Service::http_options() {
  http::ServerOptions out = options.http;
  out.reply_headers = [this](const http::Request& request) {
    http::Headers headers = cors_headers(options.cors, request);
    headers.emplace_back("X-Content-Type-Options", "nosniff");
    return headers;
  };
  out.on_answered = [this](const http::Request& request, const http::Answered& answered) {
    metrics.answered(route_name(request.path), request.method, answered.status, answered.seconds);
    log_answered(options.log_requests, request, answered);
  };
  return out;
}

}  // namespace moesaic
