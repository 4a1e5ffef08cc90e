// Requests and answers over real sockets: keep-alive, pipelining, limits, refusals.
#include <gmock/gmock.h>

#include "base/error.h"
#include "server/http_server.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

TEST(Http, AnswersAndKeepsTheConnection) {
  const TestServer test(echo);
  RawClient client = test.connect();
  for (int i = 0; i < 3; ++i) {
    const Reply reply = client.post("/a%20b/c?x=%31", "body" + std::to_string(i));
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "POST /a b/c ?x=%31 body" + std::to_string(i));
    EXPECT_EQ(reply.header("Content-Type"), "application/json");
    EXPECT_EQ(reply.header("Server"), "moesaic");
    EXPECT_EQ(reply.header("Connection"), "");
    EXPECT_THAT(reply.header("Date"), HasSubstr(" GMT"));
  }
  EXPECT_EQ(test.server->connections(), 1);
}

TEST(Http, ReadsARequestThatComesByteByByte) {
  const TestServer test(echo);
  const std::string head = "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::pair<std::string, std::string> bodies[] = {{"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", "abcde"},
                                                        {"0\r\n\r\n", ""},  // Beast 1.81 would abort on this one
                                                        {"0;a=b\r\nTrailer: x\r\n\r\n", ""}};
  for (const auto& [body, text] : bodies) {
    RawClient client = test.connect();
    for (char c : head + body) {
      client.send({&c, 1});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(client.reply().body, "POST /x ? " + text);
  }
}

