// Reading requests: each row of the error table, each boundary of the parameters, just inside and just outside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/chat_request.h"
#include "server/completion_request.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

constexpr int64_t kVocab = 64;

ApiOptions options() {
  ApiOptions out;
  out.served_names = {"kimi", "other"};
  return out;
}

struct Facts {
  ApiOptions server = options();
  bool vision = false;
  SamplingParams defaults = {};
  ChatFormat format = ChatFormat::plain;
  ModelFacts facts() const {
    return {.options = server,
            .vocab = kVocab,
            .max_model_len = 2048,
            .vision = vision,
            .format = format,
            .default_sampling = defaults};
  }
};

struct ReadChat {
  ChatRequest request;
  ApiError error;
};

// `fields` go into a body that is fine without them.
ReadChat chat(const std::string& fields, const Facts& facts = {},
              const std::string& messages = R"([{"role":"user","content":"hi"}])") {
  ReadChat out;
  const std::string body = "{\"messages\":" + messages + (fields.empty() ? "" : "," + fields) + "}";
  out.request = read_chat_request(parse_json(body, "body").as_object(), facts.facts(), out.error);
  return out;
}

struct ReadCompletion {
  CompletionRequest request;
  ApiError error;
};

ReadCompletion completion(const std::string& fields, const std::string& prompt = "\"hi\"", const Facts& facts = {}) {
  ReadCompletion out;
  const std::string body = "{\"prompt\":" + prompt + (fields.empty() ? "" : "," + fields) + "}";
  out.request = read_completion_request(parse_json(body, "body").as_object(), facts.facts(), out.error);
  return out;
}

#define EXPECT_REFUSED(read, want_status, want_code, want_param) \
  do {                                                           \
    const ApiError refused = (read).error;                       \
    EXPECT_EQ(refused.status, want_status) << refused.message;   \
    EXPECT_EQ(refused.code, want_code) << refused.message;       \
    EXPECT_EQ(refused.param, want_param) << refused.message;     \
    EXPECT_FALSE(refused.message.empty());                       \
  } while (false)

struct Boundary {
  const char* field;
  std::vector<const char*> inside, outside;
};

TEST(ApiRequest, EachBoundaryOfAParameter) {
  const std::vector<Boundary> boundaries = {
      {"temperature", {"0", "2", "2.0", "1e-6", "0.5"}, {"-0.001", "2.001", "1e999", "-1e999"}},
      {"top_p", {"1", "0.001"}, {"0", "1.001", "-1"}},
      {"top_k", {"-1", "0", "1", "1000000000000", "40.0"}, {"-2", "1.5"}},
      {"min_p", {"0", "1"}, {"-0.001", "1.001"}},
      {"presence_penalty", {"-2", "2"}, {"-2.001", "2.001"}},
      {"frequency_penalty", {"-2", "2"}, {"-2.001", "2.001"}},
      {"repetition_penalty", {"0.001", "100"}, {"0", "-1", "1e999"}},
      {"seed", {"-1", "0", "9223372036854775807", "-9223372036854775808"}, {"9223372036854775808", "0.5"}},
      {"n", {"1", "8"}, {"0", "9", "-1"}},
      {"max_tokens", {"1", "2048"}, {"0", "-1", "1.5"}},
      {"max_completion_tokens", {"1"}, {"0", "-1"}},
      {"min_tokens", {"0", "10"}, {"-1"}},
      {"prompt_logprobs", {"0", "20"}, {"-1", "21"}},
      {"stop",
       {"\"a\"", "[]", "[\"a\"]", R"(["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16"])"},
       {"\"\"", "[\"\"]", R"(["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])"}},
      {"stop_token_ids", {"[]", "[0,63]"}, {"[64]", "[-1]", "[2147483648]", "[0.5]"}},
      {"cache_salt", {"\"a\""}, {"\"\""}},
      {"request_id", {"\"a\""}, {"\"\""}},
      {"priority", {"0"}, {"1", "-1"}},
  };
  for (const Boundary& b : boundaries) {
    for (const char* value : b.inside) {
      const auto read = chat("\"" + std::string(b.field) + "\":" + value);
      EXPECT_FALSE(read.error) << b.field << " = " << value << ": " << read.error.message;
    }
    for (const char* value : b.outside) {
      const auto read = chat("\"" + std::string(b.field) + "\":" + value);
      EXPECT_REFUSED(read, 400, "invalid_value", b.field);
      EXPECT_THAT(read.error.message, HasSubstr(b.field)) << value;
    }
  }
}

