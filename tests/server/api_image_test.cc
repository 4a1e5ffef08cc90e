// Images of chats over the golden Kimi K2.5, with a small tokenizer beside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/temp_dir.h"
#include "server/api_server.h"
#include "server/data_url.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

constexpr const char* kTemplate =
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
    "{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}";

JsonObject added(int id, const char* name) {
  return {{"id", id}, {"content", name}, {"special", true}, {"normalized", false}};
}

// One token per printable character, and the brackets of an image.
std::string tokenizer() {
  JsonObject vocab{{"\u0120", 0}};
  for (int c = '!'; c <= '~'; ++c) vocab[std::string(1, static_cast<char>(c))] = c - ' ';
  const JsonObject bytes{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const JsonArray markers{added(310, "<|media_pad|>"), added(312, "<|media_begin|>"), added(313, "<|media_end|>"),
                          added(314, "<|media_content|>")};
  return write_json(JsonObject{{"added_tokens", markers},
                               {"normalizer", nullptr},
                               {"pre_tokenizer", bytes},
                               {"post_processor", nullptr},
                               {"decoder", bytes},
                               {"model", JsonObject{{"type", "BPE"}, {"vocab", vocab}, {"merges", JsonArray{}}}}});
}

struct Seeing {
  Seeing() {
    const std::string golden = std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/kimi_k25/";
    for (const char* name : {"config.json", "generation_config.json", "preprocessor_config.json", "model.safetensors"})
      std::filesystem::copy(golden + name, dir.path() / name);
    dir.write("tokenizer.json", tokenizer());
    dir.write("chat_template.jinja", kTemplate);
    server.emplace(EngineOptions{.model = dir.path().string(), .max_model_len = 512, .max_num_seqs = 4},
                   ApiOptions{.max_images = 2});
  }
  TempDir dir;
  std::optional<ApiServer> server;
};

ApiServer& server() {
  static Seeing instance;
  return *instance.server;
}

std::string text(const std::string& words) {
  return R"({"type":"text","text":)" + json_quote(words) + "}";
}

std::string image(const std::string& url) {
  return R"({"type":"image_url","image_url":{"url":")" + url + "\"}}";
}

std::shared_ptr<FakeExchange> ask(const std::string& parts) {
  return server().call(&Api::chat_completions, R"({"messages":[{"role":"user","content":[)" + parts +
                                                   R"(]}],"temperature":0,"max_tokens":4,"ignore_eos":true,)"
                                                   R"("logprobs":true})");
}

int64_t usage(const Json& answer, const char* key) {
  return answer.at("usage").at(key).as_int64();
}

TEST(ApiImages, EachHasItsTokensInItsPlace) {
  const Json words = ask(text("ab"))->json();
  EXPECT_EQ(usage(words, "prompt_tokens"), 2);
  const Json one = ask(text("a") + "," + image(data_url("kimi_k25.png")) + "," + text("b"))->json();
  EXPECT_EQ(usage(one, "prompt_tokens"), 2 + 8 + 20);  // <|media_begin|>image<|media_content|>, <|media_end|>, 20
  const Json two = ask(image(data_url("kimi_k25.png")) + "," + image(data_url("kimi_k25.png")))->json();
  EXPECT_EQ(usage(two, "prompt_tokens"), 2 * (8 + 20));
  EXPECT_EQ(server().call(&Api::models, "", {}, "/v1/models")->json().at("data").at(0).at("capabilities").at("vision"),
            true);
}

// FC-038: what is shared with another image is the text before it.
TEST(ApiImages, FC038_AnotherImageIsAnotherPrompt) {
  ASSERT_TRUE(server().engine->clear_prefix_cache().ok());
  const auto asked = [](const char* file) {
    return ask(text(std::string(70, 'x')) + "," + image(data_url(file)) + "," + text(std::string(70, 'y')))->json();
  };
  const auto cached = [](const Json& answer) {
    return answer.at("usage").at("prompt_tokens_details").at("cached_tokens").as_int64();
  };
  const auto said = [](const Json& answer) { return answer.at("choices").at(0).at("logprobs"); };
  const Json first = asked("photo.png"), again = asked("photo.png"), other = asked("palette.png");
  EXPECT_EQ(cached(first), 0);
  EXPECT_GT(cached(again), 64);
  EXPECT_EQ(said(first), said(again));
  EXPECT_LE(cached(other), 64);
  EXPECT_NE(said(first), said(other));
  EXPECT_EQ(said(asked("photo.png")), said(first));
}

// FC-060: the marker of an image in somebody's text is text.
TEST(ApiImages, FC060_AMarkerInTextIsNoImage) {
  const auto answer = ask(text("<|media_pad|>"));
  ASSERT_EQ(answer->response().status, 200) << answer->body();
  EXPECT_EQ(usage(answer->json(), "prompt_tokens"), 13);
  const Json beside = ask(text("<|media_pad|>") + "," + image(data_url("kimi_k25.png")))->json();
  EXPECT_EQ(usage(beside, "prompt_tokens"), 13 + 8 + 20);
}

TEST(ApiImages, WhatIsRefusedNamesItsPart) {
  const auto refused = [](const std::string& parts, const std::string& code, const std::string& param) {
    const auto exchange = ask(parts);
    EXPECT_EQ(exchange->response().status, 400) << exchange->body();
    EXPECT_EQ(exchange->json().at("error").at("code"), Json(code)) << exchange->body();
    EXPECT_EQ(exchange->json().at("error").at("param"), Json(param)) << exchange->body();
  };
  const std::string good = image(data_url("palette.png"));
  refused(good + "," + image("data:image/png;base64,AAAA"), "invalid_image", "messages[0].content[1]");
  refused(good + "," + image("https://example.com/a.png"), "media_url_not_allowed", "messages[0].content[1]");
  refused(good + "," + good + "," + good, "image_limit_exceeded", "messages[0].content[2]");
  refused(text("a") + R"(,{"type":"input_audio","input_audio":{}})", "unsupported_content_type",
          "messages[0].content[1]");
  const std::string longer = text(std::string(600, 'x')) + "," + good;
  refused(longer, "context_length_exceeded", "messages");
}

TEST(ApiImages, OfResponses) {
  const auto exchange = server().call(
      &Api::responses, R"({"input":[{"role":"user","content":[{"type":"input_image","image_url":")" +
                           data_url("kimi_k25.png") +
                           R"("},{"type":"input_text","text":"a"}]}],"max_output_tokens":2,"temperature":0})");
  ASSERT_EQ(exchange->response().status, 200) << exchange->body();
  EXPECT_EQ(usage(exchange->json(), "input_tokens"), 1 + 8 + 20);
}

}  // namespace
}  // namespace moesaic