TEST(Http, AnswersPipelinedRequestsInOrder) {
  // The first answer comes late, from another thread: the second must wait for it.
  std::vector<std::thread> threads;
  {
    const TestServer test([&](std::shared_ptr<http::Exchange> exchange) {
      threads.emplace_back([exchange] {
        if (exchange->request().path == "/slow") std::this_thread::sleep_for(std::chrono::milliseconds(200));
        echo(exchange);
      });
    });
    RawClient client = test.connect();
    client.send(
        "POST /slow HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nabGET /quick HTTP/1.1\r\nHost: h\r\n\r\n"
        "GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(client.reply().body, "POST /slow ? ab");
    EXPECT_EQ(client.reply().body, "GET /quick ? ");
    const Reply last = client.reply();
    EXPECT_EQ(last.body, "GET /last ? ");
    EXPECT_EQ(last.header("Connection"), "close");
    EXPECT_TRUE(client.closed_within(std::chrono::seconds(3)));
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Http, RequestIdsAreEchoedOrMade) {
  const TestServer test(echo);
  RawClient client = test.connect();
  EXPECT_EQ(client.get("/", "X-Request-Id: mine 1\r\n").header("X-Request-Id"), "mine 1");
  const std::string first = client.get("/").header("X-Request-Id"), second = client.get("/").header("X-Request-Id");
  EXPECT_FALSE(first.empty());
  EXPECT_NE(first, second);
  const std::string too_long(129, 'a');
  EXPECT_NE(client.get("/", "X-Request-Id: " + too_long + "\r\n").header("X-Request-Id"), too_long);
  EXPECT_NE(client.get("/", "X-Request-Id: caf\xc3\xa9\r\n").header("X-Request-Id"), "caf\xc3\xa9");
}

// A caller's id is only echoed: nothing is keyed by it.
TEST(Http, FC044_TwoRequestsInFlightWithOneIdAreBothAnswered) {
  std::mutex mutex;
  std::vector<std::shared_ptr<http::Exchange>> held;
  const TestServer test([&](std::shared_ptr<http::Exchange> exchange) {
    const std::scoped_lock lock(mutex);
    held.push_back(std::move(exchange));
  });
  RawClient a = test.connect(), b = test.connect();
  const std::string request = "POST /x HTTP/1.1\r\nHost: h\r\nX-Request-Id: x\r\nContent-Length: 1\r\n\r\n";
  a.send(request + "a"), b.send(request + "b");
  ASSERT_TRUE(eventually([&] {
    const std::scoped_lock lock(mutex);
    return held.size() == 2;
  }));
  EXPECT_EQ(test.server->exchanges(), 2);
  for (const auto& exchange : held) echo(exchange);
  held.clear();
  const Reply ra = a.reply(), rb = b.reply();
  EXPECT_EQ(ra.body, "POST /x ? a");
  EXPECT_EQ(rb.body, "POST /x ? b");
  EXPECT_EQ(ra.header("X-Request-Id"), "x");
  EXPECT_EQ(rb.header("X-Request-Id"), "x");
  a.send(request + "c");  // the id again
  ASSERT_TRUE(eventually([&] {
    const std::scoped_lock lock(mutex);
    return held.size() == 1;
  }));
  echo(held[0]);
  held.clear();
  EXPECT_EQ(a.reply().body, "POST /x ? c");
}

TEST(Http, HeadHasTheLengthButNoBody) {
  const TestServer test(echo);
  RawClient client = test.connect();
  client.send("HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n");
  const Reply head = client.reply(true);
  EXPECT_EQ(head.header("Content-Length"), std::to_string(std::string("HEAD /x ? ").size()));
  EXPECT_EQ(client.get("/y").body, "GET /y ? ");  // no stray body before it
}

TEST(Http, ExpectContinueIsAnsweredBeforeTheBody) {
  const TestServer test(echo);
  RawClient client = test.connect();
  client.send("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.reply().status, 100);
  client.send("abc");
  EXPECT_EQ(client.reply().body, "POST /x ? abc");
}

TEST(Http, HttpOneZeroClosesUnlessAsked) {
  const TestServer test(echo);
  RawClient client = test.connect();
  client.send("GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(client.reply().header("Connection"), "keep-alive");
  client.send("GET /x HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.reply().header("Connection"), "close");
  EXPECT_TRUE(client.closed_within(std::chrono::seconds(3)));
}

TEST(Http, AStreamToHttpOneZeroEndsWithTheConnection) {
  const TestServer test([](std::shared_ptr<http::Exchange> exchange) {
    exchange->start_stream("text/plain", {});
    exchange->write("one ");
    exchange->write("two");
    exchange->finish();
  });
  RawClient client = test.connect();
  client.send("GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_TRUE(client.closed_within(std::chrono::seconds(3)));
  const Reply reply = client.reply();
  EXPECT_EQ(reply.body, "one two");
  EXPECT_EQ(reply.header("Transfer-Encoding"), "");
}

struct Malformed {
  const char* name;
  std::string bytes;
  int status;
};

class HttpMalformed : public ::testing::TestWithParam<Malformed> {};

// Each is refused with JSON, and the server lives on.
TEST_P(HttpMalformed, IsRefused) {
  http::ServerOptions options;
  options.max_body_bytes = 1000;
  options.max_header_bytes = 2000;
  const TestServer test(echo, options);
  RawClient client = test.connect();
  client.send(GetParam().bytes);
  const Reply reply = client.reply();
  EXPECT_EQ(reply.status, GetParam().status) << reply.head;
  EXPECT_THAT(reply.body, HasSubstr("\"error\""));
  EXPECT_EQ(reply.header("Connection"), "close");
  EXPECT_EQ(reply.header("Server"), "moesaic");
  EXPECT_NE(reply.header("X-Request-Id"), "");
  EXPECT_TRUE(client.closed_within(std::chrono::seconds(4)));
  EXPECT_EQ(test.connect().get("/").status, 200);
}

INSTANTIATE_TEST_SUITE_P(
    Http, HttpMalformed,
    ::testing::Values(
        Malformed{"Garbage", "\x16\x03\x01\x02 no http at all\r\n\r\n", 400},
        Malformed{"NoHost", "GET / HTTP/1.1\r\n\r\n", 400},
        Malformed{"TwoHosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
        Malformed{"BadVersion", "GET / HTTP/3.1\r\nHost: a\r\n\r\n", 400},
        Malformed{"NoColon", "GET / HTTP/1.1\r\nHost a\r\n\r\n", 400},
        Malformed{"BareLineFeed", "GET / HTTP/1.1\nHost: a\n\n", 400},
        Malformed{"BadPercent", "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        Malformed{"CutPercent", "GET /%4 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        Malformed{"NulInPath", "GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        Malformed{"NoUtf8InPath", "GET /%ff HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        Malformed{"NoPath", "GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        Malformed{"NegativeLength", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400},
        Malformed{"TwoLengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
        Malformed{"LengthAndChunks",
                  "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                  400},
        Malformed{"OtherEncoding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
        Malformed{"BadChunk", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
        Malformed{"LongHeader", "GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(3000, 'x') + "\r\n\r\n", 431},
        Malformed{"LongPath", "GET /" + std::string(3000, 'x') + " HTTP/1.1\r\nHost: a\r\n\r\n", 431},
        Malformed{"LongBody", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n", 413},
        Malformed{"LongChunks",
                  "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + std::string(1001, 'x') +
                      "\r\n0\r\n\r\n",
                  413},
        Malformed{"LongTrailers",
                  "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + std::string(3000, 'x'),
                  431},
        Malformed{"LongExtension",
                  "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;" + std::string(3000, 'x'), 431}),
    [](const auto& each) { return each.param.name; });

TEST(Http, ABodyOfExactlyTheLimitIsTaken) {
  http::ServerOptions options;
  options.max_body_bytes = 1000;
  const TestServer test(echo, options);
  EXPECT_EQ(test.connect().post("/", std::string(1000, 'x')).status, 200);
}

// Many that are each small enough: unfinished ones count, and so do those that are served.
TEST(Http, RequestsTogetherAreBounded) {
  http::ServerOptions options;
  options.max_body_bytes = options.max_held_bytes = 1 << 20;
  const TestServer test(echo, options);
  RawClient unfinished = test.connect();
  unfinished.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n" + std::string(800'000, 'x'));
  const auto status = [&](size_t bytes) { return test.connect().post("/", std::string(bytes, 'x')).status; };
  const auto becomes = [&](int wanted) {
    for (int i = 0; i < 500 && status(500'000) != wanted; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return status(500'000) == wanted;
  };
  EXPECT_TRUE(becomes(503));
  EXPECT_EQ(status(50'000), 200) << "small ones are taken";
  unfinished.close();
  EXPECT_TRUE(becomes(200));
}

// A client that is still sending what is too large gets to read the answer.
TEST(Http, ATooLargeBodyIsAnsweredWhileItIsSent) {
  http::ServerOptions options;
  options.max_body_bytes = 1 << 20;
  const TestServer test(echo, options);
  RawClient client = test.connect();
  const Reply reply = client.post("/", std::string(32 << 20, 'x'));
  EXPECT_EQ(reply.status, 413);
  EXPECT_THAT(reply.body, HasSubstr("1048576"));
}

TEST(Http, SlowHeadersAndBodiesTimeOut) {
  http::ServerOptions options;
  options.header_timeout = options.body_timeout = std::chrono::seconds(1);
  const TestServer test(echo, options);
  RawClient headers = test.connect(), body = test.connect(), silent = test.connect();
  headers.send("GET / HTTP/1.1\r\nHo");
  body.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab");
  EXPECT_EQ(headers.reply().status, 408);
  EXPECT_EQ(body.reply().status, 408);
  EXPECT_TRUE(silent.closed_within(std::chrono::seconds(4)));
}

TEST(Http, IdleConnectionsClose) {
  http::ServerOptions options;
  options.idle_timeout = std::chrono::seconds(1);
  const TestServer test(echo, options);
  RawClient client = test.connect();
  EXPECT_EQ(client.get("/").status, 200);
  EXPECT_TRUE(client.closed_within(std::chrono::seconds(4)));
  EXPECT_TRUE(eventually([&] { return test.server->connections() == 0; }));
}

TEST(Http, TooManyConnectionsAreTurnedAway) {
  http::ServerOptions options;
  options.max_connections = 2;
  const TestServer test(echo, options);
  RawClient a = test.connect(), b = test.connect();
  EXPECT_EQ(a.get("/").status, 200);
  EXPECT_EQ(b.get("/").status, 200);
  EXPECT_EQ(test.connect().get("/").status, 503);
  EXPECT_EQ(a.get("/").status, 200);
  b.close();
  EXPECT_TRUE(eventually([&] { return test.server->connections() == 1; }));
  EXPECT_EQ(test.connect().get("/").status, 200);
}

TEST(Http, AnExceptionOrADroppedExchangeIs500) {
  const TestServer test([](std::shared_ptr<http::Exchange> exchange) {
    if (exchange->request().path == "/throw") throw std::runtime_error("secret");
  });
  RawClient client = test.connect();
  const Reply thrown = client.get("/throw");
  EXPECT_EQ(thrown.status, 500);
  EXPECT_THAT(thrown.body, ::testing::Not(HasSubstr("secret")));
  EXPECT_EQ(client.get("/dropped").status, 500);  // on the same connection
}

TEST(Http, OnlyTheFirstAnswerCounts) {
  const TestServer test([](std::shared_ptr<http::Exchange> exchange) {
    exchange->respond({.body = "first"});
    exchange->respond({.body = "second"});
    exchange->start_stream("text/plain", {});
    exchange->write("third");
  });
  RawClient client = test.connect();
  EXPECT_EQ(client.get("/").body, "first");
  EXPECT_EQ(client.get("/").body, "first");
}

TEST(Http, HeaderValuesCannotAddHeaders) {
  const TestServer test([](std::shared_ptr<http::Exchange> exchange) {
    exchange->respond({.body = "x", .headers = {{"X-Name", "a\r\nX-Evil: 1"}}});
  });
  const Reply reply = test.connect().get("/");
  EXPECT_EQ(reply.header("X-Evil"), "");
  EXPECT_EQ(reply.header("X-Name"), "a  X-Evil: 1");
}

TEST(Http, SaysHowEachExchangeEnded) {
  std::mutex mutex;
  std::vector<std::pair<std::string, http::Answered>> ends;
  http::ServerOptions options;
  options.on_answered = [&](const http::Request& request, const http::Answered& end) {
    const std::scoped_lock lock(mutex);
    ends.emplace_back(request.path, end);
  };
  options.reply_headers = [](const http::Request& request) { return http::Headers{{"X-Path", request.path}}; };
  const TestServer test(echo, options);
  RawClient client = test.connect();
  EXPECT_EQ(client.get("/a").header("X-Path"), "/a");
  ASSERT_TRUE(eventually([&] {
    const std::scoped_lock lock(mutex);
    return ends.size() == 1;
  }));
  EXPECT_EQ(ends[0].first, "/a");
  EXPECT_EQ(ends[0].second.status, 200);
  EXPECT_EQ(ends[0].second.body_bytes, 9);
  EXPECT_TRUE(ends[0].second.complete);
  EXPECT_EQ(test.server->exchanges(), 0);
}

TEST(Http, ATakenPortIsOneClearError) {
  const TestServer test(echo);
  http::ServerOptions options;
  options.port = test.server->port();
  try {
    const http::Server second(options, echo, plain_refusal);
    FAIL() << "bound twice";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr(fmt::format("cannot listen on 127.0.0.1:{}: Address already in use", options.port)));
  }
}

TEST(Http, DrainingAnswersOpenConnectionsAndRefusesNewOnes) {
  const TestServer test(echo);
  RawClient client = test.connect();
  EXPECT_EQ(client.get("/").status, 200);
  test.server->stop_accepting();
  EXPECT_TRUE(eventually([&] { return !test.connect().connected(); }));
  const Reply last = client.get("/");
  EXPECT_EQ(last.status, 200);
  EXPECT_EQ(last.header("Connection"), "close");
  EXPECT_TRUE(client.closed_within(std::chrono::seconds(4)));
}

}  // namespace
}  // namespace moesaic
