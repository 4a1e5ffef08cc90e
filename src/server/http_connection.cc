// The life of a connection: read a request, let it be answered, write the answer, read the next.
#include "server/http_connection.h"

#include <fmt/format.h>
#include <netinet/tcp.h>

#include <boost/asio/write.hpp>

#include "base/log.h"

namespace moesaic::http {
namespace {

constexpr std::chrono::seconds kLinger{2};  // for a client to take the last answer before its connection goes
constexpr double kSlowestBody = 64 << 10;   // bytes per second that extend body_timeout
constexpr size_t kReadBytes = 64 << 10;     // at a time
constexpr size_t kSmall = 64 << 10;         // requests of up to so much are read in any case
constexpr size_t kHardLimit = 8;            // times stream_buffer_bytes
constexpr std::string_view kPing = ": ping\n\n";

}  // namespace

bool Held::grow_to(size_t bytes) {
  loop_->held_bytes += bytes - bytes_;
  bytes_ = bytes;
  const ServerOptions& options = loop_->options;
  return bytes <= kSmall || loop_->held_bytes <= std::max(options.max_held_bytes, options.max_body_bytes);
}

Connection::Connection(std::shared_ptr<Loop> loop, tcp::socket socket)
    : loop_(std::move(loop)), socket_(std::move(socket)), timer_(socket_.get_executor()) {
  const std::scoped_lock lock(loop_->mutex);
  loop_->connections.insert(this);
}

Connection::~Connection() {
  forget();
}

void Connection::forget() {
  const std::scoped_lock lock(loop_->mutex);
  loop_->connections.erase(this);
}

void Connection::start() {
  if (loop_->draining) return close();
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  socket_.set_option(asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPIDLE>(60), ignored);
  socket_.non_blocking(true, ignored);
  arm(Clock::now() + loop_->options.header_timeout);
  wait_readable();
}

void Connection::turn_away() {
  refuse({503, "too_many_connections",
          fmt::format("the server holds {} connections, which is its limit; try again later",
                      loop_->options.max_connections)});
  wait_readable();
}

void Connection::wait_readable() {
  if (waiting_ || input_ended_ || phase_ == Phase::closed) return;
  if (phase_ == Phase::serving && input_.size() >= loop_->options.max_header_bytes) return;  // enough of the next ones
  waiting_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
    self->waiting_ = false;
    if (error) self->on_end_of_input();
    else self->on_readable();
  });
}

// Memory to read into is needed only now that there is something.
void Connection::on_readable() {
  if (phase_ == Phase::closed) return;
  thread_local std::vector<char> bytes(kReadBytes);
  error_code error;
  const size_t room = phase_ == Phase::serving ? std::min(kReadBytes, loop_->options.max_header_bytes) : kReadBytes;
  const size_t count = socket_.read_some(asio::buffer(bytes.data(), room), error);
  if (error == asio::error::would_block) return wait_readable();
  if (error) return on_end_of_input();
  on_bytes({bytes.data(), count});
  wait_readable();
}

void Connection::on_bytes(std::string_view bytes) {
  if (phase_ == Phase::lingering) return;  // what a refused client still sends
  input_ += bytes;
  if (phase_ != Phase::serving) feed();
}

void Connection::on_end_of_input() {
  input_ended_ = true;
  if (phase_ == Phase::serving && !answered_) close();
  else if (phase_ != Phase::serving) close();
  // else: the answer is on its way, and the connection closes behind it
}

void Connection::feed() {
  if (input_.empty()) return;
  if (!reader_) {
    reader_.emplace(ReadLimits{loop_->options.max_header_bytes, loop_->options.max_body_bytes});
    began_ = Clock::now();
    phase_ = Phase::head;
    received_ = 0;
    held_ = std::make_shared<Held>(loop_);
    arm(began_ + loop_->options.header_timeout);
  }
  const size_t used = reader_->feed(input_);
  received_ += used;
  input_.erase(0, used);
  if (reader_->error()) return refuse(reader_->error());
  if (!held_->grow_to(received_ + input_.size()))
    return refuse({503, "overloaded",
                   fmt::format("the server holds {} bytes of requests, which is its limit; try again later",
                               loop_->options.max_held_bytes)});
  if (reader_->done()) return begin_exchange();
  if (reader_->head_done()) want_more();
}

