// HTTP/1.1 server: connections, limits, streams. It knows nothing of models. Boost.Asio lives in http.cc alone, and
// Boost.Beast in http_message.cc. A thread serves any number of connections; an open stream costs about 3 kB.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace moesaic::http {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Request {
  std::string method, path, query;  // the path is percent-decoded
  Headers headers;
  std::string body;
  std::string remote;      // address of the client
  std::string request_id;  // the X-Request-Id it sent, where that is printable and at most 128 characters; else fresh
  std::chrono::steady_clock::time_point arrived;

  std::string_view header(std::string_view name) const;  // any case; empty: none
};

struct Response {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  Headers headers = {};
};

// One request and its answer. Any thread may call; it lives for as long as somebody holds it. Dropped unanswered, it
// answers 500.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  virtual ~Exchange() = default;
  virtual const Request& request() const = 0;
  // The whole answer, or the first of a stream; one of the two, once.
  virtual void respond(Response response) = 0;
  // Status 200 and these headers; the body follows in chunks.
  virtual void start_stream(std::string content_type, Headers headers = {}) = 0;
  // Queues bytes of the stream. Dropped when the client has left.
  virtual void write(std::string bytes) = 0;
  virtual void finish() = 0;
  virtual size_t buffered() const = 0;  // bytes queued and not yet taken by the socket
  virtual bool open() const = 0;        // the client is still there
  // Calls back once, from a server thread, when the client leaves, a write fails or it stops reading for too long;
  // not after a complete answer.
  virtual void on_close(std::function<void()> closed) = 0;
  // Calls back when buffered() falls below half of ServerOptions::stream_buffer_bytes after having been above it.
  virtual void on_drain(std::function<void()> drained) = 0;
  // Runs `task` on a server thread, one at a time for this exchange.
  virtual void post(std::function<void()> task) = 0;
};

using Handler = std::function<void(std::shared_ptr<Exchange>)>;

// How an exchange ended.
struct Answered {
  int status = 0;          // 0: the client left before there was one
  int64_t body_bytes = 0;  // handed over to be sent
  double seconds = 0;      // since the request arrived
  bool complete = false;   // false: the client left, stopped reading, or the server dropped the stream
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free one
  int threads = 2;
  size_t max_body_bytes = 64 << 20;
  // Of all requests that are being read or answered; one that passes it is refused, unless it is small (64 KiB).
  size_t max_held_bytes = size_t{1} << 30;
  size_t max_header_bytes = 32 << 10;
  int max_connections = 8192;
  std::chrono::seconds header_timeout{30}, body_timeout{60}, idle_timeout{75}, stalled_timeout{30};
  std::chrono::seconds ping_interval{15};  // of `: ping` comments in silent event streams
  // What a handler should keep buffered() below; a stream that passes eight times as much is cut off.
  size_t stream_buffer_bytes = 1 << 20;
  std::function<Headers(const Request&)> reply_headers = {};              // added to each answer
  std::function<void(const Request&, const Answered&)> on_answered = {};  // from a server thread
};

// Raises the process's limit on open files to what the system allows it; returns the limit.
int64_t raise_descriptor_limit();

class Server {
 public:
  // Binds and starts to accept. Throws Error when the port cannot be bound. The handler runs on a server thread once a
  // request is complete; malformed requests are answered by `refuse` (status, code, message) without it.
  using Refuse = std::function<Response(int status, std::string code, std::string message)>;
  Server(const ServerOptions& options, Handler handler, Refuse refuse);
  ~Server();  // closes everything

  int port() const;
  // New connections are refused; open ones close after their next answer.
  void stop_accepting();
  int64_t connections() const;
  int64_t exchanges() const;  // unfinished

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moesaic::http
