// Any bytes are either refused as a request or read as one, the same whether they come together or in pieces.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "server/http_message.h"

namespace moesaic::http {
namespace {

constexpr ReadLimits kLimits{.header_bytes = 1024, .body_bytes = 4096};

struct Outcome {
  bool done = false;
  size_t used = 0;
  int error = 0;
  Request request;
};

void check_refusal(const ReadError& error) {
  constexpr int kStatuses[] = {400, 413, 431, 501};
  CHECK(std::ranges::find(kStatuses, error.status) != std::end(kStatuses), "{}", error.status);
  CHECK(!error.code.empty() && !error.message.empty(), "{}", error.status);
}

// As a connection does: bytes that were not used come again, with the next piece behind them.
Outcome read(std::string_view bytes, size_t piece) {
  RequestReader reader(kLimits);
  Outcome out;
  for (size_t end = std::min(piece, bytes.size());; end = std::min(end + piece, bytes.size())) {
    out.used += reader.feed(bytes.substr(out.used, end - out.used));
    CHECK(out.used <= end, "{} of {}", out.used, end);
    if (reader.error()) check_refusal(reader.error());
    out.error = reader.error().status;
    out.done = out.error == 0 && reader.done();
    if (out.done || out.error != 0 || end == bytes.size()) break;
  }
  if (out.done) out.request = reader.take();
  return out;
}

void check_request(const Request& r) {
  const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  CHECK(!r.path.empty() && (r.path[0] == '/' || r.path == "*"), "{}", r.path);
  CHECK(std::ranges::none_of(r.path, control), "{}", r.path);
  CHECK(std::ranges::none_of(r.method, control), "{}", r.method);
  CHECK(r.body.size() <= kLimits.body_bytes, "{}", r.body.size());
  CHECK(usable_request_id(r.request_id), "{}", r.request_id);
  // What a client sends and a reply repeats ends no line of the reply.
  const std::string head = reply_head(200, {{"X-Request-Id", r.request_id}, {"X-Echo", r.body}});
  CHECK(head.find("\r\n\r\n") == head.size() - 4, "{}", head);
  CHECK(std::ranges::count(head, '\n') == 4, "{}", head);
}

void check(std::string_view bytes, size_t piece) {
  const Outcome whole = read(bytes, bytes.size() + 1), pieces = read(bytes, piece);
  if (whole.error == 431 || pieces.error == 431) return;  // near the limit of heads Beast counts pieces otherwise
  CHECK(whole.done == pieces.done, "{} and {}", whole.error, pieces.error);
  if (!whole.done) return;
  CHECK(whole.used == pieces.used, "{} and {}", whole.used, pieces.used);
  CHECK(whole.request.body == pieces.request.body, "{}", whole.request.body);
  CHECK(whole.request.path == pieces.request.path && whole.request.method == pieces.request.method, "{}",
        whole.request.path);
  CHECK(whole.request.headers == pieces.request.headers, "{}", whole.request.headers.size());
  check_request(whole.request);
}

}  // namespace
}  // namespace moesaic::http

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moesaic::http;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  check(bytes, 1 + data[0] % 64);
  std::string path, query;
  split_target(bytes, path, query);
  return 0;
}