TEST(ApiRequest, LengthsOfTexts) {
  const std::string salt(1024, 's'), id(128, 'i');
  EXPECT_FALSE(chat("\"cache_salt\":\"" + salt + "\"").error);
  EXPECT_REFUSED(chat("\"cache_salt\":\"" + salt + "s\""), 400, "invalid_value", "cache_salt");
  EXPECT_FALSE(chat("\"rid\":\"" + id + "\"").error);
  EXPECT_REFUSED(chat("\"rid\":\"" + id + "i\""), 400, "invalid_value", "rid");
}

TEST(ApiRequest, EachTypeIsChecked) {
  const std::pair<const char*, const char*> wrong[] = {{"temperature", "\"hot\""},
                                                       {"top_p", "true"},
                                                       {"top_k", "\"1\""},
                                                       {"seed", "[1]"},
                                                       {"stream", "1"},
                                                       {"stream_options", "\"x\""},
                                                       {"n", "\"2\""},
                                                       {"stop", "3"},
                                                       {"stop", "[3]"},
                                                       {"stop_token_ids", "3"},
                                                       {"stop_token_ids", "[\"3\"]"},
                                                       {"logit_bias", "[]"},
                                                       {"logprobs", "1"},
                                                       {"top_logprobs", "true"},
                                                       {"max_tokens", "\"many\""},
                                                       {"ignore_eos", "\"yes\""},
                                                       {"response_format", "\"json\""},
                                                       {"structured_outputs", "1"},
                                                       {"tools", "{}"},
                                                       {"tool_choice", "1"},
                                                       {"parallel_tool_calls", "0"},
                                                       {"reasoning_effort", "3"},
                                                       {"include_reasoning", "0"},
                                                       {"chat_template_kwargs", "[]"},
                                                       {"cache_salt", "1"},
                                                       {"priority", "\"high\""},
                                                       {"user", "7"},
                                                       {"request_id", "7"},
                                                       {"model", "7"},
                                                       {"skip_special_tokens", "0"},
                                                       {"include_stop_str_in_output", "0"},
                                                       {"return_token_ids", "1"},
                                                       {"continue_final_message", "1"}};
  for (const auto& [field, value] : wrong)
    EXPECT_REFUSED(chat("\"" + std::string(field) + "\":" + value), 400, "invalid_type", field);
}

TEST(ApiRequest, NullIsAbsent) {
  std::string fields;
  for (const char* field : {"temperature",
                            "top_p",
                            "top_k",
                            "seed",
                            "stream",
                            "stream_options",
                            "n",
                            "stop",
                            "stop_token_ids",
                            "logit_bias",
                            "logprobs",
                            "top_logprobs",
                            "max_tokens",
                            "max_completion_tokens",
                            "response_format",
                            "structured_outputs",
                            "tools",
                            "tool_choice",
                            "parallel_tool_calls",
                            "reasoning_effort",
                            "chat_template_kwargs",
                            "chat_template",
                            "cache_salt",
                            "priority",
                            "user",
                            "request_id",
                            "model",
                            "functions",
                            "function_call",
                            "prompt_logprobs"})
    fields += (fields.empty() ? "\"" : ",\"") + std::string(field) + "\":null";
  const auto read = chat(fields);
  EXPECT_FALSE(read.error) << read.error.message;
  EXPECT_EQ(read.request.answer.model, "kimi");
}

TEST(ApiRequest, UnknownAndIgnoredFieldsAreNoErrors) {
  EXPECT_FALSE(chat(R"("metadata":{"a":1},"store":true,"service_tier":"auto","verbosity":"low","modalities":["text"],)"
                    R"("prediction":{},"audio":null,"web_search_options":{},"prompt_cache_key":"k","new_field":[1])")
                   .error);
}

TEST(ApiRequest, ModelDefaultsAndTheCallersValues) {
  Facts facts;
  facts.defaults = {.temperature = 0.8f, .top_p = 0.95f};
  const auto none = chat("", facts).request.answer.request.sampling;
  EXPECT_EQ(none.temperature, 0.8f);
  EXPECT_EQ(none.top_p, 0.95f);
  const auto some = chat("\"temperature\":0,\"seed\":7,\"top_k\":5", facts).request.answer.request.sampling;
  EXPECT_EQ(some.temperature, 0);
  EXPECT_EQ(some.top_p, 0.95f);
  EXPECT_EQ(some.seed, 7u);
  EXPECT_EQ(some.top_k, 5);
  EXPECT_EQ(chat("\"seed\":-1").request.answer.request.sampling.seed, std::nullopt);
}

