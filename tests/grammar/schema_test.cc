// JSON schemas: fixed cases of each keyword, the order and spelling of answers, and what is refused with which words.
#include <fmt/format.h>

#include <cstdlib>

#include "base/json.h"
#include "walk.h"

namespace moesaic {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

void expect(const std::string& schema, std::vector<std::string> fit, std::vector<std::string> unfit) {
  const auto grammar = compiled(Kind::json_schema, schema);
  ASSERT_NE(grammar, nullptr);
  for (const std::string& text : fit) EXPECT_TRUE(matches(grammar, text)) << schema << " " << text;
  for (const std::string& text : unfit) EXPECT_FALSE(matches(grammar, text)) << schema << " " << text;
}

TEST(Schema, AnyValueAndAnyObject) {
  expect("{}", {"1", "-0.5e10", "\"a\"", "null", "[1, {\"a\":[]}]", "{}"},
         {"", "01", "[1,]", "{\"a\"}", "nul", "'a'", "1 "});
  EXPECT_TRUE(matches(Kind::json_object, "", "{\"a\": [1, 2], \"b\":{}}"));
  EXPECT_FALSE(matches(Kind::json_object, "", "[]"));
  EXPECT_THAT(refusal(Kind::json_schema, "false"), HasSubstr("no finite text"));
}

// One space may follow : and , and nothing else is free: no answer can be spaced out for ever.
TEST(Schema, WhiteSpaceIsBounded) {
  expect(R"({"properties":{"a":{"type":"array"}},"required":["a"],"type":"object"})",
         {"{\"a\":[1,2]}", "{\"a\": [1, 2]}", "{\"a\": [1,2]}"},
         {"{ \"a\":[]}", "{\"a\" :[]}", "{\"a\":  []}", "{\"a\":[1,\n2]}", "{\"a\":[]} ", " {\"a\":[]}"});
}

TEST(Schema, StringsAreValidJsonAndUtf8) {
  expect(R"({"type":"string"})", {"\"\"", "\"\\u00e9\\ud83d\\ude00\\n\"", "\"\u00e9\x7f\""},
         {"\"", "\"\n\"", "\"\\x\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\\ud83d\\u0041\"", "\"\xff\"", "\"\xc3\"",
          "\"\xed\xa0\x80\""});
  expect(R"({"type":"string","minLength":2,"maxLength":3})",
         {"\"\u65e5\U0001F600\"", "\"a\\n\\\"\"", "\"\\ud83d\\ude00b\""},
         {"\"a\"", "\"\U0001F600\"", "\"abcd\"", "\"\\ud83d\\ude00\""});
}

TEST(Schema, PropertiesComeInOrder) {
  const std::string some =
      R"({"type":"object","properties":{"a":{"const":1},"b":{"const":2},"c":{"const":3}},"required":["c","a"])";
  expect(some + "}", {R"({"a":1,"b":2,"c":3})", R"({"a":1,"c":3})"},
         {R"({"c":3,"a":1})", R"({"a":1})", R"({"a":1,"c":3,"d":4})", R"({"a":1,"a":1,"c":3})", R"({"a":1,"c":3,})"});
  expect(some + R"(,"additionalProperties":{"type":"null"}})",
         {R"({"a":1,"c":3,"d":null,"e":null})", R"({"a":1,"c":3})"},
         {R"({"a":1,"c":3,"b":null})", R"({"a":1,"c":3,"\u0062":null})", R"({"d":null,"a":1,"c":3})",
          R"({"a":1,"c":3,"d":1})"});
}

// Each bound against every number of a range, with its neighbours.
TEST(Schema, IntegerBoundsByBruteForce) {
  for (int low = -12; low <= 12; low += 3)
    for (int high = low; high <= low + 130; high += 13) {
      const auto grammar =
          compiled(Kind::json_schema, fmt::format(R"({{"type":"integer","minimum":{},"maximum":{}}})", low, high));
      for (int n = -150; n <= 150; ++n)
        ASSERT_EQ(matches(grammar, std::to_string(n)), n >= low && n <= high) << low << " " << high << " " << n;
      EXPECT_FALSE(matches(grammar, "007"));
    }
}

// In hundredths, so that the test itself does not round.
TEST(Schema, NumberBoundsByBruteForce) {
  const auto decimal = [](int hundredths) {
    return fmt::format("{}{}.{:02}", hundredths < 0 ? "-" : "", std::abs(hundredths) / 100, std::abs(hundredths) % 100);
  };
  for (const int low : {-125, -50, 0, 10, 100, 995})
    for (const int width : {1, 5, 30, 100, 1240}) {
      const auto grammar = compiled(
          Kind::json_schema,
          fmt::format(R"({{"type":"number","exclusiveMinimum":{},"maximum":{}}})", decimal(low), decimal(low + width)));
      for (int n = -300; n <= 2400; ++n)
        ASSERT_EQ(matches(grammar, decimal(n)), n > low && n <= low + width) << low << " " << width << " " << n;
    }
}

TEST(Schema, MultiplesByBruteForce) {
  for (const int step : {1, 2, 7, 64, 1000}) {
    const auto grammar = compiled(Kind::json_schema, fmt::format(R"({{"type":"integer","multipleOf":{}}})", step));
    for (int n = -300; n <= 300; ++n) ASSERT_EQ(matches(grammar, std::to_string(n)), n % step == 0) << step << " " << n;
  }
  expect(R"({"type":"number","multipleOf":0.01,"minimum":0})", {"0.25", "3", "7.5"}, {"0.125", "-1"});
}

TEST(Schema, ConstantsKeepTheirTypes) {
  expect(R"({"enum":["a","a\"b",1,1.5,null,[1,"x"],{"k":[true]}]})",
         {"\"a\"", "\"a\\\"b\"", "1", "1.5", "null", "[1, \"x\"]", "{\"k\": [true]}"},
         {"\"1\"", "a", "true", "[1]", "{}"});
  expect(R"({"type":["string","integer"],"enum":["a",1,null]})", {"\"a\"", "1"}, {"null"});
}

