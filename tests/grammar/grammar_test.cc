// Grammar text: what it accepts, what it refuses and says, and bounds on what compiling may cost.
#include <fmt/format.h>

#include <ctime>
#include <functional>

#include "walk.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

TEST(GrammarText, LiteralsClassesAndRepetitions) {
  const auto grammar = compiled(Kind::grammar, R"gbnf(# a comment
root ::= greeting ", " name ("!" | "?"){1,2}   # another
greeting ::= "Hello" |
  "Gr\u00fc\u00df" "e"?
name ::= [A-Z] [a-z\-]* | "\"" [^"\n]+ "\"" | "\x41\t" .
)gbnf");
  for (const std::string text :
       {"Hello, Ada!", "Gr\u00fc\u00dfe, Jean-luc?!", "Hello, \"\u65e5 x\"!!", "Hello, A\t\u00e9!"})
    EXPECT_TRUE(matches(grammar, text)) << text;
  for (const std::string text : {"Hello, ada!", "Hello, Ada", "Hello, Ada!!!", "Hello, \"\"!", "Hello, \"a\nb\"!", ""})
    EXPECT_FALSE(matches(grammar, text)) << text;
}

// Rules without `root` begin with the first, as others read them too; the empty text is a text.
TEST(GrammarText, FirstRuleIsTheRootWhereNoneIsNamedSo) {
  EXPECT_TRUE(matches(Kind::grammar, "answer ::= other\nother ::= \"x\"", "x"));
  EXPECT_TRUE(matches(Kind::grammar, "other ::= \"x\"\nroot ::= other other", "xx"));
  EXPECT_TRUE(matches(Kind::grammar, "root ::= \"\"", ""));
  EXPECT_TRUE(matches(Kind::grammar, "root ::= \"a\" |", ""));
}

TEST(GrammarText, CountedRepetitionsByBruteForce) {
  for (int min = 0; min <= 4; ++min)
    for (int max = std::max(min, 1); max <= 6; ++max) {
      const auto bounded = compiled(Kind::grammar, fmt::format("root ::= \"ab\"{{{},{}}} \"a\"?", min, max));
      const auto open = compiled(Kind::grammar, fmt::format("root ::= \"ab\"{{{},}}", min));
      std::string text;
      for (int n = 0; n <= 8; ++n, text += "ab") {
        EXPECT_EQ(matches(bounded, text), n >= min && n <= max) << min << " " << max << " " << n;
        EXPECT_EQ(matches(bounded, text + "a"), n >= min && n <= max) << min << " " << max << " " << n;
        EXPECT_EQ(matches(open, text), n >= min) << min << " " << n;
      }
    }
}

TEST(GrammarText, DirectivesCanBeMixed) {
  const auto grammar =
      compiled(Kind::grammar, R"(root ::= "<" %regex/[a-z\/]{2,3}/ ">" %json{"type":"integer","minimum":7}
    (" " %json_object)? "|" %text)");
  EXPECT_TRUE(matches(grammar, "<a/>7|"));
  EXPECT_TRUE(matches(grammar, "<abc>12 {\"a\": [1,\"}\"]}|any \u00e9\n| text"));
  EXPECT_FALSE(matches(grammar, "<a/>6|"));
  EXPECT_FALSE(matches(grammar, "<a/>7|\xff"));
  EXPECT_FALSE(matches(grammar, "<a/>7 [1]|"));
}

TEST(GrammarText, RefusalsSayWhatAndWhere) {
  EXPECT_THAT(refusal(Kind::grammar, ""), HasSubstr("no rules"));
  EXPECT_THAT(refusal(Kind::grammar, "root = \"a\""), HasSubstr("expected a rule"));
  EXPECT_THAT(refusal(Kind::grammar, "root ::= a"), HasSubstr("there is no rule a"));
  EXPECT_THAT(refusal(Kind::grammar, "root ::= \"a\"\nroot ::= \"b\""), HasSubstr("line 2, column 1: there are two"));
  EXPECT_THAT(refusal(Kind::grammar, "root ::= \"a"), HasSubstr("line 1, column 10: this text has no closing quote"));
  EXPECT_THAT(refusal(Kind::grammar, "root ::= (\"a\""), HasSubstr("not closed"));
  EXPECT_THAT(refusal(Kind::grammar, "root ::= \"a\")"), HasSubstr("unexpected"));
  EXPECT_THAT(refusal(Kind::grammar, "root ::= \"\\q\""), HasSubstr("escape"));
  EXPECT_THAT(refusal(Kind::grammar, "root ::= [a"), HasSubstr("add ]"));
  EXPECT_THAT(refusal(Kind::grammar, "root ::= \"a\"{2,1}"), HasSubstr("swap them"));
  EXPECT_THAT(refusal(Kind::grammar, "root ::= <[<|nobody|>]>"), HasSubstr("no token \"<|nobody|>\""));
  EXPECT_THAT(refusal(Kind::grammar, "root ::= %nothing"), HasSubstr("%nothing is not known"));
  EXPECT_THAT(refusal(Kind::grammar, "root ::= %json{\"type\":\"text\"}"), HasSubstr("`type` at #"));
  EXPECT_THAT(refusal(Kind::grammar, "root ::= %json{\"type\":"), HasSubstr("no closing brace"));
  EXPECT_THAT(refusal(Kind::grammar, "root ::= \"a\" root"), HasSubstr("no finite text"));
  EXPECT_THAT(refusal(Kind::grammar, "start: \"a\" b\nb: /x/"), HasSubstr("Lark grammars are not supported"));
  EXPECT_THAT(refusal(Kind::grammar, "root ::= \"\xff\""), HasSubstr("UTF-8"));
}

// Refused, or compiled and masked, within seconds and with few states, whatever the source.
struct Hostile {
  const char* name;
  Kind kind;
  std::string source;
};

std::string repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

std::vector<Hostile> hostile_sources() {
  std::string chain, mutual, doubling = "root ::= r20\nr0 ::= \"a\"\n", wide, members, cases;
  for (int i = 0; i < 5000; ++i) {
    chain += fmt::format("r{} ::= r{} \"x\" | \"y\"\n", i, i + 1);
    mutual += fmt::format("r{} ::= \"a\" r{} | \"b\" r{} \"c\" | \"d\"\n", i, (i * 7 + 1) % 5000, (i * 13 + 5) % 5000);
    members += fmt::format("{}\"p{}\":{{\"type\":\"integer\",\"minimum\":{}}}", i == 0 ? "" : ",", i, i);
  }
  for (int i = 1; i <= 20; ++i) doubling += fmt::format("r{} ::= r{} r{} | r{}\n", i, i - 1, i - 1, i - 1);
  for (int i = 0; i < 1000; ++i) {
    wide += fmt::format("{}r{}", i == 0 ? "" : " | ", i);
    cases += fmt::format(
        "{}{{\"type\":\"object\",\"properties\":{{\"k\":{{\"const\":{}}},\"v\":{{}}}},\"required\":[\"k\"]}}",
        i == 0 ? "" : ",", i);
  }
  std::string every = "root ::= " + wide + "\n";
  for (int i = 0; i < 1000; ++i) every += fmt::format("r{} ::= \"a\" r{} \"b\" | \"a\"\n", i, (i + 1) % 1000);
  const std::string nested_all =
      repeated("{\"allOf\":[{\"anyOf\":[{\"minimum\":1},{\"maximum\":5},{\"type\":\"string\"}]},", 20) + "{}" +
      repeated("]}", 20);
  std::string patterns;
  for (int i = 0; i < 12; ++i) patterns += fmt::format("{}\"[a-f]{{{}}}x.*{}\":{{}}", i == 0 ? "" : ",", i + 1, i);
  return {
      {"a chain of first rules", Kind::grammar, chain + "r5000 ::= \"z\""},
      {"rules that call each other", Kind::grammar, mutual},
      {"doubling", Kind::grammar, doubling},
      {"a thousand readings", Kind::grammar, every},
      {"calls without text", Kind::grammar, "root ::= e" + repeated(" e", 60'000) + "\ne ::= \"a\" | \"b\" | \"\""},
      {"choices of one rule", Kind::grammar, "root ::= e" + repeated(" | e", 60'000) + "\ne ::= [a-z] root | \"b\""},
      {"all of any of", Kind::json_schema, nested_all},
      {"overlapping patterns of keys", Kind::json_schema, "{\"patternProperties\":{" + patterns + "}}"},
      {"a pattern with a long memory", Kind::json_schema,
       R"({"type":"string","pattern":"(a|b)*a(a|b){200}","maxLength":5000})"},
      {"a pattern with a very long memory", Kind::json_schema,
       R"({"type":"string","pattern":"x.{100000}y","minLength":9})"},
      {"five thousand properties", Kind::json_schema, "{\"properties\":{" + members + "}}"},
      {"counted properties", Kind::json_schema, "{\"properties\":{" + members + "},\"maxProperties\":2500}"},
      {"one of a thousand", Kind::json_schema, "{\"oneOf\":[" + cases + "]}"},
      {"a reference to itself", Kind::json_schema, R"({"$ref":"#"})"},
      {"all of itself", Kind::json_schema, R"({"type":"object","allOf":[{"$ref":"#"},{"properties":{"a":{}}}]})"},
      {"references in a circle", Kind::json_schema,
       R"({"$ref":"#/$defs/a","minimum":1,"$defs":{"a":{"$ref":"#/$defs/b","maximum":2},"b":{"$ref":"#/$defs/a","type":"integer"}}})"},
      {"a long enum", Kind::json_schema,
       "{\"enum\":[\"a\"" + repeated(",\"abcdefgh\",[[[]]],{\"k\":1.5}", 8000) + "]}"},
      {"nesting", Kind::json_schema, repeated("{\"items\":", 20'000) + "{}" + repeated("}", 20'000)},
      {"groups", Kind::regex, repeated("(", 100'000)},
      {"ambiguous counts", Kind::regex, "(a|aa|aaa){1,1000000}"},
      {"counts in counts", Kind::regex, repeated("(", 60) + "a" + repeated("{1,99})", 60)},
      {"memory of a text", Kind::regex, "(a|b)*a(a|b){100000}"}};
}

TEST(GrammarLimits, HostileSourcesCostBoundedTime) {
  for (const Hostile& each : hostile_sources()) {
    const std::clock_t begin = std::clock();  // of the processor: neighbours do not count
    const auto grammar = compile(each.kind, each.source);
    const auto seconds = [&] { return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC; };
    const double compile_s = seconds();
    std::string end = grammar.ok() ? "compiled" : std::string(grammar.status().message()).substr(0, 120);
    if (grammar.ok()) {
      GrammarMatcher matcher(*grammar, demo_vocabulary());
      for (int i = 0; i < 10; ++i) {
        const std::vector<int32_t> choices = allowed(matcher, demo_vocabulary());
        ASSERT_FALSE(choices.empty()) << each.name;
        if (choices.front() == kDemoEnd) break;
        ASSERT_TRUE(matcher.accept(choices.front())) << each.name;
      }
    }
    std::printf("%-36s compiled in %6.3f s, ten tokens in %6.3f s: %s\n", each.name, compile_s, seconds() - compile_s,
                end.c_str());
    EXPECT_LT(seconds(), 10) << each.name;
  }
}

// Counts that a text leaves open grow with the text; a mask after a thousand tokens still has its bound.
TEST(GrammarLimits, LateMasksCostBoundedTime) {
  const std::vector<int32_t> ids = demo_tokenizer().encode(std::string(1, 'a'));
  ASSERT_EQ(ids.size(), 1U);
  for (const std::string expression :
       {"(a|aa|aaa){1,1000000}", "(a|b)*a(a|b){100000}", "(.*a.{200}){20}", "((a{1,300}b?){1,300}c?){1,300}"}) {
    GrammarMatcher matcher(compiled(Kind::regex, expression), demo_vocabulary());
    const std::clock_t begin = std::clock();
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(matcher.accept(ids[0])) << expression << " " << i;
    const std::clock_t middle = std::clock();
    EXPECT_THAT(allowed(matcher, demo_vocabulary()), ::testing::Contains(ids[0]));
    const double walk_s = static_cast<double>(middle - begin) / CLOCKS_PER_SEC;
    const double mask_s = static_cast<double>(std::clock() - middle) / CLOCKS_PER_SEC;
    std::printf("%-36s 1000 tokens in %6.3f s, then a mask in %6.3f s\n", expression.c_str(), walk_s, mask_s);
    std::fflush(stdout);
    EXPECT_LT(walk_s, 20) << expression;
    EXPECT_LT(mask_s, 2) << expression;
  }
}

// `count` rules r0, r1, ...; `body` may name its neighbours.
std::string many_rules(int count, const std::string& root, const std::function<std::string(int)>& body) {
  std::string text = "root ::= " + root + "\n";
  for (int i = 0; i < count; ++i) text += fmt::format("r{} ::= {}\n", i, body(i));
  return text;
}

// Thousands of rules that begin or end at one place: each token and its mask have their bound.
TEST(GrammarLimits, RulesThatBeginOrEndTogetherCostBoundedTime) {
  const std::pair<const char*, std::string> cases[] = {
      {"a chain of rules", many_rules(4000, "r0",
                                      [](int i) {
                                        return i == 3999 ? std::string("\"z\"")
                                                         : fmt::format("r{0} | [a-z ] r{0} [a-z ]", i + 1);
                                      })},
      {"a net of rules", many_rules(2000, "r0",
                                    [](int i) {
                                      return fmt::format("r{} | r{} | [a-z ] r{} | \"a\"", (i + 1) % 2000,
                                                         (i * 7 + 1) % 2000, i * 5 % 2000);
                                    })},
      {"rules that may be empty", many_rules(500, "r0 \".\"", [](int i) {
         return fmt::format("(r{} r{} r{})? | [a-z ] r{} [a-z ]", (i + 1) % 500, (i * 7 + 1) % 500, (i * 11 + 3) % 500,
                            i * 3 % 500);
       })}};
  for (const auto& [name, source] : cases) {
    GrammarMatcher matcher(compiled(Kind::grammar, source), demo_vocabulary());
    double slowest = 0;
    for (int i = 0; i < 60; ++i) {
      const std::clock_t begin = std::clock();
      const std::vector<int32_t> choices = allowed(matcher, demo_vocabulary());
      ASSERT_FALSE(choices.empty()) << name;
      if (choices.front() == kDemoEnd) break;
      ASSERT_TRUE(matcher.accept(choices.front())) << name << " " << i;
      slowest = std::max(slowest, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    }
    std::printf("%-36s a token in at most %6.3f s\n", name, slowest);
    EXPECT_LT(slowest, 1) << name;
  }
}

TEST(GrammarLimits, SourcesAreBounded) {
  EXPECT_THAT(refusal(Kind::regex, std::string(300'000, 'a')), HasSubstr("300000 bytes, more than the 262144"));
  GrammarLimits small;
  small.states = 50;
  const auto refused = compile_grammar({Kind::regex, std::string(100, 'a')}, demo_tokenizer(), small);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("too large"));
  small = {};
  small.repetitions = 10;
  EXPECT_THAT(compile_grammar({Kind::regex, "a{11}"}, demo_tokenizer(), small).status().message(),
              HasSubstr("limit of 10"));
}

}  // namespace
}  // namespace moesaic
