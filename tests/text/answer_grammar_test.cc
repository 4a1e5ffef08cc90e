// The text of answers' grammars. What they accept is tested in tests/grammar, where grammars are compiled.
#include "text/answer_grammar.h"

#include "text/answer_fixtures.h"

namespace moesaic {
namespace {

using Kind = GrammarSource::Kind;

std::string embedded(Kind kind, const std::string& text) {
  std::string rules;
  Result<std::string> result = embed_source({kind, text}, rules);
  return result.ok() ? *result + (rules.empty() ? "" : "\n" + rules)
                     : std::string("error: ") + result.status().message();
}

TEST(AnswerGrammar, Literals) {
  EXPECT_EQ(grammar_literal("a\"b\\c\n\t\x01é"), R"("a\"b\\c\n\t\x01é")");
}

TEST(AnswerGrammar, SourcesAreEmbedded) {
  EXPECT_EQ(embedded(Kind::json_object, ""), "%json_object");
  EXPECT_EQ(embedded(Kind::json_schema, "{\"a\":\n \"}\" }"), "%json{\"a\":\"}\"}");
  EXPECT_EQ(embedded(Kind::json_schema, " true"), "%json{\"allOf\":[true]}");
  EXPECT_TRUE(embedded(Kind::json_schema, "{} | %text").starts_with("error: the JSON schema: "))
      << embedded(Kind::json_schema, "{} | %text");
  EXPECT_EQ(embedded(Kind::regex, R"(a/b\/c\\/[/]x)"), R"(%regex/a\/b\/c\\\/[\/]x/)");
  EXPECT_EQ(embedded(Kind::grammar, "# root\n\"root\""),
            "error: the grammar has no rules: write at least root ::= ...");
}

// Names of the caller's rules never meet ours; texts, classes, comments and directives stay as they are.
TEST(AnswerGrammar, RulesOfTheCallerAreRenamed) {
  EXPECT_EQ(embedded(Kind::grammar,
                     "root ::= item-1 \"item-1 \\\" x\" [a\\]b] # item-1\n"
                     "item-1 ::= %text | %json{\"a\": \"}b\"} <[<|x|>]> %regex/a\\/b/ (x.y)*\nx.y::=\"\""),
            "user-root\nuser-root ::= user-item-1 \"item-1 \\\" x\" [a\\]b] # item-1\n"
            "user-item-1 ::= %text | %json{\"a\": \"}b\"} <[<|x|>]> %regex/a\\/b/ (user-x.y)*\nuser-x.y::=\"\"\n");
  // Without a root the first rule is it.
  EXPECT_TRUE(embedded(Kind::grammar, "first ::= second\nsecond ::= \"a\"").starts_with("user-first\n"));
  EXPECT_TRUE(embedded(Kind::grammar, "first ::= root\nroot ::= \"a\"").starts_with("user-root\n"));
}

TEST(AnswerGrammar, SchemasFallIntoTypes) {
  const JsonObject whole = parse_json(R"({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "array"},
                                                    "loop": {"$ref": "#/$defs/loop"}}})",
                                      "schema")
                               .as_object();
  const auto types = [&](const char* schema) {
    std::string out;
    for (const SchemaVariant& v : schema_variants(parse_json(schema, "schema"), whole)) out += "[" + v.type + "]";
    return out;
  };
  EXPECT_EQ(types(R"({"type": "string"})"), "[string]");
  EXPECT_EQ(types(R"({"type": ["integer", "null"]})"), "[number][null]");
  EXPECT_EQ(types(R"({"anyOf": [{"type": "string"}, {"oneOf": [{"type": "array"}, {"type": "object"}]}]})"),
            "[string][array][object]");
  EXPECT_EQ(types(R"({"enum": ["a", "b"]})"), "[string]");
  EXPECT_EQ(types(R"({"enum": ["a", 1]})"), "[]");
  EXPECT_EQ(types(R"({"$ref": "#/$defs/a"})"), "[array]");
  EXPECT_EQ(types(R"({"$ref": "#/$defs/loop"})"), "[]");
  EXPECT_EQ(types(R"({"$ref": "elsewhere"})"), "[]");
  EXPECT_EQ(types("{}"), "[]");
  EXPECT_EQ(types("true"), "[]");
}

AnswerShape json_shape() {
  AnswerShape shape;
  shape.content = GrammarSource{Kind::json_schema, R"({"type": "object"})"};
  return shape;
}

TEST(AnswerGrammar, PlainTextIsTheSourceItself) {
  const AnswerTokens tokens({"<|eos|>"});
  Result<GrammarSource> got = answer_grammar(ChatFormat::plain, tokens.tokenizer(), {}, json_shape());
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->kind, Kind::json_schema);
  EXPECT_EQ(got->text, R"({"type": "object"})");
}

TEST(AnswerGrammar, ThinkingIsFreeAndTheContentIsNot) {
  const AnswerTokens tokens({"<think>", "</think>", "<|user|>"});
  const std::string end = "<[" + std::to_string(*tokens.tokenizer().token_to_id("</think>")) + "]>";
  const std::string begin = "<[" + std::to_string(*tokens.tokenizer().token_to_id("<think>")) + "]>";
  const auto text = [&](std::string_view prompt) {
    Result<GrammarSource> got = answer_grammar(ChatFormat::think, tokens.tokenizer(), tokens.ids(prompt), json_shape());
    return got.ok() ? got->text : std::string(got.status().message());
  };
  const std::string content = "content ::= %json{\"type\":\"object\"}\n";
  EXPECT_EQ(text("<|user|>Hi<think>\n"), "root ::= %text " + end + " \"\\n\"{0,2} content\n" + content);
  EXPECT_EQ(text("<|user|>Hi<think></think>"), "root ::= content\n" + content);
  EXPECT_EQ(text("<|user|>Hi"), "root ::= (" + begin + " %text " + end + " \"\\n\"{0,2} )? content\n" + content);
}

TEST(AnswerGrammar, ImpossibleShapesAreRefused) {
  const AnswerTokens tokens({"<think>", "</think>"});
  const auto refused = [&](ChatFormat format, const AnswerShape& shape) {
    Result<GrammarSource> got = answer_grammar(format, tokens.tokenizer(), {}, shape);
    EXPECT_FALSE(got.ok());
    EXPECT_EQ(got.status().code(), StatusCode::invalid_argument);
    return got.status().param();
  };
  AnswerShape shape;
  EXPECT_EQ(refused(ChatFormat::glm, shape), "");
  shape.calls_required = true;
  EXPECT_EQ(refused(ChatFormat::plain, shape), "tool_choice");
  EXPECT_EQ(refused(ChatFormat::glm, shape), "tools");
  shape.tools = tide_tools();
  shape.tool = "tied";
  EXPECT_EQ(refused(ChatFormat::glm, shape), "tool_choice");
  shape.tools = parse_json(R"([{"type": "function"}])", "tools");
  EXPECT_EQ(refused(ChatFormat::glm, shape), "tools[0]");
}

}  // namespace
}  // namespace moesaic
