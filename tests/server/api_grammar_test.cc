// Answers that must have a form, over the demo model: formats, expressions, choices, and calls of tools.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_server.h"

namespace moesaic {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

ApiServer& server() {
  static ApiServer instance({}, {.response_store_size = 1});
  return instance;
}

// Hot, so that only the grammar can be why the answer has its form.
std::string chat_body(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"What sound does an owl make?"}],"temperature":1.5,"seed":3,)"
         R"("max_tokens":300,)" +
         more + "}";
}

Json chat(const std::string& more) {
  const auto exchange = server().call(&Api::chat_completions, chat_body(more));
  EXPECT_EQ(exchange->response().status, 200) << exchange->body();
  return exchange->json();
}

const Json& choice_of(const Json& answer, size_t i = 0) {
  return answer.at("choices").at(i);
}

std::string content_of(const Json& answer, size_t i = 0) {
  return std::string(choice_of(answer, i).at("message").at("content").as_string());
}

constexpr const char* kSchema =
    R"({"type":"object","properties":{"sound":{"enum":["hoot","moo"]},"times":{"type":"integer","minimum":1,)"
    R"("maximum":9}},"required":["sound","times"],"additionalProperties":false})";

void expect_fits(const std::string& text) {
  const Json value = parse_json(text, "the answer");
  EXPECT_EQ(value.as_object().size(), 2u) << text;
  EXPECT_THAT(std::string(value.at("sound").as_string()), AnyOf("hoot", "moo"));
  EXPECT_GE(value.at("times").as_int64(), 1);
  EXPECT_LE(value.at("times").as_int64(), 9);
}

std::string schema_format() {
  return R"("response_format":{"type":"json_schema","json_schema":{"name":"owl","schema":)" + std::string(kSchema) +
         "}}";
}

TEST(ApiGrammar, ASchemaIsKept) {
  const Json answer = chat(schema_format());
  expect_fits(content_of(answer));
  EXPECT_EQ(choice_of(answer).at("finish_reason"), "stop");
  const auto stream = server().call(&Api::chat_completions, chat_body(schema_format() + ",\"stream\":true"));
  EXPECT_EQ(streamed(stream->body()).text, content_of(answer));
}

TEST(ApiGrammar, EachChoiceKeepsIt) {
  const Json answer = chat(schema_format() + ",\"n\":3");
  for (size_t i = 0; i < 3; ++i) expect_fits(content_of(answer, i));
}

TEST(ApiGrammar, ResponsesKeepIt) {
  const auto exchange = server().call(
      &Api::responses, R"({"input":"What sound does an owl make?","temperature":1.5,"max_output_tokens":300,)"
                       R"("text":{"format":{"type":"json_schema","name":"owl","schema":)" +
                           std::string(kSchema) + "}}}");
  ASSERT_EQ(exchange->response().status, 200) << exchange->body();
  const Json message = exchange->json().at("output").as_array().back();
  expect_fits(std::string(message.at("content").at(0).at("text").as_string()));
}

TEST(ApiGrammar, TextCompletionsKeepExpressionsAndChoices) {
  const auto said = [](const std::string& more) {
    const auto exchange = server().call(
        &Api::completions, R"({"prompt":"An owl says","temperature":1.5,"seed":5,"max_tokens":100,)" + more + "}");
    EXPECT_EQ(exchange->response().status, 200) << exchange->body();
    EXPECT_EQ(choice_of(exchange->json()).at("finish_reason"), "stop") << exchange->body();
    return std::string(choice_of(exchange->json()).at("text").as_string());
  };
  EXPECT_THAT(said(R"("guided_regex":"(yes|no), [0-9]{3}")"), testing::MatchesRegex("(yes|no), [0-9][0-9][0-9]"));
  EXPECT_THAT(said(R"x("structured_outputs":{"choice":["a+b (c)","d/e-f","\n\"{}\"","\u00e9|x"]})x"),
              AnyOf("a+b (c)", "d/e-f", "\n\"{}\"", "\xC3\xA9|x"));
  EXPECT_THAT(said(R"("ebnf":"root ::= \"moo\" | \"hoot\"")"), AnyOf("moo", "hoot"));
  expect_fits(said("\"guided_json\":" + std::string(kSchema)));
}