TEST(ApiRequest, MaxCompletionTokensWins) {
  const auto read = chat("\"max_tokens\":5,\"max_completion_tokens\":9");
  EXPECT_EQ(read.request.answer.max_tokens, 9);
  EXPECT_EQ(read.request.answer.names.max_tokens, "max_completion_tokens");
  EXPECT_EQ(chat("").request.answer.max_tokens, std::nullopt);
  EXPECT_REFUSED(chat("\"max_tokens\":5,\"min_tokens\":6"), 400, "invalid_value", "min_tokens");
}

TEST(ApiRequest, Models) {
  EXPECT_EQ(chat("\"model\":\"other\"").request.answer.model, "kimi");  // the first name is echoed
  EXPECT_REFUSED(chat("\"model\":\"gpt-4\""), 404, "model_not_found", "model");
  EXPECT_EQ(chat("\"model\":\"gpt-4\"").error.message,
            R"(the model "gpt-4" is not served here; expected "kimi" or "other")");
  Facts any;
  any.server.any_model_name = true;
  EXPECT_FALSE(chat("\"model\":\"gpt-4\"", any).error);
}

TEST(ApiRequest, FieldsThatNeedEachOther) {
  EXPECT_REFUSED(chat("\"stream_options\":{\"include_usage\":true}"), 400, "invalid_value", "stream_options");
  EXPECT_TRUE(chat("\"stream\":true,\"stream_options\":{\"include_usage\":true}").request.answer.include_usage);
  EXPECT_REFUSED(chat("\"top_logprobs\":2"), 400, "invalid_value", "top_logprobs");
  EXPECT_REFUSED(chat("\"logprobs\":true,\"top_logprobs\":21"), 400, "invalid_value", "top_logprobs");
  EXPECT_EQ(chat("\"logprobs\":true").request.answer.request.sampling.logprobs, 0);
  EXPECT_EQ(chat("\"logprobs\":true,\"top_logprobs\":20").request.answer.request.sampling.logprobs, 20);
  EXPECT_REFUSED(chat("\"prompt_logprobs\":1,\"stream\":true"), 400, "invalid_value", "prompt_logprobs");
  EXPECT_REFUSED(chat("\"add_generation_prompt\":true,\"continue_final_message\":true"), 400, "invalid_value",
                 "continue_final_message");
  EXPECT_REFUSED(chat("\"continue_final_message\":true"), 400, "invalid_value", "continue_final_message");
  EXPECT_FALSE(chat("\"continue_final_message\":true", {}, R"([{"role":"assistant","content":"Once"}])").error);
  EXPECT_REFUSED(chat("\"chat_template\":\"{{ 1 }}\""), 400, "invalid_value", "chat_template");
  Facts trusting;
  trusting.server.trust_request_chat_template = true;
  EXPECT_FALSE(chat("\"chat_template\":\"{{ 1 }}\"", trusting).error);
  trusting.server.priorities = true;
  EXPECT_EQ(chat("\"priority\":-3", trusting).request.answer.request.priority, -3);
}

// FC-047: also where OpenAI's documentation would clamp.
TEST(ApiRequest, FC047_LogitBias) {
  for (const char* bias : {R"({"999999":5})", R"({"64":5})", R"({"-1":5})", R"({"AI":-100})", R"({"":1})",
                           R"({"5":"x"})", R"({"5":1e9})", R"({"5":100.001})", R"({"5":-100.001})", R"({"5":null})",
                           R"({" 5":1})", R"({"0x5":1})", R"({"99999999999999999999":1})"})
    EXPECT_REFUSED(chat("\"logit_bias\":" + std::string(bias)), 400, "invalid_value", "logit_bias");
  const auto read = chat(R"("logit_bias":{"5":-100,"63":100})");
  EXPECT_FALSE(read.error);
  using Bias = std::vector<std::pair<int32_t, float>>;
  EXPECT_EQ(read.request.answer.request.sampling.logit_bias, (Bias{{5, -100}, {63, 100}}));
}

// FC-048: the same check for all ids.
TEST(ApiRequest, FC048_StopTokenIds) {
  for (const char* ids : {"[64]", "[-1]", "[2147483648]"})
    EXPECT_REFUSED(chat("\"min_tokens\":4,\"stop_token_ids\":" + std::string(ids)), 400, "invalid_value",
                   "stop_token_ids");
  EXPECT_EQ(chat("\"stop_token_ids\":[63]").request.answer.request.stop_token_ids, std::vector<int32_t>{63});
}

