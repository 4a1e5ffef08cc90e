#include "server/media_fetch.h"

#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <cstring>
#include <future>
#include <thread>

#include "server/fields.h"
#include "server/media_hosts.h"

namespace moesaic {
namespace {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;
namespace beast = boost::beast;
namespace wire = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Addresses = std::vector<Address>;

constexpr uint32_t kMaxHeadBytes = 32 << 10;

struct Fetch {
  const FetchRules& rules;
  const std::string& param;
  ApiError& error;
  Clock::time_point end;
  std::string subject = {};  // whom messages speak of: a redirect's host is not for the caller to know

  void refuse(const std::string& message) const { report(error, 400, "media_url_not_allowed", message, param); }
  void fail(const std::string& message) const {
    report(error, 400, "invalid_image", message + "; send the image as a data: URL", param);
  }
  void late() const {
    fail(fmt::format("the image did not come within {:g} s from {}", std::chrono::duration<double>(rules.time).count(),
                     subject));
  }
};

struct Answer {
  std::string body, location;  // one of them
};

Addresses look_up(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return {};
  Addresses out;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    Address bytes{};
    bytes[10] = bytes[11] = 0xFF;
    if (a->ai_family == AF_INET)
      std::memcpy(bytes.data() + 12, &reinterpret_cast<const sockaddr_in*>(a->ai_addr)->sin_addr, 4);
    else if (a->ai_family == AF_INET6)
      std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6*>(a->ai_addr)->sin6_addr, 16);
    else continue;
    out.push_back(bytes);
  }
  freeaddrinfo(found);
  return out;
}

// A lookup cannot be interrupted, and may take longer than the caller waits: then it ends by itself, unheard.
Addresses look_up_until(const std::string& host, Clock::time_point end) {
  std::promise<Addresses> promise;
  std::future<Addresses> future = promise.get_future();
  std::thread([host, answer = std::move(promise)]() mutable { answer.set_value(look_up(host)); }).detach();
  return future.wait_until(end) == std::future_status::ready ? future.get() : Addresses();
}

Addresses addresses_of(const std::string& host, Clock::time_point end) {
  if (const auto literal = parse_address(host)) return {*literal};
  if (host == "localhost") return {*parse_address("127.0.0.1"), *parse_address("::1")};  // by definition (RFC 6761)
  return look_up_until(host, end);
}

// One address that is not allowed refuses all: an honest name does not mix them.
Addresses checked_addresses(const Fetch& fetch, const MediaHost& entry, const std::string& host) {
  Addresses out = addresses_of(host, fetch.end);
  if (out.empty() && Clock::now() >= fetch.end) return fetch.late(), out;
  if (out.empty()) return fetch.fail(fmt::format("{} has no address", fetch.subject)), out;
  if (std::ranges::all_of(out, [&](const Address& address) { return may_connect(entry, address); })) return out;
  fetch.refuse(
      fmt::format("{} is not on the public internet; such a host's address itself must be in the server's "
                  "--allowed-media-domains",
                  fetch.subject));
  return {};
}

tcp::endpoint endpoint(const Address& address, int port) {
  const asio::ip::address_v6 v6(address);
  const auto number = static_cast<asio::ip::port_type>(port);
  if (v6.is_v4_mapped()) return {asio::ip::make_address_v4(asio::ip::v4_mapped, v6), number};
  return {v6, number};
}

// Runs what `start` begins to its end or to the deadline. The loop does not run again behind the deadline: an operation
// that is pending then goes with the loop, and never touches what it was given.
template <class Start>
error_code finish(asio::io_context& loop, Clock::time_point end, Start start) {
  error_code result = asio::error::timed_out;
  start([&result](error_code error, auto&&...) { result = error; });
  loop.restart();
  loop.run_until(end);
  return result;
}

// False, and reported, where it failed.
bool good(const Fetch& fetch, const error_code& error) {
  if (!error) return true;
  if (error == asio::error::timed_out) fetch.late();
  else if (error == wire::error::body_limit)
    fetch.fail(fmt::format("the image has more than {} bytes, the limit", fetch.rules.max_bytes));
  else if (error == wire::error::end_of_stream || error == wire::error::partial_message ||
           error == ssl::error::stream_truncated)
    fetch.fail(fmt::format("{} ended the connection before the image was complete", fetch.subject));
  else fetch.fail(fmt::format("the image cannot be fetched from {}: {}", fetch.subject, error.message()));
  return false;
}

wire::request<wire::empty_body> request(const MediaUrl& url) {
  wire::request<wire::empty_body> out(wire::verb::get, url.target, 11);
  const std::string origin = url.origin();
  out.set(wire::field::host, origin.substr(origin.find("://") + 3));
  out.set(wire::field::user_agent, "moesaic");
  out.set(wire::field::accept, "image/*");
  out.set(wire::field::accept_encoding, "identity");
  out.set(wire::field::connection, "close");
  return out;
}

