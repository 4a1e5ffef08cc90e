// /v1/responses: its translation to chats, its items and its events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_server.h"
#include "server/response_answer.h"
#include "server/responses_request.h"

namespace moesaic {
namespace {

using testing::ElementsAre;

struct Translated {
  TranslatedResponse out;
  ApiError error;
};

Translated translate(const std::string& body, const ResponseStore& stored = ResponseStore(0)) {
  Translated result;
  result.out = translate_response(parse_json(body, "body").as_object(), stored, result.error);
  return result;
}

std::string chat_of(const std::string& body) {
  const Translated result = translate(body);
  EXPECT_FALSE(result.error) << result.error.message;
  return write_json(result.out.chat, {.sort_keys = true, .compact = true});
}

TEST(ApiResponsesRequest, TextAndInstructions) {
  EXPECT_EQ(chat_of(R"({"input":"hi","instructions":"be brief","max_output_tokens":5,"temperature":0.5})"),
            R"({"max_completion_tokens":5,"messages":[{"content":"be brief","role":"system"},)"
            R"({"content":"hi","role":"user"}],"temperature":0.5})");
}

TEST(ApiResponsesRequest, ItemsBecomeMessages) {
  EXPECT_EQ(chat_of(R"({"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]},
                        {"type":"reasoning","content":[{"type":"reasoning_text","text":"why"}]},
                        {"type":"function_call","call_id":"a","name":"f","arguments":"{}"},
                        {"type":"function_call","call_id":"b","name":"g","arguments":"{}"},
                        {"type":"function_call_output","call_id":"a","output":"1"}]})"),
            R"({"messages":[{"content":[{"text":"hi","type":"text"}],"role":"user"},)"
            R"({"content":null,"reasoning_content":"why","role":"assistant","tool_calls":[)"
            R"({"function":{"arguments":"{}","name":"f"},"id":"a","type":"function"},)"
            R"({"function":{"arguments":"{}","name":"g"},"id":"b","type":"function"}]},)"
            R"({"content":"1","role":"tool","tool_call_id":"a"}]})");
}

TEST(ApiResponsesRequest, FlatToolsAndFormats) {
  EXPECT_EQ(chat_of(R"({"input":"x","tools":[{"type":"function","name":"f","parameters":{}}],
                        "tool_choice":{"type":"function","name":"f"},"reasoning":{"effort":"low"},
                        "text":{"format":{"type":"json_schema","name":"n","schema":{"a":1}}}})"),
            R"({"messages":[{"content":"x","role":"user"}],"reasoning_effort":"low","response_format":)"
            R"({"json_schema":{"name":"n","schema":{"a":1}},"type":"json_schema"},"tool_choice":)"
            R"({"function":{"name":"f"},"type":"function"},"tools":[{"function":{"name":"f","parameters":{}},)"
            R"("type":"function"}]})");
}

TEST(ApiResponsesRequest, WhatIsRefused) {
  const auto expect = [](const std::string& body, int status, const std::string& code, const std::string& param) {
    const ApiError error = translate(body).error;
    EXPECT_EQ(error.status, status) << body;
    EXPECT_EQ(error.code, code) << body;
    EXPECT_EQ(error.param, param) << body;
  };
  expect("{}", 400, "missing_required_parameter", "input");
  expect(R"({"input":5})", 400, "invalid_type", "input");
  expect(R"({"input":"x","background":true})", 400, "unsupported_parameter", "background");
  expect(R"({"input":"x","prompt":{"id":"p"}})", 400, "unsupported_parameter", "prompt");
  expect(R"({"input":"x","previous_response_id":"resp_1"})", 400, "invalid_value", "previous_response_id");
  expect(R"({"input":[{"type":"web_search_call"}]})", 400, "unsupported_content_type", "input[0]");
  expect(R"({"input":[{"type":"function_call","name":"f"}]})", 400, "missing_required_parameter", "input[0].call_id");
  expect(R"({"input":[{"type":"function_call_output","call_id":"a"}]})", 400, "missing_required_parameter",
         "input[0].output");
  expect(R"({"input":["x"]})", 400, "invalid_type", "input[0]");
}

