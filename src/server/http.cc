#include "server/http.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <thread>

#include "server/http_connection.h"

namespace moesaic::http {
namespace {

constexpr std::chrono::milliseconds kRetry{100};  // after accept() failed, out of descriptors most likely

tcp::endpoint resolve(Loop& loop) {
  const ServerOptions& options = loop.options;
  error_code error;
  const auto address = asio::ip::make_address(options.host, error);
  if (!error) return {address, static_cast<uint16_t>(options.port)};
  const auto found = tcp::resolver(loop.io).resolve(options.host, std::to_string(options.port), error);
  if (error || found.empty())
    throw Error(StatusCode::invalid_argument,
                fmt::format("--host {} is no address of this machine: {}; use 127.0.0.1, or 0.0.0.0 for all interfaces",
                            options.host, error.message()));
  return found.begin()->endpoint();
}

}  // namespace

struct Server::State {
  std::shared_ptr<Loop> loop = std::make_shared<Loop>();
  // One strand for the acceptor and its timer.
  asio::any_io_executor strand = asio::make_strand(loop->io);
  tcp::acceptor acceptor{strand};
  asio::steady_timer retry{strand};
  asio::executor_work_guard<asio::io_context::executor_type> work{loop->io.get_executor()};
  std::vector<std::thread> threads;
  int port = 0;

  void listen();
  void accept();
  void welcome(tcp::socket socket);
  void for_each(void (Connection::*function)());
};

void Server::State::listen() {
  const tcp::endpoint endpoint = resolve(*loop);
  try {
    acceptor.open(endpoint.protocol());
    acceptor.set_option(asio::socket_base::reuse_address(true));
    if (endpoint.address().is_v6()) acceptor.set_option(asio::ip::v6_only(false));
    acceptor.bind(endpoint);
    acceptor.listen(4096);
    port = acceptor.local_endpoint().port();
  } catch (const boost::system::system_error& error) {
    throw Error(StatusCode::unavailable, fmt::format("cannot listen on {}:{}: {}; choose another --host or --port",
                                                     loop->options.host, loop->options.port, error.code().message()));
  }
}

void Server::State::accept() {
  acceptor.async_accept(asio::make_strand(loop->io), [this](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
    if (!error) welcome(std::move(socket));
    if (!error) return accept();
    retry.expires_after(kRetry);
    retry.async_wait([this](error_code cancelled) {
      if (!cancelled && acceptor.is_open()) accept();
    });
  });
}

void Server::State::welcome(tcp::socket socket) {
  const auto connection = std::make_shared<Connection>(loop, std::move(socket));
  const std::scoped_lock lock(loop->mutex);
  const bool room = static_cast<int>(loop->connections.size()) <= loop->options.max_connections;
  asio::post(connection->socket_.get_executor(), [connection, room] {
    if (room) connection->start();
    else connection->turn_away();
  });
}

void Server::State::for_each(void (Connection::*function)()) {
  const std::scoped_lock lock(loop->mutex);
  for (Connection* connection : loop->connections)
    if (const auto alive = connection->weak_from_this().lock())
      asio::post(alive->socket_.get_executor(), [alive, function] { (*alive.*function)(); });
}

Server::Server(const ServerOptions& options, Handler handler, Refuse refuse) : state_(std::make_unique<State>()) {
  Loop& loop = *state_->loop;
  loop.options = options;
  loop.handler = std::move(handler);
  loop.refuse = std::move(refuse);
  state_->listen();
  state_->accept();
  for (int i = 0; i < options.threads; ++i) state_->threads.emplace_back([&loop] { loop.io.run(); });
}

Server::~Server() {
  stop_accepting();
  state_->for_each(&Connection::close);
  state_->work.reset();
  for (std::thread& thread : state_->threads) thread.join();
  state_->loop->stopped = true;
}

int Server::port() const {
  return state_->port;
}

void Server::stop_accepting() {
  state_->loop->draining = true;
  asio::post(state_->strand, [state = state_.get()] {
    error_code ignored;
    state->acceptor.close(ignored);
    state->retry.cancel();
  });
}

int64_t Server::connections() const {
  const std::scoped_lock lock(state_->loop->mutex);
  return static_cast<int64_t>(state_->loop->connections.size());
}

int64_t Server::exchanges() const {
  return state_->loop->exchanges;
}

int64_t raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace moesaic::http