bool is_redirect(unsigned status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

template <class Stream>
Answer exchange(const Fetch& fetch, asio::io_context& loop, Stream& stream, const MediaUrl& url) {
  const auto question = request(url);
  beast::flat_buffer buffer;
  wire::response_parser<wire::string_body> parser;
  parser.header_limit(kMaxHeadBytes);
  parser.body_limit(static_cast<uint64_t>(fetch.rules.max_bytes));
  const auto done = [&](auto start) { return good(fetch, finish(loop, fetch.end, start)); };
  if (!done([&](auto then) { wire::async_write(stream, question, then); })) return {};
  if (!done([&](auto then) { wire::async_read_header(stream, buffer, parser, then); })) return {};
  const unsigned status = parser.get().result_int();
  const std::string location(parser.get()[wire::field::location]);
  if (is_redirect(status) && !location.empty()) return {.body = {}, .location = location};
  if (status != 200) return fetch.fail(fmt::format("{} answered {}; expected 200", fetch.subject, status)), Answer();
  if (!parser.is_done() && !done([&](auto then) { wire::async_read(stream, buffer, parser, then); })) return {};
  return {.body = std::move(parser.get().body()), .location = {}};
}

// Only a certificate for this host will do. Names are also told to the server, which may have several certificates.
bool expect_host(SSL* session, const std::string& host) {
  if (parse_address(host)) return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session), host.c_str()) == 1;
  return SSL_set1_host(session, host.c_str()) == 1 && SSL_set_tlsext_host_name(session, host.c_str()) == 1;
}

Answer exchange_tls(const Fetch& fetch, asio::io_context& loop, tcp::socket& socket, const MediaUrl& url) {
  ssl::context store(ssl::context::tls_client);
  error_code failed;
  store.set_default_verify_paths(failed);  // without any, no certificate verifies
  SSL_CTX_set_min_proto_version(store.native_handle(), TLS1_2_VERSION);
  ssl::stream<tcp::socket&> stream(socket, store);
  stream.set_verify_mode(ssl::verify_peer);
  if (!expect_host(stream.native_handle(), url.host))
    return fetch.fail(fmt::format("the certificate of {} cannot be checked", fetch.subject)), Answer();
  failed = finish(loop, fetch.end, [&](auto then) { stream.async_handshake(ssl::stream_base::client, then); });
  const int64_t verified = SSL_get_verify_result(stream.native_handle());
  if (failed && verified != X509_V_OK)
    fetch.fail(fmt::format("the certificate of {} is not trusted: {}", fetch.subject,
                           X509_verify_cert_error_string(verified)));
  return good(fetch, failed) ? exchange(fetch, loop, stream, url) : Answer();
}

// Each address gets its share of the time that is left, so that one that swallows packets leaves some to the next.
Answer get(const Fetch& fetch, const MediaUrl& url, const Addresses& addresses) {
  error_code failed;
  for (size_t i = 0; i < addresses.size(); ++i) {
    asio::io_context loop;
    tcp::socket socket(loop);
    const auto now = Clock::now();
    const auto share = (fetch.end - now) / static_cast<int64_t>(addresses.size() - i);
    failed =
        finish(loop, now + share, [&](auto then) { socket.async_connect(endpoint(addresses[i], url.port), then); });
    if (!failed) return url.tls ? exchange_tls(fetch, loop, socket, url) : exchange(fetch, loop, socket, url);
  }
  good(fetch, failed);
  return {};
}

Answer visit(Fetch& fetch, const MediaUrl& url, bool redirected) {
  fetch.subject = redirected ? "the host that its URL redirects to" : json_quote(clipped(url.host));
  const auto entry = find_media_host(fetch.rules.hosts, url);
  if (!entry) {
    fetch.refuse(
        fmt::format("images are fetched only from hosts in the server's --allowed-media-domains (ports 80 and "
                    "443 where it says none), and {} is not there; send the image as a data: URL",
                    fetch.subject));
    return {};
  }
  const Addresses addresses = checked_addresses(fetch, *entry, url.host);
  return fetch.error ? Answer() : get(fetch, url, addresses);
}

}  // namespace

std::string fetch_image(std::string_view url, const FetchRules& rules, const std::string& param, ApiError& error) {
  Fetch fetch{rules, param, error, Clock::now() + rules.time};
  std::string next(url);
  for (int hop = 0; hop <= rules.redirects; ++hop) {
    const auto here = parse_media_url(next);
    if (!here) {
      fetch.refuse(hop > 0
                       ? "the image's URL redirects to what is not an http:// or https:// URL"
                       : fmt::format("the image's URL {} is malformed; expected https://host/path in ASCII, without "
                                     "a user name, of at most 8192 bytes",
                                     json_quote(clipped(url))));
      return {};
    }
    Answer answer = visit(fetch, *here, hop > 0);
    if (error || answer.location.empty()) return std::move(answer.body);
    next = join_url(*here, answer.location);
  }
  fetch.fail(fmt::format("the image's URL redirects more than {} times", rules.redirects));
  return {};
}

}  // namespace moesaic
