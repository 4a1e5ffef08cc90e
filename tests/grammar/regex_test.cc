// Regular expressions against Python's re, fixed cases, refusals, and hostile ones within time and memory.
#include <fmt/format.h>

#include <chrono>

#include "base/json.h"
#include "grammar/regex_parser.h"
#include "python.h"
#include "walk.h"

namespace moesaic {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(GrammarRegex, WholeTextMatches) {
  EXPECT_TRUE(matches(Kind::regex, "a|bc", "bc"));
  EXPECT_FALSE(matches(Kind::regex, "a|bc", "abc"));
  EXPECT_TRUE(matches(Kind::regex, "^(?:yes|no)$", "no"));
  EXPECT_TRUE(matches(Kind::regex, "", ""));
  EXPECT_TRUE(matches(Kind::regex, "[^a]", "\u00e9"));
  EXPECT_TRUE(matches(Kind::regex, ".", "\U0001F600"));
  EXPECT_FALSE(matches(Kind::regex, ".", "\n"));
  EXPECT_FALSE(matches(Kind::regex, "[^a]", "\xff"));
  EXPECT_TRUE(matches(Kind::regex, "\\uD83D\\uDE00\\u{e9}\\x41[\\u0430-\\u044f]", "\U0001F600\u00e9A\u0431"));
  EXPECT_TRUE(matches(Kind::regex, "[]a-]{3}", "]-a"));
  EXPECT_TRUE(matches(Kind::regex, "(?P<x>a)(?<y>b)", "ab"));
  EXPECT_TRUE(matches(Kind::regex, "a{,2}b{2}c{1,}?", "aabbcc"));
  EXPECT_TRUE(matches(Kind::regex, "a{b}{", "a{b}{"));
  for (const std::string nullable : {"((a?){300}){300}", "((a{0,300}){2,}|b){3}", "((|a|b){9,}){2}"}) {
    EXPECT_TRUE(matches(Kind::regex, nullable, "")) << nullable;
    EXPECT_TRUE(matches(Kind::regex, nullable, std::string(1000, 'a'))) << nullable;
  }
  EXPECT_TRUE(matches(Kind::regex, "((a?){3}){2,4}", std::string(12, 'a')));
  EXPECT_FALSE(matches(Kind::regex, "((a?){3}){2,4}", std::string(13, 'a')));
}

TEST(GrammarRegex, RefusalsSayWhatAndWhere) {
  EXPECT_THAT(refusal(Kind::regex, "a(b"), HasSubstr("not closed"));
  EXPECT_THAT(refusal(Kind::regex, "a)b"), HasSubstr("closes nothing"));
  EXPECT_THAT(refusal(Kind::regex, "[a"), HasSubstr("add ]"));
  EXPECT_THAT(refusal(Kind::regex, "[z-a]"), HasSubstr("no order"));
  EXPECT_THAT(refusal(Kind::regex, "*a"), HasSubstr("nothing to repeat"));
  EXPECT_THAT(refusal(Kind::regex, "a**"), HasSubstr("nothing to repeat"));
  EXPECT_THAT(refusal(Kind::regex, "a*+"), HasSubstr("possessive"));
  EXPECT_THAT(refusal(Kind::regex, "(?=a)b"), HasSubstr("look-around"));
  EXPECT_THAT(refusal(Kind::regex, "(?i)b"), HasSubstr("flags"));
  EXPECT_THAT(refusal(Kind::regex, "(a)\\1"), HasSubstr("back references"));
  EXPECT_THAT(refusal(Kind::regex, "\\p{L}"), HasSubstr("\\p"));
  EXPECT_THAT(refusal(Kind::regex, "a^b"), HasSubstr("^ and $"));
  EXPECT_THAT(refusal(Kind::regex, "a\\"), HasSubstr("backslash"));
  EXPECT_THAT(refusal(Kind::regex, "a{5,2}"), HasSubstr("larger"));
  EXPECT_THAT(refusal(Kind::regex, "a{9999999}"), HasSubstr("limit"));
  EXPECT_THAT(refusal(Kind::regex, "\xff"), HasSubstr("UTF-8"));
  EXPECT_THAT(refusal(Kind::regex, std::string(200, '(') + std::string(200, ')')), HasSubstr("nested deeper"));
  EXPECT_THAT(refusal(Kind::regex, "[^\\s\\S]"), HasSubstr("no finite text"));
}

// Counted repetitions are counters: neither these nor nested ones make as many states.
TEST(GrammarRegex, LargeAndNestedCountsAreExact) {
  const auto thousand = compiled(Kind::regex, "a{1000,100000}");
  EXPECT_LT(thousand->automaton.ends.size(), 100U);
  EXPECT_FALSE(matches(thousand, std::string(999, 'a')));
  EXPECT_TRUE(matches(thousand, std::string(1000, 'a')));
  const auto nested = compiled(Kind::regex, "((ab{300}){20,30}c){10}");
  EXPECT_LT(nested->automaton.ends.size(), 1000U);
  const std::string b = "a" + std::string(300, 'b');
  std::string part;
  for (int i = 0; i < 20; ++i) part += b;
  std::string text;
  for (int i = 0; i < 9; ++i) text += part + "c";
  EXPECT_TRUE(matches(nested, text + part + "c"));
  EXPECT_TRUE(matches(nested, text + part + b + "c"));
  EXPECT_FALSE(matches(nested, text + part.substr(301) + "c"));
  EXPECT_FALSE(matches(nested, text + part + "bc"));
}

TEST(GrammarRegex, HostileExpressionsCostBoundedTime) {
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string expression :
       {"(a*)*b", "((a+)+)+b", "(a|a)*b", "(a|aa)+b", "(.*.*.*=.*)*", "(a?){5000}a{5000}", "(x+x+)+y",
        "(.*a.{200}){20}", "(a{1,1000}){1,1000}b", "((((a?){9}){9}){9}){9}", "(.?.?.?.?.?.?.?.?.?.?){50}[0-9]",
        "(\\w{1,300}[a-z]{1,300}.){9}"}) {
    const auto grammar = compile(Kind::regex, expression);
    if (!grammar.ok()) {
      EXPECT_THAT(grammar.status().message(), HasSubstr("too large")) << expression;
      continue;
    }
    GrammarMatcher matcher(*grammar, demo_vocabulary());
    for (int i = 0; i < 10; ++i) {
      const std::vector<int32_t> choices = allowed(matcher, demo_vocabulary());
      ASSERT_FALSE(choices.empty());
      if (choices.front() == kDemoEnd) break;
      ASSERT_TRUE(matcher.accept(choices.front()));
    }
    EXPECT_LT(seconds_since(begin), 60) << expression;
  }
}

