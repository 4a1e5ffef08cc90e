#include "text/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/regex_translate.h"

namespace moesaic {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  RegexScratch scratch;
  std::vector<Span> spans;
  EXPECT_TRUE(Regex(pattern, "test").find_all(text, scratch, spans));
  std::vector<std::string> out;
  for (const Span& span : spans) out.emplace_back(text.substr(span.begin, span.end - span.begin));
  return out;
}

TEST(Regex, ClassIntersection) {
  EXPECT_EQ(translate_regex("[\\p{L}&&[^\\p{Han}]]+", "test"), "(?:(?![\\p{sc:Han}])[\\p{L}])+");
  EXPECT_THAT(matches("[\\p{Lo}\\p{Ll}&&[^\\p{Han}]]+", "ab\u4f60\u3042c"), ElementsAre("ab", "\u3042c"));
  EXPECT_THAT(matches("[a-z&&[aeiou]]", "hello"), ElementsAre("e", "o"));
  EXPECT_THAT(matches("[^a-z&&[^aeiou]]", "hEe1"), ElementsAre("E", "e", "1"));
  EXPECT_THAT(matches("[a-c[x-z]]+", "abxyq"), ElementsAre("abxy"));
}

TEST(Regex, ScriptsAreNotScriptExtensions) {
  EXPECT_THAT(matches("\\p{Han}+", "\u3002\u6f22\u5b57\u3001"), ElementsAre("\u6f22\u5b57"));
}

TEST(Regex, WhiteSpaceAndWords) {
  EXPECT_THAT(matches("\\s", "\u0085\u00a0\u180e\u200b\u3000"), ElementsAre("\u0085", "\u00a0", "\u3000"));
  EXPECT_THAT(matches("[^\\S\\n]+", " \t\n x"), ElementsAre(" \t", " "));
  EXPECT_THAT(matches("\\w+", "a\u0301_\u0660\u203f-\u2160"), ElementsAre("a\u0301_\u0660\u203f", "\u2160"));
  EXPECT_THAT(matches("\\w", "\u00b2\u2460"), ElementsAre("\u00b2"));  // Oniguruma: Latin-1 only, and not in a class
  EXPECT_THAT(matches("[\\w]", "\u00b2\u2460"), ElementsAre());
  EXPECT_THAT(matches("\\b\\w", "ab cd"), ElementsAre("a", "c"));
  EXPECT_THAT(matches("\\s+(?!\\S)|\\s+", "a   b  "), ElementsAre("  ", " ", "  "));
}

TEST(Regex, CaseInsensitiveGroupCoversOnlyItself) {
  EXPECT_THAT(matches("(?i:'s|'ll)|x", "'S'LLX x"), ElementsAre("'S", "'LL", "x"));
  EXPECT_THAT(matches("(?i:'s)", "'\u017f"), ElementsAre("'\u017f"));  // long s folds to s
}

TEST(Regex, QuantifiersAsInRuby) {
  EXPECT_THAT(matches("a{,2}b", "aaab"), ElementsAre("aab"));
  EXPECT_THAT(matches("\\p{N}{1,3}+", "1234567"), ElementsAre("1234567"));  // repeats, not possessive
  EXPECT_THAT(matches("a++ab|aa", "aab"), ElementsAre("aa"));               // possessive
  EXPECT_THAT(matches("a{2,3}?", "aaaa"), ElementsAre("aa", "aa"));
  EXPECT_THAT(matches("a{b", "a{b"), ElementsAre("a{b"));
  EXPECT_THAT(matches("[^#\\- \\]]+", "a#b- c]"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(matches("\\v|\\x41|\\u3042|\\x{1F600}", "\v\nA\u3042\U0001F600"),
              ElementsAre("\v", "A", "\u3042", "\U0001F600"));
  EXPECT_THAT(matches("^.", "ab\ncd"), ElementsAre("a", "c"));
}

TEST(Regex, EmptyMatchesAdvance) {
  EXPECT_THAT(matches("a*", "baac"), ElementsAre("", "aa", ""));
  EXPECT_THAT(matches("x*", "\u00e9\u4f60"), ElementsAre("", "", ""));
  EXPECT_THAT(matches("a", ""), ElementsAre());
}

TEST(Regex, UnknownConstructsAreErrors) {
  for (const char* pattern : {"\\h",           "\\R",     "\\X",     "\\K",     "\\G",         "\\1",
                              "\\k<a>",        "(?<n>a)", "(?m:a)",  "(?#x)",   "(*UTF)a",     "a(?i)b",
                              "[[:alpha:]]",   "[]a]",    "[a",      "(a",      "a)",          "*a",
                              "a**",           "a{2}?",   "[a&&]",   "[\\W]",   "[a[^b]]",     "[[a&&b]c]",
                              "\\p{Nonsense}", "\\p{L",   "\\",      "\\xZZ",   "\\x{110000}", "\\uD800",
                              "\\u12",         "[b-a]",   "(?(1)a)", "a{70000}"}) {
    try {
      Regex regex(pattern, "file.json: pre_tokenizer");
      ADD_FAILURE() << pattern << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), StatusCode::data_loss);
      EXPECT_THAT(error.what(), HasSubstr("file.json: pre_tokenizer"));
    }
  }
  EXPECT_THROW(Regex(std::string(20000, 'a'), "test"), Error);
  EXPECT_THROW(Regex(std::string(300, '(') + std::string(300, ')'), "test"), Error);
}

TEST(Regex, GivesUpOnAPatternThatExplodes) {
  RegexScratch scratch;
  std::vector<Span> spans;
  EXPECT_FALSE(Regex("(?:a|aa|b?)+[cd]", "test").find_all(std::string(5000, 'a'), scratch, spans));
}

}  // namespace
}  // namespace moesaic
