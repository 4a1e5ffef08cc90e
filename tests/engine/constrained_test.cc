// Answers that follow a grammar, through the engine: each parses, alone, among others and after a failed step, and the
// masks are made while the step runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/json.h"
#include "support/answers.h"
#include "support/checkpoint.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

constexpr const char* kPerson =
    R"({"type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
  "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
                 "tags": {"type": "array", "maxItems": 3, "items": {"enum": ["a", "b"]}}}})";

EngineOptions options(int64_t sequences = 8) {
  return {.model = demo_model(), .precision = "float32", .threads = 2, .max_model_len = 512, .max_num_seqs = sequences};
}

std::shared_ptr<const Grammar> compiled(const Engine& engine, GrammarSource::Kind kind, std::string text) {
  auto grammar = engine.compile({kind, std::move(text)});
  EXPECT_TRUE(grammar.ok()) << grammar.status().message();
  return grammar.ok() ? *grammar : nullptr;
}

Request constrained(const Engine& engine, std::shared_ptr<const Grammar> grammar, int64_t seed, float temperature = 1) {
  return {.tokens = engine.tokenizer().encode("Once upon a time"),
          .sampling = {.temperature = temperature, .seed = static_cast<uint64_t>(seed)},
          .max_new_tokens = 200,
          .grammar = std::move(grammar)};
}

void expect_person(const Answer& answer) {
  ASSERT_TRUE(answer.status.ok()) << answer.status.message();
  ASSERT_EQ(answer.reason, FinishReason::stop) << answer.text;
  const Json value = parse_json(answer.text, "answer");
  const JsonObject& person = json_object(value, "answer");
  EXPECT_EQ(person.size(), 3);
  EXPECT_LE(json_int(person, "age", "answer"), 130);
  EXPECT_TRUE(person.at("tags").is_array());
}

TEST(Constrained, AnswersFollowTheSchemaAtAnyTemperature) {
  Engine engine = Engine::open(options());
  const auto grammar = compiled(engine, GrammarSource::Kind::json_schema, kPerson);
  std::vector<Request> requests;
  for (int64_t seed = 0; seed < 24; ++seed)
    requests.push_back(constrained(engine, grammar, seed, seed % 3 == 0 ? 0.0F : 1.5F));
  for (const Answer& answer : ask_together(engine, requests)) expect_person(answer);
}

TEST(Constrained, NeighboursDoNotMatter) {
  Engine engine = Engine::open(options());
  const auto person = compiled(engine, GrammarSource::Kind::json_schema, kPerson);
  const auto digits = compiled(engine, GrammarSource::Kind::regex, "[0-9]{3}-[0-9]{4}");
  std::vector<Request> requests;
  for (int64_t seed = 0; seed < 6; ++seed) {
    requests.push_back(constrained(engine, person, seed));
    requests.push_back(constrained(engine, digits, seed));
    requests.push_back(constrained(engine, nullptr, seed));
    requests.back().max_new_tokens = 30;
  }
  const std::vector<Answer> together = ask_together(engine, requests);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(ask(engine, requests[i]).ids, together[i].ids) << i;
}

TEST(Constrained, MasksAreCountedAndMostlyMadeDuringTheStep) {
  Engine engine = Engine::open(options());
  const auto grammar = compiled(engine, GrammarSource::Kind::json_object, "");
  const Answer answer = ask(engine, constrained(engine, grammar, 1));
  ASSERT_TRUE(answer.status.ok());
  EXPECT_GE(engine.stats().masks, answer.usage.completion_tokens);
  EXPECT_GT(engine.stats().mask_seconds, 0);
  EXPECT_LE(engine.stats().masks_late, engine.stats().masks);
}

// The shortest answers of the grammar win over min_tokens: nothing else could follow.
TEST(Constrained, AFinishedGrammarEndsTheAnswer) {
  Engine engine = Engine::open(options());
  Request request = constrained(engine, compiled(engine, GrammarSource::Kind::regex, "yes|no"), 3);
  request.min_tokens = 50;
  request.ignore_eos = true;
  const Answer answer = ask(engine, request);
  EXPECT_TRUE(answer.text == "yes" || answer.text == "no") << answer.text;
  EXPECT_EQ(answer.reason, FinishReason::stop);
}

TEST(Constrained, TheSameSchemaIsCompiledOnce) {
  Engine engine = Engine::open(options());
  const auto first = compiled(engine, GrammarSource::Kind::json_schema, kPerson);
  EXPECT_EQ(compiled(engine, GrammarSource::Kind::json_schema, kPerson), first);
  for (int i = 0; i < 40; ++i) compiled(engine, GrammarSource::Kind::regex, "a{" + std::to_string(i + 1) + "}");
  EXPECT_NE(compiled(engine, GrammarSource::Kind::json_schema, kPerson), first) << "32 are kept";
}

TEST(Constrained, ABadGrammarIsOneClearError) {
  Engine engine = Engine::open(options());
  const auto refused = engine.compile({GrammarSource::Kind::regex, "(a"});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::invalid_argument);
  const auto schema = engine.compile({GrammarSource::Kind::json_schema, R"({"type": "strin"})"});
  ASSERT_FALSE(schema.ok());
  EXPECT_THAT(schema.status().message(), HasSubstr("strin"));
}

// A failed step costs its requests, whose masks were under way, and no others.
TEST(Constrained, AFailedStepLeavesNothingBehind) {
  ASSERT_EQ(setenv("MOESAIC_FAULTS", "4", 1), 0);
  Engine engine = Engine::open(options());
  ASSERT_EQ(unsetenv("MOESAIC_FAULTS"), 0);
  const auto grammar = compiled(engine, GrammarSource::Kind::json_schema, kPerson);
  EXPECT_FALSE(ask(engine, constrained(engine, grammar, 1)).status.ok());
  expect_person(ask(engine, constrained(engine, grammar, 2)));
}

TEST(Constrained, CancelledAnswersLeaveNothingBehind) {
  Engine engine = Engine::open(options());
  const auto grammar = compiled(engine, GrammarSource::Kind::json_object, "");
  for (int64_t seed = 0; seed < 8; ++seed) {
    auto completion = engine.submit(constrained(engine, grammar, seed));
    ASSERT_TRUE(completion.ok());
    completion->next();
    completion->cancel();
  }
  expect_person(ask(engine, constrained(engine, compiled(engine, GrammarSource::Kind::json_schema, kPerson), 1)));
}

}  // namespace
}  // namespace moesaic
