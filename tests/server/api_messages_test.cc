// Messages of chat requests: what is refused and where, and what templates get to see.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/mapped_file.h"
#include "base/temp_dir.h"
#include "server/chat_messages.h"
#include "server/chat_prompt.h"
#include "server/data_url.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

struct Read {
  ChatMessages out;
  ApiError error;
};

Read read(const std::string& messages, const MessageRules& rules = {}) {
  Read result;
  result.out = read_messages(parse_json(messages, "messages").as_array(), rules, result.error);
  return result;
}

#define EXPECT_REFUSED(what, want_code, want_param)          \
  do {                                                       \
    const ApiError refused = (what).error;                   \
    EXPECT_EQ(refused.status, 400) << refused.message;       \
    EXPECT_EQ(refused.code, want_code) << refused.message;   \
    EXPECT_EQ(refused.param, want_param) << refused.message; \
  } while (false)

std::string shown(const Read& result) {
  EXPECT_FALSE(result.error) << result.error.message;
  return write_json(result.out.messages, {.compact = true});
}

TEST(ApiMessages, WhatIsRefused) {
  EXPECT_REFUSED(read("[]"), "invalid_value", "messages");
  EXPECT_REFUSED(read("[3]"), "invalid_type", "messages[0]");
  EXPECT_REFUSED(read(R"([{"content":"x"}])"), "missing_required_parameter", "messages[0].role");
  EXPECT_REFUSED(read(R"([{"role":7,"content":"x"}])"), "invalid_type", "messages[0].role");
  EXPECT_REFUSED(read(R"([{"role":"user","content":"x"},{"role":"robot","content":"x"}])"), "invalid_value",
                 "messages[1]");
  EXPECT_REFUSED(read(R"([{"role":"assistant"}])"), "invalid_value", "messages[0]");
  EXPECT_REFUSED(read(R"([{"role":"assistant","content":null,"tool_calls":[]}])"), "invalid_value", "messages[0]");
  EXPECT_REFUSED(read(R"([{"role":"user","content":null}])"), "missing_required_parameter", "messages[0].content");
  EXPECT_REFUSED(read(R"([{"role":"user"},{"role":"user"},{"role":"user"}])"), "missing_required_parameter",
                 "messages[0].content");
  EXPECT_REFUSED(read(R"([{"role":"user","content":5}])"), "invalid_type", "messages[0].content");
  EXPECT_REFUSED(read(R"([{"role":"tool","content":"x"}])"), "missing_required_parameter", "messages[0].tool_call_id");
  EXPECT_REFUSED(read(R"([{"role":"user","content":["x"]}])"), "invalid_type", "messages[0].content[0]");
  EXPECT_REFUSED(read(R"([{"role":"user","content":[{"type":"text"}]}])"), "missing_required_parameter",
                 "messages[0].content[0].text");
  EXPECT_REFUSED(read(R"([{"role":"user","content":[{"type":"text","text":5}]}])"), "invalid_type",
                 "messages[0].content[0].text");
  for (const char* type : {"input_audio", "video_url", "file", "nonsense"})
    EXPECT_REFUSED(
        read(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":")" + std::string(type) + "\"}]}]"),
        "unsupported_content_type", "messages[0].content[1]");
  EXPECT_REFUSED(read(R"([{"role":"assistant","tool_calls":[{"id":"a"}]}])"), "missing_required_parameter",
                 "messages[0].tool_calls[0].function");
}

TEST(ApiMessages, TooMany) {
  JsonArray many;
  for (size_t i = 0; i <= kMaxMessages; ++i) many.push_back(JsonObject{{"role", "user"}, {"content", "x"}});
  ApiError error;
  read_messages(many, {}, error);
  EXPECT_EQ(error.param, "messages");
}

TEST(ApiMessages, TextPartsAreOneText) {
  EXPECT_EQ(shown(read(R"([{"role":"user","content":[{"type":"text","text":"a"},{"text":"b"}]}])")),
            R"([{"role":"user","content":"a\nb"}])");
}

TEST(ApiMessages, DeveloperIsASystemMessageUnlessTheFamilyHasOne) {
  const std::string one = R"([{"role":"developer","content":"x"}])";
  EXPECT_EQ(shown(read(one)), R"([{"role":"system","content":"x"}])");
  EXPECT_EQ(shown(read(one, {.developer_role = true})), one);
}

TEST(ApiMessages, ReasoningUnderBothNames) {
  for (const char* name : {"reasoning", "reasoning_content"})
    EXPECT_EQ(shown(read(R"([{"role":"assistant","content":"x",")" + std::string(name) + R"(":"why"}])")),
              R"([{"role":"assistant","content":"x","reasoning":"why","reasoning_content":"why"}])");
  EXPECT_THAT(shown(read(R"([{"role":"assistant","content":"x","reasoning":"why"}])", {.thinking_key = true})),
              HasSubstr(R"("thinking":"why")"));
}

