// What the grammars of answers accept: answers that the format's parser then takes apart as they were meant.
#include <algorithm>

#include "grammar/walk.h"
#include "text/answer_formats.h"

namespace moesaic {
namespace {

// Each token of the answer is allowed, and the answer may end after the last.
// `ends`: whether it may end after each.
bool accepts(const FormatCase& c, const AnswerShape& shape, std::string_view answer, Rng* cut = nullptr,
             std::vector<bool>* ends = nullptr) {
  const AnswerTokens& tokens = tokens_of(c);
  Result<GrammarSource> source = answer_grammar(c.format, tokens.tokenizer(), tokens.ids(c.prompt), shape);
  if (!source.ok()) return ADD_FAILURE() << source.status().message(), false;
  Result<std::shared_ptr<const Grammar>> grammar = compile_grammar(*source, tokens.tokenizer());
  if (!grammar.ok()) return ADD_FAILURE() << grammar.status().message() << "\n" << source->text, false;
  const int32_t end = tokens.tokenizer().vocab_size();  // a token of its own
  const TokenVocabulary vocabulary(tokens.tokenizer(), end + 1, {end});
  GrammarMatcher matcher(*grammar, vocabulary);
  for (const int32_t id : tokens.ids(answer, cut)) {
    if (!matcher.accept(id)) return false;
    if (ends != nullptr) ends->push_back(matcher.complete());
  }
  return matcher.complete();
}

AnswerShape text_shape() {
  AnswerShape shape;
  shape.content = GrammarSource{Kind::json_schema, R"({"type": "object", "properties": {"a": {"type": "integer"}},
                                                      "required": ["a"], "additionalProperties": false})"};
  return shape;
}

AnswerShape call_shape(bool parallel = true) {
  AnswerShape shape;
  shape.tools = parse_json(R"([
    {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {
      "port": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["m", "ft"]},
      "deep": {"$ref": "#/$defs/deep"}}, "required": ["port"], "additionalProperties": false,
      "$defs": {"deep": {"type": "array", "items": {"type": "boolean"}}}}}}])",
                           "tools");
  shape.calls_required = true;
  shape.parallel = parallel;
  return shape;
}

// How a format writes its parts.
struct Written {
  const FormatCase* format;
  std::string thinking = {};            // up to the text or the calls
  std::string before = {}, after = {};  // around the text
  std::string begin = {}, end = {};     // around all calls
  std::string call_begin[2] = {};       // of `other` and `tide`, without arguments
  std::string call_end = {};
  std::string between = {};
  // Arguments: port Brest; port Brest, days 3, unit m, deep [true]; then none, a number as port, a unit that is
  // unknown.
  std::string port = {}, all = {}, none = {}, bad_port = {}, bad_unit = {};
};

