#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/fresh_rng.h"
#include "base/temp_dir.h"

namespace moesaic {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string failure(std::string_view text, const JsonOptions& options = {}) {
  try {
    parse_json(text, "f.json", options);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), StatusCode::data_loss);
    EXPECT_EQ(e.where(), "f.json");
    return e.what();
  }
  return "accepted";
}

TEST(PythonFloat, IsPythonsRepr) {
  const std::pair<double, const char*> kCases[] = {
      {2.0, "2.0"},
      {1e16, "1e+16"},
      {1e15, "1000000000000000.0"},
      {123456789012345680.0, "1.2345678901234568e+17"},
      {1e-4, "0.0001"},
      {1e-5, "1e-05"},
      {1e-6, "1e-06"},
      {0.1 + 0.2, "0.30000000000000004"},
      {0.0, "0.0"},
      {-0.0, "-0.0"},
      {5e-324, "5e-324"},
      {std::numeric_limits<double>::max(), "1.7976931348623157e+308"},
      {-2.5, "-2.5"},
      {9007199254740992.0, "9007199254740992.0"},
      {1e22, "1e+22"},
      {1e23, "1e+23"},
      {123456.789, "123456.789"},
      {1.0 / 3, "0.3333333333333333"},
      {9999999999999998.0, "9999999999999998.0"},
      {99999999999999980.0, "9.999999999999998e+16"},
      {0.00012345, "0.00012345"},
      {1.5e-10, "1.5e-10"},
      {1e100, "1e+100"},
      {std::nan(""), "NaN"},
      {INFINITY, "Infinity"},
      {-INFINITY, "-Infinity"},
  };
  for (const auto& [value, text] : kCases) EXPECT_EQ(python_float(value), text);
}

TEST(PythonFloat, ReadsBackExactly) {
  Rng rng = fresh_rng();
  for (int i = 0; i < 20'000; ++i) {
    const double value = std::bit_cast<double>(rng.bits());
    if (!std::isfinite(value)) continue;
    const std::string text = python_float(value);
    EXPECT_EQ(std::strtod(text.c_str(), nullptr), value) << text;
    EXPECT_NE(text.find_first_of(".e"), std::string::npos) << text;
  }
}

const char* const kText =
    R"({"b": [1, 2.5, -3, 1e16, null, true, false], "a": {"é\n\"\\\u0001\u007f": "中😀/\b\f\t\r", "": []}, "e": {}, )"
    R"("u": 18446744073709551615, "i": -9223372036854775808})";

// The expected texts are json.dumps' output for the same value.
TEST(WriteJson, IsPythonsDumps) {
  const Json value = parse_json(kText, "f.json");
  EXPECT_EQ(
      write_json(value, {.ensure_ascii = true}),
      R"({"b": [1, 2.5, -3, 1e+16, null, true, false], "a": {"\u00e9\n\"\\\u0001\u007f": "\u4e2d\ud83d\ude00/\b\f\t\r", "": []}, "e": {}, "u": 18446744073709551615, "i": -9223372036854775808})");
  EXPECT_EQ(write_json(value),
            "{\"b\": [1, 2.5, -3, 1e+16, null, true, false], \"a\": {\"é\\n\\\"\\\\\\u0001\x7f\": "
            "\"中😀/\\b\\f\\t\\r\", \"\": []}, \"e\": {}, \"u\": 18446744073709551615, \"i\": -9223372036854775808}");
  EXPECT_EQ(
      write_json(value, {.ensure_ascii = true, .sort_keys = true}),
      R"({"a": {"": [], "\u00e9\n\"\\\u0001\u007f": "\u4e2d\ud83d\ude00/\b\f\t\r"}, "b": [1, 2.5, -3, 1e+16, null, true, false], "e": {}, "i": -9223372036854775808, "u": 18446744073709551615})");
  EXPECT_EQ(write_json(value, {.compact = true}),
            "{\"b\":[1,2.5,-3,1e+16,null,true,false],\"a\":{\"é\\n\\\"\\\\\\u0001\x7f\":\"中😀/"
            "\\b\\f\\t\\r\",\"\":[]},\"e\":{},\"u\":18446744073709551615,\"i\":-9223372036854775808}");
  EXPECT_EQ(write_json(value, {.indent = 2}),
            "{\n  \"b\": [\n    1,\n    2.5,\n    -3,\n    1e+16,\n    null,\n    true,\n    false\n  ],\n  \"a\": {\n "
            "   \"é\\n\\\"\\\\\\u0001\x7f\": \"中😀/\\b\\f\\t\\r\",\n    \"\": []\n  },\n  \"e\": {},\n  \"u\": "
            "18446744073709551615,\n  \"i\": -9223372036854775808\n}");
  EXPECT_EQ(write_json(parse_json("[[1,{}],[]]", "f"), {.indent = 0}), "[\n[\n1,\n{}\n],\n[]\n]");
}

