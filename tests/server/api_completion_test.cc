// Frames and objects of /v1/completions, and log-probabilities of both endpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "server/completion_answer.h"

namespace moesaic {
namespace {

// A tokenizer of seven tokens, two of which are parts of characters.
class Pieces : public Tokenizer {
 public:
  std::vector<int32_t> encode_segments(std::span<const TextSegment>, bool) const override { return {}; }
  std::optional<std::string_view> token_bytes(int32_t id) const override {
    constexpr std::string_view kPieces[] = {"A", "B", " c", "\xF0\x9F\x98", "\xB8", "<|end|>", "\xC3\xA9"};
    if (id < 0 || id >= vocab_size()) return std::nullopt;
    return kPieces[id];
  }
  void append_decoded(int32_t id, DecodeState&, std::string& out) const override {
    out += token_bytes(id).value_or("");
  }
  std::optional<std::string_view> id_to_token(int32_t id) const override { return token_bytes(id); }
  std::optional<int32_t> token_to_id(std::string_view) const override { return std::nullopt; }
  int32_t vocab_size() const override { return 7; }
  bool is_special(int32_t id) const override { return id == 5; }
};

const Pieces kTokenizer;

GeneratedToken token(int32_t id, float logprob = -0.5f, std::vector<std::pair<int32_t, float>> top = {}) {
  return {.id = id, .logprob = logprob, .top = std::move(top)};
}

CompletionView view() {
  CompletionView out;
  out.answer.id = "cmpl-1", out.answer.model = "m", out.answer.created = 5;
  out.answer.format.tokenizer = &kTokenizer;
  return out;
}

std::string frame(const std::string& choice, const std::string& more = "") {
  return R"(data: {"id":"cmpl-1","object":"text_completion","created":5,"model":"m","choices":[)" + choice + "]" +
         more + "}\n\n";
}

std::string stream(const CompletionView& v, const std::vector<Chunk>& said, const ChoiceEnd& end = {}) {
  CompletionFrames frames(v, 1);
  std::string out;
  for (const Chunk& chunk : said) frames.chunk(0, chunk, out);
  frames.finish(0, end, out);
  frames.end(out);
  return out;
}

JsonObject whole(const CompletionView& v, const std::vector<Chunk>& said, const ChoiceEnd& end = {}) {
  std::vector<CollectedChoice> choices(1);
  for (const Chunk& chunk : said) append_chunk(choices[0].said, chunk);
  choices[0].end = end;
  return text_completion(choices, v);
}

const std::string kEnd = frame(R"({"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":null})");

TEST(ApiCompletionStream, TextAndNoRole) {
  EXPECT_EQ(stream(view(), {{.text = "AB"}, {.text = ""}, {.text = " c"}}),
            frame(R"({"index":0,"text":"AB","logprobs":null,"finish_reason":null})") +
                frame(R"({"index":0,"text":" c","logprobs":null,"finish_reason":null})") + kEnd + "data: [DONE]\n\n");
}

TEST(ApiCompletionStream, AnEchoedPromptIsTheFirstText) {
  CompletionView v = view();
  v.echo = true, v.prompt_texts = {"A\"B"}, v.answer.prompt_ids = {{0, 1}};
  EXPECT_EQ(stream(v, {{.text = " c"}}), frame(R"({"index":0,"text":"A\"B","logprobs":null,"finish_reason":null})") +
                                             frame(R"({"index":0,"text":" c","logprobs":null,"finish_reason":null})") +
                                             kEnd + "data: [DONE]\n\n");
  EXPECT_EQ(whole(v, {{.text = " c"}}).at("choices").at(0).at("text"), "A\"B c");
}

TEST(ApiCompletionStream, Usage) {
  CompletionView v = view();
  v.answer.include_usage = true;
  const ChoiceEnd end{.usage = {.prompt_tokens = 3, .completion_tokens = 2, .cached_tokens = 1}};
  EXPECT_THAT(stream(v, {}, end),
              testing::EndsWith(frame("", R"(,"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,)"
                                          R"("prompt_tokens_details":{"cached_tokens":1},)"
                                          R"("completion_tokens_details":{"reasoning_tokens":0}})") +
                                "data: [DONE]\n\n"));
}

