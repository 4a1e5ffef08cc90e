#include "server/media_fetch.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/temp_dir.h"
#include "client/mock_server.h"
#include "server/data_url.h"
#include "server/media_url.h"
#include "server/tls_server.h"

namespace moesaic {
namespace {

using testing::HasSubstr;
using testing::Not;
using Connection = MockServer::Connection;

struct Fetched {
  std::string bytes;
  ApiError error;
};

Fetched fetch(const std::string& url, const std::vector<std::string>& hosts, int time_ms = 5000,
              int64_t max_bytes = 1 << 20) {
  Fetched out;
  out.bytes = fetch_image(url, {.hosts = hosts, .max_bytes = max_bytes, .time = std::chrono::milliseconds(time_ms)},
                          "messages[0].content[0]", out.error);
  return out;
}

std::string host(const MockServer& server) {
  return server.url().substr(7);
}

std::string port(const MockServer& server) {
  return server.url().substr(17);
}

MockServer::Script says(const std::string& answer) {
  return [answer](const Connection& c) { c.write(answer); };
}

std::string ok(const std::string& body) {
  return fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
}

std::string redirect(const std::string& location) {
  return "HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + location + "\r\n\r\n";
}

#define EXPECT_FAILS(fetched, code_, text)                         \
  do {                                                             \
    const Fetched result_ = fetched;                               \
    EXPECT_EQ(result_.error.status, 400);                          \
    EXPECT_EQ(result_.error.code, code_) << result_.error.message; \
    EXPECT_EQ(result_.error.param, "messages[0].content[0]");      \
    EXPECT_THAT(result_.error.message, HasSubstr(text));           \
    EXPECT_EQ(result_.bytes, "");                                  \
  } while (false)

TEST(MediaFetch, BringsTheBody) {
  std::string head;
  MockServer server([&](const Connection& c) { head = c.head, c.write(ok("bytes")); });
  const Fetched plain = fetch(server.url() + "/a.png?b=c#d", {host(server)});
  EXPECT_FALSE(plain.error) << plain.error.message;
  EXPECT_EQ(plain.bytes, "bytes");
  EXPECT_THAT(head, testing::StartsWith("GET /a.png?b=c HTTP/1.1\r\nHost: " + host(server) + "\r\n"));
  EXPECT_EQ(fetch("http://localhost:" + port(server) + "/a.png", {"localhost:" + port(server)}).bytes, "bytes");
}

TEST(MediaFetch, BodiesOfAllKinds) {
  const MockServer chunked(
      says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"));
  const MockServer until_end(says("HTTP/1.1 200 OK\r\n\r\nabcde"));
  const MockServer empty(says(ok("")));
  EXPECT_EQ(fetch(chunked.url(), {host(chunked)}).bytes, "abcde");
  EXPECT_EQ(fetch(until_end.url(), {host(until_end)}).bytes, "abcde");
  EXPECT_FALSE(fetch(empty.url(), {host(empty)}).error);
}

TEST(MediaFetch, OnlyHostsInTheList) {
  std::atomic<int> calls = 0;
  MockServer server([&](const Connection& c) { ++calls, c.write(ok("bytes")); });
  EXPECT_FAILS(fetch(server.url(), {}), "media_url_not_allowed", "\"127.0.0.1\" is not there");
  EXPECT_FAILS(fetch(server.url(), {"127.0.0.1"}), "media_url_not_allowed", "ports 80 and 443");
  EXPECT_FAILS(fetch(server.url(), {"localhost:" + port(server)}), "media_url_not_allowed", "--allowed-media-domains");
  EXPECT_FAILS(fetch("http://a@" + host(server), {host(server)}), "media_url_not_allowed", "malformed");
  EXPECT_EQ(calls, 0);
}

TEST(MediaFetch, ANameWithoutAddress) {
  EXPECT_FAILS(fetch("http://nowhere.invalid/a.png", {"nowhere.invalid"}, 4000), "invalid_image", "nowhere.invalid");
}

// The resolver reads 0x7f000001 and 127.1 as 127.0.0.1: names that are allowed and lead to a private address.
TEST(MediaFetch, NamesThatLeadToPrivateAddressesAreRefused) {
  std::atomic<int> calls = 0;
  MockServer server([&](const Connection& c) { ++calls, c.write(ok("bytes")); });
  for (const std::string name : {"0x7f000001:", "127.1:", "2130706433:"}) {
    const Fetched refused = fetch("http://" + name + port(server), {name + port(server)});
    EXPECT_EQ(refused.error.code, "media_url_not_allowed") << name;
    EXPECT_THAT(refused.error.message, HasSubstr("not on the public internet"));
    EXPECT_THAT(refused.error.message, Not(HasSubstr("127.0.0.1")));
  }
  EXPECT_EQ(calls, 0);
}

TEST(MediaFetch, FollowsRedirectsByTheSameRules) {
  std::atomic<int> calls = 0;
  MockServer target([&](const Connection& c) { ++calls, c.write(ok("bytes")); });
  const MockServer first(says(redirect(target.url() + "/b.png")));
  const std::string name = "0x7f000001:" + port(target);
  const MockServer to_private(says(redirect("http://" + name + "/")));
  const MockServer to_file(says(redirect("file:///etc/passwd")));
  EXPECT_EQ(fetch(first.url(), {host(first), host(target)}).bytes, "bytes");
  EXPECT_EQ(calls, 1);
  EXPECT_FAILS(fetch(first.url(), {host(first)}), "media_url_not_allowed", "the host that its URL redirects to");
  EXPECT_THAT(fetch(first.url(), {host(first)}).error.message, Not(HasSubstr("127.0.0.1")));
  EXPECT_FAILS(fetch(to_private.url(), {host(to_private), name}), "media_url_not_allowed",
               "not on the public internet");
  EXPECT_FAILS(fetch(to_file.url(), {host(to_file)}), "media_url_not_allowed", "redirects to what is not");
  EXPECT_EQ(calls, 1);
}

TEST(MediaFetch, AtMostThreeRedirects) {
  std::atomic<int> calls = 0;
  MockServer loop([&](const Connection& c) { ++calls, c.write(redirect("again")); });
  EXPECT_FAILS(fetch(loop.url() + "/a/b", {host(loop)}), "invalid_image", "more than 3 times");
  EXPECT_EQ(calls, 4);
  MockServer three([&](const Connection& c) { c.write(++calls < 8 ? redirect("/a") : ok("bytes")); });
  EXPECT_EQ(fetch(three.url(), {host(three)}).bytes, "bytes");
}

TEST(MediaFetch, SlowServersAreGivenUp) {
  const MockServer silent([](const Connection&) { sleep_ms(600); });
  MockServer drips([](const Connection& c) {
    c.write("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
    for (int i = 0; i < 20 && c.write("a"); ++i) sleep_ms(30);
  });
  MockServer slow_hops([&](const Connection& c) { sleep_ms(120), c.write(redirect("/a")); });
  for (const MockServer* server : {&silent, static_cast<const MockServer*>(&drips), &std::as_const(slow_hops)}) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_FAILS(fetch(server->url(), {host(*server)}, 250), "invalid_image", "within 0.25 s");
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(550));
  }
}

TEST(MediaFetch, TooLarge) {
  const MockServer declared(says("HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n"));
  const MockServer undeclared(says("HTTP/1.1 200 OK\r\n\r\n" + std::string(1001, 'a')));
  MockServer chunked([](const Connection& c) {
    c.start_stream();
    for (int i = 0; i < 1000 && c.write("1\r\na\r\n"); ++i) {
    }
    c.chunk("aaa");
  });
  const MockServer full(says(ok(std::string(1000, 'a'))));
  for (const MockServer* server : {&declared, &undeclared, &std::as_const(chunked)})
    EXPECT_FAILS(fetch(server->url(), {host(*server)}, 5000, 1000), "invalid_image", "more than 1000 bytes");
  EXPECT_EQ(fetch(full.url(), {host(full)}, 5000, 1000).bytes.size(), 1000u);
}

TEST(MediaFetch, OtherAnswersAndNone) {
  const MockServer missing(says("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone"));
  const MockServer nowhere(says("HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"));
  const MockServer cut(says("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"));
  const MockServer silent(says(""));
  const MockServer no_http(says("SSH-2.0-OpenSSH_9.2\r\n\r\n"));
  const MockServer long_head(says("HTTP/1.1 200 OK\r\nA: " + std::string(70000, 'a') + "\r\n\r\n"));
  EXPECT_FAILS(fetch(missing.url(), {host(missing)}), "invalid_image", "answered 404; expected 200");
  EXPECT_FAILS(fetch(nowhere.url(), {host(nowhere)}), "invalid_image", "answered 302; expected 200");
  EXPECT_FAILS(fetch(cut.url(), {host(cut)}), "invalid_image", "before the image was complete");
  EXPECT_FAILS(fetch(silent.url(), {host(silent)}), "invalid_image", "before the image was complete");
  EXPECT_FAILS(fetch(no_http.url(), {host(no_http)}), "invalid_image", "cannot be fetched");
  EXPECT_FAILS(fetch(long_head.url(), {host(long_head)}), "invalid_image", "cannot be fetched");
  EXPECT_FAILS(fetch("http://127.0.0.1:1/", {"127.0.0.1:1"}), "invalid_image", "Connection refused");
}

// SSL_CERT_FILE takes the place of the system's certificates for as long as it lives.
struct Trusted {
  explicit Trusted(const TlsServer& server) {
    dir.write("trusted.pem", server.certificate());
    setenv("SSL_CERT_FILE", (dir.path() / "trusted.pem").c_str(), 1);
  }
  ~Trusted() { unsetenv("SSL_CERT_FILE"); }
  TempDir dir;
};

TEST(MediaFetch, CertificatesAndTheirNamesAreVerified) {
  const TlsServer both("DNS:localhost,IP:127.0.0.1", ok("bytes")), other("DNS:example.com,IP:10.0.0.1", ok("bytes"));
  const auto ask = [](const char* name, const TlsServer& server) {
    const std::string place = fmt::format("{}:{}", name, server.port());
    return fetch("https://" + place + "/a.png", {place});
  };
  EXPECT_FAILS(ask("localhost", both), "invalid_image", "not trusted: self-signed certificate");
  EXPECT_FAILS(ask("127.0.0.1", both), "invalid_image", "not trusted: self-signed certificate");
  {
    const Trusted trusted(both);
    EXPECT_EQ(ask("localhost", both).bytes, "bytes");
    EXPECT_EQ(ask("127.0.0.1", both).bytes, "bytes");
    EXPECT_FAILS(ask("localhost", other), "invalid_image", "not trusted");
  }
  const Trusted trusted(other);
  EXPECT_FAILS(ask("localhost", other), "invalid_image", "not trusted: hostname mismatch");
  EXPECT_FAILS(ask("127.0.0.1", other), "invalid_image", "not trusted: IP address mismatch");
}

TEST(MediaFetch, HttpsToAPlainServer) {
  const MockServer server(says(ok("bytes")));
  EXPECT_FAILS(fetch("https://" + host(server), {host(server)}, 500), "invalid_image", "the image");
}

TEST(MediaFetch, ImagesOfMessages) {
  const MockServer server(says(ok(image_file("palette.png"))));
  const MockServer page(says(ok("<html>")));
  const auto load = [](const MockServer& from, std::vector<std::string> domains) {
    Fetched out;
    const MediaRules rules{.vision = true, .max_images = 1, .local_path = "", .domains = std::move(domains)};
    out.bytes = load_image(from.url() + "/a.png", rules, "messages[0].content[0]", out.error);
    return out;
  };
  EXPECT_EQ(load(server, {host(server)}).bytes, image_file("palette.png"));
  EXPECT_FAILS(load(server, {}), "media_url_not_allowed", "fetches no images");
  EXPECT_EQ(load(page, {host(page)}).error.code, "invalid_image");
}

}  // namespace
}  // namespace moesaic