TEST(ApiResponsesRequest, StoredConversations) {
  ResponseStore stored(2);
  for (const char* id : {"a", "b", "c"}) stored.put(id, JsonArray{JsonObject{{"role", "user"}, {"content", id}}});
  EXPECT_EQ(stored.get("a"), std::nullopt);
  const Translated after = translate(R"({"input":"new","previous_response_id":"c"})", stored);
  EXPECT_EQ(after.out.items.size(), 2u);
  EXPECT_EQ(after.out.chat.at("messages").at(0).at("content"), "c");
  EXPECT_EQ(translate(R"({"input":"new","previous_response_id":"a"})", stored).error.status, 404);
}

TEST(ApiResponsesRequest, StoredConversationsAreTheirOwners) {
  ResponseStore stored(4);
  stored.put("same", JsonArray{"mine"}, "A");
  stored.put("same", JsonArray{"theirs"}, "B");
  EXPECT_EQ(stored.get("same", "A"), JsonArray{"mine"});
  EXPECT_EQ(stored.get("same", "B"), JsonArray{"theirs"});
  EXPECT_EQ(stored.get("same", "C"), std::nullopt);
}

ResponseView view() {
  ResponseView out;
  out.answer.id = "resp_1", out.answer.model = "m", out.answer.created = 5;
  return out;
}

std::vector<std::string> types(const std::string& events) {
  std::vector<std::string> out;
  int64_t number = 0;
  for (const Json& data : frames_of(events)) {
    out.emplace_back(data.at("type").as_string());
    EXPECT_NE(events.find("event: " + out.back() + "\ndata: {\"type\":\"" + out.back() +
                          "\",\"sequence_number\":" + std::to_string(number) + ","),
              std::string::npos);
    EXPECT_EQ(data.at("sequence_number"), number++);
  }
  return out;
}

std::string events_of(const std::vector<Chunk>& said, const ChoiceEnd& end = {}) {
  ResponseEvents events(view());
  std::string out;
  events.start(out);
  for (const Chunk& chunk : said) events.chunk(chunk, out);
  events.finish(end, out);
  events.end(out);
  return out;
}

TEST(ApiResponsesAnswer, EventsOfText) {
  const std::string events = events_of({{.text = "Par"}, {.text = "is"}});
  EXPECT_THAT(types(events),
              ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                          "response.content_part.added", "response.output_text.delta", "response.output_text.delta",
                          "response.output_text.done", "response.content_part.done", "response.output_item.done",
                          "response.completed"));
  EXPECT_EQ(events.find("[DONE]"), std::string::npos);
  const Json last = frames_of(events).back().at("response");
  EXPECT_EQ(last.at("status"), "completed");
  EXPECT_EQ(last.at("output").at(0).at("content").at(0).at("text"), "Paris");
  EXPECT_EQ(frames_of(events)[6].at("text"), "Paris");
}

TEST(ApiResponsesAnswer, EventsOfReasoningAndCalls) {
  const std::string events = events_of(
      {{.text = "", .reasoning = "hm"},
       {.text = "", .tool_calls = {{.index = 0, .id = "call_a", .name = "f", .arguments = "{\"a\""}}},
       {.text = "", .tool_calls = {{.index = 0, .arguments = ":1}"}, {.index = 1, .id = "call_b", .name = "g"}}}});
  EXPECT_THAT(types(events),
              ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                          "response.reasoning_text.delta", "response.reasoning_text.done", "response.output_item.done",
                          "response.output_item.added", "response.function_call_arguments.delta",
                          "response.function_call_arguments.delta", "response.function_call_arguments.done",
                          "response.output_item.done", "response.output_item.added",
                          "response.function_call_arguments.done", "response.output_item.done", "response.completed"));
  const JsonArray output = frames_of(events).back().at("response").at("output").as_array();
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[0].at("type"), "reasoning");
  EXPECT_EQ(output[1].at("call_id"), "call_a");
  EXPECT_EQ(output[1].at("arguments"), "{\"a\":1}");
  EXPECT_EQ(output[2].at("name"), "g");
}