TEST(ApiGrammar, WhatDoesNotCompileIsRefused) {
  const auto refused = [](const std::string& more, const std::string& param) {
    const auto exchange = server().call(&Api::chat_completions, chat_body(more));
    EXPECT_EQ(exchange->response().status, 400) << exchange->body();
    const Json error = exchange->json().at("error");
    EXPECT_EQ(error.at("code"), "invalid_schema") << exchange->body();
    EXPECT_EQ(error.at("param"), Json(param)) << exchange->body();
    return std::string(error.at("message").as_string());
  };
  refused(R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"thing"}}})",
          "response_format.json_schema.schema");
  EXPECT_THAT(refused(R"("guided_json":{"type":"object","unevaluatedProperties":false})", "guided_json"),
              HasSubstr("unevaluatedProperties"));
  refused(R"("guided_regex":"(a")", "guided_regex");
  refused(R"("ebnf":"root ::= missing")", "ebnf");
  refused(R"("structured_outputs":{"grammar":"root"})", "structured_outputs.grammar");
  refused("\"guided_regex\":\"" + std::string(300 << 10, 'a') + "\"", "guided_regex");
  refused(R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"thing"}}}],)"
          R"("tool_choice":"required")",
          "tools");
}

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"hear","parameters":{"type":"object","properties":)"
    R"({"loud":{"type":"boolean"}},"required":["loud"],"additionalProperties":false}}},)"
    R"({"type":"function","function":{"name":"owl.look","parameters":)"
    R"({"type":"object","properties":{"far":{"enum":[1,2]}},"required":["far"],"additionalProperties":false}}}])";

struct Call {
  std::string name;
  Json arguments;
};

std::vector<Call> calls_of(const Json& answer) {
  std::vector<Call> out;
  for (const Json& call : choice_of(answer).at("message").at("tool_calls").as_array()) {
    EXPECT_EQ(call.at("type"), "function");
    EXPECT_FALSE(call.at("id").as_string().empty());
    out.push_back({std::string(call.at("function").at("name").as_string()),
                   parse_json(call.at("function").at("arguments").as_string(), "arguments")});
  }
  return out;
}

TEST(ApiGrammar, ACallThatIsRequiredIsMade) {
  const Json answer = chat(std::string(kTools) + ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false");
  const std::vector<Call> calls = calls_of(answer);
  ASSERT_EQ(calls.size(), 1u);
  if (calls[0].name == "hear") EXPECT_TRUE(calls[0].arguments.at("loud").is_bool());
  else EXPECT_EQ(calls[0].name, "owl.look");
  EXPECT_EQ(choice_of(answer).at("finish_reason"), "tool_calls");
  EXPECT_TRUE(choice_of(answer).at("message").at("content").is_null());
}

TEST(ApiGrammar, ANamedToolIsTheOneCalled) {
  const std::string named = std::string(kTools) +
                            R"(,"tool_choice":{"type":"function","function":{"name":"owl.look"}},)"
                            R"("parallel_tool_calls":false)";
  const Json answer = chat(named);
  const std::vector<Call> calls = calls_of(answer);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].name, "owl.look");
  EXPECT_THAT(calls[0].arguments.at("far").as_int64(), AnyOf(1, 2));
  EXPECT_EQ(choice_of(answer).at("finish_reason"), "stop");
  const auto stream = server().call(&Api::chat_completions, chat_body(named + ",\"stream\":true"));
  std::string arguments;
  for (const Json& frame : frames_of(stream->body()))
    if (const Json* deltas = choice_of(frame).at("delta").as_object().if_contains("tool_calls"))
      arguments += deltas->at(0).at("function").at("arguments").as_string();
  EXPECT_EQ(parse_json(arguments, "arguments"), calls[0].arguments);
  EXPECT_EQ(streamed(stream->body()).finish_reason, "stop");
}

TEST(ApiGrammar, AFormatLeavesCallsOpenAndNoneLeavesToolsOut) {
  const Json either = chat(std::string(kTools) + "," + schema_format());
  if (choice_of(either).at("message").as_object().contains("tool_calls")) calls_of(either);
  else expect_fits(content_of(either));
  const Json none = chat(std::string(kTools) + ",\"tool_choice\":\"none\"," + schema_format());
  EXPECT_FALSE(choice_of(none).at("message").as_object().contains("tool_calls"));
  expect_fits(content_of(none));
}

TEST(ApiGrammar, ACutAnswerSaysSo) {
  const Json answer = chat(schema_format() + ",\"max_completion_tokens\":3");
  EXPECT_EQ(choice_of(answer).at("finish_reason"), "length");
}

}  // namespace
}  // namespace moesaic