void Connection::want_more() {
  if (phase_ == Phase::head && reader_->expects_continue() && input_.empty()) {
    const std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    queued_ += go_on.size();
    write(std::string(go_on));
  }
  if (phase_ == Phase::head) began_ = Clock::now();
  phase_ = Phase::body;
  const std::chrono::duration<double> extra(static_cast<double>(received_) / kSlowestBody);
  arm(began_ + loop_->options.body_timeout + std::chrono::duration_cast<Clock::duration>(extra));
}

void Connection::begin_exchange() {
  Request request = reader_->take();
  error_code ignored;
  request.remote = socket_.remote_endpoint(ignored).address().to_string();
  request.arrived = Clock::now();
  keep_alive_ = reader_->keep_alive() && !loop_->draining;
  const bool http_1_0 = reader_->http_1_0();
  reader_.reset();
  phase_ = Phase::serving;
  answered_ = event_stream_ = false;
  status_ = 0, body_bytes_ = 0;
  served_ = request;
  served_.body.clear(), served_.body.shrink_to_fit();
  if (input_.empty()) input_.shrink_to_fit();
  arm(kNever);
  ++loop_->exchanges;
  auto call = std::make_shared<Call>(shared_from_this(), ++exchange_, std::move(request), std::exchange(held_, nullptr),
                                     http_1_0, keep_alive_);
  call_ = call;
  try {
    loop_->handler(call);
  } catch (const std::exception& error) {
    log(LogLevel::error, "request {} failed: {}", served_.request_id, error.what());
    call->respond(loop_->refuse(500, "internal_error", "the server failed on this request; its log says why"));
  }
}

// Malformed input: where the next request would begin is unknown, so the connection ends with the answer.
void Connection::refuse(const ReadError& error) {
  Response response = loop_->refuse(error.status, error.code, error.message);
  Headers headers = {{"Server", "moesaic"},
                     {"Date", http_date(std::time(nullptr))},
                     {"X-Request-Id", fresh_request_id()},
                     {"Connection", "close"},
                     {"Content-Type", response.content_type},
                     {"Content-Length", std::to_string(response.body.size())}};
  for (auto& header : response.headers) headers.push_back(std::move(header));
  reader_.reset();
  held_.reset();
  input_.clear();
  phase_ = Phase::lingering;
  std::string wire = reply_head(response.status, headers) + response.body;
  queued_ += wire.size();
  write(std::move(wire));
  arm(Clock::now() + kLinger);
}

// --- writing -------------------------------------------------------------------------------------------

void Connection::begin_reply(uint64_t exchange, int status, bool event_stream, bool close_after) {
  if (exchange != exchange_ || phase_ != Phase::serving) return;
  status_ = status;
  event_stream_ = event_stream;
  if (close_after) keep_alive_ = false;
}

void Connection::send(uint64_t exchange, std::string wire) {
  const ServerOptions& options = loop_->options;
  if (exchange != exchange_ || phase_ != Phase::serving || answered_) {
    queued_ -= wire.size();
    return;
  }
  if (event_stream_ && queued_ - wire.size() > kHardLimit * options.stream_buffer_bytes) {
    queued_ -= wire.size();
    return close();
  }
  above_ = above_ || queued_ >= options.stream_buffer_bytes;
  write(std::move(wire));
}

void Connection::write(std::string wire) {
  if (pending_.empty()) pending_ = std::move(wire);
  else pending_ += wire;
  if (writing_.empty()) write_some();
}

