// The exact frames of chat streams, and that a stream and one object say the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "server/chat_answer.h"
#include "server/sse.h"

namespace moesaic {
namespace {

ChatView view() {
  ChatView out;
  out.answer.id = "chatcmpl-7d1c", out.answer.model = "m", out.answer.created = 1786000123;
  return out;
}

std::string frame(const std::string& choice, const std::string& more = "") {
  return R"(data: {"id":"chatcmpl-7d1c","object":"chat.completion.chunk","created":1786000123,"model":"m","choices":[)" +
         choice + "]" + more + "}\n\n";
}

std::string delta(const std::string& text, int index = 0) {
  return R"({"index":)" + std::to_string(index) + R"(,"delta":)" + text + R"(,"logprobs":null,"finish_reason":null})";
}

std::string last(const std::string& reason, const std::string& stop = "null", int index = 0) {
  return R"({"index":)" + std::to_string(index) + R"(,"delta":{},"logprobs":null,"finish_reason":")" + reason +
         R"(","stop_reason":)" + stop + "}";
}

const std::string kRole = R"({"role":"assistant","content":""})";

Chunk text(std::string words) {
  return {.text = std::move(words), .tokens = {{.id = 1}}};
}
Chunk reasoning(std::string words) {
  return {.text = "", .reasoning = std::move(words), .tokens = {{.id = 1}}};
}
Chunk call(std::vector<ToolCallDelta> deltas) {
  return {.text = "", .tool_calls = std::move(deltas), .tokens = {{.id = 1}}};
}

struct Said {
  size_t choice;
  Chunk chunk;
};

std::string stream(ChatView v, const std::vector<Said>& said, const std::vector<ChoiceEnd>& ends) {
  ChatStream frames(std::move(v), ends.size());
  std::string out;
  frames.start(out);
  for (const Said& s : said) frames.chunk(s.choice, s.chunk, out);
  for (size_t i = 0; i < ends.size(); ++i) frames.finish(i, ends[i], out);
  frames.end(out);
  return out;
}

JsonObject whole(const ChatView& v, const std::vector<Said>& said, const std::vector<ChoiceEnd>& ends) {
  std::vector<CollectedChoice> choices(ends.size());
  for (const Said& s : said) append_chunk(choices[s.choice].said, s.chunk);
  for (size_t i = 0; i < ends.size(); ++i) choices[i].end = ends[i];
  return chat_completion(choices, v);
}

TEST(ApiChatStream, Text) {
  EXPECT_EQ(stream(view(), {{0, text("Paris")}, {0, text(" \"it\" is.\n")}}, {{}}),
            frame(delta(kRole)) + frame(delta(R"({"content":"Paris"})")) +
                frame(delta(R"({"content":" \"it\" is.\n"})")) + frame(last("stop")) + "data: [DONE]\n\n");
}

TEST(ApiChatStream, ReasoningThenText) {
  const std::vector<Said> said = {{0, reasoning("Capital of")}, {0, {.text = "Par", .reasoning = " France."}}};
  EXPECT_EQ(stream(view(), said, {{}}), frame(delta(kRole)) + frame(delta(R"({"reasoning_content":"Capital of"})")) +
                                            frame(delta(R"({"reasoning_content":" France."})")) +
                                            frame(delta(R"({"content":"Par"})")) + frame(last("stop")) +
                                            "data: [DONE]\n\n");
}

TEST(ApiChatStream, ReasoningUnderOtherNamesOrNotAtAll) {
  ChatView both = view(), none = view();
  both.reasoning_field = "both";
  none.include_reasoning = false;
  EXPECT_THAT(stream(both, {{0, reasoning("x")}}, {{}}),
              testing::HasSubstr(R"("delta":{"reasoning_content":"x","reasoning":"x"})"));
  EXPECT_EQ(stream(none, {{0, reasoning("x")}}, {{}}), stream(view(), {}, {{}}));
}

TEST(ApiChatStream, OneTool) {
  const std::vector<Said> said = {{0, call({{.index = 0, .id = "call_0a1b", .name = "lookup"}})},
                                  {0, call({{.index = 0, .arguments = "{\"city\":"}})},
                                  {0, call({{.index = 0, .arguments = " \"Oslo\"}"}})}};
  EXPECT_EQ(
      stream(view(), said, {{}}),
      frame(delta(kRole)) +
          frame(delta(
              R"({"tool_calls":[{"index":0,"id":"call_0a1b","type":"function","function":{"name":"lookup","arguments":""}}]})")) +
          frame(delta(R"({"tool_calls":[{"index":0,"function":{"arguments":"{\"city\":"}}]})")) +
          frame(delta(R"({"tool_calls":[{"index":0,"function":{"arguments":" \"Oslo\"}"}}]})")) +
          frame(last("tool_calls")) + "data: [DONE]\n\n");
}

