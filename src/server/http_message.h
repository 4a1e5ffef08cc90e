// What HTTP/1.1 messages say: requests parsed within limits, heads of replies. No sockets here; http.h has those.
// Boost.Beast's parser lives in http_message.cc alone.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/http.h"

namespace moesaic::http {

struct ReadLimits {
  size_t header_bytes = 32 << 10, body_bytes = 64 << 20;
};

// Why a request cannot be read: the reply's status, a code and a sentence; status 0: nothing is wrong.
struct ReadError {
  int status = 0;
  std::string code, message;
  explicit operator bool() const { return status != 0; }
};

// Reads one request from bytes as they come.
class RequestReader {
 public:
  explicit RequestReader(const ReadLimits& limits);
  ~RequestReader();
  RequestReader(RequestReader&&) noexcept;

  // Returns how many of the bytes were used; the rest must come again, with more behind it, unless done() or error().
  size_t feed(std::string_view bytes);
  bool head_done() const;
  bool done() const;
  const ReadError& error() const { return error_; }
  // Once the head is there: whether the client waits for "100 Continue", and whether it will send another request.
  bool expects_continue() const;
  bool keep_alive() const;
  bool http_1_0() const;
  // Once done: method, path, query, headers, body and request_id.
  Request take();

 private:
  struct State;
  void check_head();

  std::unique_ptr<State> state_;
  ReadError error_;
};

// Splits "/a%20b?x=1" or "http://host/a%20b?x=1" into decoded path and raw query; false when it is neither, or where a
// percent sign is not followed by two digits or stands for a control character.
bool split_target(std::string_view target, std::string& path, std::string& query);

// Whether a client's X-Request-Id may be used: 1 to 128 printable ASCII characters.
bool usable_request_id(std::string_view id);
std::string fresh_request_id();

// Status line and headers, with the empty line behind them. Line breaks in values become spaces.
std::string reply_head(int status, const Headers& headers);
// "Tue, 01 Dec 2026 16:00:00 GMT"
std::string http_date(time_t when);

}  // namespace moesaic::http