TEST(WriteJson, QuotesBrokenTextWithoutReadingPastIt) {
  for (std::string_view text : {"\xF0\x9F", "\xC3", "\x80", "a\xFF", "\xE4\xB8"})
    EXPECT_THAT(json_quote(text, true),
                AllOf(::testing::StartsWith("\""), ::testing::EndsWith("\""), HasSubstr("\\u")));
}

// A random value: NaN is left out, as it equals nothing.
Json random_json(Rng& rng, int depth) {
  const int64_t kind = rng.below(depth > 0 ? 8 : 6);
  if (kind == 0) return nullptr;
  if (kind == 1) return rng.below(2) == 0;
  if (kind == 2) return static_cast<int64_t>(rng.bits());
  if (kind == 3) return std::ldexp(rng.normal(), static_cast<int>(rng.below(400)) - 200);
  if (kind == 4) return rng.bits() | uint64_t{1} << 63;
  if (kind == 5) {
    std::string text;
    constexpr std::string_view kPieces[] = {"a",    "\"", "\\", "\n", "é", "中", "😀", std::string_view("\0", 1),
                                            "\x7f", "/"};
    for (int64_t n = rng.below(6); n > 0; --n) text += kPieces[rng.below(std::size(kPieces))];
    return Json(text);
  }
  JsonArray array;
  JsonObject object;
  for (int64_t n = rng.below(5); n > 0; --n) {
    if (kind == 6) array.push_back(random_json(rng, depth - 1));
    else object[fmt::format("k{}\u00fc", n)] = random_json(rng, depth - 1);
  }
  return kind == 6 ? Json(array) : Json(object);
}

TEST(Json, WhatIsWrittenReadsBack) {
  Rng rng = fresh_rng();
  for (int round = 0; round < 2000; ++round) {
    const Json value = random_json(rng, 5);
    const JsonFormat format{
        .indent = static_cast<int>(rng.below(4)) - 1, .ensure_ascii = rng.below(2) == 0, .compact = rng.below(2) == 0};
    const std::string text = write_json(value, format);
    ASSERT_EQ(parse_json(text, "f.json", {.unique_keys = true}), value) << text;
  }
}

TEST(Json, RefusesWhatIsNotOneValue) {
  for (std::string_view text : {"",
                                " ",
                                "{",
                                "[1,]",
                                "{\"a\":1,}",
                                "nul",

                                "+1",
                                ".5",
                                "'a'",
                                "[1 2]",
                                "{a:1}",
                                "\"\n\"",
                                "\"\\x\"",
                                "\"\\ud800\"",
                                "NaN",
                                "Infinity",
                                "// c\n1",
                                "\xEF\xBB\xBF{}",
                                "\"\xFF\"",
                                "\"\xC0\x80\"",
                                "\"\xED\xA0\x80\"",
                                "\"\xF4\x90\x80\x80\""})
    EXPECT_THAT(failure(text), HasSubstr("not valid JSON")) << text;
  for (std::string_view text : {"", " ", "{", "[1", "\"a", "tru", "1e", "-", "{\"a\":"})
    EXPECT_THAT(failure(text), HasSubstr(fmt::format("ends early, after {} bytes", text.size()))) << text;
  EXPECT_THAT(failure("01"), HasSubstr("text after"));
  EXPECT_THAT(failure("{} {}"), HasSubstr("text after its JSON value at byte"));
  EXPECT_THAT(failure("{\"a\": tru}"), HasSubstr("at byte 6"));
  EXPECT_EQ(failure(" [1] \r\n\t"), "accepted");
}

TEST(Json, NumbersAreRoundedCorrectly) {
  const std::pair<const char*, double> kCases[] = {
      {"1.1846491562077414e+42", 1.1846491562077414e+42},
      {"10246983.497522553", 10246983.497522553},
      {"0.1352337788608801", 0.1352337788608801},
      {"18446744073709551616", 0x1p64},
      {"-9223372036854775809", -0x1p63},
      {"9007199254740993.0", 9007199254740992.0},
      {"2.2250738585072011e-308", 2.2250738585072011e-308},
      {"4.9406564584124654e-324", 5e-324},
      {"1e999", INFINITY},
      {"-1e999", -INFINITY},
      {"1e-999", 0.0},
  };
  for (const auto& [text, value] : kCases) {
    EXPECT_EQ(parse_json(text, "f").as_double(), value) << text;
    EXPECT_EQ(parse_json(fmt::format("[{}, 1]", text), "f").as_array()[0].as_double(), value) << text;
  }
  EXPECT_EQ(parse_json("18446744073709551615", "f").as_uint64(), UINT64_MAX);
  EXPECT_EQ(parse_json("-9223372036854775808", "f").as_int64(), INT64_MIN);
}