TEST(ApiRequest, Tools) {
  const std::string tool = R"({"type":"function","function":{"name":"f","parameters":{"type":"object"}}})";
  const auto with = [&](const std::string& more) { return chat("\"tools\":[" + tool + "]" + more); };
  EXPECT_EQ(with("").request.tools.choice, ToolFields::Choice::automatic);
  EXPECT_EQ(with(",\"tool_choice\":\"none\"").request.tools.choice, ToolFields::Choice::none);
  EXPECT_EQ(with(",\"tool_choice\":\"required\"").request.tools.choice, ToolFields::Choice::required);
  const auto named = with(R"(,"tool_choice":{"type":"function","function":{"name":"f"}})");
  EXPECT_EQ(named.request.tools.choice, ToolFields::Choice::named);
  EXPECT_EQ(named.request.tools.name, "f");
  EXPECT_REFUSED(with(R"(,"tool_choice":{"type":"function","function":{"name":"g"}})"), 400, "invalid_value",
                 "tool_choice");
  EXPECT_REFUSED(with(",\"tool_choice\":\"maybe\""), 400, "invalid_value", "tool_choice");
  EXPECT_REFUSED(with(",\"tool_choice\":{}"), 400, "invalid_value", "tool_choice");
  EXPECT_REFUSED(chat("\"tool_choice\":\"required\""), 400, "invalid_value", "tool_choice");
  EXPECT_REFUSED(chat("\"tool_choice\":\"auto\""), 400, "invalid_value", "tool_choice");
  EXPECT_FALSE(chat("\"tool_choice\":\"none\"").error);
  EXPECT_REFUSED(chat("\"tools\":[]"), 400, "empty_array", "tools");
  EXPECT_REFUSED(chat("\"tools\":[{}]"), 400, "missing_required_parameter", "tools[0].type");
  EXPECT_REFUSED(chat("\"tools\":[3]"), 400, "invalid_type", "tools[0]");
  EXPECT_REFUSED(chat(R"("tools":[{"type":"web_search"}])"), 400, "invalid_value", "tools[0].type");
  EXPECT_REFUSED(chat(R"("tools":[{"type":"function"}])"), 400, "missing_required_parameter", "tools[0].function");
  EXPECT_REFUSED(chat(R"("tools":[{"type":"function","function":{}}])"), 400, "missing_required_parameter",
                 "tools[0].function.name");
  EXPECT_REFUSED(chat(R"("tools":[{"type":"function","function":{"name":"f","parameters":1}}])"), 400, "invalid_type",
                 "tools[0].function.parameters");
  EXPECT_REFUSED(chat("\"functions\":[]"), 400, "invalid_value", "functions");
  EXPECT_REFUSED(chat("\"function_call\":\"auto\""), 400, "invalid_value", "function_call");
}

TEST(ApiRequest, NamesAndNumbersOfTools) {
  const auto named = [](const std::string& name) {
    return chat(R"("tools":[{"type":"function","function":{"name":")" + name + "\"}}]");
  };
  EXPECT_FALSE(named("a.B-c_9").error);
  EXPECT_FALSE(named(std::string(64, 'x')).error);
  for (const std::string& bad : {std::string(), std::string("a b"), std::string("\xc3\xa9"), std::string(65, 'x')})
    EXPECT_REFUSED(named(bad), 400, "invalid_value", "tools[0].function.name");
  const auto many = [](int count) {
    std::string tools;
    for (int i = 0; i < count; ++i)
      tools += (i > 0 ? "," : "") + std::string(R"({"type":"function","function":{"name":"f"}})");
    return chat("\"tools\":[" + tools + "]");
  };
  EXPECT_FALSE(many(128).error);
  EXPECT_REFUSED(many(129), 400, "invalid_value", "tools");
}