TEST(ApiResponsesAnswer, CutAndFailed) {
  const std::string cut = events_of({{.text = "Par"}}, {.reason = FinishReason::length});
  const Json response = frames_of(cut).back().at("response");
  EXPECT_EQ(types(cut).back(), "response.incomplete");
  EXPECT_EQ(response.at("incomplete_details").at("reason"), "max_output_tokens");
  EXPECT_EQ(response.at("output").at(0).at("status"), "incomplete");
  ResponseEvents events(view());
  std::string out;
  events.start(out);
  events.fail({500, "internal_error", "nan"}, out);
  EXPECT_EQ(types(out).back(), "response.failed");
  EXPECT_EQ(frames_of(out).back().at("response").at("error").at("code"), "internal_error");
}

TEST(ApiResponses, OverTheDemoModel) {
  ApiServer server({}, {.response_store_size = 4});
  const std::string body = R"({"input":"What sound does an owl make?","temperature":0,"max_output_tokens":24)";
  const auto whole = server.call(&Api::responses, body + "}");
  ASSERT_EQ(whole->response().status, 200) << whole->body();
  const Json answer = whole->json();
  EXPECT_EQ(answer.at("object"), "response");
  EXPECT_EQ(answer.at("id"), "resp_test-1");
  const Json message = answer.at("output").as_array().back();
  const std::string text(message.at("content").at(0).at("text").as_string());
  EXPECT_GT(text.size(), 5u);
  EXPECT_EQ(answer.at("usage").at("total_tokens").as_int64(),
            answer.at("usage").at("input_tokens").as_int64() + answer.at("usage").at("output_tokens").as_int64());
  const auto stream = server.call(&Api::responses, body + ",\"stream\":true}");
  EXPECT_EQ(frames_of(stream->body()).back().at("response").at("output").as_array().back(), message);
  const auto next = server.call(&Api::responses,
                                R"({"input":"And a cow?","max_output_tokens":4,"previous_response_id":"resp_test-1"})");
  EXPECT_GT(next->json().at("usage").at("input_tokens").as_int64(), answer.at("usage").at("input_tokens").as_int64());
  EXPECT_EQ(answer.at("temperature"), 0);
  EXPECT_EQ(next->json().at("temperature"), 0.8);  // the model's
  EXPECT_EQ(next->json().at("top_p"), 0.95);
}

TEST(ApiResponses, ErrorsUseItsOwnNames) {
  ApiServer server;
  const auto error = [&](const std::string& body) {
    return server.call(&Api::responses, body)->json().at("error").as_object();
  };
  EXPECT_EQ(error(R"({"input":[]})").at("param"), "input");
  EXPECT_EQ(error(R"({"input":"x","max_output_tokens":0})").at("param"), "max_output_tokens");
  EXPECT_EQ(error(R"({"input":"x","max_output_tokens":4000})").at("param"), "max_output_tokens");
  EXPECT_EQ(error(R"({"input":[{"role":"robot","content":"x"}]})").at("param"), "input[0]");
  EXPECT_EQ(error(R"({"input":[{"content":"x"},{"type":"function_call","call_id":"a","name":"f"}]})").at("param"),
            "input[0].role");
  EXPECT_EQ(error(R"({"input":"x","tools":[{"type":"web_search"}]})").at("param"), "tools[0].type");
  EXPECT_EQ(error(R"({"input":"x","tools":[{"type":"function"}]})").at("param"), "tools[0].name");
  EXPECT_EQ(error(R"({"input":"x","text":{"format":{"type":"json_schema"}}})").at("param"), "text.format");
}

}  // namespace
}  // namespace moesaic
