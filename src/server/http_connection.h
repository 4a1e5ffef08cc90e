// One connection and the exchanges on it; internal to the HTTP server, which http.h offers.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <mutex>
#include <unordered_set>

#include "server/http.h"
#include "server/http_message.h"

namespace moesaic::http {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr Clock::time_point kNever = Clock::time_point::max();

std::string chunk(std::string_view bytes);  // as chunked encoding has it

class Connection;

// What connections share, and what outlives the server for as long as somebody holds an exchange.
struct Loop {
  ServerOptions options;
  Handler handler;
  Server::Refuse refuse;
  asio::io_context io;
  std::atomic<int64_t> exchanges{0};
  std::atomic<size_t> held_bytes{0};  // of requests
  std::atomic<bool> draining{false}, stopped{false};
  std::mutex mutex;
  std::unordered_set<Connection*> connections;  // guarded by mutex
};

// A request's share of Loop::held_bytes, from its first byte until nobody has it any more.
class Held {
 public:
  explicit Held(std::shared_ptr<Loop> loop) : loop_(std::move(loop)) {}
  ~Held() { loop_->held_bytes -= bytes_; }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  bool grow_to(size_t bytes);  // false: beyond ServerOptions::max_held_bytes

 private:
  const std::shared_ptr<Loop> loop_;
  size_t bytes_ = 0;
};

class Call;

// A socket and the requests on it, one after the other. All but the constructor runs on the socket's strand. One
// wait for readability is pending at nearly all times: it brings requests, and the news that the client has left.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Loop> loop, tcp::socket socket);
  ~Connection();

  void start();
  void turn_away();  // there are too many connections
  void close();

  // For the exchange with this number; nothing happens once another is served.
  void send(uint64_t exchange, std::string wire);
  // `close`: the connection ends with this answer.
  void begin_reply(uint64_t exchange, int status, bool event_stream, bool close);
  void end_reply(uint64_t exchange, bool complete);

  const std::shared_ptr<Loop> loop_;
  tcp::socket socket_;
  std::atomic<size_t> queued_{0};  // bytes of answers that the socket has not taken
  std::atomic<int64_t> body_bytes_{0};

 private:
  enum class Phase { idle, head, body, serving, lingering, closed };

  void wait_readable();
  void on_readable();
  void on_bytes(std::string_view bytes);
  void on_end_of_input();
  void feed();
  void want_more();
  void begin_exchange();
  void refuse(const ReadError& error);
  void write(std::string wire);
  void write_some();
  void on_written(size_t bytes);
  void after_answer();
  void end_exchange(bool complete);
  void forget();
  void linger();
  void arm(Clock::time_point deadline);
  void on_deadline();
  void set_silence();

  asio::steady_timer timer_;
  Phase phase_ = Phase::idle;
  bool waiting_ = false;      // for readability
  bool input_ended_ = false;  // the client has closed its side
  std::string input_;         // not yet parsed
  std::optional<RequestReader> reader_;
  size_t received_ = 0;            // of this request
  std::shared_ptr<Held> held_;     // while it is read
  Clock::time_point began_;        // to be received
  std::string pending_, writing_;  // answers: to be written next; being written, from written_ on
  size_t written_ = 0;
  bool above_ = false;  // the buffer's limit was reached since the last on_drain
  Clock::time_point deadline_ = kNever, armed_ = kNever;

  uint64_t exchange_ = 0;  // the number of the one that is served
  std::weak_ptr<Call> call_;
  Request served_;  // without its body
  bool answered_ = false, keep_alive_ = false, event_stream_ = false;
  int status_ = 0;
};

class Call final : public Exchange {
 public:
  Call(std::shared_ptr<Connection> connection, uint64_t number, Request request, std::shared_ptr<Held> held,
       bool http_1_0, bool keep_alive)
      : connection_(std::move(connection)),
        number_(number),
        request_(std::move(request)),
        held_(std::move(held)),
        chunked_(!http_1_0),
        keep_alive_(keep_alive) {}
  ~Call() override;

  const Request& request() const override { return request_; }
  void respond(Response response) override;
  void start_stream(std::string content_type, Headers headers) override;
  void write(std::string bytes) override;
  void finish() override;
  size_t buffered() const override { return connection_->queued_; }
  bool open() const override { return open_; }
  void on_close(std::function<void()> closed) override;
  void on_drain(std::function<void()> drained) override;
  void post(std::function<void()> task) override;

  // On the strand. left(): the client did; over(): nothing will be called back any more.
  void left();
  void over();
  void drained() {
    if (drained_) drained_();
  }

 private:
  enum class State { waiting, streaming, finished };
  bool is_last() const;
  Headers common_headers(bool last) const;
  bool advance(State from, State to) { return state_.compare_exchange_strong(from, to); }
  void send(std::string wire, int64_t body_bytes);
  template <typename Function>
  void on_strand(Function function) {
    if (!connection_->loop_->stopped) asio::post(connection_->socket_.get_executor(), std::move(function));
  }

  const std::shared_ptr<Connection> connection_;
  const uint64_t number_;
  const Request request_;
  const std::shared_ptr<Held> held_;
  const bool chunked_, keep_alive_;
  std::atomic<State> state_{State::waiting};
  std::atomic<bool> open_{true};
  bool left_ = false;  // this and these belong to the strand
  std::function<void()> closed_, drained_;
};

}  // namespace moesaic::http
