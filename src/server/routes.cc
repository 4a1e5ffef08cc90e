#include "server/routes.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/api.h"

namespace moesaic {
namespace {

enum Flags : unsigned {
  kOpen = 1,     // no key is asked for
  kMetrics = 2,  // only with protect_metrics
  kEngine = 4,   // needs the engine
  kJson = 8,     // takes a JSON body
  kBelow = 16,   // also every path below it
  kPolled = 32,  // by probes
};

struct Route {
  std::string_view path;  // "/v1" may be left out where it begins with that
  std::string_view method;
  http::Handler Endpoints::*to;
  unsigned flags = 0;
  std::string_view same_as = {};  // the path that it is another spelling of
};

constexpr unsigned kPost = kEngine | kJson;

constexpr Route kRoutes[] = {
    {"/v1/chat/completions", "POST", &Endpoints::chat_completions, kPost},
    {"/v1/completions", "POST", &Endpoints::completions, kPost},
    {"/v1/responses", "POST", &Endpoints::responses, kPost},
    {"/v1/models", "GET", &Endpoints::models, kEngine | kBelow},
    {"/v1/tokenize", "POST", &Endpoints::tokenize, kPost},
    {"/v1/detokenize", "POST", &Endpoints::detokenize, kPost},
    {"/v1/apply-template", "POST", &Endpoints::apply_template, kPost},
    {"/health", "GET", &Endpoints::health, kOpen | kPolled},
    {"/ping", "GET", &Endpoints::health, kOpen | kPolled, "/health"},
    {"/ready", "GET", &Endpoints::health, kOpen | kPolled, "/health"},
    {"/health_generate", "GET", &Endpoints::health_generate, kOpen | kEngine | kPolled},
    {"/version", "GET", &Endpoints::version, kOpen},
    {"/metrics", "GET", &Endpoints::metrics, kMetrics | kPolled},
    {"/stats", "GET", &Endpoints::stats, kMetrics | kPolled},
    {"/load", "GET", &Endpoints::load, kPolled},
    {"/server_info", "GET", &Endpoints::server_info},
    {"/get_server_info", "GET", &Endpoints::server_info, 0, "/server_info"},
    {"/model_info", "GET", &Endpoints::model_info, kEngine},
    {"/get_model_info", "GET", &Endpoints::model_info, kEngine, "/model_info"},
    {"/abort_request", "POST", &Endpoints::abort_request, kPost},
    {"/flush_cache", "POST", &Endpoints::flush_cache, kEngine},
    {"/reset_prefix_cache", "POST", &Endpoints::flush_cache, kEngine, "/flush_cache"},
    {"/", "GET", &Endpoints::chat_page, kOpen},
    {"/dashboard", "GET", &Endpoints::dashboard, kOpen},
};

// What other servers have and this one has not: 404 too, but with a code that says so.
constexpr std::string_view kUnsupported[] = {"/v1/embeddings", "/v1/audio",       "/v1/batches",     "/v1/files",
                                             "/v1/images",     "/v1/moderations", "/v1/fine_tuning", "/v1/messages",
                                             "/v1/rerank",     "/v1/score",       "/v1/videos",      "/v1/realtime",
                                             "/generate",      "/slots",          "/props"};

std::string_view without_v1(std::string_view path) {
  return path.starts_with("/v1/") ? path.substr(3) : path;
}

bool is_below(std::string_view path, std::string_view root) {
  return path == root || (path.starts_with(root) && path[root.size()] == '/');
}

const Route* find_route(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  for (const Route& route : kRoutes) {
    if (path == route.path) return &route;
    const bool optional_v1 = route.path.starts_with("/v1/");
    const std::string_view shorter = without_v1(route.path), asked = optional_v1 ? without_v1(path) : path;
    if ((route.flags & kBelow) != 0 ? is_below(asked, shorter) : asked == shorter) return &route;
  }
  return nullptr;
}

bool is_unsupported(std::string_view path) {
  return std::any_of(std::begin(kUnsupported), std::end(kUnsupported),
                     [&](std::string_view root) { return is_below(path, root); });
}

// "application/json; charset=utf-8" and "application/problem+json" are; nothing at all may be, and so may what `curl
// -d` says by itself.
bool may_be_json(std::string_view type) {
  type = type.substr(0, type.find(';'));
  std::string name(type.substr(0, type.find_last_not_of(" \t") + 1));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name.empty() || name == "application/json" || name == "text/json" ||
         name == "application/x-www-form-urlencoded" || name.ends_with("+json");
}

http::Response no_such_path(const http::Request& request) {
  if (is_unsupported(request.path))
    return error_response(404, "unsupported_endpoint",
                          fmt::format("{} is not supported by this server; /v1/chat/completions, /v1/completions and "
                                      "/v1/responses are",
                                      request.path));
  return error_response(
      404, "not_found",
      fmt::format("there is no {} here; the OpenAI-compatible endpoints are under /v1", request.path));
}

http::Response wrong_method(const http::Request& request, const Route& route) {
  http::Response response =
      error_response(405, "method_not_allowed",
                     fmt::format("{} does not take {}; use {}", request.path, request.method, route.method));
  const bool get = route.method == "GET";
  response.headers.emplace_back("Allow", fmt::format("{}{}, OPTIONS", route.method, get ? ", HEAD" : ""));
  return response;
}

struct Router {
  Endpoints endpoints;
  RouterOptions options;

  bool allowed(const Route& route, const http::Request& request) const {
    const bool free = (route.flags & kOpen) != 0 || ((route.flags & kMetrics) != 0 && !options.protect_metrics);
    return free || options.keys.accept(request);
  }

  // The answer that needs no endpoint; nothing where `route` shall give it.
  std::optional<http::Response> refuse(const http::Request& request, const Route* route) const {
    if (request.method == "OPTIONS") return http::Response{.status = 204};
    if (route == nullptr) {
      // Whether a path below /v1 exists is nobody's business without a key.
      if (request.path.starts_with("/v1") && !options.keys.accept(request)) return no_key();
      return request.path == "/favicon.ico" ? http::Response{.status = 204} : no_such_path(request);
    }
    const bool head = route->method == "GET" && request.method == "HEAD";
    if (request.method != route->method && !head) return wrong_method(request, *route);
    if (!allowed(*route, request)) return no_key();
    if ((route->flags & kJson) != 0 && !may_be_json(request.header("Content-Type"))) return not_json(request);
    if ((route->flags & kEngine) != 0 && options.not_ready) return options.not_ready();
    return std::nullopt;
  }

  static http::Response no_key() { return error_response(401, "invalid_api_key", "Invalid API key"); }
  static http::Response not_json(const http::Request& request) {
    return error_response(415, "unsupported_media_type",
                          fmt::format("the body is declared as {}; send JSON with Content-Type: application/json",
                                      request.header("Content-Type")));
  }

  void operator()(std::shared_ptr<http::Exchange> exchange) const {
    const http::Request& request = exchange->request();
    const Route* route = find_route(request.path);
    if (auto response = refuse(request, route)) return exchange->respond(std::move(*response));
    (endpoints.*route->to)(std::move(exchange));
  }
};

}  // namespace

http::Handler make_router(Endpoints endpoints, RouterOptions options) {
  return Router{std::move(endpoints), std::move(options)};
}

std::string_view route_name(std::string_view path) {
  const Route* route = find_route(path);
  if (route == nullptr) return "other";
  return route->same_as.empty() ? route->path : route->same_as;
}

bool is_polled(std::string_view path) {
  const Route* route = find_route(path);
  return route != nullptr && (route->flags & kPolled) != 0;
}

}  // namespace moesaic
