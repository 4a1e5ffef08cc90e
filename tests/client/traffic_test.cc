// run_traffic against a server with known delays and known faults.
#include "client/traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "client/mock_server.h"
#include "client/traffic_summary.h"

namespace moesaic {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Ge;
using testing::HasSubstr;
using testing::Lt;

constexpr double kSlack = 0.25;  // seconds that a busy machine may add to a delay

TrafficTarget target_of(const MockServer& server, std::string endpoint = "/v1/completions") {
  return {.server = parse_url(server.url()), .endpoint = std::move(endpoint), .model = "mock"};
}

std::vector<PlannedRequest> plan_of(size_t count) {
  return std::vector<PlannedRequest>(count, {.prompt = "one two", .prompt_tokens = 2, .output_tokens = 5});
}

std::vector<RequestOutcome> outcomes_of(const TrafficTarget& target, const std::vector<PlannedRequest>& plan) {
  std::vector<RequestOutcome> outcomes;
  HttpLoop loop(target.server);
  run_traffic(loop, target, plan, outcomes);
  return outcomes;
}

RequestOutcome only_outcome(MockServer::Script script) {
  MockServer server(std::move(script));
  return outcomes_of(target_of(server), plan_of(1)).front();
}

void expect_delays(const RequestOutcome& o) {  // of answer_tokens(5, 100, 40)
  ASSERT_EQ(o.error, "");
  EXPECT_EQ(o.status, 200);
  EXPECT_EQ(o.prompt_tokens, 7);  // the server's count
  EXPECT_EQ(o.output_tokens, 5);
  EXPECT_THAT(o.ttft(), AllOf(Ge(0.100), Lt(0.100 + kSlack)));
  EXPECT_THAT(o.latency(), AllOf(Ge(0.260), Lt(0.260 + kSlack)));
  EXPECT_THAT(o.tpot(), AllOf(Ge(0.035), Lt(0.040 + kSlack / 4)));
  EXPECT_EQ(o.tokens_at.size(), 5);
}

TEST(Traffic, MeasuresTheServersDelaysOfCompletions) {
  expect_delays(only_outcome([](const auto& c) { answer_tokens(c, 5, 100, 40); }));
}

// The first event of a chat carries a role and no text: it is not the first token.
TEST(Traffic, MeasuresTheServersDelaysOfChats) {
  MockServer server([](const auto& c) { answer_tokens(c, 5, 100, 40); });
  expect_delays(outcomes_of(target_of(server, "/v1/chat/completions"), plan_of(1)).front());
}

TEST(Traffic, SendsWhatServersNeedForMeasuring) {
  MockServer server([](const auto& c) { answer_tokens(c, 5, 0, 0); });
  TrafficTarget target = target_of(server);
  target.ignore_eos = true;
  target.extra_body = {{"min_tokens", 5}, {"temperature", 0.5}};
  outcomes_of(target, plan_of(1));
  ASSERT_EQ(server.bodies().size(), 1);
  const JsonObject body = parse_json(server.bodies().front(), "body").get_object();
  const JsonObject want{{"model", "mock"},     {"temperature", 0.5},
                        {"prompt", "one two"}, {"max_tokens", 5},
                        {"stream", true},      {"stream_options", JsonObject{{"include_usage", true}}},
                        {"ignore_eos", true},  {"min_tokens", 5}};
  EXPECT_EQ(body, want) << write_json(body);
}

TEST(Traffic, KeepsToTheConcurrencyAsked) {
  MockServer server([](const auto& c) { answer_tokens(c, 2, 20, 10); });
  TrafficTarget target = target_of(server);
  target.max_concurrency = 3;
  const auto outcomes = outcomes_of(target, plan_of(12));
  for (const RequestOutcome& o : outcomes) EXPECT_EQ(o.error, "");
  EXPECT_EQ(server.peak(), 3);
  EXPECT_EQ(summarize(outcomes, 1, {}, {}).peak_concurrency, 3);
}

TEST(Traffic, StartsRequestsAtTheirTimes) {
  MockServer server([](const auto& c) { answer_tokens(c, 1, 0, 0); });
  auto plan = plan_of(3);
  plan[1].start = 0.1, plan[2].start = 0.2;
  const auto outcomes = outcomes_of(target_of(server), plan);
  EXPECT_THAT(outcomes[0].start, Lt(0.1));
  EXPECT_THAT(outcomes[1].start, AllOf(Ge(0.1), Lt(0.1 + kSlack)));
  EXPECT_THAT(outcomes[2].start, AllOf(Ge(0.2), Lt(0.2 + kSlack)));
}

TEST(Traffic, SaysWhyARequestFailed) {
  EXPECT_EQ(only_outcome([](const auto& c) { c.reply(429, R"({"error":{"message":"the queue is full"}})"); }).error,
            "HTTP 429: the queue is full");
  EXPECT_EQ(only_outcome([](const auto& c) { c.reply(500, "oh\nno"); }).error, "HTTP 500: oh no");
  EXPECT_THAT(only_outcome([](const auto&) {}).error, HasSubstr("closed the connection"));
  EXPECT_THAT(only_outcome([](const auto& c) { c.write("SSH-2.0-x\r\n"); }).error, HasSubstr("not HTTP/1.1"));
  EXPECT_THAT(only_outcome([](const auto& c) {
                c.start_stream(), c.event(R"({"error":{"message":"died"}})"), c.finish();
              }).error,
              "error in the stream: died");
  EXPECT_THAT(only_outcome([](const auto& c) { c.start_stream(), c.event("{"), c.finish(); }).error,
              HasSubstr("not a JSON object"));
  EXPECT_THAT(only_outcome([](const auto& c) { c.start_stream(), c.finish(); }).error, HasSubstr("no text"));
}

TEST(Traffic, ADisconnectInTheMiddleIsAFailure) {
  const RequestOutcome o = only_outcome([](const auto& c) {
    c.start_stream();
    c.event(R"({"choices":[{"index":0,"text":"x","finish_reason":null}]})");
  });
  EXPECT_THAT(o.error, HasSubstr("closed the connection"));
  EXPECT_EQ(o.tokens_at.size(), 1);
}

TEST(Traffic, AnAnswerWithoutDoneIsAFailure) {
  const RequestOutcome o = only_outcome([](const auto& c) {
    c.start_stream();
    c.event(R"({"choices":[{"index":0,"text":"x","finish_reason":"length"}]})");
    c.write("0\r\n\r\n");
  });
  EXPECT_THAT(o.error, HasSubstr("[DONE]"));
}

TEST(Traffic, SilenceEndsARequest) {
  MockServer server([](const auto& c) { c.start_stream(), sleep_ms(600); });
  TrafficTarget target = target_of(server);
  target.silence_seconds = 0.1;
  EXPECT_THAT(outcomes_of(target, plan_of(1)).front().error, HasSubstr("timed out"));
}

TEST(Traffic, FailuresDoNotStopTheOthers) {
  std::atomic<int> calls{0};
  MockServer server([&](const auto& c) {
    if (calls++ % 2 == 0) return c.reply(503, "{}");
    answer_tokens(c, 2, 0, 0);
  });
  const TrafficSummary s = summarize(outcomes_of(target_of(server), plan_of(10)), 1, {}, {});
  EXPECT_EQ(s.completed, 5);
  EXPECT_EQ(s.failed, 5);
  ASSERT_EQ(s.errors.size(), 1);
  EXPECT_THAT(s.errors.front().first, HasSubstr("HTTP 503"));
  EXPECT_EQ(s.errors.front().second, 5);
}

TEST(Traffic, NobodyListeningIsAFailureOfEachRequest) {
  std::string url;
  {
    MockServer server([](const auto&) {});
    url = server.url();
  }
  TrafficTarget target{.server = parse_url(url), .model = "m"};
  for (const RequestOutcome& o : outcomes_of(target, plan_of(2))) EXPECT_THAT(o.error, HasSubstr("cannot connect"));
}

TEST(Traffic, StopKeepsWhatHasEnded) {
  MockServer server([](const auto& c) { answer_tokens(c, c.body.find("slow") != std::string::npos ? 40 : 1, 0, 50); });
  auto plan = plan_of(2);
  plan[1].prompt = "slow";
  std::vector<RequestOutcome> outcomes;
  HttpLoop loop(parse_url(server.url()));
  run_traffic(loop, target_of(server), plan, outcomes, [&] { loop.stop(); });
  EXPECT_EQ(outcomes[0].error, "");
  EXPECT_EQ(outcomes[1].error, "was not finished");
}

TEST(Traffic, AsksTheServerForItsModel) {
  MockServer server(
      [](const auto& c) { c.reply(200, R"({"object":"list","data":[{"id":"first"},{"id":"second"}]})"); });
  EXPECT_EQ(first_model(target_of(server)), "first");
  MockServer empty([](const auto& c) { c.reply(200, R"({"data":[]})"); });
  EXPECT_THROW(first_model(target_of(empty)), Error);
  MockServer closed([](const auto& c) { c.reply(401, R"({"error":{"message":"Invalid API key"}})"); });
  EXPECT_THROW(first_model(target_of(closed)), Error);
}

// 3 tokens a word and 10 of a template: 16 words are 58, 144 words are 442.
TEST(Traffic, MeasuresHowLongWordsAre) {
  MockServer server([](const auto& c) {
    const std::string prompt(parse_json(c.body, "body").at("prompt").as_string());
    c.start_stream();
    c.event(R"({"choices":[{"index":0,"text":"x","finish_reason":"length"}]})");
    const auto words = 1 + std::count(prompt.begin(), prompt.end(), ' ');
    c.event(fmt::format(R"({{"choices":[],"usage":{{"prompt_tokens":{},"completion_tokens":1}}}})", 10 + 3 * words));
    c.finish();
  });
  const TokenScale scale = measure_tokens(target_of(server));
  EXPECT_DOUBLE_EQ(scale.per_word, 3);
  EXPECT_DOUBLE_EQ(scale.fixed, 10);
  const auto plan = random_traffic({.count = 4, .input_tokens = 310, .output_tokens = 1}, scale);
  for (const RequestOutcome& o : outcomes_of(target_of(server), plan)) EXPECT_EQ(o.prompt_tokens, 310);
}

}  // namespace
}  // namespace moesaic
