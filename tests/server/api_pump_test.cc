// The pump between completions and an exchange: writes, back-pressure, errors, cancellation. No engine: the tests fill
// the completions by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/completion_stream.h"
#include "server/answer_pump.h"
#include "server/chat_answer.h"
#include "server/fake_exchange.h"

namespace moesaic {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Scene {
  explicit Scene(size_t choices, bool stream, PumpOptions options = {}) {
    std::vector<Completion> completions;
    for (size_t i = 0; i < choices; ++i) {
      streams.push_back(std::make_shared<CompletionStream>());
      completions.emplace_back(streams.back());
    }
    ChatView view;
    view.answer.id = "chatcmpl-1", view.answer.model = "m", view.answer.n = static_cast<int>(choices);
    pump =
        std::make_shared<AnswerPump>(exchange, std::move(completions), chat_sink(view, choices, stream), options,
                                     RequestRecord{.request_id = "r", .endpoint = "e", .n = static_cast<int>(choices)},
                                     [this](RequestRecord record) { records.push_back(std::move(record)); });
    pump->start();
    exchange->run();
  }
  void say(size_t choice, std::string text) { streams[choice]->push({.text = std::move(text), .tokens = {{.id = 7}}}); }
  void end(size_t choice, Status status = {}, FinishReason reason = FinishReason::stop) {
    streams[choice]->finish(std::move(status), reason, {.prompt_tokens = 3, .completion_tokens = 1});
  }