TEST(Schema, RecursionAndReferences) {
  expect(
      R"({"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{"n":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/t"}]}},"required":["n"]}}})",
      {"{\"n\":null}", "{\"n\": {\"n\": {\"n\": null}}}"}, {"{\"n\":1}", "{\"n\":{\"n\":null}", "{\"n\":{}}"});
  expect(R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[], [[]]]"}, {"[1]", "[[]"});
  expect(R"({"definitions":{"a/b~c":{"const":1}},"$ref":"#/definitions/a~1b~0c"})", {"1"}, {"2"});
}

TEST(Schema, AlternativesAndCombinations) {
  expect(R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", {"1", "\"a\""}, {"null"});
  expect(R"({"oneOf":[{"type":"integer"},{"type":"string"}]})", {"1", "\"a\""}, {"null"});
  expect(R"({"type":"string","nullable":true})", {"null", "\"\""}, {"1"});
  expect(
      R"({"allOf":[{"properties":{"a":{"type":"integer","minimum":3}},"required":["a"]},{"properties":{"a":{"maximum":5}}}],"type":"object"})",
      {"{\"a\":3}", "{\"a\":5}"}, {"{\"a\":6}", "{\"a\":2}", "{}"});
  expect(R"({"anyOf":[{"minLength":3},{"pattern":"^x"}],"type":"string"})", {"\"abc\"", "\"x\""}, {"\"ab\"", "1"});
}

TEST(Schema, ArraysAndTuples) {
  expect(R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})", {"[1]", "[1,2,3]"},
         {"[]", "[1,2,3,4]", "[\"a\"]"});
  expect(R"({"type":"array","prefixItems":[{"const":1},{"const":2}],"items":{"const":3},"minItems":1})",
         {"[1]", "[1,2]", "[1,2,3,3]"}, {"[]", "[2]", "[1,3]"});
  expect(R"({"type":"array","items":{"type":"integer"},"minItems":1000,"maxItems":1001})", {}, {"[]", "[1]"});
}

TEST(Schema, KeysByPattern) {
  expect(
      R"({"type":"object","patternProperties":{"^n_":{"type":"integer"},"x$":{"type":["integer","string"]}},"additionalProperties":false})",
      {"{}", "{\"n_a\":1}", "{\"x\":\"s\",\"n_x\":2}"}, {"{\"n_a\":\"s\"}", "{\"n_x\":\"s\"}", "{\"other\":1}"});
}

