#include "client/http_client.h"

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <charconv>

#include "base/error.h"

namespace moesaic {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Addresses = asio::ip::tcp::resolver::results_type;
using boost::system::error_code;

constexpr std::string_view kScheme = "http://";
constexpr size_t kReadBytes = 16 << 10;

std::string describe(const error_code& error) {
  if (error == http::error::end_of_stream || error == http::error::partial_message || error == asio::error::eof ||
      error == asio::error::connection_reset || error == asio::error::broken_pipe)
    return "the server closed the connection before the answer was complete";
  if (error == beast::error::timeout) return "timed out: the server was silent for too long";
  if (error.category() == http::make_error_code(http::error::end_of_stream).category())
    return "the answer is not HTTP/1.1: " + error.message();
  return error.message();
}

// One call: connect, write, then read until the answer ends. It holds itself through its pending operation.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(asio::io_context& loop, const Url& server, HttpCall call, HttpAnswer answer)
      : stream_(loop), limit_(call.silence_limit), answer_(std::move(answer)) {
    request_.method_string(call.method);
    request_.target(call.target);
    request_.set(http::field::host, server.authority());
    request_.set(http::field::user_agent, "moesaic-bench");
    request_.set(http::field::connection, "close");
    for (const auto& [name, value] : call.headers) request_.set(name, value);
    request_.body() = std::move(call.body);
    if (call.method != "GET") request_.prepare_payload();
    parser_.body_limit(boost::none);
  }

  void connect(const Addresses& addresses) {
    stream_.expires_after(limit_);
    stream_.async_connect(addresses, [self = shared_from_this()](error_code error, const auto&) {
      if (error) return self->end("cannot connect: " + error.message());
      self->write();
    });
  }

 private:
  void write() {
    error_code ignored;
    stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
    stream_.expires_after(limit_);
    // A server may answer, an error for example, before it has taken the whole request: read in any case.
    http::async_write(stream_, request_, [self = shared_from_this()](error_code, size_t) { self->read_header(); });
  }

  void read_header() {
    stream_.expires_after(limit_);
    http::async_read_header(stream_, buffer_, parser_, [self = shared_from_this()](error_code error, size_t) {
      if (error) return self->end(describe(error));
      self->answer_.on_status(self->parser_.get().result_int());
      self->read_body();
    });
  }

  void read_body() {
    if (parser_.is_done()) return end("");
    parser_.get().body().data = bytes_.data();
    parser_.get().body().size = bytes_.size();
    stream_.expires_after(limit_);
    http::async_read_some(stream_, buffer_, parser_,
                          [self = shared_from_this()](error_code error, size_t) { self->take(error); });
  }

  void take(error_code error) {
    const size_t count = bytes_.size() - parser_.get().body().size;
    if (count > 0) answer_.on_bytes({bytes_.data(), count});
    if (error && error != http::error::need_buffer) return end(describe(error));
    read_body();
  }

  void end(const std::string& error) {
    stream_.cancel();
    stream_.close();
    answer_.on_end(error);
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  http::request<http::string_body> request_;
  http::response_parser<http::buffer_body> parser_;
  std::array<char, kReadBytes> bytes_;
  const std::chrono::milliseconds limit_;
  HttpAnswer answer_;
};

[[noreturn]] void fail_url(const std::string& text) {
  fail_argument("\"{}\" is not a URL that can be called; expected http://HOST:PORT (https: put a proxy before it)",
                text);
}

}  // namespace

std::string Url::authority() const {
  return (host.find(':') != std::string::npos ? "[" + host + "]" : host) + ":" + port;
}

Url parse_url(const std::string& text) {
  if (!text.starts_with(kScheme)) fail_url(text);
  Url url;
  const size_t slash = std::min(text.find('/', kScheme.size()), text.size());
  const std::string authority = text.substr(kScheme.size(), slash - kScheme.size());
  url.path = text.substr(slash);
  while (url.path.ends_with('/')) url.path.pop_back();
  const size_t bracket = authority.find(']'), colon = authority.rfind(':');
  const bool has_port = colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
  url.host = authority.substr(0, has_port ? colon : authority.size());
  url.port = has_port ? authority.substr(colon + 1) : "80";
  if (url.host.starts_with('[') && url.host.ends_with(']')) url.host = url.host.substr(1, url.host.size() - 2);
  uint16_t port = 0;
  const char* end = url.port.data() + url.port.size();
  const auto [stop, error] = std::from_chars(url.port.data(), end, port);
  if (url.host.empty() || error != std::errc() || stop != end || port == 0) fail_url(text);
  return url;
}

struct HttpLoop::State {
  Url server;
  asio::io_context loop{1};
  Addresses addresses;
};

HttpLoop::HttpLoop(const Url& server) : state_(std::make_unique<State>()) {
  state_->server = server;
  error_code error;
  state_->addresses = asio::ip::tcp::resolver(state_->loop).resolve(server.host, server.port, error);
  if (error) throw Error(StatusCode::unavailable, "no such host: " + error.message(), server.authority());
}

HttpLoop::~HttpLoop() = default;

void HttpLoop::start(HttpCall call, HttpAnswer answer) {
  std::make_shared<Exchange>(state_->loop, state_->server, std::move(call), std::move(answer))
      ->connect(state_->addresses);
}

void HttpLoop::at(std::chrono::steady_clock::time_point time, std::function<void()> task) {
  auto timer = std::make_shared<asio::steady_timer>(state_->loop, time);
  timer->async_wait([timer, run = std::move(task)](error_code error) {
    if (!error) run();
  });
}

void HttpLoop::run() {
  state_->loop.run();
}

void HttpLoop::stop() {
  state_->loop.stop();
}

std::pair<int, std::string> http_fetch(const Url& server, HttpCall call) {
  int status = 0;
  std::string body, failure;
  HttpLoop loop(server);
  loop.start(std::move(call), {.on_status = [&](int s) { status = s; },
                               .on_bytes = [&](std::string_view bytes) { body += bytes; },
                               .on_end = [&](const std::string& error) { failure = error; }});
  loop.run();
  if (!failure.empty()) throw Error(StatusCode::unavailable, failure, server.authority());
  return {status, body};
}

}  // namespace moesaic
