// An exchange as handlers see it: calls from any thread become messages to its connection.
#include <fmt/format.h>

#include "server/http_connection.h"

namespace moesaic::http {
namespace {

constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace

std::string chunk(std::string_view bytes) {
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

// Decided once for an answer: what its head says about the connection is what happens.
bool Call::is_last() const {
  return !keep_alive_ || connection_->loop_->draining;
}

Headers Call::common_headers(bool last) const {
  Headers headers = {{"Server", "moesaic"}, {"Date", http_date(std::time(nullptr))}};
  headers.emplace_back("X-Request-Id", request_.request_id);
  if (last) headers.emplace_back("Connection", "close");
  else if (!chunked_) headers.emplace_back("Connection", "keep-alive");
  if (const auto& more = connection_->loop_->options.reply_headers)
    for (auto& header : more(request_)) headers.push_back(std::move(header));
  return headers;
}

void Call::send(std::string wire, int64_t body_bytes) {
  if (!open_) return;
  connection_->queued_ += wire.size();
  connection_->body_bytes_ += body_bytes;
  on_strand([c = connection_, n = number_, bytes = std::move(wire)]() mutable { c->send(n, std::move(bytes)); });
}

void Call::respond(Response response) {
  if (!advance(State::waiting, State::finished)) return;
  const bool no_body = response.status == 204 || response.status == 304;
  const bool last = is_last();
  Headers headers = common_headers(last);
  if (!no_body) {
    headers.emplace_back("Content-Type", std::move(response.content_type));
    headers.emplace_back("Content-Length", std::to_string(response.body.size()));
  }
  for (auto& header : response.headers) headers.push_back(std::move(header));
  std::string wire = reply_head(response.status, headers);
  const size_t head = wire.size();
  if (!no_body && request_.method != "HEAD") wire += response.body;
  on_strand([c = connection_, n = number_, s = response.status, last] { c->begin_reply(n, s, false, last); });
  const auto body = static_cast<int64_t>(wire.size() - head);
  send(std::move(wire), body);
  on_strand([c = connection_, n = number_] { c->end_reply(n, true); });
}

void Call::start_stream(std::string content_type, Headers more) {
  if (!advance(State::waiting, State::streaming)) return;
  const bool events = content_type.starts_with("text/event-stream");
  const bool last = is_last() || !chunked_;  // HTTP/1.0 has only the end of the connection
  Headers headers = common_headers(last);
  headers.emplace_back("Content-Type", std::move(content_type));
  if (chunked_) headers.emplace_back("Transfer-Encoding", "chunked");
  for (auto& header : more) headers.push_back(std::move(header));
  on_strand([c = connection_, n = number_, e = events && chunked_, last] { c->begin_reply(n, 200, e, last); });
  send(reply_head(200, headers), 0);
}

void Call::write(std::string bytes) {
  if (state_ != State::streaming || bytes.empty() || request_.method == "HEAD") return;
  const auto size = static_cast<int64_t>(bytes.size());
  send(chunked_ ? chunk(bytes) : std::move(bytes), size);
}

void Call::finish() {
  if (!advance(State::streaming, State::finished)) return;
  if (chunked_ && request_.method != "HEAD") send(std::string(kLastChunk), 0);
  on_strand([c = connection_, n = number_] { c->end_reply(n, true); });
}

Call::~Call() {
  const State was = state_;
  if (was == State::waiting && open_)
    respond(connection_->loop_->refuse(500, "internal_error", "the server dropped this request without an answer"));
  else if (was == State::streaming) on_strand([c = connection_, n = number_] { c->end_reply(n, false); });
}

void Call::on_close(std::function<void()> closed) {
  on_strand([self = std::static_pointer_cast<Call>(shared_from_this()), f = std::move(closed)]() mutable {
    if (self->left_) f();
    else if (self->open_) self->closed_ = std::move(f);
  });
}

void Call::on_drain(std::function<void()> drained) {
  on_strand([self = std::static_pointer_cast<Call>(shared_from_this()), f = std::move(drained)]() mutable {
    if (self->open_) self->drained_ = std::move(f);
  });
}

void Call::post(std::function<void()> task) {
  on_strand(std::move(task));
}

void Call::left() {
  left_ = true;
  open_ = false;
  const auto closed = std::exchange(closed_, nullptr);
  drained_ = nullptr;
  if (closed) closed();
}

void Call::over() {
  open_ = false;
  closed_ = drained_ = nullptr;
}

}  // namespace moesaic::http