std::string listed(std::initializer_list<std::pair<const char*, const char*>> arguments, const char* form) {
  std::string out;
  for (const auto& [key, value] : arguments) {
    std::string text = form;
    const bool string = std::string_view("port unit").find(key) != std::string_view::npos;
    const char* type = string ? "string" : std::string_view(key) == "deep" ? "array" : "number";
    for (const auto& [from, to] : {std::pair<std::string, std::string>{"KEY", key},
                                   {"VALUE", value},
                                   {"TYPE", type},
                                   {"STRING", string ? "true" : "false"}})
      if (const size_t at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
    out += text;
  }
  return out;
}

void set_json(Written& w) {
  w.port = R"({"port": "Brest"})";
  w.all = R"({"port": "Brest", "days": 3, "unit": "m", "deep": [true]})";
  w.none = "{}";
  w.bad_port = R"({"port": 3})";
  w.bad_unit = R"({"port": "Brest", "unit": "km"})";
}

void set_listed(Written& w, const char* form) {
  w.port = listed({{"port", "Brest"}}, form);
  w.all = listed({{"port", "Brest"}, {"days", "3"}, {"unit", "m"}, {"deep", "[true]"}}, form);
  w.none = "";
  w.bad_port = listed({{"days", "three"}}, form);
  w.bad_unit = listed({{"port", "Brest"}, {"unit", "km"}}, form);
}

std::vector<Written> formats() {
  std::vector<Written> out;
  const auto json = [&](Written w) { set_json(w), out.push_back(std::move(w)); };
  const auto list = [&](Written w, const char* form) { set_listed(w, form), out.push_back(std::move(w)); };
  json({.format = &kHarmony,
        .thinking = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
        .before = "<|channel|>final<|message|>",
        .call_begin = {"<|channel|>commentary to=functions.other <|constrain|>json<|message|>",
                       "<|channel|>commentary to=functions.tide<|message|>"}});
  json({.format = &kQwen,
        .thinking = "<think>\nHm.\n</think>\n\n",
        .call_begin = {"<tool_call>\n{\"name\": \"other\", \"arguments\": ",
                       "<tool_call>\n{\"name\": \"tide\", \"arguments\": "},
        .call_end = "}\n</tool_call>",
        .between = "\n"});
  json({.format = &kV3,
        .thinking = "<think>\nHm.\n</think>\n\n",
        .begin = "<｜tool▁calls▁begin｜>",
        .end = "<｜tool▁calls▁end｜>",
        .call_begin = {"<｜tool▁call▁begin｜>function<｜tool▁sep｜>other\n```json\n",
                       "<｜tool▁call▁begin｜>function<｜tool▁sep｜>tide\n```json\n"},
        .call_end = "\n```<｜tool▁call▁end｜>",
        .between = "\n"});
  json({.format = &kV31,
        .begin = "<｜tool▁calls▁begin｜>",
        .end = "<｜tool▁calls▁end｜>",
        .call_begin = {"<｜tool▁call▁begin｜>other<｜tool▁sep｜>", "<｜tool▁call▁begin｜>tide<｜tool▁sep｜>"},
        .call_end = "<｜tool▁call▁end｜>"});
  json({.format = &kK2,
        .thinking = "<think>Hm.</think>",
        .begin = "<|tool_calls_section_begin|>",
        .end = "<|tool_calls_section_end|>",
        .call_begin = {"<|tool_call_begin|>functions.other:0<|tool_call_argument_begin|>",
                       "<|tool_call_begin|>functions.tide:12<|tool_call_argument_begin|>"},
        .call_end = "<|tool_call_end|>"});
  for (const FormatCase* c : {&kV32, &kV4}) {
    const std::string block = c == &kV4 ? "tool_calls>" : "function_calls>";
    list({.format = c,
          .thinking = c == &kV4 ? "Hm.</think>" : "",
          .begin = "\n\n<｜DSML｜" + block + "\n",
          .end = "</｜DSML｜" + block,
          .call_begin = {"<｜DSML｜invoke name=\"other\">\n", "<｜DSML｜invoke name=\"tide\">\n"},
          .call_end = "</｜DSML｜invoke>\n"},
         "<｜DSML｜parameter name=\"KEY\" string=\"STRING\">VALUE</｜DSML｜parameter>\n");
  }
  list({.format = &kGlm,
        .thinking = "Hm.</think>",
        .call_begin = {"<tool_call>other", "<tool_call>tide"},
        .call_end = "</tool_call>"},
       "<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>");
  list({.format = &kK3,
        .thinking = "Hm.<|close|>think<|sep|><|open|>response<|sep|>",
        .after = "<|close|>response<|sep|><|close|>message<|sep|>",
        .begin = "<|close|>response<|sep|><|open|>tools<|sep|>",
        .end = "<|close|>tools<|sep|><|close|>message<|sep|>",
        .call_begin = {"<|open|>call tool=\"other\" index=\"1\"<|sep|>",
                       "<|open|>call tool=\"tide\" index=\"2\"<|sep|>"},
        .call_end = "<|close|>call<|sep|>"},
       "<|open|>argument key=\"KEY\" type=\"TYPE\"<|sep|>VALUE<|close|>argument<|sep|>");
  return out;
}

TEST(AnswerGrammar, TextIsConstrainedAfterFreeThinking) {
  Rng rng = fresh_rng();
  for (const Written& w : formats()) {
    const char* name = chat_format_name(w.format->format);
    const auto accepted = [&](const std::string& text) {
      return accepts(*w.format, text_shape(), w.thinking + w.before + text + w.after, &rng);
    };
    EXPECT_TRUE(accepted(R"({"a": 12})")) << name;
    for (const char* bad : {"{}", R"({"a": "x"})", R"({"a": 1} more)", "", "Hello"})
      EXPECT_FALSE(accepted(bad)) << name << bad;
    if (w.thinking.empty()) continue;
    // The end of the thinking cannot be passed over as a part of it.
    EXPECT_FALSE(accepts(*w.format, text_shape(), w.thinking + "Hello" + w.after)) << name;
  }
}

TEST(AnswerGrammar, CallsAreForced) {
  Rng rng = fresh_rng();
  for (const Written& w : formats()) {
    const char* name = chat_format_name(w.format->format);
    const auto answer = [&](const std::string& calls) { return w.thinking + w.begin + calls + w.end; };
    const auto call = [&](int tool, const std::string& arguments) {
      return w.call_begin[tool] + arguments + w.call_end;
    };
    const auto accepted = [&](const std::string& text) { return accepts(*w.format, call_shape(), text, &rng); };
    for (const std::string& arguments : {w.port, w.all}) {
      const std::string text = answer(call(1, arguments));
      EXPECT_TRUE(accepted(text)) << name << " " << text;
      const ParsedAnswer parsed =
          read_answer(*w.format, tokens_of(*w.format), tokens_of(*w.format).ids(text), call_shape().tools);
      ASSERT_EQ(parsed.calls.size(), 1U) << name;
      EXPECT_EQ(parsed.calls[0].name, "tide") << name;
      EXPECT_EQ(
          write_json(parse_json(parsed.calls[0].arguments, "arguments")),
          arguments == w.port ? R"({"port": "Brest"})" : R"({"port": "Brest", "days": 3, "unit": "m", "deep": [true]})")
          << name;
      EXPECT_EQ(parsed.content, "") << name;
      EXPECT_EQ(parsed.errors, 0) << name;
    }
    EXPECT_TRUE(accepted(answer(call(0, w.none)))) << name;
    for (const std::string& bad : {w.none, w.bad_port, w.bad_unit})
      EXPECT_FALSE(accepted(answer(call(1, bad)))) << name << " " << bad;
    EXPECT_FALSE(accepted(w.thinking + w.before + "Hello" + w.after)) << name;
    EXPECT_FALSE(accepted(w.thinking + w.begin + w.end)) << name;
  }
}

TEST(AnswerGrammar, OneOrSeveralCalls) {
  for (const Written& w : formats()) {
    if (w.format == &kHarmony) continue;  // the end of a call ends its answer
    const std::string call = w.call_begin[1] + w.port + w.call_end;
    const std::string two = w.thinking + w.begin + call + w.between + call + w.end;
    EXPECT_TRUE(accepts(*w.format, call_shape(), two)) << chat_format_name(w.format->format);
    EXPECT_FALSE(accepts(*w.format, call_shape(false), two)) << chat_format_name(w.format->format);
    EXPECT_TRUE(accepts(*w.format, call_shape(false), w.thinking + w.begin + call + w.end));
  }
}

// The answer may not end before its call has.
TEST(AnswerGrammar, AnAnswerEndsWhereItsCallDoes) {
  for (const Written& w : formats()) {
    const AnswerTokens& tokens = tokens_of(*w.format);
    const std::string text = w.thinking + w.begin + w.call_begin[1] + w.all + w.call_end + w.end;
    std::vector<bool> ends;
    EXPECT_TRUE(accepts(*w.format, call_shape(), text, nullptr, &ends)) << chat_format_name(w.format->format);
    ASSERT_EQ(ends.size(), tokens.ids(text).size());
    EXPECT_EQ(std::count(ends.begin(), ends.end(), true), 1) << chat_format_name(w.format->format);
    // A tool that there is not.
    std::string unknown = text;
    const size_t name = unknown.rfind("tide");
    EXPECT_FALSE(accepts(*w.format, call_shape(), unknown.replace(name, 4, "tidy")));
  }
}

TEST(AnswerGrammar, TheNamedToolAlone) {
  AnswerShape shape = call_shape();
  shape.tool = "other";
  for (const Written& w : formats()) {
    const auto answer = [&](int tool, const std::string& arguments) {
      return w.thinking + w.begin + w.call_begin[tool] + arguments + w.call_end + w.end;
    };
    EXPECT_TRUE(accepts(*w.format, shape, answer(0, w.none))) << chat_format_name(w.format->format);
    EXPECT_FALSE(accepts(*w.format, shape, answer(1, w.port))) << chat_format_name(w.format->format);
  }
}

// Tools that may be called, and a format for the text: either.
TEST(AnswerGrammar, TextOrCalls) {
  AnswerShape shape = call_shape();
  shape.calls_required = false;
  shape.content = text_shape().content;
  for (const Written& w : formats()) {
    const std::string call = w.thinking + w.begin + w.call_begin[1] + w.port + w.call_end + w.end;
    EXPECT_TRUE(accepts(*w.format, shape, call)) << chat_format_name(w.format->format);
    EXPECT_TRUE(accepts(*w.format, shape, w.thinking + w.before + R"({"a": 1})" + w.after))
        << chat_format_name(w.format->format);
    EXPECT_FALSE(accepts(*w.format, shape, w.thinking + w.before + "Hello" + w.after));
  }
}

TEST(AnswerGrammar, OtherSources) {
  for (const Written& w : formats()) {
    AnswerShape shape;
    const auto accepted = [&](const std::string& text) {
      return accepts(*w.format, shape, w.thinking + w.before + text + w.after);
    };
    shape.content = GrammarSource{Kind::json_object, ""};
    EXPECT_TRUE(accepted(R"({"x": [1, null]})"));
    EXPECT_FALSE(accepted("[1]"));
    shape.content = GrammarSource{Kind::regex, "a/[/b]+"};
    EXPECT_TRUE(accepted("a/b/b"));
    EXPECT_FALSE(accepted("a"));
    shape.content = GrammarSource{Kind::grammar, "root ::= call \"!\"\ncall ::= [a-c]+ # content"};
    EXPECT_TRUE(accepted("abc!"));
    EXPECT_FALSE(accepted("abd!"));
  }
}

// A tokenizer without the markers: their letters do it.
TEST(AnswerGrammar, MarkersByTheirLetters) {
  const FormatCase bare = {ChatFormat::think, {"<|eos|>"}, "x<think>\n"};
  EXPECT_TRUE(accepts(bare, text_shape(), "a < b </thin k</think>\n{\"a\": 1}"));
  EXPECT_FALSE(accepts(bare, text_shape(), "a</think>b</think>{\"a\": 1}"));
  const FormatCase dsml = {ChatFormat::deepseek_v4, {"<|eos|>"}, ""};
  const std::string call =
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"tide\">\n<｜DSML｜parameter name=\"port\" "
      "string=\"true\">a <｜DS</b></｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  EXPECT_TRUE(accepts(dsml, call_shape(), call));
}

// Whatever the masks let through, the format's parser understands. Markers are spelt by letters, so that random tokens
// hit them and miss them.
TEST(AnswerGrammar, RandomAnswersAreUnderstood) {
  Rng rng = fresh_rng();
  for (const ChatFormat format :
       {ChatFormat::think, ChatFormat::harmony, ChatFormat::deepseek_v3, ChatFormat::deepseek_v31,
        ChatFormat::deepseek_v32, ChatFormat::deepseek_v4, ChatFormat::kimi_k2, ChatFormat::kimi_k3, ChatFormat::glm}) {
    const FormatCase c = {format, {"<|eos|>"}, ""};
    const AnswerTokens& tokens = tokens_of(c);
    Result<GrammarSource> source = answer_grammar(format, tokens.tokenizer(), {}, call_shape());
    ASSERT_TRUE(source.ok()) << source.status().message();
    auto grammar = compile_grammar(*source, tokens.tokenizer());
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    const int32_t end = tokens.tokenizer().vocab_size();
    const TokenVocabulary vocabulary(tokens.tokenizer(), end + 1, {end});
    for (int round = 0; round < 10 && !testing::Test::HasFailure(); ++round) {
      const std::string text = random_answer(*grammar, vocabulary, rng, static_cast<int>(rng.below(60)));
      const ParsedAnswer parsed = read_answer(c, tokens, tokens.ids(text, &rng), call_shape().tools);
      EXPECT_EQ(parsed.errors, 0) << chat_format_name(format) << " " << text;
      EXPECT_FALSE(parsed.calls.empty()) << chat_format_name(format) << " " << text;
      for (const ParsedCall& call : parsed.calls) {
        EXPECT_TRUE(call.name == "tide" || call.name == "other") << call.name;
        const Json arguments = parse_json(call.arguments, "arguments");
        EXPECT_EQ(call.name == "tide", json_find(arguments.as_object(), "port") != nullptr) << text;
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
