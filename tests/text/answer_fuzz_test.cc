// Whatever an answer is and however it is cut, its parts are the same, and nothing throws.
#include "text/answer_fixtures.h"

namespace moesaic {
namespace {

// Prompts end in different places; pieces are what answers of the format are made of.
struct FuzzCase {
  ChatFormat format;
  std::vector<std::string> markers, prompts, pieces;
};

const std::vector<std::string> kCommon = {"a",   " b", "\n",     "\n\n", "{\"a\": ", "1}",   "\"x\"", "{}", "<", "</",
                                          "```", "é",  "❤️", "}",    "tide",     "port", "\\",    "\"", ">"};

std::vector<FuzzCase> cases() {
  return {
      {ChatFormat::plain, {"<|eos|>"}, {""}, {"<think>"}},
      {ChatFormat::think,
       {"<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>"},
       {"", "<think>", "<think>\n"},
       {"{\"name\": \"tide\", \"arguments\": {\"a\": 1}}", "<tool_call>{\"name\": \"tide\"}\n</tool_call>"}},
      {ChatFormat::think,
       {"<|im_end|>"},
       {"", "<think>"},
       {"<think>", "</think>", "<tool_call>", "</tool_call>", "<th", "<tool_call>{\"name\": \"tide\"}\n</tool_call>"}},
      {ChatFormat::harmony,
       {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>", "<|x|>"},
       {"<|start|>assistant", "", "<|start|>assistant<|channel|>analysis<|message|>"},
       {"assistant", "analysis", "final", "commentary", " to=functions.tide", "json", "to=python",
        "<|channel|>commentary to=functions.tide<|message|>"}},
      {ChatFormat::deepseek_v3,
       {"<think>", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜x｜>"},
       {"", "<think>"},
       {"function", "function<｜tool▁sep｜>tide\n```json\n{\"a\": 1}\n```", "\n```json\n"}},
      {ChatFormat::deepseek_v31,
       {"<think>", "</think>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"},
       {"", "<think>", "<think></think>"},
       {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁cal", "tide<｜tool▁sep｜>"}},
      {ChatFormat::deepseek_v32,
       {"<think>", "</think>", "｜DSML｜"},
       {"", "<think>"},
       {"<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>", "<｜DSML｜invoke name=\"tide\">\n",
        "</｜DSML｜invoke>\n", "<｜DSML｜parameter name=\"port\" string=\"true\">", "</｜DSML｜parameter>\n",
        "<｜DSML｜parameter name=\"days\" string=\"false\">", "<｜DSML｜invoke"}},
      {ChatFormat::deepseek_v4,
       {"<think>", "</think>"},
       {"", "<think>"},
       {"<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>", "<｜DSML｜invoke name=\"tide\">\n", "</｜DSML｜invoke>\n",
        "<｜DSML｜parameter name=\"port\">", "</｜DSML｜parameter>\n", "｜DSM", "｜DSML｜"}},
      {ChatFormat::kimi_k2,
       {"<think>", "</think>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|im_end|>"},
       {"", "<think>"},
       {"functions.tide:0", "<|tool_call_section_begin|>",
        "<|tool_call_begin|>functions.tide:1<|tool_call_argument_begin|>"}},
      {ChatFormat::kimi_k3,
       {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"},
       {"", "<|open|>message<|sep|><|open|>think<|sep|>"},
       {"think", "response", "tools", "<|open|>call tool=\"tide\" index=\"1\"<|sep|>", "<|close|>argument<|sep|>",
        "<|open|>argument key=\"port\" type=\"string\"<|sep|>", "<|open|>argument key=\"days\" type=\"number\"<|sep|>",
        "<|close|>call<|sep|>", "<|open|>json<|sep|>"}},
      {ChatFormat::glm,
       {"<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
       {"", "<think>"},
       {"<arg_key>port</arg_key><arg_value>", "<arg_key>days</arg_key>\n<arg_value>", "<tool_call>tide"}},
      {ChatFormat::glm,
       {"<think>", "</think>"},
       {"", "<think>"},
       {"<tool_call>tide", "</tool_call>", "<arg_key>any</arg_key>", "<arg_value>", "</arg_value>", "<arg_ke"}},
  };
}

std::string random_answer(const FuzzCase& c, Rng& rng) {
  const auto pick = [&](const std::vector<std::string>& from) -> const std::string& {
    return from[static_cast<size_t>(rng.below(static_cast<int64_t>(from.size())))];
  };
  std::string text;
  for (int64_t i = rng.below(16); i >= 0; --i) {
    const int64_t kind = rng.below(3);
    text += pick(kind == 0 ? kCommon : kind == 1 ? c.markers : c.pieces);
  }
  return text;
}

TEST(AnswerFuzz, AnyCutGivesTheSameParts) {
  constexpr int kRounds = 9000;  // of 12 formats: more than 10^5 answers
  Rng rng = fresh_rng();
  int64_t answers = 0, calls = 0, errors = 0;
  for (const FuzzCase& c : cases()) {
    const AnswerTokens tokens(c.markers);
    int64_t calls_here = 0;
    for (int round = 0; round < kRounds && !testing::Test::HasFailure(); ++round, ++answers) {
      const std::string text = random_answer(c, rng);
      const FormatCase format = {c.format, c.markers,
                                 c.prompts[static_cast<size_t>(rng.below(static_cast<int64_t>(c.prompts.size())))]};
      const Json tools = rng.below(4) == 0 ? Json() : tide_tools();
      const ParsedAnswer whole = read_answer(format, tokens, tokens.ids(text), tools);
      const std::vector<int32_t> cut = tokens.ids(text, &rng);
      EXPECT_EQ(read_answer(format, tokens, cut, tools, &rng), whole)
          << chat_format_name(c.format) << ", prompt " << format.prompt << ", answer " << text;
      calls_here += static_cast<int64_t>(whole.calls.size()), errors += whole.errors;
    }
    // So that the test keeps testing calls.
    if (c.format != ChatFormat::plain) {
      EXPECT_GT(calls_here, kRounds / 100) << chat_format_name(c.format);
    }
    calls += calls_here;
  }
  EXPECT_TRUE(testing::Test::HasFailure() || answers > 100'000) << answers;
  RecordProperty("answers", std::to_string(answers));
  RecordProperty("calls", std::to_string(calls));
  RecordProperty("errors", std::to_string(errors));
}

// Tokens in any order, also such as do not exist.
TEST(AnswerFuzz, AnyTokensAreAnAnswer) {
  Rng rng = fresh_rng();
  for (const FuzzCase& c : cases()) {
    const AnswerTokens tokens(c.markers);
    const int64_t vocab = tokens.tokenizer().vocab_size();
    for (int round = 0; round < 2000 && !testing::Test::HasFailure(); ++round) {
      std::vector<int32_t> ids;
      const auto markers = static_cast<int64_t>(c.markers.size());
      for (int64_t i = rng.below(30); i >= 0; --i)
        ids.push_back(
            static_cast<int32_t>(rng.below(2) == 0 ? vocab - 1 - rng.below(markers) : rng.below(vocab + 4) - 2));
      const FormatCase format = {c.format, c.markers, c.prompts.back()};
      const ParsedAnswer whole = read_answer(format, tokens, ids, tide_tools());
      EXPECT_EQ(read_answer(format, tokens, ids, tide_tools(), &rng), whole) << testing::PrintToString(ids);
    }
  }
}

// Arguments that are put together from parts are JSON whenever the call has ended, whatever the values are.
TEST(AnswerFuzz, ArgumentsFromPartsAreJson) {
  Rng rng = fresh_rng();
  for (int round = 0; round < 3000; ++round) {
    const std::string value = rng.below(2) == 0 ? random_text(rng, rng.below(12)) : random_bytes(rng, rng.below(12));
    const std::string glm = "<tool_call>tide<arg_key>port</arg_key><arg_value>" + value +
                            "</arg_value><arg_key>days</arg_key><arg_value>" + value + "</arg_value></tool_call>";
    static const AnswerTokens tokens(
        {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"});
    const ParsedAnswer parsed = read_answer({ChatFormat::glm, {}, ""}, tokens, tokens.ids(glm, &rng), tide_tools());
    ASSERT_EQ(parsed.calls.size(), 1U) << value;
    const Json arguments = parse_json(parsed.calls[0].arguments, "arguments");
    EXPECT_EQ(std::string(arguments.at("port").as_string()), replace_invalid_utf8(value)) << parsed.calls[0].arguments;
  }
}

}  // namespace
}  // namespace moesaic
