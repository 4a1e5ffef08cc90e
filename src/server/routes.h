// Which path leads where: one table, with its aliases, methods, and who may.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "server/auth.h"
#include "server/http.h"

namespace moesaic {

// Where routes lead. Each is called on a server thread, and must not block it for long.
struct Endpoints {
  http::Handler chat_completions, completions, responses, models;
  http::Handler tokenize, detokenize, apply_template;
  http::Handler abort_request, health_generate, flush_cache;
  http::Handler health, version, metrics, stats, load, server_info, model_info;
  http::Handler chat_page, dashboard;
};

struct RouterOptions {
  ApiKeys keys;
  bool protect_metrics = false;  // /metrics and /stats want a key too
  // The answer to requests that need the engine while there is none: 503; nothing while there is one.
  std::function<std::optional<http::Response>()> not_ready = {};
};

// Answers what is no route (404, 405 with Allow), preflights (204), missing keys (401) and bodies that are declared not
// to be JSON (415); the rest goes to the endpoints. HEAD is served as GET.
http::Handler make_router(Endpoints endpoints, RouterOptions options);

// The path of the route's first spelling, "/v1/chat/completions" for example; "other" where there is none, so that
// metrics have few names whatever clients ask for.
std::string_view route_name(std::string_view path);

// Whether probes and scrapers ask for it all the time.
bool is_polled(std::string_view path);

}  // namespace moesaic