TEST(ApiRequest, StructuredOutput) {
  using Kind = GrammarSource::Kind;
  const auto source = [](const std::string& fields) {
    const auto read = chat(fields);
    EXPECT_FALSE(read.error) << read.error.message;
    return read.request.answer.structured.value_or(StructuredOutput{});
  };
  EXPECT_FALSE(chat(R"("response_format":{"type":"text"})").request.answer.structured);
  EXPECT_EQ(source(R"("response_format":{"type":"json_object"})").source.kind, Kind::json_object);
  const auto schema = source(R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"a":1}}})");
  EXPECT_EQ(schema.source.kind, Kind::json_schema);
  EXPECT_EQ(schema.source.text, "{\"a\":1}");
  EXPECT_EQ(schema.param, "response_format.json_schema.schema");
  EXPECT_EQ(source(R"("structured_outputs":{"json":{"a":1}})").source.text, "{\"a\":1}");
  EXPECT_EQ(source(R"("structured_outputs":{"regex":"a+"})").source.kind, Kind::regex);
  EXPECT_EQ(source(R"("structured_outputs":{"grammar":"root ::= x"})").source.kind, Kind::grammar);
  EXPECT_EQ(source(R"("structured_outputs":{"json_object":true})").source.kind, Kind::json_object);
  EXPECT_EQ(source(R"("guided_choice":["a.b","c"])").source.text, "(a\\.b|c)");
  EXPECT_EQ(source(R"("regex":"a+")").param, "regex");
  EXPECT_EQ(source(R"("ebnf":"root ::= x")").source.kind, Kind::grammar);
  EXPECT_EQ(source(R"("json_schema":"{\"a\":1}")").source.text, "{\"a\":1}");
}

TEST(ApiRequest, StructuredOutputErrors) {
  EXPECT_REFUSED(chat(R"("response_format":{"type":"json_schema"})"), 400, "missing_required_parameter",
                 "response_format");
  EXPECT_REFUSED(chat(R"("response_format":{"type":"json_schema","schema":{}})"), 400, "missing_required_parameter",
                 "response_format");
  EXPECT_REFUSED(chat(R"("response_format":{"type":"json_schema","json_schema":{"name":"x"}})"), 400,
                 "missing_required_parameter", "response_format.json_schema.schema");
  EXPECT_REFUSED(chat(R"("response_format":{"type":"xml"})"), 400, "invalid_value", "response_format.type");
  EXPECT_REFUSED(chat(R"("response_format":{})"), 400, "missing_required_parameter", "response_format.type");
  EXPECT_REFUSED(chat(R"("guided_choice":[])"), 400, "invalid_value", "guided_choice");
  EXPECT_REFUSED(chat(R"("structured_outputs":{"choice":["a",1]})"), 400, "invalid_value", "structured_outputs.choice");
  EXPECT_REFUSED(chat(R"("structured_outputs":{"regex":"a","json":{}})"), 400, "invalid_value",
                 "structured_outputs.regex");
  EXPECT_REFUSED(chat(R"("response_format":{"type":"json_object"},"guided_regex":"a")"), 400, "invalid_value",
                 "guided_regex");
}

TEST(ApiRequest, WhatIsNotSupportedIsRefusedInsteadOfIgnored) {
  EXPECT_REFUSED(chat("\"thinking_token_budget\":10"), 400, "unsupported_parameter", "thinking_token_budget");
  EXPECT_FALSE(chat("\"thinking_token_budget\":-1").error);
  EXPECT_REFUSED(chat("\"logprob_token_ids\":[1]"), 400, "unsupported_parameter", "logprob_token_ids");
  EXPECT_REFUSED(chat("\"use_beam_search\":true"), 400, "unsupported_parameter", "use_beam_search");
}

TEST(ApiRequest, ReasoningEffort) {
  EXPECT_REFUSED(chat("\"reasoning_effort\":\"huge\""), 400, "invalid_value", "reasoning_effort");
}

TEST(ApiRequest, TemplateVariablesOfTheCallerWin) {
  Facts facts;
  facts.server.chat_template_kwargs = {{"a", 1}, {"b", 2}};
  const JsonObject kwargs = chat(R"("chat_template_kwargs":{"b":3,"c":4})", facts).request.template_kwargs;
  EXPECT_EQ(write_json(kwargs, {.sort_keys = true}), R"({"a": 1, "b": 3, "c": 4})");
}

TEST(ApiCompletionRequest, Prompts) {
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(std::get<std::string>(completion("").request.prompts.at(0)), "hi");
  EXPECT_EQ(completion("", R"(["a","b"])").request.prompts.size(), 2u);
  EXPECT_EQ(std::get<Ids>(completion("", "[1,2,63]").request.prompts.at(0)), (Ids{1, 2, 63}));
  EXPECT_EQ(completion("", "[[1],[2]]").request.prompts.size(), 2u);
  EXPECT_REFUSED(completion("", "null"), 400, "missing_required_parameter", "prompt");
  EXPECT_REFUSED(completion("", "5"), 400, "invalid_type", "prompt");
  EXPECT_REFUSED(completion("", "[]"), 400, "invalid_value", "prompt");
  EXPECT_REFUSED(completion("", "[[]]"), 400, "invalid_value", "prompt[0]");
  EXPECT_REFUSED(completion("", "[1,64]"), 400, "invalid_value", "prompt");
  EXPECT_REFUSED(completion("", "[-1]"), 400, "invalid_value", "prompt");
  EXPECT_REFUSED(completion("", "[1,\"a\"]"), 400, "invalid_type", "prompt");
  EXPECT_REFUSED(completion("", "[\"a\",{}]"), 400, "invalid_type", "prompt[1]");
}

TEST(ApiCompletionRequest, Lengths) {
  EXPECT_EQ(completion("").request.answer.max_tokens, std::nullopt);
  EXPECT_REFUSED(completion("\"max_tokens\":-1"), 400, "invalid_value", "max_tokens");
  EXPECT_REFUSED(completion("\"min_tokens\":17"), 400, "invalid_value", "min_tokens");
  EXPECT_FALSE(completion("\"min_tokens\":16").error);
}

// FC-051: nothing to generate is allowed where the prompt is scored.
TEST(ApiCompletionRequest, FC051_NoTokensOnlyWithEcho) {
  EXPECT_REFUSED(completion("\"max_tokens\":0"), 400, "invalid_value", "max_tokens");
  const auto read = completion("\"max_tokens\":0,\"echo\":true,\"logprobs\":1");
  EXPECT_FALSE(read.error);
  EXPECT_TRUE(read.request.answer.request.score_only);
  EXPECT_EQ(read.request.answer.request.prompt_logprobs, 1);
  EXPECT_FALSE(read.request.answer.prompt_logprobs);
}

TEST(ApiCompletionRequest, OtherFields) {
  EXPECT_REFUSED(completion("\"logprobs\":21"), 400, "invalid_value", "logprobs");
  EXPECT_REFUSED(completion("\"logprobs\":true"), 400, "invalid_type", "logprobs");
  EXPECT_EQ(completion("\"logprobs\":20").request.answer.request.sampling.logprobs, 20);
  EXPECT_REFUSED(completion("\"suffix\":\"x\""), 400, "unsupported_parameter", "suffix");
  EXPECT_FALSE(completion("\"suffix\":\"\"").error);
  EXPECT_REFUSED(completion("\"best_of\":2"), 400, "invalid_value", "best_of");
  EXPECT_FALSE(completion("\"best_of\":2,\"n\":2").error);
  EXPECT_REFUSED(completion("\"echo\":1"), 400, "invalid_type", "echo");
}

http::Request post(std::string body, std::string type = "application/json") {
  http::Request out;
  out.body = std::move(body);
  out.headers = {{"Content-Type", std::move(type)}};
  return out;
}

struct ReadBody {
  std::optional<JsonObject> body;
  ApiError error;
};
ReadBody body(const http::Request& request) {
  ReadBody out;
  out.body = parse_body(request, out.error);
  return out;
}

// FC-050: what is no JSON object at all.
TEST(ApiBody, FC050_MalformedBodiesAreRefused) {
  EXPECT_REFUSED(body(post("{")), 400, "invalid_json", "");
  EXPECT_REFUSED(body(post("[]")), 400, "invalid_json", "");
  EXPECT_REFUSED(body(post("")), 400, "invalid_json", "");
  EXPECT_REFUSED(body(post("{} x")), 400, "invalid_json", "");
  EXPECT_REFUSED(body(post("{\"a\":\"\xff\"}")), 400, "invalid_json", "");
  EXPECT_REFUSED(body(post("{\"a\":" + std::string(10'000, '['))), 400, "invalid_json", "");
  EXPECT_REFUSED(body(post("{\"a\":" + std::string(64, '[') + std::string(64, ']') + "}")), 400, "invalid_json", "");
  EXPECT_TRUE(body(post("{}")).body);
}

TEST(ApiBody, NumbersThatJsonDoesNotHaveNameTheirField) {
  EXPECT_REFUSED(body(post(R"({"a":"NaN","temperature":NaN})")), 400, "invalid_value", "temperature");
  EXPECT_REFUSED(body(post(R"({"temperature":-Infinity,"b":1})")), 400, "invalid_value", "temperature");
  EXPECT_REFUSED(body(post(R"({"a":"NaN",)")), 400, "invalid_json", "");
}

}  // namespace
}  // namespace moesaic