// Everything that came while the last write was under way goes out together.
void Connection::write_some() {
  if (written_ == writing_.size()) {
    writing_ = std::exchange(pending_, {});
    written_ = 0;
  }
  if (writing_.empty()) return after_answer();
  if (phase_ == Phase::serving) arm(Clock::now() + loop_->options.stalled_timeout);
  socket_.async_write_some(asio::buffer(writing_.data() + written_, writing_.size() - written_),
                           [self = shared_from_this()](error_code error, size_t bytes) {
                             if (!error) self->on_written(bytes);
                             else self->close();
                           });
}

void Connection::on_written(size_t bytes) {
  written_ += bytes;
  queued_ -= bytes;
  if (phase_ == Phase::closed) return;
  if (above_ && queued_ < loop_->options.stream_buffer_bytes / 2) {
    above_ = false;
    if (const auto call = call_.lock()) call->drained();
  }
  write_some();
}

// All that was to be written is.
void Connection::after_answer() {
  if (phase_ == Phase::lingering) return linger();
  if (phase_ != Phase::serving) return;  // "100 Continue"
  if (!answered_) return set_silence();
  phase_ = Phase::idle;
  end_exchange(true);
  if (!keep_alive_ || input_ended_) return linger();
  arm(Clock::now() + loop_->options.idle_timeout);
  feed();
  wait_readable();
}

void Connection::set_silence() {
  arm(event_stream_ ? Clock::now() + loop_->options.ping_interval : kNever);
}

void Connection::end_reply(uint64_t exchange, bool complete) {
  if (exchange != exchange_ || phase_ != Phase::serving || answered_) return;
  if (!complete) return close();
  answered_ = true;
  if (writing_.empty()) after_answer();
}

void Connection::end_exchange(bool complete) {
  const auto call = call_.lock();
  call_.reset();
  ++exchange_;  // what the last one still sends is dropped
  if (const auto& answered = loop_->options.on_answered) {
    const std::chrono::duration<double> took = Clock::now() - served_.arrived;
    answered(served_, {status_, body_bytes_, took.count(), complete});
  }
  --loop_->exchanges;  // last: where there are none, all have been told of
  served_ = {};
  if (!call) return;
  if (complete) call->over();
  else call->left();
}

// Closing at once, with bytes of the client's unread, would make its system drop our answer.
void Connection::linger() {
  if (input_ended_) return close();
  phase_ = Phase::lingering;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  arm(Clock::now() + kLinger);
  wait_readable();
}

void Connection::close() {
  if (phase_ == Phase::closed) return;
  const bool left = std::exchange(phase_, Phase::closed) == Phase::serving;
  timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
  reader_.reset();
  held_.reset();
  forget();
  if (left) end_exchange(false);
}

// --- time ----------------------------------------------------------------------------------------------

// Deadlines mostly move into the future, so the timer fires at the oldest and is then set anew: no work per write.
void Connection::arm(Clock::time_point deadline) {
  deadline_ = deadline;
  if (deadline == kNever || armed_ <= deadline || phase_ == Phase::closed) return;
  armed_ = deadline;
  timer_.expires_at(deadline);
  timer_.async_wait([self = shared_from_this()](error_code error) {
    if (error || self->phase_ == Phase::closed) return;
    self->armed_ = kNever;
    if (Clock::now() < self->deadline_) self->arm(self->deadline_);
    else self->on_deadline();
  });
}

void Connection::on_deadline() {
  switch (phase_) {
    case Phase::head:
    case Phase::body:
      return refuse({408, "timeout", "the request did not arrive in time; send its headers and body without delay"});
    case Phase::serving:
      if (!writing_.empty()) return close();  // the client has not read for too long
      if (event_stream_ && !answered_) {
        const std::string ping = chunk(kPing);
        queued_ += ping.size();
        write(ping);
      }
      return;
    case Phase::idle:
    case Phase::lingering: return close();
    case Phase::closed: return;
  }
}

}  // namespace moesaic::http