// Random expressions and texts over a small alphabet: the same verdict as Python's fullmatch.
TEST(GrammarRegex, AgreesWithPython) {
  Rng rng = fresh_rng();
  int status = -1;
  const std::string script = std::string(MOESAIC_SOURCE_DIR) + "/tests/grammar/expressions.py";
  const std::string cases = run_python(fmt::format("'{}' {} 1500", script, rng.bits() % 1'000'000'000), &status);
  ASSERT_EQ(status, 0) << cases.substr(0, 1000);
  int64_t texts = 0, matched = 0, refused = 0;
  std::istringstream lines(cases);
  for (std::string line; std::getline(lines, line);) {
    const Json each = parse_json(line, "case");
    const std::string expression(each.at("expression").get_string());
    const auto grammar = compile(Kind::regex, expression);
    if (!grammar.ok()) {  // Python also knows empty languages, and ((a?b?){300}){300}
      EXPECT_THAT(grammar.status().message(), AnyOf(HasSubstr("no finite text"), HasSubstr("too large"))) << expression;
      ++refused;
      continue;
    }
    for (const auto& [text, fits] : each.at("texts").get_object()) {
      EXPECT_EQ(matches(*grammar, text), fits.get_bool()) << expression << " on " << write_json(Json(text));
      ++texts;
      matched += fits.get_bool() ? 1 : 0;
    }
  }
  std::printf("%lld texts, %lld match\n", static_cast<long long>(texts), static_cast<long long>(matched));
  EXPECT_LE(refused, 15);
  EXPECT_GT(texts, 10'000);
  EXPECT_GT(matched, 1000);
}

}  // namespace
}  // namespace moesaic