// Not one unsupported keyword may be passed over in silence: all are named with their places.
TEST(Schema, ListsEveryUnsupportedKeyword) {
  const std::string message = refusal(Kind::json_schema, R"({"type":"object","properties":{
    "a":{"not":{"type":"string"}},"b":{"type":"array","uniqueItems":true,"contains":{}},"c/d":{"type":"string","format":"nothing"}},
    "propertyNames":{"maxLength":3},"if":{},"then":{},"dependentRequired":{"a":["b"]},"unevaluatedProperties":false,"fancy":1})");
  EXPECT_THAT(message, AllOf(HasSubstr("`not` at #/properties/a"), HasSubstr("`uniqueItems` at #/properties/b"),
                             HasSubstr("`contains` at #/properties/b"), HasSubstr("`format` at #/properties/c"),
                             HasSubstr("`propertyNames` at #"), HasSubstr("`if` at #"), HasSubstr("`then` at #")));
  EXPECT_THAT(message, AllOf(HasSubstr("`dependentRequired` at #"), HasSubstr("`unevaluatedProperties` at #"),
                             HasSubstr("`fancy` at #"), Not(HasSubstr("more"))));
}

TEST(Schema, KeywordsThatSayNothingAreFine) {
  expect(
      R"({"$schema":"https://json-schema.org/draft/2020-12/schema","$id":"x","title":"T","description":"d","default":3,
    "examples":[1],"x-order":1,"type":"array","uniqueItems":false,"items":{"type":"null","deprecated":true}})",
      {"[null]"}, {"[1]"});
}

TEST(Schema, RefusalsSayWhatAndWhere) {
  EXPECT_THAT(refusal(Kind::json_schema, "{"), HasSubstr("the JSON schema"));
  EXPECT_THAT(refusal(Kind::json_schema, "[]"), HasSubstr("object or a boolean"));
  EXPECT_THAT(refusal(Kind::json_schema, R"({"type":"text"})"), HasSubstr("\"text\" is none of object, array"));
  EXPECT_THAT(refusal(Kind::json_schema, R"({"$ref":"http://x/y"})"), HasSubstr("is not in this schema"));
  EXPECT_THAT(refusal(Kind::json_schema, R"({"$ref":"#/$defs/x"})"), HasSubstr("nothing at \"#/$defs/x\""));
  EXPECT_THAT(refusal(Kind::json_schema, R"j({"type":"string","pattern":"(?=a)"})j"), HasSubstr("the pattern at #"));
  EXPECT_THAT(refusal(Kind::json_schema, R"({"type":"number","multipleOf":0.3})"), HasSubstr("`multipleOf` at #"));
  EXPECT_THAT(refusal(Kind::json_schema, R"({"type":"integer","multipleOf":1001})"), HasSubstr("up to 1000"));
  EXPECT_THAT(refusal(Kind::json_schema, R"({"type":"string","minLength":-1})"), HasSubstr("not negative"));
  EXPECT_THAT(refusal(Kind::json_schema, R"({"type":"integer","minimum":5,"maximum":4})"), HasSubstr("no finite text"));
  EXPECT_THAT(refusal(Kind::json_schema, R"({"oneOf":[{"type":"integer"},{"minimum":3}]})"),
              HasSubstr("alternatives 0 and 1"));
  EXPECT_THAT(refusal(Kind::json_schema, R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})"),
              HasSubstr("no finite text"));
}

// The name that merging uses inside is no keyword for callers.
TEST(Schema, NamesOfTheInsideAreRefused) {
  const std::string schema = R"({"allOf":[{"\u0001patterns":3},{"pattern":"a"}],"type":"string"})";
  EXPECT_THAT(refusal(Kind::json_schema, schema), HasSubstr("remove or replace `\\u0001patterns` at #"));
}

TEST(Schema, FC050_SchemasThatAreNoneAreRefusedWithAMessage) {
  for (const std::string schema : {"", "{", "[]", "\"hi\"", "-1", "null", "{\"type\":{}}", "{\"properties\":[]}",
                                   "{\"required\":[1]}", "{\"enum\":{}}", "{\"anyOf\":[]}", "{\"$ref\":1}"})
    EXPECT_THAT(refusal(Kind::json_schema, schema), HasSubstr("JSON schema")) << schema;
  const std::string deep(10'000, '[');
  EXPECT_THAT(refusal(Kind::json_schema, "{\"const\":" + deep + std::string(10'000, ']') + "}"), HasSubstr("too deep"));
}

// The list stays complete while it is of a sensible size, and says how many it leaves out.
TEST(Schema, ManyProblemsMakeABoundedMessage) {
  std::string schema = "{\"properties\":{\"" + std::string(5000, 'n') + "\":{\"type\":\"object\"";
  for (int i = 0; i < 5000; ++i) schema += fmt::format(",\"unknown{}\":1", i);
  const std::string message = refusal(Kind::json_schema, schema + "}}}");
  EXPECT_LT(message.size(), 100'000U);
  EXPECT_THAT(message, ::testing::EndsWith(" more"));
}

}  // namespace
}  // namespace moesaic
