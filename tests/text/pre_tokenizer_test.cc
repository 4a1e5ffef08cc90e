#include "text/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tokenizer_fixtures.h"

namespace moesaic {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> pieces(const Json& pre_tokenizer, std::string_view text, bool at_origin = true) {
  PreTokens tokens{std::string(text), {{0, text.size(), at_origin}}};
  RegexScratch scratch;
  PreTokenizer(&pre_tokenizer, "test").run(tokens, scratch);
  std::vector<std::string> out;
  for (size_t i = 0; i < tokens.pieces.size(); ++i) out.emplace_back(tokens[i]);
  return out;
}

std::vector<std::string> split(const std::string& behavior, std::string_view text, bool invert = false) {
  return pieces(
      JsonObject{{"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", behavior}, {"invert", invert}}, text);
}

TEST(PreTokenizer, SplitBehaviors) {
  const std::string text = "the-final--countdown";
  EXPECT_THAT(split("Isolated", text), ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(split("Removed", text), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(split("MergedWithPrevious", text), ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(split("MergedWithNext", text), ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(split("Contiguous", text), ElementsAre("the", "-", "final", "--", "countdown"));
  EXPECT_THAT(split("Removed", text, true), ElementsAre("-", "-", "-"));
}

TEST(PreTokenizer, DigitsAndWhitespace) {
  EXPECT_THAT(pieces(JsonObject{{"type", "Digits"}, {"individual_digits", true}}, "a12\u0663"),
              ElementsAre("a", "1", "2", "\u0663"));
  EXPECT_THAT(pieces(JsonObject{{"type", "Digits"}}, "a12b"), ElementsAre("a", "12", "b"));
  EXPECT_THAT(pieces(JsonObject{{"type", "Whitespace"}}, "Hi, you!"), ElementsAre("Hi", ",", "you", "!"));
  EXPECT_THAT(pieces(JsonObject{{"type", "WhitespaceSplit"}}, " Hi,  you"), ElementsAre("Hi,", "you"));
  EXPECT_THAT(pieces(JsonObject{{"type", "Punctuation"}, {"behavior", "Isolated"}}, "a<b\u3002"),
              ElementsAre("a", "<", "b", "\u3002"));
}

TEST(PreTokenizer, ByteLevelMapsBytes) {
  const JsonObject level{{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  EXPECT_THAT(pieces(level, "it's \u00e9"), ElementsAre("\u0120it", "'s", "\u0120\u00c3\u00a9"));
  for (int b = 0; b < 256; ++b) EXPECT_EQ(byte_of(byte_alphabet()[static_cast<size_t>(b)]), b);
  EXPECT_EQ(byte_of(U' '), -1);
  EXPECT_EQ(byte_of(0x10FFFF), -1);
}

TEST(PreTokenizer, Metaspace) {
  const auto metaspace = [](const char* scheme, bool cut) {
    return JsonObject{{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}, {"split", cut}};
  };
  EXPECT_THAT(pieces(metaspace("always", true), "Hey my  friend"),
              ElementsAre("\u2581Hey", "\u2581my", "\u2581", "\u2581friend"));
  EXPECT_THAT(pieces(metaspace("always", true), " Hey"), ElementsAre("\u2581Hey"));
  EXPECT_THAT(pieces(metaspace("never", false), "a b"), ElementsAre("a\u2581"
                                                                    "b"));
  EXPECT_THAT(pieces(metaspace("first", true), "a b", false), ElementsAre("a",
                                                                          "\u2581"
                                                                          "b"));
}

Json deepseek() {
  return read_json_file(kGoldenDir + "deepseek/tokenizer.json")
      .as_object()
      .at("pre_tokenizer")
      .as_object()
      .at("pretokenizers");
}

// The Split patterns alone, so that the pieces can be read.
TEST(PreTokenizer, FC057_DigitGroups) {
  JsonArray steps = deepseek().as_array();
  steps.pop_back();
  const Json sequence = JsonObject{{"type", "Sequence"}, {"pretokenizers", steps}};
  EXPECT_THAT(pieces(sequence, "rfid501.go"), ElementsAre("rfid", "501", ".go"));
  EXPECT_THAT(pieces(sequence, "1234567 years"), ElementsAre("123", "456", "7", " years"));
  EXPECT_THAT(pieces(sequence, "x = 10;\n\n  y"), ElementsAre("x", " =", " ", "10", ";\n\n", " ", " y"));
  EXPECT_THAT(pieces(sequence, "a  b"), ElementsAre("a", " ", " b"));
  EXPECT_THAT(pieces(sequence, "12\u06623"), ElementsAre("12\u0662", "3"));
}

// Kimi's pattern: Han apart, classes with intersections.
TEST(PreTokenizer, ClassIntersectionsSplitHan) {
  const std::string pattern =
      R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t)?|\p{N}{1,3}|\s+)";
  const Json split_step = JsonObject{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
  EXPECT_THAT(pieces(split_step, "Hello\u4f60\u597d\u304bworld's 1234"),
              ElementsAre("Hello", "\u4f60\u597d", "\u304bworld's", " ", "123", "4"));
}

// Whatever the pattern does, isolated pieces put together are the text.
TEST(PreTokenizer, LosesNothing) {
  Rng rng = fresh_rng();
  const Json sequence = JsonObject{{"type", "Sequence"}, {"pretokenizers", deepseek()}};
  for (int round = 0; round < 300; ++round) {
    const std::string text = random_text(rng, rng.below(40));
    std::string joined;
    for (const std::string& piece : pieces(sequence, text))
      for (size_t i = 0; i < piece.size();) {
        const CodePoint code = code_point_at(piece, i);
        joined += static_cast<char>(byte_of(code.value));
        i += code.size;
      }
    EXPECT_EQ(joined, text);
  }
}

TEST(PreTokenizer, MatchErrorsFallBackToCharacters) {
  const std::string text = "c" + std::string(3000, 'a') + "\u00e9";
  const Json step =
      JsonObject{{"type", "Split"}, {"pattern", {{"Regex", "(?:a|aa|b?)+[cd]|[cd]"}}}, {"behavior", "Removed"}};
  const std::vector<std::string> got = pieces(step, text);
  std::vector<std::string> want(3000, "a");
  want.push_back("\u00e9");
  EXPECT_EQ(got, want);
}

}  // namespace
}  // namespace moesaic
