// What every family keeps to.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "models/model.h"

namespace moesaic {
namespace {

// A longer file is a missing op or block (docs/adding_a_model.md).
TEST(Families, EveryFileIsUnder200Lines) {
  const std::filesystem::path folder = std::filesystem::path(MOESAIC_SOURCE_DIR) / "src/models";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path());
    const auto lines = std::count(std::istreambuf_iterator<char>(file), {}, '\n');
    EXPECT_GT(lines, 0) << entry.path().filename();
    EXPECT_LT(lines, 200) << entry.path().filename();
  }
  for (const Family& family : families())
    EXPECT_TRUE(std::filesystem::exists(folder / (family.name + ".cc"))) << family.name;
}

}  // namespace
}  // namespace moesaic