// FC-064: one step may name a call and begin its arguments, or end one call and begin the next.
TEST(ApiChatStream, FC064_AllDeltasOfAStepAreSentInOrder) {
  const std::vector<Said> said = {
      {0, call({{.index = 0, .id = "a", .name = "f", .arguments = "{\"a\""}})},
      {0, call({{.index = 0, .arguments = ": 1}"}, {.index = 1, .id = "b", .name = "g", .arguments = "{}"}})}};
  const std::string opening = R"(,"type":"function","function":{"name":)";
  EXPECT_EQ(stream(view(), said, {{}}),
            frame(delta(kRole)) +
                frame(delta(R"({"tool_calls":[{"index":0,"id":"a")" + opening + R"("f","arguments":""}}]})")) +
                frame(delta(R"({"tool_calls":[{"index":0,"function":{"arguments":"{\"a\""}}]})")) +
                frame(delta(R"({"tool_calls":[{"index":0,"function":{"arguments":": 1}"}}]})")) +
                frame(delta(R"({"tool_calls":[{"index":1,"id":"b")" + opening + R"("g","arguments":""}}]})")) +
                frame(delta(R"({"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]})")) +
                frame(last("tool_calls")) + "data: [DONE]\n\n");
  const JsonObject answer = whole(view(), said, {{}});
  const Json& calls = answer.at("choices").at(0).at("message").at("tool_calls");
  EXPECT_EQ(write_json(calls),
            R"([{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}, )"
            R"({"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}])");
}

TEST(ApiChatStream, CallsEndAsTheChoiceOfToolsSays) {
  const std::vector<Said> said = {{0, call({{.index = 0, .id = "a", .name = "f", .arguments = "{"}})}};
  ChatView named = view();
  named.named_tool = true;
  EXPECT_THAT(stream(named, said, {{}}), testing::HasSubstr(last("stop")));
  EXPECT_THAT(stream(view(), said, {{FinishReason::length}}), testing::HasSubstr(last("length")));
  EXPECT_THAT(stream(named, said, {{FinishReason::length}}), testing::HasSubstr(last("length")));
}

TEST(ApiChatStream, OnlyTheFirstCallWithoutParallelCalls) {
  ChatView one = view();
  one.parallel_calls = false;
  const std::vector<Said> said = {{0, call({{.index = 0, .id = "a", .name = "f", .arguments = "{}"}})},
                                  {0, call({{.index = 1, .id = "b", .name = "g", .arguments = "{}"}})}};
  EXPECT_THAT(stream(one, said, {{}}), testing::Not(testing::HasSubstr("\"b\"")));
  EXPECT_EQ(whole(one, said, {{}}).at("choices").at(0).at("message").at("tool_calls").as_array().size(), 1u);
}

