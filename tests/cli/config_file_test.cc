#include "cli/config_file.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

TEST(ConfigFile, ReadsValuesAndLists) {
  const auto entries = parse_config(
      "# a comment\n---\nmodel: models/demo\nmax_model_len: 4096  # tokens\nenable-prefix-caching: false\n"
      "served-model-name: [a, \"b, c\", 'd']\napi-key:\n  - one\n  - \"two # two\"\n\nspeculative-config: "
      "'{\"method\": \"mtp\"}'\n"
      "chat-template: \"a\\\"b\"\nurl: http://x:1/y#z\r\n",
      "c.yaml");
  ASSERT_EQ(entries.size(), 8);
  EXPECT_EQ(entries[0].name, "model");
  EXPECT_EQ(entries[0].values, std::vector<std::string>{"models/demo"});
  EXPECT_EQ(entries[1].name, "max-model-len");
  EXPECT_EQ(entries[1].values, std::vector<std::string>{"4096"});
  EXPECT_EQ(entries[3].values, (std::vector<std::string>{"a", "b, c", "d"}));
  EXPECT_EQ(entries[4].values, (std::vector<std::string>{"one", "two # two"}));
  EXPECT_EQ(entries[5].values, std::vector<std::string>{R"({"method": "mtp"})"});
  EXPECT_EQ(entries[6].values, std::vector<std::string>{"a\"b"});
  EXPECT_EQ(entries[7].values, std::vector<std::string>{"http://x:1/y#z"});
}

TEST(ConfigFile, EverythingElseNamesItsLine) {
  const std::pair<const char*, const char*> bad[] = {{"port 8000\n", "line 1"},        {"a: 1\n  b: 2\n", "line 2"},
                                                     {"a: 1\n- x\n", "line 2"},        {"a: [1, 2\n", "ends with ]"},
                                                     {"a: \"open\n", "closing quote"}, {"a: |\n  text\n", "blocks"},
                                                     {"a:\n", "\"a\" has no value"},   {": 1\n", "line 1"}};
  for (const auto& [text, expected] : bad) {
    try {
      parse_config(text, "c.yaml");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(expected)) << text;
      EXPECT_THAT(error.what(), HasSubstr("c.yaml"));
    }
  }
}

}  // namespace
}  // namespace moesaic
