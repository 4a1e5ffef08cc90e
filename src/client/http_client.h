// HttpLoop: an HTTP/1.1 client for load. Many calls at once on one thread, each on a connection of its own, so that a
// server sees what many clients would do; answers arrive in pieces. Boost.Asio and Beast live in http_client.cc alone.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moesaic {

struct Url {
  std::string host, port;
  std::string path;  // without a slash at its end; often empty

  std::string authority() const;  // host:port, as the Host header has it
};

// Throws Error(invalid_argument) for anything but http://host[:port][/path]; IPv6 addresses stand in brackets.
Url parse_url(const std::string& text);

struct HttpCall {
  std::string method = "POST", target, body;
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::chrono::milliseconds silence_limit = std::chrono::minutes(10);  // without a byte from the server
};

// Each is called on the loop's thread; on_end comes last, once, with an empty text when the answer was complete.
struct HttpAnswer {
  std::function<void(int status)> on_status;
  std::function<void(std::string_view bytes)> on_bytes;
  std::function<void(const std::string& error)> on_end;
};

class HttpLoop {
 public:
  // Looks the host up. Throws Error(unavailable) when it has no address.
  explicit HttpLoop(const Url& server);
  ~HttpLoop();

  void start(HttpCall call, HttpAnswer answer);
  void at(std::chrono::steady_clock::time_point time, std::function<void()> task);
  // Until there is nothing left to do, or stop().
  void run();
  // From any thread. What has not ended never calls back.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// One call and its whole answer. Throws Error(unavailable) when there is none.
std::pair<int, std::string> http_fetch(const Url& server, HttpCall call);

}  // namespace moesaic