TEST(ApiChatStream, StopReasons) {
  EXPECT_THAT(stream(view(), {}, {{FinishReason::stop, {.text = "END", .token = {}}}}),
              testing::HasSubstr(last("stop", "\"END\"")));
  EXPECT_THAT(stream(view(), {}, {{FinishReason::stop, {.text = {}, .token = 42}}}),
              testing::HasSubstr(last("stop", "42")));
}

// FC-052: one reason per choice, in its own chunk, and nothing of the choice after it.
TEST(ApiChatStream, FC052_EachChoiceHasItsRoleAndItsEnd) {
  const std::vector<Said> said = {{2, text("c")}, {0, text("a")}, {1, text("b")}};
  EXPECT_EQ(stream(view(), said, {{FinishReason::length}, {}, {FinishReason::length}}),
            frame(delta(kRole)) + frame(delta(kRole, 1)) + frame(delta(kRole, 2)) +
                frame(delta(R"({"content":"c"})", 2)) + frame(delta(R"({"content":"a"})")) +
                frame(delta(R"({"content":"b"})", 1)) + frame(last("length")) + frame(last("stop", "null", 1)) +
                frame(last("length", "null", 2)) + "data: [DONE]\n\n");
}

Usage usage() {
  return {.prompt_tokens = 71, .completion_tokens = 19, .cached_tokens = 64, .reasoning_tokens = 12};
}

TEST(ApiChatStream, UsageInItsOwnChunkAndNullBefore) {
  ChatView v = view();
  v.answer.include_usage = true;
  EXPECT_EQ(stream(v, {{0, text("a")}}, {{FinishReason::stop, {}, usage()}}),
            frame(delta(kRole), ",\"usage\":null") + frame(delta(R"({"content":"a"})"), ",\"usage\":null") +
                frame(last("stop"), ",\"usage\":null") +
                frame("", R"(,"usage":{"prompt_tokens":71,"completion_tokens":19,"total_tokens":90,)"
                          R"("prompt_tokens_details":{"cached_tokens":64},)"
                          R"("completion_tokens_details":{"reasoning_tokens":12}})") +
                "data: [DONE]\n\n");
}

TEST(ApiChatStream, RunningUsage) {
  ChatView v = view();
  v.answer.continuous_usage = true, v.answer.prompt_tokens = {5};
  const auto totals = [](int n) {
    return R"(,"usage":{"prompt_tokens":5,"completion_tokens":)" + std::to_string(n) + R"(,"total_tokens":)" +
           std::to_string(5 + n) + "}";
  };
  EXPECT_EQ(stream(v, {{0, text("a")}, {0, text("b")}}, {{}}),
            frame(delta(kRole), totals(0)) + frame(delta(R"({"content":"a"})"), totals(1)) +
                frame(delta(R"({"content":"b"})"), totals(2)) + frame(last("stop"), totals(2)) + "data: [DONE]\n\n");
}

TEST(ApiChatStream, AnErrorAfterTheFirstTokenIsAFrameThenDone) {
  ChatStream frames(view(), 1);
  std::string out;
  frames.start(out);
  frames.fail({500, "internal_error", "non-finite logits"}, out);
  EXPECT_EQ(out, frame(delta(kRole)) +
                     R"(data: {"error":{"message":"non-finite logits","type":"server_error","param":null,)"
                     R"("code":"internal_error"}})"
                     "\n\ndata: [DONE]\n\n");
}

TEST(ApiChatAnswer, OneObject) {
  ChatView v = view();
  v.answer.fingerprint = "moesaic-1";
  const JsonObject answer =
      whole(v, {{0, reasoning("Capital of France.")}, {0, text("Paris.")}}, {{FinishReason::stop, {}, usage()}});
  EXPECT_EQ(compact(answer),
            R"({"id":"chatcmpl-7d1c","object":"chat.completion","created":1786000123,"model":"m",)"
            R"("system_fingerprint":"moesaic-1","choices":[{"index":0,"message":{"role":"assistant",)"
            R"("content":"Paris.","refusal":null,"reasoning_content":"Capital of France."},"logprobs":null,)"
            R"("finish_reason":"stop","stop_reason":null}],"usage":{"prompt_tokens":71,"completion_tokens":19,)"
            R"("total_tokens":90,"prompt_tokens_details":{"cached_tokens":64},)"
            R"("completion_tokens_details":{"reasoning_tokens":12}}})");
}

