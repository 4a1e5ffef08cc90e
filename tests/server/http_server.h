// A server on a free port whose handler a test gives.
#pragma once

#include <fmt/format.h>

#include <memory>

#include "server/http.h"
#include "server/raw_client.h"

namespace moesaic {

inline http::Response plain_refusal(int status, const std::string& code, const std::string& message) {
  return {.status = status, .body = fmt::format("{{\"error\":{{\"code\":\"{}\",\"message\":\"{}\"}}}}", code, message)};
}

struct TestServer {
  explicit TestServer(http::Handler handler, http::ServerOptions options = {}) {
    options.port = 0;
    server = std::make_unique<http::Server>(options, std::move(handler), plain_refusal);
  }
  RawClient connect(int receive_buffer = 0) const { return RawClient(server->port(), receive_buffer); }

  std::unique_ptr<http::Server> server;
};

// Answers with what the request says, one item per line.
inline void echo(const std::shared_ptr<http::Exchange>& exchange) {
  const http::Request& r = exchange->request();
  exchange->respond({.body = fmt::format("{} {} ?{} {}", r.method, r.path, r.query, r.body)});
}

}  // namespace moesaic
