// Answers of each format: content, reasoning and calls, as the models write them and as they should not.
#include "text/answer_formats.h"

namespace moesaic {
namespace {

ParsedAnswer parse(const FormatCase& c, std::string_view text, const Json& tools = tide_tools()) {
  return read_answer(c, tokens_of(c), tokens_of(c).ids(text), tools);
}

ParsedAnswer with_prompt(FormatCase c, const FormatCase& same, std::string_view prompt, std::string_view text) {
  c.prompt = prompt;
  return read_answer(c, tokens_of(same), tokens_of(same).ids(text), tide_tools());
}

ParsedAnswer answer(std::string content, std::string reasoning = "", std::vector<ParsedCall> calls = {},
                    int errors = 0) {
  return {std::move(content), std::move(reasoning), std::move(calls), errors};
}

const ParsedCall kBrest = {"", "tide", R"({"port": "Brest"})"};
const ParsedCall kBrestDays = {"", "tide", R"({"port": "Brest", "days": 3})"};

// The examples of shared/api.md, section 13.

TEST(AnswerParser, HarmonyCall) {
  EXPECT_EQ(parse(kHarmony,
                  "<|channel|>analysis<|message|>Need the tide table.<|end|><|start|>assistant<|channel|>commentary "
                  "to=functions.tide <|constrain|>json<|message|>{\"port\": \"Brest\"}<|call|>"),
            answer("", "Need the tide table.", {kBrest}));
  // The recipient may stand in the role.
  EXPECT_EQ(parse(kHarmony,
                  " to=functions.tide<|channel|>commentary json<|message|>{\"port\": \"Brest\"}<|call|><|start|>"
                  "assistant to=functions.f<|channel|>commentary<|message|><|call|>"),
            answer("", "", {kBrest, {"", "f", "{}"}}));
}

TEST(AnswerParser, HarmonyChannels) {
  EXPECT_EQ(parse(kHarmony,
                  "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final"
                  "<|message|>Done.\n<|return|>"),
            answer("I look.Done.\n"));
  for (const char* tool : {"browser.search", "python", "container.exec"})
    EXPECT_EQ(parse(kHarmony, std::string("<|channel|>analysis to=") + tool + " code<|message|>x<|call|>"),
              answer("", "x"));
  EXPECT_EQ(parse(kHarmony, "Hello"), answer("Hello"));
  EXPECT_EQ(parse(kHarmony, "<|channel|>final<|message|>a<|endoftext|>b"), answer("ab"));
  // The answer goes on where the prompt stopped.
  EXPECT_EQ(with_prompt(kHarmony, kHarmony, "<|start|>assistant<|channel|>analysis<|message|>So", " on<|end|>"),
            answer("", " on"));
  EXPECT_EQ(with_prompt(kHarmony, kHarmony, "<|start|>assistant<|channel|>final<|message|>Once", " more"),
            answer(" more"));
}

TEST(AnswerParser, FC062_HarmonyReturnAfterEnd) {
  for (const char* ending : {"", "<|end|>", "<|return|>", "<|end|><|return|>", "<|return|><|return|>", "<|call|>"})
    EXPECT_EQ(parse(kHarmony, std::string("<|channel|>final<|message|>Answer") + ending), answer("Answer"));
}

TEST(AnswerParser, TextThatLooksLikeAMarkerIsText) {
  const AnswerTokens& tokens = tokens_of(kHarmony);
  std::vector<int32_t> ids = tokens.ids("<|channel|>final<|message|>");
  for (const int32_t id : tokens.letters("<|end|><|call|>")) ids.push_back(id);
  EXPECT_EQ(read_answer(kHarmony, tokens, ids, {}), answer("<|end|><|call|>"));
  ids = tokens_of(kK2).letters("<think>x</think><|tool_call_begin|>");
  EXPECT_EQ(read_answer(kK2, tokens_of(kK2), ids, {}), answer("<think>x</think><|tool_call_begin|>"));
  ids = tokens_of(kGlm).letters("a</think>b<tool_call>f</tool_call>");
  EXPECT_EQ(read_answer(kGlm, tokens_of(kGlm), ids, tide_tools()), answer("", "a</think>b<tool_call>f</tool_call>"));
}

TEST(AnswerParser, DeepseekV3Call) {
  const std::string call =
      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>tide\n```json\n{\"port\": \"Brest\"}\n```<｜tool▁call▁end｜>";
  EXPECT_EQ(parse(kV3, "<think>\nHm.\n</think>\n\nOne moment.<｜tool▁calls▁begin｜>" + call + "\n" + call +
                           "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"),
            answer("One moment.", "Hm.", {kBrest, kBrest}));
  // Without fence, without the marker of the section, cut after the call.
  EXPECT_EQ(parse(kV3, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>tide\n{\"port\": \"Brest\"}<｜tool▁call▁end｜>"),
            answer("", "", {kBrest}));
  EXPECT_EQ(parse(kV3, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": \"```\"}\n```"),
            answer("", "", {{"", "f", "{\"a\": \"```\"}"}}));
}

TEST(AnswerParser, DeepseekV31Call) {
  const std::string call = "<｜tool▁call▁begin｜>tide<｜tool▁sep｜>{\"port\": \"Brest\"}<｜tool▁call▁end｜>";
  EXPECT_EQ(parse(kV31, "One moment.<｜tool▁calls▁begin｜>" + call + call + "<｜tool▁calls▁end｜>"),
            answer("One moment.", "", {kBrest, kBrest}));
  EXPECT_EQ(with_prompt(kV31, kV31, "<｜Assistant｜><think>", "Hm.</think>Yes."), answer("Yes.", "Hm."));
  // A tool may be called "function".
  EXPECT_EQ(parse(kV31, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"),
            answer("", "", {{"", "function", "{\"a\": 1}"}}));
  // An end that is missing.
  EXPECT_EQ(parse(kV31,
                  "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}"
                  "<｜tool▁calls▁end｜>"),
            answer("", "", {{"", "f", "{}"}, {"", "g", "{}"}}, 2));
}

std::string dsml_calls(const char* block) {
  std::string text = "\n\n<D" + std::string(block) +
                     ">\n<Dinvoke name=\"tide\">\n<Dparameter name=\"port\" string=\"true\">Brest</Dparameter>\n"
                     "<Dparameter name=\"days\" string=\"false\">3</Dparameter>\n</Dinvoke>\n</D" +
                     block + ">";
  for (size_t at = text.find('D'); at != std::string::npos; at = text.find('D', at + 10))
    text.replace(at, 1, "｜DSML｜");
  return text;
}

TEST(AnswerParser, DsmlCall) {
  EXPECT_EQ(parse(kV32, "One moment." + dsml_calls("function_calls") + "<｜end▁of▁sentence｜>"),
            answer("One moment.", "", {kBrestDays}));
  EXPECT_EQ(parse(kV4, "Hm.</think>One moment." + dsml_calls("tool_calls")),
            answer("One moment.", "Hm.", {kBrestDays}));
  // In the thinking, whose end is missing.
  EXPECT_EQ(parse(kV4, "Hm." + dsml_calls("tool_calls")), answer("", "Hm.", {kBrestDays}));
}

TEST(AnswerParser, DsmlValues) {
  const auto value = [](const char* flag, const std::string& text) {
    const ParsedAnswer parsed =
        parse(kV4, "</think><｜DSML｜invoke name=\"tide\">\n<｜DSML｜parameter name=\"port\"" + std::string(flag) +
                       ">" + text + "</｜DSML｜parameter>\n</｜DSML｜invoke>");
    return parsed.calls.size() == 1 ? parsed.calls[0].arguments : "no call";
  };
  const char *text = " string=\"true\"", *json = " string=\"false\"";
  EXPECT_EQ(value(text, "a \"b\"\n\\ </x> < é <think>"), R"({"port": "a \"b\"\n\\ </x> < é <think>"})");
  EXPECT_EQ(value(text, ""), R"({"port": ""})");
  EXPECT_EQ(value(json, " {\"a\": [1, 2.50]} "), R"({"port": {"a": [1, 2.50]}})");
  EXPECT_EQ(value(json, "not JSON"), R"({"port": "not JSON"})");
  EXPECT_EQ(value("", "12"), R"({"port": "12"})");  // a string by the tool's schema
}

TEST(AnswerParser, FC063_DsmlSameCallsForEveryCut) {
  std::string text =
      "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"search\">\n</｜DSML｜invoke>\n<｜DSML｜invoke "
      "name=\"run_query\">\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" "
      "string=\"false\">-7</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
  const ParsedAnswer want =
      answer("", "", {{"", "search", "{}"}, {"", "run_query", "{}"}, {"", "get_weather", "{\"city\": -7}"}});
  for (const FormatCase* c : {&kV32, &kV4}) {
    const std::vector<int32_t> ids = tokens_of(*c).ids((c == &kV4 ? "</think>" : "") + text);
    for (size_t cut = 0; cut <= ids.size(); ++cut) {
      AnswerReader reader(
          AnswerParser(c->format, tokens_of(*c).tokenizer(), tokens_of(*c).ids(c->prompt), JsonArray()));
      reader.push(std::span(ids).first(cut));
      reader.push(std::span(ids).subspan(cut));
      EXPECT_EQ(reader.finish(), want) << cut;
    }
    if (c == &kV32)
      for (size_t at = text.find("function_calls"); at != std::string::npos; at = text.find("function_calls"))
        text.replace(at, 14, "tool_calls");
  }
  // A tokenizer without the token: the letters are the marker.
  const FormatCase bare = {ChatFormat::deepseek_v4, {}, ""};
  EXPECT_EQ(read_answer(bare, AnswerTokens({}), AnswerTokens({}).ids(text), JsonArray()), want);
}

TEST(AnswerParser, FC064_NameAndArgumentsInOneStep) {
  const AnswerTokens& tokens = tokens_of(kV31);
  AnswerParser parser(kV31.format, tokens.tokenizer(), tokens.ids(kV31.prompt), JsonArray());
  const auto step = [&](std::string_view text) {
    AnswerDelta delta;
    for (const int32_t id : tokens.ids(text)) parser.push(id, delta);
    for (ToolCallDelta& call : delta.tool_calls)
      if (call.id.starts_with("call_") && call.id.size() == 29) call.id = "fresh";
    return delta.tool_calls;
  };
  using Deltas = std::vector<ToolCallDelta>;
  EXPECT_EQ(step("<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\""), (Deltas{{0, "fresh", "f", ""}, {0, "", "", "{\"a\""}}));
  EXPECT_EQ(step(": 1"), (Deltas{{0, "", "", ": 1"}}));
  EXPECT_EQ(step("}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{"),
            (Deltas{{0, "", "", "}"}, {1, "fresh", "g", ""}, {1, "", "", "{"}}));
}

TEST(AnswerParser, KimiK2Call) {
  const std::string call =
      "<|tool_call_begin|>functions.tide:7<|tool_call_argument_begin|>{\"port\": \"Brest\"}"
      "<|tool_call_end|>";
  const ParsedCall want = {"functions.tide:7", "tide", R"({"port": "Brest"})"};
  EXPECT_EQ(parse(kK2, "<think>Check the tide.</think>One moment.<|tool_calls_section_begin|>" + call + call +
                           "<|tool_calls_section_end|><|im_end|>"),
            answer("One moment.", "Check the tide.", {want, want}));
  // No section; the section's other name, which is no token; calls within the thinking.
  EXPECT_EQ(parse(kK2, "One moment." + call), answer("One moment.", "", {want}));
  EXPECT_EQ(parse(kK2, "<|tool_call_section_begin|>" + call + "<|tool_call_section_end|>"), answer("", "", {want}));
  EXPECT_EQ(parse(kK2, "<think>a" + call + "b</think>c"), answer("c", "ab", {want}));
  // A tool with a dot in its name; an id of another kind.
  EXPECT_EQ(parse(kK2, "<|tool_call_begin|>functions.a.b:0<|tool_call_argument_begin|><|tool_call_end|>"),
            answer("", "", {{"functions.a.b:0", "a.b", "{}"}}));
  EXPECT_EQ(parse(kK2, "<|tool_call_begin|>tide<|tool_call_argument_begin|>{}<|tool_call_end|>"),
            answer("", "", {{"tide", "tide", "{}"}}));
}

TEST(AnswerParser, KimiK2Malformed) {
  EXPECT_EQ(parse(kK2, "<|tool_call_begin|>functions.f:0<|tool_call_end|>"),
            answer("", "", {{"functions.f:0", "f", "{}"}}, 1));
  EXPECT_EQ(parse(kK2, "<|tool_call_begin|>no name<|tool_call_argument_begin|>{}<|tool_call_end|>"),
            answer("no name{}", "", {}, 2));
  EXPECT_EQ(parse(kK2, "<|tool_call_end|>a<|tool_call_argument_begin|>b"), answer("ab", "", {}, 2));
  // A cut answer keeps what it has of the arguments and shows nothing of the markup.
  EXPECT_EQ(parse(kK2, "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": "),
            answer("", "", {{"functions.f:0", "f", "{\"a\":"}}));
  EXPECT_EQ(parse(kK2, "x<|tool_calls_section_begin|><|tool_call_begin|>functions.f"), answer("x"));
}

const char kK3Call[] =
    "<|open|>tools<|sep|><|open|>call tool=\"tide\" index=\"1\"<|sep|><|open|>argument key=\"port\" "
    "type=\"string\"<|sep|>Brest<|close|>argument<|sep|><|open|>argument key=\"days\" type=\"number\"<|sep|>3<|close|>"
    "argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";

TEST(AnswerParser, KimiK3Call) {
  EXPECT_EQ(
      parse(kK3, "Check the tide.<|close|>think<|sep|><|open|>response<|sep|>One moment.<|close|>response<|sep|>" +
                     std::string(kK3Call)),
      answer("One moment.", "Check the tide.", {kBrestDays}));
  // The end of the thinking is missing.
  EXPECT_EQ(parse(kK3, "Hm.<|open|>response<|sep|>Yes."), answer("Yes.", "Hm."));
  EXPECT_EQ(parse(kK3, "Hm." + std::string(kK3Call)), answer("", "Hm.", {kBrestDays}));
  // Without thinking the prompt opens the response; all arguments at once; escaped attributes.
  const char* prompt = "<|end_of_msg|><|open|>message role=\"assistant\"<|sep|><|open|>response<|sep|>";
  EXPECT_EQ(with_prompt(kK3, kK3, prompt, "Yes.<|close|>response<|sep|><|close|>message<|sep|>"), answer("Yes."));
  EXPECT_EQ(parse(kK3,
                  "<|open|>call tool=\"f\"<|sep|><|open|>json type=\"object\"<|sep|>{\"a\": 1}<|close|>json<|sep|>"
                  "<|close|>call<|sep|>"),
            answer("", "", {{"", "f", "{\"a\": 1}"}}));
  EXPECT_EQ(parse(kK3,
                  "<|open|>call tool=\"f\"<|sep|><|open|>argument key=\"a&quot;&amp;quot;\" "
                  "type=\"boolean\"<|sep|>true<|close|>argument<|sep|><|close|>call<|sep|>"),
            answer("", "", {{"", "f", "{\"a\\\"&quot;\": true}"}}));
}

TEST(AnswerParser, KimiK3CutMarkersDoNotLeak) {
  const std::string whole =
      "Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|>" + std::string(kK3Call);
  const std::vector<int32_t> ids = tokens_of(kK3).ids(whole);
  const ParsedAnswer all = parse(kK3, whole);
  for (size_t length = 0; length <= ids.size(); ++length) {
    const ParsedAnswer part = read_answer(kK3, tokens_of(kK3), std::span(ids).first(length), tide_tools());
    EXPECT_TRUE(all.content.starts_with(part.content)) << part.content;
    EXPECT_TRUE(all.reasoning.starts_with(part.reasoning)) << part.reasoning;
    for (size_t i = 0; i < part.calls.size(); ++i) {
      EXPECT_EQ(part.calls[i].name, "tide");
      EXPECT_TRUE(all.calls[i].arguments.starts_with(part.calls[i].arguments)) << part.calls[i].arguments;
    }
  }
}

TEST(AnswerParser, GlmCall) {
  const std::string call =
      "<tool_call>tide<arg_key>port</arg_key><arg_value>Brest</arg_value><arg_key>days</arg_key><arg_value>3</"
      "arg_value>"
      "</tool_call>";
  EXPECT_EQ(parse(kGlm, "Hm.</think>One moment." + call + call + "<|user|>"),
            answer("One moment.", "Hm.", {kBrestDays, kBrestDays}));
  EXPECT_EQ(parse(kGlm,
                  "\nHm.</think>\nOne moment.\n<tool_call>tide\n<arg_key>port</arg_key>\n<arg_value>Brest"
                  "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n"),
            answer("One moment.", "Hm.", {kBrestDays}));
  EXPECT_EQ(parse(kGlm, "</think><tool_call>f</tool_call>"), answer("", "", {{"", "f", "{}"}}));
  EXPECT_EQ(with_prompt(kGlm, kGlm, "<|assistant|><think></think>", "Yes."), answer("Yes."));
}

TEST(AnswerParser, GlmValuesAreTypedByTheSchema) {
  const auto value = [](const std::string& key, const std::string& text) {
    const ParsedAnswer parsed = parse(
        kGlm, "</think><tool_call>tide<arg_key>" + key + "</arg_key><arg_value>" + text + "</arg_value></tool_call>");
    return parsed.calls.size() == 1 ? parsed.calls[0].arguments : "no call";
  };
  EXPECT_EQ(value("port", "3"), R"({"port": "3"})");
  EXPECT_EQ(value("port", "\"Brest\""), R"({"port": "\"Brest\""})");
  EXPECT_EQ(value("unit", "m"), R"({"unit": "m"})");
  EXPECT_EQ(value("days", "3"), R"({"days": 3})");
  EXPECT_EQ(value("days", "three"), R"({"days": "three"})");
  EXPECT_EQ(value("code", "null"), R"({"code": null})");
  EXPECT_EQ(value("code", "12"), R"({"code": "12"})");
  EXPECT_EQ(value("any", "{\"a\": 1}"), R"({"any": {"a": 1}})");
  EXPECT_EQ(value("any", "x"), R"({"any": "x"})");
  EXPECT_EQ(value("list", "[1]"), R"({"list": [1]})");
  EXPECT_EQ(value("unknown", "true"), R"({"unknown": true})");
  EXPECT_EQ(value("unknown", "yes"), R"({"unknown": "yes"})");
}

TEST(AnswerParser, GlmMalformed) {
  EXPECT_EQ(parse(kGlm, "</think><tool_call></tool_call>a"), answer("a", "", {}, 1));
  EXPECT_EQ(parse(kGlm, "</think><tool_call>f<arg_key>a</arg_key><arg_value>x</tool_call>"),
            answer("", "", {{"", "f", R"({"a": "x"})"}}, 1));
  EXPECT_EQ(parse(kGlm,
                  "</think><tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>a</arg_key>"
                  "<arg_value>2</arg_value></tool_call>"),
            answer("", "", {{"", "f", R"({"a": 1})"}}, 1));
  EXPECT_EQ(parse(kGlm, "</think><tool_call>" + std::string(5000, 'x')), answer(std::string(5000, 'x'), "", {}, 1));
}

TEST(AnswerParser, ThinkingBeginsInThePromptOrInTheAnswer) {
  for (const char* prompt : {"<|user|>Hi<think>", "<|user|>Hi<think>\n", "<|user|>Hi<think>\nWell"})
    EXPECT_EQ(with_prompt(kThinkCase, kThinkCase, prompt, "\nHm.\n</think>\n\nYes.\n"), answer("Yes.\n", "Hm."))
        << prompt;
  EXPECT_EQ(with_prompt(kThinkCase, kThinkCase, "<think><|user|>Hi", "Yes."), answer("Yes."));
  EXPECT_EQ(with_prompt(kThinkCase, kThinkCase, "<|user|>Hi<think>\n\n</think>\n\n", "Yes."), answer("Yes."));
  EXPECT_EQ(parse(kThinkCase, "<think>\nHm.\n</think>\n\nYes."), answer("Yes.", "Hm."));
  EXPECT_EQ(parse(kThinkCase, "<think>\nHm.\n\nWell"), answer("", "Hm.\n\nWell"));
  EXPECT_EQ(parse(kThinkCase, "A</think>B"), answer("AB", "", {}, 1));
  EXPECT_EQ(parse(kThinkCase, "\nA\n\nB\n"), answer("\nA\n\nB\n"));
}

TEST(AnswerParser, ThinkingByItsLetters) {
  const AnswerTokens none({});
  const auto read = [&](std::string_view prompt, std::string_view text) {
    return read_answer({ChatFormat::think, {}, std::string(prompt)}, none, none.ids(text), {});
  };
  EXPECT_EQ(read("", "<think>Hm.</think>Yes <think> or </think>."), answer("Yes <think> or </think>.", "Hm."));
  EXPECT_EQ(read("x<think>\n", "Hm.</think>Yes <"), answer("Yes <", "Hm."));
  EXPECT_EQ(read("x<think>\n", "Hm.</thi"), answer("", "Hm."));
  EXPECT_EQ(read("", "1 <2"), answer("1 <2"));
}

TEST(AnswerParser, QwenCall) {
  EXPECT_EQ(parse(kQwen,
                  "<think>\nHm.\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"tide\", \"arguments\": "
                  "{\"port\": \"Brest\"}}\n</tool_call>\n<tool_call>{\"name\":\"f\"}</tool_call><|im_end|>"),
            answer("One moment.", "Hm.", {kBrest, {"", "f", "{}"}}));
  EXPECT_EQ(parse(kQwen, "a<tool_call>b</tool_call>c"), answer("abc", "", {}, 1));
}

TEST(AnswerParser, QwenArgumentsComeAsTheyAreWritten) {
  const ParsedAnswer cut = parse(kQwen, "<tool_call>\n{\"name\": \"tide\", \"arguments\": {\"a\": [\"}\\\"\"], \"b");
  EXPECT_EQ(cut, answer("", "", {{"", "tide", "{\"a\": [\"}\\\"\"], \"b"}}));
  // In another order, or as a string, they come when the call has ended.
  EXPECT_EQ(parse(kQwen, "<tool_call>{\"arguments\": {\"port\": \"Brest\"}, \"name\": \"tide\"}</tool_call>"),
            answer("", "", {kBrest}));
  EXPECT_EQ(parse(kQwen, "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>"),
            answer("", "", {{"", "f", "{}"}}));
  EXPECT_EQ(parse(kQwen, "<tool_call>{\"name\": \"f\", \"arguments\": {}</tool_call>"),
            answer("", "", {{"", "f", "{}"}}));
  EXPECT_EQ(parse(kQwen, "<tool_call>{\"name\": \"f\", \"argu"), answer("", "", {}, 1));
}

// A stop string may end with a newline: it must not wait where it can only be text.
TEST(AnswerParser, NewlinesOfContentComeAtOnceWithoutTools) {
  for (const FormatCase* c : {&kThinkCase, &kPlain, &kHarmony}) {
    const AnswerTokens& tokens = tokens_of(*c);
    AnswerReader reader(AnswerParser(c->format, tokens.tokenizer(), tokens.ids(c->prompt), {}));
    reader.push(tokens.ids("a\n"));
    EXPECT_EQ(reader.so_far().content, "a\n") << chat_format_name(c->format);
  }
}

TEST(AnswerParser, KimiK3TextIsExact) {
  EXPECT_EQ(parse(kK3, "\nHm.\n<|close|>think<|sep|>\n<|open|>response<|sep|>\n a \n<|close|>response<|sep|>\n" +
                           std::string(kK3Call)),
            answer("\n a \n", "\nHm.\n", {kBrestDays}));
}

TEST(AnswerParser, PlainTextIsContent) {
  EXPECT_EQ(parse(kPlain, "<think>Hi\n</think><|eos|>"), answer("<think>Hi\n</think>"));
}

TEST(AnswerParser, WithoutToolsMarkupOfCallsIsContentWhereItIsText) {
  EXPECT_EQ(parse(kGlm, "</think><tool_call>f</tool_call>", Json()).calls.size(), 0U);
  const FormatCase bare = {ChatFormat::glm, {"<think>", "</think>"}, "<think>"};
  EXPECT_EQ(parse(bare, "</think><tool_call>f</tool_call>", Json()), answer("<tool_call>f</tool_call>"));
  EXPECT_EQ(parse(bare, "</think><tool_call>f</tool_call>"), answer("", "", {{"", "f", "{}"}}));
}

TEST(AnswerParser, InReasoningFollowsTheTokens) {
  const AnswerTokens& tokens = tokens_of(kHarmony);
  AnswerReader reader(AnswerParser(kHarmony.format, tokens.tokenizer(), tokens.ids(kHarmony.prompt), {}));
  EXPECT_FALSE(reader.parser().in_reasoning());
  reader.push(tokens.ids("<|channel|>analysis<|message|>a"));
  EXPECT_TRUE(reader.parser().in_reasoning());
  reader.push(tokens.ids("<|end|><|start|>assistant<|channel|>final<|message|>"));
  EXPECT_FALSE(reader.parser().in_reasoning());
}

// Whether each token of `text` is markup, as a letter each.
std::string markup_of(const FormatCase& format, std::string_view text) {
  const AnswerTokens& tokens = tokens_of(format);
  AnswerReader reader(AnswerParser(format.format, tokens.tokenizer(), tokens.ids(format.prompt), tide_tools()));
  std::string out;
  for (const int32_t token : tokens.ids(text)) {
    reader.push({&token, 1});
    out += reader.parser().in_markup() ? 'm' : '-';
  }
  return out;
}

TEST(AnswerParser, InMarkupTellsNamesOfChannelsFromText) {
  const std::string text = markup_of(kHarmony, "<|channel|>final<|message|>ab\nc");
  EXPECT_TRUE(text.starts_with("mm")) << text;
  EXPECT_TRUE(text.ends_with("-")) << text;
  EXPECT_EQ(text.find("-m"), std::string::npos) << text;  // the whole header, then nothing but text
  const std::string call = markup_of(kHarmony, "<|channel|>commentary to=functions.f<|message|>{}<|call|>");
  EXPECT_TRUE(call.ends_with("-m")) << call;
  EXPECT_EQ(markup_of(kPlain, "ab").find('m'), std::string::npos);
}

}  // namespace
}  // namespace moesaic