TEST(ApiChatAnswer, ContentIsNullBesideCallsAndCallsAreAbsentBesideContent) {
  const auto message = [](const std::vector<Said>& said) {
    return whole(view(), said, {{}}).at("choices").at(0).at("message").as_object();
  };
  const JsonObject called = message({{0, call({{.index = 0, .id = "a", .name = "f", .arguments = "{}"}})}});
  EXPECT_TRUE(called.at("content").is_null());
  EXPECT_EQ(message({{0, text("x")}}).if_contains("tool_calls"), nullptr);
  EXPECT_EQ(message({}).at("content"), "");
}

TEST(ApiChatAnswer, APromptOfSeveralChoicesCountsOnce) {
  ChatView v = view();
  v.answer.n = 2;
  const JsonObject answer = whole(v, {}, {{FinishReason::stop, {}, usage()}, {FinishReason::stop, {}, usage()}});
  const Json& total = answer.at("usage");
  EXPECT_EQ(total.at("prompt_tokens"), 71);
  EXPECT_EQ(total.at("completion_tokens"), 38);
  EXPECT_EQ(total.at("total_tokens"), 109);
}

// Any answer, however it was cut into chunks: the stream's deltas add up to the one object.
TEST(ApiChatAnswer, AStreamAddsUpToTheObject) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    std::vector<Said> said;
    std::vector<int> calls(2, 0);
    for (int i = 0; i < 12; ++i) {
      const auto choice = static_cast<size_t>(rng.below(2));
      const std::string word = "w" + std::to_string(i) + "\xc3\xa9\"";
      const int64_t kind = rng.below(4);
      if (kind == 0) said.push_back({choice, text(word)});
      if (kind == 1) said.push_back({choice, reasoning(word)});
      if (kind == 2) said.push_back({choice, call({{.index = calls[choice]++, .id = word, .name = word}})});
      if (kind == 3 && calls[choice] > 0)
        said.push_back({choice, call({{.index = calls[choice] - 1, .arguments = word}})});
    }
    const std::vector<ChoiceEnd> ends(2);
    const std::string frames = stream(view(), said, ends);
    std::vector<CollectedChoice> sums(2);
    for (size_t at = 0; frames.compare(at, 12, "data: [DONE]") != 0;) {
      const size_t end = frames.find("\n\n", at);
      const Json data = parse_json(std::string_view(frames).substr(at + 6, end - at - 6), "frame");
      at = end + 2;
      const Json& choice = data.at("choices").at(0);
      const JsonObject& d = choice.at("delta").as_object();
      Chunk sum;
      if (const Json* t = d.if_contains("content")) sum.text = t->as_string();
      if (const Json* t = d.if_contains("reasoning_content")) sum.reasoning = t->as_string();
      if (const Json* list = d.if_contains("tool_calls")) {
        const JsonObject& c = list->at(0).as_object();
        ToolCallDelta one{.index = static_cast<int>(c.at("index").as_int64())};
        const JsonObject& function = c.at("function").as_object();
        if (c.contains("id")) one.id = c.at("id").as_string(), one.name = function.at("name").as_string();
        one.arguments = function.at("arguments").as_string();
        sum.tool_calls.push_back(one);
      }
      append_chunk(sums[static_cast<size_t>(choice.at("index").as_int64())].said, std::move(sum));
    }
    EXPECT_EQ(compact(chat_completion(sums, view())), compact(whole(view(), said, ends))) << frames;
  }
}

}  // namespace
}  // namespace moesaic