TEST(Json, DepthIsLimited) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_EQ(failure(nested(64)), "accepted");
  EXPECT_THAT(failure(nested(65)), HasSubstr("not valid JSON at byte"));
  EXPECT_THAT(failure(std::string(1'000'000, '[')), HasSubstr("not valid JSON at byte"));
  EXPECT_EQ(failure(nested(200), {.max_depth = 200}), "accepted");
}

TEST(Json, UniqueKeys) {
  const JsonOptions unique{.unique_keys = true};
  EXPECT_EQ(failure(R"({"a":1,"a":2})"), "accepted");
  EXPECT_THAT(failure(R"({"a":1,"a":2})", unique), HasSubstr("duplicate key \"a\""));
  EXPECT_THAT(failure(R"([{"x":{"b":1,"\u0062":2}}])", unique), HasSubstr("duplicate key \"b\""));
  EXPECT_EQ(failure(R"({"a":{"a":1},"b":[{"a":1},{"a":1}]})", unique), "accepted");
}

TEST(Json, PythonConstants) {
  const JsonOptions python{.python_constants = true};
  const Json value = parse_json(R"({"a":[NaN,Infinity,-Infinity],"NaN \" Infinity":"-Infinity \\"})", "f", python);
  const JsonArray& a = value.at("a").as_array();
  EXPECT_TRUE(a[0].is_null());
  EXPECT_EQ(a[1].as_double(), INFINITY);
  EXPECT_EQ(a[2].as_double(), -INFINITY);
  EXPECT_EQ(value.at("NaN \" Infinity").as_string(), "-Infinity \\");
  EXPECT_THAT(failure("NaNa", python), HasSubstr("text after"));
  EXPECT_THAT(failure("-NaN", python), HasSubstr("not valid JSON"));
}

TEST(Json, LargeFilesParse) {
  std::string text = "{\"vocab\":{";
  for (int i = 0; text.size() < 30'000'000; ++i)
    text += fmt::format("{}\"token-{}\\u0120\": {}", i > 0 ? ",\n" : "", i, i);
  text += "}}";
  const TempDir dir;
  const Json value = read_json_file(dir.write("tokenizer.json", text).string());
  EXPECT_GT(value.at("vocab").as_object().size(), 900'000u);
  EXPECT_EQ(value.at("vocab").at("token-777\u0120").as_int64(), 777);
}

TEST(Json, TypedLookUps) {
  const Json json = parse_json(R"({"i":8,"f":8.0,"h":8.5,"big":18446744073709551615,"b":true,"s":"x","n":null})", "f");
  const JsonObject& o = json_object(json, "f");
  EXPECT_EQ(json_int(o, "i", "f"), 8);
  EXPECT_EQ(json_int(o, "f", "f"), 8);
  EXPECT_EQ(json_int(o, "n", "f", 5), 5);
  EXPECT_EQ(json_int(o, "missing", "f", 6), 6);
  EXPECT_EQ(json_number(o, "h", "f"), 8.5);
  EXPECT_EQ(json_number(o, "i", "f"), 8.0);
  EXPECT_EQ(json_number(o, "n", "f", 0.5), 0.5);
  EXPECT_TRUE(json_bool(o, "b", "f", false));
  EXPECT_TRUE(json_bool(o, "n", "f", true));
  EXPECT_EQ(json_string(o, "s", "f"), "x");
  EXPECT_EQ(json_string(o, "n", "f", "y"), "y");
  EXPECT_EQ(json_find(o, "n"), nullptr);
  EXPECT_NE(json_find(o, "s"), nullptr);
  EXPECT_THROW(json_int(o, "h", "f"), Error);
  EXPECT_THROW(json_int(o, "big", "f"), Error);
  EXPECT_THROW(json_int(o, "s", "f", 1), Error);
  EXPECT_THROW(json_number(o, "b", "f"), Error);
  EXPECT_THROW(json_bool(o, "i", "f", false), Error);
  EXPECT_THROW(json_string(o, "i", "f"), Error);
  EXPECT_THROW(json_object(json.at("i"), "f"), Error);
  try {
    json_int(o, "missing", "config.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("config.json"), HasSubstr("\"missing\" is missing")));
  }
}

}  // namespace
}  // namespace moesaic