// A character split over tokens: its text comes with the last, the log-probabilities of both with it.
TEST(ApiCompletionStream, LogprobsOfHeldBackTextAreNotLost) {
  CompletionView v = view();
  v.answer.logprobs = true;
  const std::string out = stream(v, {{.text = "", .tokens = {token(3)}},
                                     {.text = "\xF0\x9F\x98\xB8", .tokens = {token(4)}},
                                     {.text = "", .tokens = {token(5)}}});
  EXPECT_EQ(out, frame("{\"index\":0,\"text\":\"\xF0\x9F\x98\xB8\","
                       R"("logprobs":{"tokens":["bytes:\\xf0\\x9f\\x98",)"
                       R"("bytes:\\xb8"],"token_logprobs":[-0.5,-0.5],"top_logprobs":[{"bytes:\\xf0\\x9f\\x98":-0.5},)"
                       R"({"bytes:\\xb8":-0.5}],"text_offset":[0,0]},"finish_reason":null})") +
                     frame(R"({"index":0,"text":"","logprobs":{"tokens":["<|end|>"],"token_logprobs":[-0.5],)"
                           R"("top_logprobs":[{"<|end|>":-0.5}],"text_offset":[1]},"finish_reason":null})") +
                     kEnd + "data: [DONE]\n\n");
}

TEST(ApiCompletionAnswer, OneObject) {
  CompletionView v = view();
  v.answer.fingerprint = "f";
  EXPECT_EQ(
      compact(whole(v, {{.text = "AB"}}, {FinishReason::length, {}, {.prompt_tokens = 1, .completion_tokens = 2}})),
      R"({"id":"cmpl-1","object":"text_completion","created":5,"model":"m","system_fingerprint":"f","choices":)"
      R"([{"index":0,"text":"AB","logprobs":null,"finish_reason":"length","stop_reason":null}],)"
      R"("usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,"prompt_tokens_details":)"
      R"({"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}})");
}

TEST(ApiCompletionAnswer, EchoedLogprobsBeginWithNullAndCountCharacters) {
  CompletionView v = view();
  v.answer.logprobs = true, v.echo = true, v.prompt_texts = {"A\xC3\xA9"}, v.answer.prompt_ids = {{0, 6}};
  Chunk first{.text = "B", .tokens = {token(1, -1, {{2, -0.25f}})}};
  first.prompt = {token(6, -2)};
  const JsonObject answer = whole(v, {first});
  EXPECT_EQ(
      write_json(answer.at("choices").at(0).at("logprobs")),
      "{\"tokens\": [\"A\", \"\xC3\xA9\", \"B\"], \"token_logprobs\": [null, -2.0, -1.0], "
      "\"top_logprobs\": [null, {\"\xC3\xA9\": -2.0}, {\" c\": -0.25, \"B\": -1.0}], \"text_offset\": [0, 1, 2]}");
}

// FC-056: bytes are those of the token, whatever text they make.
TEST(ApiLogprobs, FC056_BytesOfPartsOfCharacters) {
  const std::vector<GeneratedToken> tokens = {token(3, -0.5f, {{4, -1.0f}}), token(4)};
  EXPECT_EQ(write_json(chat_logprobs(tokens, {.tokenizer = &kTokenizer}), {.compact = true}),
            "[{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-0.5,\"bytes\":[240,159,152],\"top_logprobs\":"
            "[{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-1.0,\"bytes\":[184]}]},"
            "{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-0.5,\"bytes\":[184],\"top_logprobs\":[]}]");
}

TEST(ApiLogprobs, SpecialTokensAreNoContentAndNamesMayBeIds) {
  const std::vector<GeneratedToken> tokens = {token(0), token(5)};
  EXPECT_EQ(chat_logprobs(tokens, {.tokenizer = &kTokenizer}).size(), 1u);
  EXPECT_EQ(chat_logprobs(tokens, {.tokenizer = &kTokenizer, .skip_special = false}).size(), 2u);
  EXPECT_EQ(chat_logprobs(tokens, {.tokenizer = &kTokenizer, .tokens_as_ids = true}).at(0).at("token"), "token_id:0");
}

TEST(ApiLogprobs, InfinityIsANumber) {
  const float none = -std::numeric_limits<float>::infinity();
  const std::vector<GeneratedToken> tokens = {token(0, none, {{1, none}})};
  const JsonArray content = chat_logprobs(tokens, {.tokenizer = &kTokenizer});
  EXPECT_EQ(content.at(0).at("logprob"), -9999.0);
  EXPECT_EQ(content.at(0).at("top_logprobs").at(0).at("logprob"), -9999.0);
}

TEST(ApiLogprobs, OfPromptsAsVllmHasThem) {
  const std::vector<GeneratedToken> rest = {token(1, -1, {{0, -0.5f}})};
  EXPECT_EQ(write_json(prompt_logprobs_json(rest, {.tokenizer = &kTokenizer})),
            R"([null, {"1": {"logprob": -1.0, "decoded_token": "B"}, )"
            R"("0": {"logprob": -0.5, "rank": 1, "decoded_token": "A"}}])");
}

}  // namespace
}  // namespace moesaic
