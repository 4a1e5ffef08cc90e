// Streams: chunks, silence, clients that leave or do not read, and many at once.
#include <sys/resource.h>

#include <atomic>
#include <fstream>

#include "base/fresh_rng.h"
#include "server/http_server.h"

namespace moesaic {
namespace {

using namespace std::chrono_literals;

const std::string kPost = "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}";

// Keeps every exchange it is given.
struct Holder {
  std::mutex mutex;
  std::vector<std::shared_ptr<http::Exchange>> exchanges;
  std::atomic<int> closed{0}, drained{0};
  bool stream = false;

  http::Handler handler() {
    return [this](std::shared_ptr<http::Exchange> exchange) {
      exchange->on_close([this] { ++closed; });
      exchange->on_drain([this] { ++drained; });
      if (stream) exchange->start_stream("text/event-stream; charset=utf-8", {{"Cache-Control", "no-cache"}});
      const std::scoped_lock lock(mutex);
      exchanges.push_back(std::move(exchange));
    };
  }
  size_t size() {
    const std::scoped_lock lock(mutex);
    return exchanges.size();
  }
  bool reaches(size_t count) {
    return eventually([&] { return size() == count; }, 20000);
  }
};

TEST(HttpStream, SendsChunksAsTheyComeAndKeepsTheConnection) {
  Holder holder;
  holder.stream = true;
  const TestServer test(holder.handler());
  RawClient client = test.connect();
  client.send(kPost);
  ASSERT_TRUE(holder.reaches(1));
  EXPECT_TRUE(client.sees("\r\n\r\n"));  // the head, before any event
  holder.exchanges[0]->write("data: 1\n\n");
  EXPECT_TRUE(client.sees("data: 1\n\n"));
  holder.exchanges[0]->write("");  // would end the stream as a chunk
  holder.exchanges[0]->write("data: [DONE]\n\n");
  holder.exchanges[0]->finish();
  const Reply reply = client.reply();
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(reply.body, "data: 1\n\ndata: [DONE]\n\n");
  EXPECT_EQ(reply.header("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(reply.header("Cache-Control"), "no-cache");
  EXPECT_TRUE(eventually([&] { return test.server->exchanges() == 0; }));
  client.send(kPost);
  ASSERT_TRUE(holder.reaches(2));
  EXPECT_EQ(holder.closed, 0);
}

TEST(HttpStream, SilentEventStreamsArePinged) {
  Holder holder;
  holder.stream = true;
  http::ServerOptions options;
  options.ping_interval = 1s;
  const TestServer test(holder.handler(), options);
  RawClient client = test.connect();
  client.send(kPost);
  ASSERT_TRUE(holder.reaches(1));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(client.sees("8\r\n: ping\n\n\r\n8\r\n: ping\n\n\r\n"));
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took, 1900ms);
  EXPECT_LE(took, 4s);
}

// How a client may leave: FIN or RST, before the answer, while a stream is silent, and while it is written.
enum class Leave { fin, rst, half_close };
class HttpLeave : public ::testing::TestWithParam<std::tuple<Leave, int>> {};

TEST_P(HttpLeave, FC043_IsNoticedAtOnce) {
  const auto [how, moment] = GetParam();
  Holder holder;
  holder.stream = moment > 0;
  const TestServer test(holder.handler());
  RawClient client = test.connect();
  client.send(kPost);
  ASSERT_TRUE(holder.reaches(1));
  if (moment == 2) {
    holder.exchanges[0]->write("data: 1\n\n");
    EXPECT_TRUE(client.sees("data: 1"));
  }
  EXPECT_TRUE(holder.exchanges[0]->open());
  EXPECT_EQ(holder.closed, 0);
  const auto start = std::chrono::steady_clock::now();
  if (how == Leave::fin) client.close();
  else if (how == Leave::rst) client.reset();
  else client.close_sending();
  EXPECT_TRUE(eventually([&] { return holder.closed == 1; }));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 500ms);
  EXPECT_FALSE(holder.exchanges[0]->open());
  holder.exchanges[0]->write("data: nobody reads this\n\n");
  holder.exchanges[0]->finish();
  EXPECT_TRUE(eventually([&] { return test.server->connections() == 0; }));
  EXPECT_EQ(test.server->exchanges(), 0);
  EXPECT_EQ(holder.exchanges[0]->buffered(), 0);
  EXPECT_EQ(holder.closed, 1);
}

INSTANTIATE_TEST_SUITE_P(Http, HttpLeave,
                         ::testing::Combine(::testing::Values(Leave::fin, Leave::rst, Leave::half_close),
                                            ::testing::Values(0, 1, 2)));

TEST(HttpStream, AClientThatLeftBeforeSomebodyAskedIsReportedToo) {
  std::shared_ptr<http::Exchange> held;
  std::atomic<bool> arrived{false};
  const TestServer test([&](std::shared_ptr<http::Exchange> exchange) {
    held = std::move(exchange);
    arrived = true;
  });
  RawClient client = test.connect();
  client.send(kPost);
  ASSERT_TRUE(eventually([&] { return arrived.load(); }));
  client.close();
  ASSERT_TRUE(eventually([&] { return !held->open(); }));
  std::atomic<int> closed{0};
  held->on_close([&] { ++closed; });
  EXPECT_TRUE(eventually([&] { return closed == 1; }));
}

TEST(HttpStream, AClosingClientBehindPipelinedRequestsIsNoticed) {
  Holder holder;
  const TestServer test(holder.handler());
  RawClient client = test.connect();
  client.send(kPost + kPost);
  ASSERT_TRUE(holder.reaches(1));
  client.close();
  EXPECT_TRUE(eventually([&] { return holder.closed == 1; }));
}

TEST(HttpStream, SlowReadersFillABufferThatSaysSo) {
  Holder holder;
  holder.stream = true;
  http::ServerOptions options;
  options.stream_buffer_bytes = 64 << 10;
  const TestServer test(holder.handler(), options);
  RawClient client = test.connect(4096);
  client.send(kPost);
  ASSERT_TRUE(holder.reaches(1));
  const auto exchange = holder.exchanges[0];
  const std::string event = "data: " + std::string(10'000, 'x') + "\n\n";
  // The system's own buffers take some first; and on a busy machine the buffer fills while the server's thread waits.
  const auto full = [&] {
    if (exchange->buffered() < options.stream_buffer_bytes) return false;
    std::this_thread::sleep_for(100ms);
    return exchange->buffered() >= options.stream_buffer_bytes;
  };
  int64_t written = 0;
  for (; !full() && written < (64 << 20); written += 10'008) {
    exchange->write(event);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  ASSERT_GE(exchange->buffered(), options.stream_buffer_bytes);
  const int before = holder.drained;
  exchange->finish();
  const Reply reply = client.reply();  // now it reads
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(static_cast<int64_t>(reply.body.size()), written);
  EXPECT_EQ(holder.drained, before + 1);
  EXPECT_TRUE(eventually([&] { return exchange->buffered() == 0; }));
}

TEST(HttpStream, AReaderThatStallsIsDropped) {
  Holder holder;
  holder.stream = true;
  http::ServerOptions options;
  options.stalled_timeout = 1s;
  const TestServer test(holder.handler(), options);
  RawClient client = test.connect(4096);
  client.send(kPost);
  ASSERT_TRUE(holder.reaches(1));
  holder.exchanges[0]->write(std::string(16 << 20, 'x'));
  std::this_thread::sleep_for(500ms);
  EXPECT_EQ(holder.closed, 0);
  EXPECT_TRUE(eventually([&] { return holder.closed == 1; }));
  EXPECT_TRUE(eventually([&] { return test.server->connections() == 0; }));
}

TEST(HttpStream, AWriterThatIgnoresTheBufferIsCutOff) {
  Holder holder;
  holder.stream = true;
  http::ServerOptions options;
  options.stream_buffer_bytes = 64 << 10;
  const TestServer test(holder.handler(), options);
  RawClient client = test.connect(4096);
  client.send(kPost);
  ASSERT_TRUE(holder.reaches(1));
  for (int i = 0; i < 2000 && holder.closed == 0; ++i) holder.exchanges[0]->write(std::string(10'000, 'x'));
  EXPECT_TRUE(eventually([&] { return holder.closed == 1; }));
}

TEST(HttpStream, AStreamThatIsDroppedUnfinishedCutsTheConnection) {
  const TestServer test([](std::shared_ptr<http::Exchange> exchange) {
    exchange->start_stream("text/event-stream", {});
    exchange->write("data: 1\n\n");
  });
  RawClient client = test.connect();
  client.send(kPost);
  EXPECT_TRUE(client.closed_within(5s));
  EXPECT_FALSE(client.reply().complete);
}

TEST(HttpStream, PostedTasksRunOneAtATime) {
  Holder holder;
  const TestServer test(holder.handler());
  RawClient client = test.connect();
  client.send(kPost);
  ASSERT_TRUE(holder.reaches(1));
  std::atomic<int> inside{0}, most{0}, done{0};
  for (int i = 0; i < 50; ++i)
    holder.exchanges[0]->post([&] {
      most = std::max(most.load(), ++inside);
      std::this_thread::sleep_for(1ms);
      --inside, ++done;
    });
  EXPECT_TRUE(eventually([&] { return done == 50; }));
  EXPECT_EQ(most, 1);
}

TEST(HttpStream, ExchangesMayOutliveTheServer) {
  Holder holder;
  holder.stream = true;
  {
    const TestServer test(holder.handler());
    RawClient client = test.connect();
    client.send(kPost);
    ASSERT_TRUE(holder.reaches(1));
  }
  EXPECT_EQ(holder.closed, 1);
  EXPECT_FALSE(holder.exchanges[0]->open());
  holder.exchanges[0]->write("data: 1\n\n");
  holder.exchanges[0]->finish();
}

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(HttpStream, TwoThousandIdleStreamsAreCheap) {
  constexpr size_t kStreams = 2000;
  ASSERT_GE(http::raise_descriptor_limit(), static_cast<int64_t>(2 * kStreams + 100)) << "descriptors of this machine";
  Holder holder;
  holder.stream = true;
  const TestServer test(holder.handler());
  std::vector<RawClient> clients;
  const int64_t before = resident_bytes();
  for (size_t i = 0; i < kStreams; ++i) {
    clients.push_back(test.connect());
    clients.back().send(kPost);
  }
  ASSERT_TRUE(holder.reaches(kStreams));
  const double each = static_cast<double>(resident_bytes() - before) / kStreams;
  RecordProperty("bytes_per_stream", std::to_string(each));
  std::printf("%.0f bytes of memory per idle stream, client side included\n", each);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(each, 16384);
#endif
  EXPECT_EQ(test.server->connections(), static_cast<int64_t>(kStreams));
  for (const auto& exchange : holder.exchanges) exchange->write("data: x\n\n");
  for (RawClient& client : clients) ASSERT_TRUE(client.sees("data: x"));
  clients.clear();
  EXPECT_TRUE(eventually([&] { return test.server->connections() == 0; }));
  EXPECT_TRUE(eventually([&] { return holder.closed == static_cast<int>(kStreams); }));
}

// Random clients: each step connects, sends whole or broken requests, reads, or leaves; in the end nothing is left.
TEST(HttpStream, RandomClientsLeaveNothingBehind) {
  Rng rng = fresh_rng();
  std::mutex mutex;
  std::vector<std::thread> workers;
  {
    const TestServer test([&](std::shared_ptr<http::Exchange> exchange) {
      const size_t size = exchange->request().body.size();
      if (size % 3 == 0) return echo(exchange);
      const std::scoped_lock lock(mutex);
      workers.emplace_back([exchange, size] {
        exchange->start_stream("text/event-stream", {});
        for (size_t i = 0; i < size && exchange->open(); ++i)
          exchange->write("data: " + std::string(i * 10, 'y') + "\n\n");
        if (size % 3 == 1) exchange->finish();
      });
    });
    std::vector<RawClient> clients;
    for (int step = 0; step < 600; ++step) {
      const auto roll = rng.bits() % 8;
      if (clients.empty() || roll < 2) clients.push_back(test.connect());
      RawClient& client = clients[rng.bits() % clients.size()];
      const std::string body(rng.bits() % 40, 'b');
      const std::string request =
          fmt::format("POST /r HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
      if (roll < 4) client.send(request);
      else if (roll == 4) client.send(request.substr(0, rng.bits() % request.size()));
      else if (roll == 5) client.read_until([](const std::string& all) { return !all.empty(); }, 0);
      else if (roll == 6) client.close();
      else client.reset();
    }
    clients.clear();
    EXPECT_TRUE(eventually([&] { return test.server->connections() == 0 && test.server->exchanges() == 0; }));
    EXPECT_EQ(test.connect().get("/").status, 200);
  }
  for (std::thread& worker : workers) worker.join();
}

}  // namespace
}  // namespace moesaic