TEST(ApiMessages, ArgumentsOfCallsAreObjectsWhereTheyCanBe) {
  const auto arguments = [](const std::string& text) {
    const std::string call = R"({"id":"a","type":"function","function":{"name":"f","arguments":)" + text + "}}";
    return write_json(read(R"([{"role":"assistant","tool_calls":[)" + call + "]}]")
                          .out.messages.at(0)
                          .at("tool_calls")
                          .at(0)
                          .at("function")
                          .at("arguments"));
  };
  EXPECT_EQ(arguments(R"("{\"a\":1}")"), R"({"a": 1})");
  EXPECT_EQ(arguments(R"("{\"a\":")"), R"("{\"a\":")");
  EXPECT_EQ(arguments(R"({"a":1})"), R"({"a": 1})");
  EXPECT_EQ(arguments("null"), "{}");
}

TEST(ApiMedia, Base64) {
  for (const char* text : {"f", "fo", "foo", "foob", "fooba", "foobar", "\xff\xfe\xfd"})
    EXPECT_EQ(decode_base64(base64(text)), text);
  EXPECT_EQ(decode_base64("Zm9v"), "foo");
  for (const char* bad : {"", "Zg", "Zg=", "Z===", "Zm9v\n", "Zm9!", "====", "Zg==Zg=="})
    EXPECT_EQ(decode_base64(bad), std::nullopt) << bad;
}

std::string image_message(const std::string& url) {
  return R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":)" + json_quote(url) +
         R"(}},{"type":"text","text":"what?"}]}])";
}

MessageRules seeing(int images = 16) {
  MessageRules rules;
  rules.media.vision = true, rules.media.max_images = images;
  return rules;
}

constexpr const char* kPart = "messages[0].content[0]";

TEST(ApiMedia, ImagesLeaveTheMessageAndKeepTheirPlace) {
  const std::string png = image_file("palette.png");
  ASSERT_FALSE(png.empty());
  const Read result = read(image_message("data:image/png;base64," + base64(png)), seeing());
  EXPECT_EQ(shown(result), R"([{"role":"user","content":[{"type":"image"},{"type":"text","text":"what?"}]}])");
  EXPECT_EQ(result.out.images, std::vector{png});
  EXPECT_EQ(result.out.image_params, std::vector<std::string>{kPart});
}

TEST(ApiMedia, ABareStringAndAMissingTypeAreUnderstood) {
  const std::string url = "\"data:image/png;base64," + base64(image_file("palette.png")) + "\"";
  EXPECT_FALSE(read(R"([{"role":"user","content":[{"image_url":)" + url + "}]}]", seeing()).error);
}

TEST(ApiMedia, WhatIsRefused) {
  const std::string png = base64(image_file("palette.png"));
  EXPECT_REFUSED(read(image_message("data:image/png;base64," + png)), "unsupported_content_type", kPart);
  EXPECT_REFUSED(read(image_message("data:image/png;base64,AAAA"), seeing()), "invalid_image", kPart);
  EXPECT_REFUSED(read(image_message("data:image/png;base64,!!!!"), seeing()), "invalid_image", kPart);
  EXPECT_REFUSED(read(image_message("data:text/plain;base64," + png), seeing()), "invalid_image", kPart);
  EXPECT_REFUSED(read(image_message("data:image/png," + png), seeing()), "invalid_image", kPart);
  EXPECT_REFUSED(read(image_message("data:image/png;base64," + png), seeing(0)), "image_limit_exceeded", kPart);
  EXPECT_REFUSED(read(image_message("http://example.com/a.png"), seeing()), "media_url_not_allowed", kPart);
  EXPECT_REFUSED(read(image_message("https://127.0.0.1/a.png"), seeing()), "media_url_not_allowed", kPart);
  EXPECT_REFUSED(read(image_message("file:///etc/passwd"), seeing()), "media_url_not_allowed", kPart);
  EXPECT_REFUSED(read(image_message("ftp://example.com/a.png"), seeing()), "media_url_not_allowed", kPart);
  EXPECT_REFUSED(read(image_message("data:image/png;base64," + std::string(28'000'000, 'A')), seeing()),
                 "invalid_image", kPart);
  EXPECT_REFUSED(read(R"([{"role":"user","content":[{"type":"image_url"}]}])", seeing()), "missing_required_parameter",
                 "messages[0].content[0].image_url");
}

TEST(ApiMedia, FilesOnlyBelowTheAllowedPath) {
  TempDir allowed, other;
  const std::string png = image_file("palette.png");
  std::ofstream(allowed.path() / "a.png", std::ios::binary) << png;
  std::ofstream(other.path() / "b.png", std::ios::binary) << png;
  std::filesystem::create_symlink(other.path() / "b.png", allowed.path() / "link.png");
  MessageRules rules = seeing();
  rules.media.local_path = allowed.path().string();
  const auto file = [&](const std::filesystem::path& path) {
    return read(image_message("file://" + path.string()), rules);
  };
  EXPECT_EQ(file(allowed.path() / "a.png").out.images, std::vector{png});
  EXPECT_REFUSED(file(other.path() / "b.png"), "media_url_not_allowed", kPart);
  EXPECT_REFUSED(file(allowed.path() / ".." / other.path().filename() / "b.png"), "media_url_not_allowed", kPart);
  EXPECT_REFUSED(file(allowed.path() / "link.png"), "media_url_not_allowed", kPart);
  EXPECT_REFUSED(file(allowed.path() / "none.png"), "media_url_not_allowed", kPart);
  EXPECT_REFUSED(file(allowed.path()), "media_url_not_allowed", kPart);
}

TEST(ApiPrompt, CutAfterTheMessageThatIsContinued) {
  std::vector<RenderedSegment> segments = {
      {"<|user|>", false}, {"Once", true}, {"<|assistant|>", false}, {"Once upon", true}, {"<|end|>", false}};
  EXPECT_TRUE(cut_after(segments, "Once upon"));
  EXPECT_EQ(segments.back(), (RenderedSegment{"Once upon", true}));
  EXPECT_FALSE(cut_after(segments, "<|user|>"));
}

}  // namespace
}  // namespace moesaic
