// MockServer: an OpenAI-like server whose every byte and delay a test decides. One thread per connection.
#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"

namespace moesaic {

class MockServer {
 public:
  // What a test writes to one connection.
  struct Connection {
    int socket;
    std::string head, body;  // of the request

    bool write(std::string_view bytes) const {
      while (!bytes.empty()) {
        const ssize_t n = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (n <= 0) return false;
        bytes.remove_prefix(static_cast<size_t>(n));
      }
      return true;
    }
    void chunk(std::string_view bytes) const { write(fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes)); }
    void event(std::string_view json) const { chunk(fmt::format("data: {}\n\n", json)); }
    void start_stream() const {
      write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
    }
    void finish() const { event("[DONE]"), write("0\r\n\r\n"); }
    void reply(int status, std::string_view json) const {
      write(fmt::format("HTTP/1.1 {} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}", status,
                        json.size(), json));
    }
  };
  using Script = std::function<void(const Connection&)>;

  explicit MockServer(Script script) : script_(std::move(script)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    CHECK(listen(listener_, 512) == 0);
    CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    accepting_ = std::thread([this] { accept_all(); });
  }
  ~MockServer() {
    shutdown(listener_, SHUT_RDWR);
    accepting_.join();
    close(listener_);
    for (std::thread& thread : threads_) thread.join();
  }
  MockServer(const MockServer&) = delete;
  MockServer& operator=(const MockServer&) = delete;

  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }
  int peak() const { return peak_; }  // connections served at the same time
  std::vector<std::string> bodies() {
    const std::lock_guard lock(mutex_);
    return bodies_;
  }

 private:
  void accept_all() {
    for (;;) {
      const int peer = accept(listener_, nullptr, nullptr);
      if (peer < 0) return;
      const int on = 1;
      setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      threads_.emplace_back([this, peer] { serve(peer); });
    }
  }

  void serve(int peer) {
    const int now = ++open_;
    for (int seen = peak_; now > seen && !peak_.compare_exchange_weak(seen, now);) {
    }
    Connection connection{peer, "", ""};
    if (read_request(connection)) {
      {
        const std::lock_guard lock(mutex_);
        bodies_.push_back(connection.body);
      }
      script_(connection);
    }
    --open_;
    shutdown(peer, SHUT_RDWR);
    close(peer);
  }

  static bool read_request(Connection& c) {
    std::string text;
    for (size_t end = std::string::npos; end == std::string::npos; end = text.find("\r\n\r\n"))
      if (!read_some(c.socket, text)) return false;
    const size_t end = text.find("\r\n\r\n") + 4;
    c.head = text.substr(0, end), c.body = text.substr(end);
    const size_t field = c.head.find("Content-Length: ");
    const size_t length = field == std::string::npos ? 0 : std::stoul(c.head.substr(field + 16));
    while (c.body.size() < length)
      if (!read_some(c.socket, c.body)) return false;
    return true;
  }

  static bool read_some(int peer, std::string& text) {
    char bytes[4096];
    const ssize_t n = recv(peer, bytes, sizeof bytes, 0);
    if (n > 0) text.append(bytes, static_cast<size_t>(n));
    return n > 0;
  }

  Script script_;
  int listener_, port_ = 0;
  std::thread accepting_;
  std::vector<std::thread> threads_;
  std::atomic<int> open_{0}, peak_{0};
  std::mutex mutex_;
  std::vector<std::string> bodies_;
};

inline void sleep_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

// An answer of `tokens` tokens: the first after `first_ms`, the others `gap_ms` apart.
inline void answer_tokens(const MockServer::Connection& c, int tokens, int first_ms, int gap_ms) {
  const bool chat = c.head.find("/chat/completions") != std::string::npos;
  c.start_stream();
  if (chat)
    c.event(R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null})");
  for (int i = 0; i < tokens; ++i) {
    sleep_ms(i == 0 ? first_ms : gap_ms);
    c.event(chat ? R"({"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}],"usage":null})"
                 : R"({"choices":[{"index":0,"text":" word","finish_reason":null}],"usage":null})");
  }
  c.event(chat ? R"({"choices":[{"index":0,"delta":{},"finish_reason":"length"}],"usage":null})"
               : R"({"choices":[{"index":0,"text":"","finish_reason":"length"}],"usage":null})");
  c.event(fmt::format(R"({{"choices":[],"usage":{{"prompt_tokens":7,"completion_tokens":{}}}}})", tokens));
  c.finish();
}

}  // namespace moesaic
