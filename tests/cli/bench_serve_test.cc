// `moesaic bench serve` as users run it, against a server with known delays.
#include "base/json.h"
#include "cli/program.h"
#include "client/mock_server.h"

namespace moesaic {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::StartsWith;

// Five tokens, the first after 100 ms, the others 40 ms apart; the model list.
void serve_mock(const MockServer::Connection& c) {
  if (c.head.starts_with("GET /v1/models")) return c.reply(200, R"({"data":[{"id":"mock-model"}]})");
  answer_tokens(c, 5, 100, 40);
}

Finished bench_serve(const MockServer& server, Arguments more) {
  more.insert(more.begin(), {"bench", "serve", "--base-url", server.url()});
  return run_program(more);
}

// The number after a label of the result block.
double number_after(const std::string& block, const std::string& label) {
  const size_t at = block.find(label);
  EXPECT_NE(at, std::string::npos) << label << " is not in\n" << block;
  return at == std::string::npos ? -1 : std::strtod(block.c_str() + at + label.size(), nullptr);
}

TEST(BenchServe, PrintsAndSavesWhatTheServerDid) {
  MockServer server(serve_mock);
  const TempDir dir;
  const std::string json = dir.path() / "r.json", svg = dir.path() / "r.svg";
  const Finished done = bench_serve(
      server, {"--num-prompts", "8", "--max-concurrency", "4", "--random-input-len", "12", "--random-output-len", "5",
               "--goodput", "ttft:5000", "tpot:1", "--save-result", json, "--save-detailed", "--plot", svg});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, StartsWith("============ Serving Benchmark Result ============\nSuccessful requests:"));
  EXPECT_EQ(number_after(done.out, "Successful requests:"), 8);
  EXPECT_EQ(number_after(done.out, "Failed requests:"), 0);
  EXPECT_EQ(number_after(done.out, "Total input tokens:"), 56);
  EXPECT_EQ(number_after(done.out, "Total generated tokens:"), 40);
  EXPECT_EQ(number_after(done.out, "Peak concurrent requests:"), 4);
  EXPECT_EQ(number_after(done.out, "Request goodput (req/s):"), 0);  // no token comes within a millisecond
  const double seconds = number_after(done.out, "Benchmark duration (s):");
  EXPECT_GE(seconds, 0.51);  // two rounds of 260 ms
  EXPECT_NEAR(number_after(done.out, "Request throughput (req/s):"), 8 / seconds, 0.2);
  EXPECT_NEAR(number_after(done.out, "Total Token throughput (tok/s):"), 96 / seconds, 2);
  for (const char* label : {"Mean TTFT (ms):", "Median TTFT (ms):", "P90 TTFT (ms):", "P99 TTFT (ms):"})
    EXPECT_GE(number_after(done.out, label), 100) << label;
  EXPECT_GE(number_after(done.out, "Median TPOT (ms):"), 38);
  EXPECT_GE(number_after(done.out, "Median ITL (ms):"), 38);
  EXPECT_GE(number_after(done.out, "Mean E2EL (ms):"), 259);

  const JsonObject saved = read_json_file(json).as_object();
  EXPECT_EQ(saved.at("model_id"), "mock-model");
  EXPECT_EQ(saved.at("completed"), 8);
  EXPECT_EQ(saved.at("total_input_tokens"), 56);
  EXPECT_EQ(saved.at("total_output_tokens"), 40);
  EXPECT_EQ(saved.at("request_rate"), "inf");
  EXPECT_EQ(saved.at("ttfts").as_array().size(), 8);
  for (const char* metric : {"ttft", "tpot", "itl", "e2el"})
    for (const char* part : {"mean", "median", "std", "p90", "p99"})
      EXPECT_TRUE(saved.contains(fmt::format("{}_{}_ms", part, metric))) << part << ' ' << metric;
  EXPECT_NEAR(saved.at("mean_ttft_ms").as_double(), number_after(done.out, "Mean TTFT (ms):"), 0.01);
  EXPECT_THAT(read_text_file(svg), StartsWith("<svg "));
}

TEST(BenchServe, TheRateIsWhatWasAsked) {
  MockServer server([](const auto& c) { answer_tokens(c, 2, 0, 0); });
  const Finished done = bench_serve(server, {"--model", "m", "--num-prompts", "20", "--request-rate", "40", "--seed",
                                             "3", "--endpoint", "/v1/chat/completions"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_GE(number_after(done.out, "Benchmark duration (s):"), 0.49);
  EXPECT_EQ(number_after(done.out, "Request rate configured (RPS):"), 40);
  EXPECT_THAT(server.bodies().back(), HasSubstr("messages"));
}

TEST(BenchServe, FailuresAreCountedAndTold) {
  std::atomic<int> calls{0};
  MockServer server([&](const auto& c) {
    const int call = calls++;
    if (call >= 2 && call % 3 == 0) return c.reply(429, R"({"error":{"message":"the queue is full"}})");
    if (call >= 2 && call % 3 == 1) return c.start_stream();  // and leaves
    answer_tokens(c, 2, 0, 0);
  });
  const Finished done =
      bench_serve(server, {"--model", "m", "--num-prompts", "9", "--max-concurrency", "1", "--random-input-len", "4"});
  EXPECT_EQ(done.code, 1);
  EXPECT_EQ(number_after(done.out, "Successful requests:"), 3);
  EXPECT_EQ(number_after(done.out, "Failed requests:"), 6);
  EXPECT_THAT(done.out, HasSubstr("\n3 failed: HTTP 429: the queue is full\n"));
  EXPECT_THAT(done.out, HasSubstr("\n3 failed: the server closed the connection before the answer was complete\n"));
}

TEST(BenchServe, SendsTheKey) {
  std::mutex mutex;
  std::string head;
  MockServer server([&](const auto& c) {
    const std::lock_guard lock(mutex);
    head = c.head;
    answer_tokens(c, 1, 0, 0);
  });
  ASSERT_EQ(bench_serve(server, {"--model", "m", "--num-prompts", "1", "--api-key", "sesame"}).code, 0);
  EXPECT_THAT(head, HasSubstr("Authorization: Bearer sesame\r\n"));
}

TEST(BenchServe, RefusesInOneLine) {
  const auto refuse = [](Arguments more, int code, const std::string& part) {
    more.insert(more.begin(), {"bench", "serve"});
    expect_refusal(run_program(more), code, {part});
  };
  refuse({"--base-url", "https://x"}, 1, "http://HOST:PORT");
  refuse({"--base-url", "http://127.0.0.1:1"}, 1, "cannot connect");
  refuse({"--base-url", "http://127.0.0.1:1", "--model", "m"}, 1, "a first request to /v1/completions failed");
  refuse({"--endpoint", "/v1/embeddings"}, 1, "/v1/chat/completions");
  refuse({"--goodput", "ttft"}, 1, "ttft:500");
  refuse({"--percentile-metrics", "speed"}, 1, "e2el");
  refuse({"--metric-percentiles", "101"}, 1, "from 0 to 100");
  refuse({"--dataset-name", "sharegpt"}, 1, "--dataset-path");
  refuse({"--save-result", "/nowhere/x.json"}, 1, "/nowhere/x.json: cannot be written to");
  refuse({"--num-prompts", "0"}, 2, "see moesaic bench serve --help");
  refuse({"--n-prompt", "3"}, 2, "--n-prompt");  // a flag of `bench`
}

TEST(BenchServe, BenchStillWantsAModel) {
  expect_refusal(run_program({"bench"}), 2, {"model is required", "see moesaic bench --help"});
}

}  // namespace
}  // namespace moesaic
