// Random schemas against python3-jsonschema: answers through masks fit them, values that fit are accepted, others not.
#include <fmt/format.h>

#include <fstream>

#include "base/json.h"
#include "python.h"
#include "walk.h"

namespace moesaic {
namespace {

const std::string kScript = std::string(MOESAIC_SOURCE_DIR) + "/tests/grammar/schemas.py";

TEST(SchemaOracle, ThousandRandomSchemas) {
  if (!python_has("jsonschema")) GTEST_SKIP() << "no /usr/bin/python3 with jsonschema";
  Rng rng = fresh_rng();
  int status = -1;
  const std::string cases =
      run_python(fmt::format("'{}' generate {} 1000", kScript, rng.bits() % 1'000'000'000), &status);
  ASSERT_EQ(status, 0) << cases.substr(0, 2000);
  const std::string file = ::testing::TempDir() + "moesaic_schema_answers.jsonl";
  std::ofstream answers(file);
  int64_t compiled_count = 0, refused_texts = 0;
  std::istringstream lines(cases);
  for (std::string line; std::getline(lines, line);) {
    const Json each = parse_json(line, "case");
    const std::string schema = write_json(each.at("schema"));
    const auto grammar = compiled(Kind::json_schema, schema);
    if (grammar == nullptr) continue;
    ++compiled_count;
    for (const Json& text : each.at("valid").get_array())
      EXPECT_TRUE(matches(grammar, text.get_string())) << schema << "\nfits: " << text.get_string();
    for (const Json& text : each.at("invalid").get_array()) {
      EXPECT_FALSE(matches(grammar, text.get_string())) << schema << "\ndoes not fit: " << text.get_string();
      ++refused_texts;
    }
    JsonArray texts;
    for (int i = 0; i < 4; ++i) {
      const std::string answer = random_answer(grammar, demo_vocabulary(), rng, static_cast<int>(rng.below(40)));
      EXPECT_EQ(replace_invalid_utf8(answer), answer);
      texts.emplace_back(answer);
    }
    answers << write_json(JsonObject{{"schema", each.at("schema")}, {"texts", texts}}) << "\n";
  }
  answers.close();
  EXPECT_EQ(compiled_count, 1000);
  EXPECT_GT(refused_texts, 5000);
  const std::string verdict = run_python(fmt::format("'{}' check < '{}'", kScript, file), &status);
  EXPECT_EQ(status, 0) << verdict.substr(0, 4000);
  std::printf("%s", verdict.substr(verdict.rfind('\n', verdict.size() - 2) + 1).c_str());
}

}  // namespace
}  // namespace moesaic
