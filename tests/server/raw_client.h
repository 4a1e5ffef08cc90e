// A client that sends exactly the bytes it is told to, for tests of the HTTP layer.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

namespace moesaic {

// What came back: a complete reply, as far as its head says what is complete.
struct Reply {
  int status = 0;
  std::string head, body;  // the body without chunk sizes
  bool complete = false;

  std::string header(std::string_view name) const {
    const std::string key = "\r\n" + std::string(name) + ": ";
    const size_t at = head.find(key);
    if (at == std::string::npos) return "";
    return head.substr(at + key.size(), head.find("\r\n", at + 2) - at - key.size());
  }
};

class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  RawClient(RawClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_), input_(std::move(other.input_)) {}
  ~RawClient() { close(); }

  bool connected() const { return connected_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  // Closes with RST instead of FIN.
  void reset() {
    const linger at_once{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close();
  }
  void close_sending() { shutdown(fd_, SHUT_WR); }

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  // Whether the server closed the connection within this time; what it sends before is kept.
  bool closed_within(std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < end)
      if (receive(50) < 0) return true;
    return false;
  }
  // Everything that came until `enough` says so.
  std::string read_until(const std::function<bool(const std::string&)>& enough, int seconds = 10) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    while (!enough(input_) && std::chrono::steady_clock::now() < end)
      if (receive(50) < 0) break;
    return input_;
  }
  bool sees(const std::string& text, int seconds = 10) {
    return read_until([&](const std::string& all) { return all.find(text) != std::string::npos; }, seconds)
               .find(text) != std::string::npos;
  }
  // The next reply; bytes behind it stay for the one after. `head_only`: it answers a HEAD request.
  Reply reply(bool head_only = false, int seconds = 10) {
    Reply r;
    if (!sees("\r\n\r\n", seconds)) return r.head = input_, r;
    const size_t end = input_.find("\r\n\r\n") + 4;
    r.head = input_.substr(0, end);
    input_.erase(0, end);
    r.status = std::atoi(r.head.c_str() + 9);
    if (head_only || r.status == 204 || r.status / 100 == 1) return r.complete = true, r;
    if (r.header("Transfer-Encoding") == "chunked") return read_chunks(r, seconds);
    const std::string length = r.header("Content-Length");
    const size_t bytes = length.empty() ? SIZE_MAX : std::stoul(length);
    read_until([&](const std::string& all) { return all.size() >= bytes; }, seconds);
    r.complete = !length.empty() && input_.size() >= bytes;
    r.body = input_.substr(0, bytes);
    input_.erase(0, r.body.size());
    return r;
  }
  Reply get(const std::string& path, const std::string& headers = "") {
    send("GET " + path + " HTTP/1.1\r\nHost: test\r\n" + headers + "\r\n");
    return reply();
  }
  Reply post(const std::string& path, const std::string& body, const std::string& headers = "") {
    send("POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         headers + "\r\n" + body);
    return reply();
  }

 private:
  // -1 at the end, 0 when nothing came.
  int receive(int milliseconds) {
    pollfd ready{fd_, POLLIN, 0};
    if (poll(&ready, 1, milliseconds) <= 0) return 0;
    char bytes[16384];
    const ssize_t count = recv(fd_, bytes, sizeof bytes, 0);
    if (count <= 0) return -1;
    input_.append(bytes, static_cast<size_t>(count));
    return static_cast<int>(count);
  }
  Reply read_chunks(Reply r, int seconds) {
    while (true) {
      if (!sees("\r\n", seconds)) return r;
      const size_t size = std::strtoul(input_.c_str(), nullptr, 16);
      const size_t begin = input_.find("\r\n") + 2;
      read_until([&](const std::string& all) { return all.size() >= begin + size + 2; }, seconds);
      if (input_.size() < begin + size + 2) return r;
      r.body += input_.substr(begin, size);
      input_.erase(0, begin + size + 2);
      if (size == 0) return r.complete = true, r;
    }
  }

  int fd_;
  bool connected_ = false;
  std::string input_;
};

// Waits for a condition that another thread brings about.
inline bool eventually(const std::function<bool()>& condition, int milliseconds = 5000) {
  for (int i = 0; i < milliseconds / 5; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return condition();
}

}  // namespace moesaic