  std::shared_ptr<FakeExchange> exchange = std::make_shared<FakeExchange>("");
  std::vector<std::shared_ptr<CompletionStream>> streams;
  std::vector<RequestRecord> records;
  std::shared_ptr<AnswerPump> pump;
};

TEST(ApiPump, AStreamStartsAtOnceAndEndsOnce) {
  Scene scene(1, true);
  EXPECT_TRUE(scene.exchange->streaming());
  EXPECT_EQ(scene.exchange->response().content_type, "text/event-stream; charset=utf-8");
  EXPECT_EQ(scene.exchange->header("Cache-Control"), "no-cache");
  EXPECT_EQ(scene.exchange->header("X-Accel-Buffering"), "no");
  scene.say(0, "a");
  scene.exchange->run();
  EXPECT_THAT(scene.exchange->writes().back(), HasSubstr("\"content\":\"a\""));
  EXPECT_TRUE(scene.records.empty());
  scene.end(0);
  scene.exchange->run();
  EXPECT_TRUE(scene.exchange->over());
  EXPECT_TRUE(scene.exchange->body().ends_with("data: [DONE]\n\n"));
  ASSERT_EQ(scene.records.size(), 1u);
  EXPECT_EQ(scene.records[0].status, 200);
  EXPECT_EQ(scene.records[0].reasons, std::vector{FinishReason::stop});
  EXPECT_EQ(scene.records[0].prompt_tokens, 3);
  EXPECT_EQ(scene.records[0].generated_tokens, 1);
}

TEST(ApiPump, AllThatIsThereIsOneWrite) {
  Scene scene(2, true);
  const size_t before = scene.exchange->writes().size();
  for (int i = 0; i < 5; ++i) scene.say(0, "a"), scene.say(1, "b");
  scene.exchange->run();
  EXPECT_EQ(scene.exchange->writes().size(), before + 1);
}

TEST(ApiPump, NothingOfANonStreamIsSentBeforeItsEnd) {
  Scene scene(1, false);
  scene.say(0, "a"), scene.exchange->run();
  EXPECT_EQ(scene.exchange->answers(), 0);
  scene.say(0, "b"), scene.end(0), scene.exchange->run();
  EXPECT_EQ(scene.exchange->json().at("choices").at(0).at("message").at("content"), "ab");
  EXPECT_EQ(scene.exchange->answers(), 1);
}

TEST(ApiPump, TokensAreGroupedAfterTheFirst) {
  Scene scene(1, true, {.stream_interval = 3});
  for (const char* word : {"a", "b", "c", "d", "e"}) scene.say(0, word), scene.exchange->run();
  scene.end(0), scene.exchange->run();
  const std::string& body = scene.exchange->body();
  for (const char* group : {"\"content\":\"a\"", "\"content\":\"bcd\"", "\"content\":\"e\""})
    EXPECT_THAT(body, HasSubstr(group));
}

// What a parser held back comes with the end, without a token.
TEST(ApiPump, CallsAndReasoningThatCameLastAreNotLost) {
  Scene scene(1, true);
  scene.say(0, "a");
  scene.streams[0]->push(
      {.reasoning = "hm", .tool_calls = {{.index = 0, .id = "call_1", .name = "f", .arguments = "{}"}}});
  scene.end(0), scene.exchange->run();
  for (const char* part :
       {R"("reasoning_content":"hm")", R"("name":"f")", R"("arguments":"{}")", R"("finish_reason":"tool_calls")"})
    EXPECT_THAT(scene.exchange->body(), HasSubstr(part));
}

TEST(ApiPump, ASlowReaderGetsNoMoreThanTheBufferAndAllOfItLater) {
  constexpr size_t kBuffer = 4096;
  Scene scene(1, true, {.buffer_bytes = kBuffer});
  scene.exchange->stop_reading();
  std::string said;
  for (int i = 0; i < 200; ++i) {
    const std::string word = "word" + std::to_string(i) + " ";
    said += word;
    scene.say(0, word), scene.exchange->run();
  }
  scene.end(0), scene.exchange->run();
  EXPECT_GT(scene.exchange->buffered(), kBuffer);
  EXPECT_LT(scene.exchange->buffered(), kBuffer + 1024);
  EXPECT_FALSE(scene.exchange->over());
  scene.exchange->drain(), scene.exchange->run();
  EXPECT_TRUE(scene.exchange->over());
  for (int i = 0; i < 200; ++i)
    ASSERT_THAT(scene.exchange->body(), HasSubstr("\"content\":\"word" + std::to_string(i) + " \""));
}

// One wake-up with more than the buffer takes goes on by itself where the client reads.
TEST(ApiPump, AFastReaderIsNotHeldUpByTheBuffer) {
  Scene scene(1, true, {.buffer_bytes = 1024});
  for (int i = 0; i < 100; ++i) scene.say(0, "word");
  scene.end(0), scene.exchange->run();
  EXPECT_TRUE(scene.exchange->over());
}

// FC-043: also of an answer that is no stream.
TEST(ApiPump, FC043_AClientThatLeavesCancelsEveryChoice) {
  for (const bool stream : {true, false}) {
    Scene scene(3, stream);
    scene.say(1, "a"), scene.exchange->run();
    scene.exchange->close(), scene.exchange->run();
    for (const auto& one : scene.streams) EXPECT_TRUE(one->cancelled());
    ASSERT_EQ(scene.records.size(), 1u);
    EXPECT_EQ(scene.records[0].reasons, std::vector(3, FinishReason::cancelled));
    scene.end(0, {StatusCode::cancelled, "gone"}), scene.exchange->run();
    EXPECT_EQ(scene.records.size(), 1u);
  }
}

TEST(ApiPump, AFailureBeforeTheStreamIsARealStatus) {
  Scene scene(1, true, {.hold_headers = true});
  EXPECT_FALSE(scene.exchange->streaming());
  scene.end(0, {StatusCode::deadline_exceeded, "no token within 5 ms"}, FinishReason::error);
  scene.exchange->run();
  EXPECT_EQ(scene.exchange->response().status, 504);
  EXPECT_EQ(scene.exchange->json().at("error").at("code"), "timeout");
  EXPECT_EQ(scene.exchange->json().at("error").at("type"), "timeout_error");
}

TEST(ApiPump, AFailureInAStreamIsItsLastFrameAndEndsTheOthers) {
  Scene scene(2, true);
  scene.say(0, "said before");
  scene.end(0, {StatusCode::internal, "the logit of token 3 is nan"}, FinishReason::error);
  scene.exchange->run();
  const std::string& body = scene.exchange->body();
  EXPECT_THAT(body, HasSubstr("said before"));
  EXPECT_TRUE(body.ends_with("\"code\":\"internal_error\"}}\n\ndata: [DONE]\n\n")) << body;
  EXPECT_TRUE(scene.streams[1]->cancelled());
  EXPECT_EQ(scene.records.at(0).status, 500);
  scene.say(1, "too late"), scene.exchange->run();
  EXPECT_THAT(scene.exchange->body(), Not(HasSubstr("too late")));
}

TEST(ApiPump, AFailureThatWillRepeatSaysSo) {
  Scene scene(1, false);
  scene.end(0, {StatusCode::internal, "nan"}, FinishReason::error);
  scene.exchange->run();
  EXPECT_EQ(scene.exchange->response().status, 500);
  EXPECT_EQ(scene.exchange->header("x-should-retry"), "false");
}

TEST(ApiPump, AbortEndsItOnce) {
  Scene scene(1, false);
  scene.pump->abort({503, "not_ready", "draining"});
  scene.pump->abort({503, "not_ready", "draining again"});
  scene.exchange->run();
  EXPECT_EQ(scene.exchange->response().status, 503);
  EXPECT_EQ(scene.exchange->header("Retry-After"), "5");
  EXPECT_EQ(scene.exchange->answers(), 1);
  EXPECT_TRUE(scene.streams[0]->cancelled());
  EXPECT_EQ(scene.records.size(), 1u);
}

TEST(ApiPump, EachTokenButTheFirstHasATimeBefore) {
  Scene scene(1, true);
  scene.say(0, "a"), scene.say(0, "b"), scene.exchange->run();
  scene.say(0, "c"), scene.exchange->run();
  scene.end(0), scene.exchange->run();
  const std::vector<double>& times = scene.records.at(0).between_tokens;
  ASSERT_EQ(times.size(), 2u);
  EXPECT_EQ(times[0], 0);
  EXPECT_GT(times[1], 0);
}

TEST(ApiPump, TimesBetweenTokensAddUp) {
  Scene scene(1, true);
  scene.say(0, "a"), scene.exchange->run();
  scene.say(0, "b"), scene.say(0, "c"), scene.exchange->run();
  scene.end(0), scene.exchange->run();
  const RequestRecord& record = scene.records.at(0);
  ASSERT_EQ(record.between_tokens.size(), 2u);
  EXPECT_EQ(record.between_tokens[0], record.between_tokens[1]);
  EXPECT_GT(record.first_token, 0);
  EXPECT_LE(record.first_token + record.between_tokens[0] * 2, record.total);
}

}  // namespace
}  // namespace moesaic
