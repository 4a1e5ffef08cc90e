#include "ir/rope.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

RopeConfig parse(const std::string& text) {
  return parse_rope(json_object(parse_json(text, "config"), "config"), "config");
}

std::string yarn(const std::string& fields) {
  return R"({"rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 4096, )" +
         fields + "}}";
}

TEST(Rope, FC035_ExplicitAttentionFactorIsFinal) {
  EXPECT_DOUBLE_EQ(parse(yarn(R"("factor": 64, "attention_factor": 1.0)")).attention_factor, 1.0);
  EXPECT_DOUBLE_EQ(parse(yarn(R"("factor": 128, "attention_factor": 1.4852030264)")).attention_factor, 1.4852030264);
  EXPECT_NEAR(parse(yarn(R"("factor": 32)")).attention_factor, 1.34657359, 1e-8);
}

TEST(Rope, FC036_CorrectionRange) {
  const RopeConfig exact = parse(yarn(R"("factor": 32, "beta_fast": 32, "beta_slow": 1, "truncate": false)"));
  EXPECT_NEAR(yarn_range(exact, 64).low, 8.09277912, 1e-8);
  EXPECT_NEAR(yarn_range(exact, 64).high, 17.39802450, 1e-8);
  const std::vector<float> f = rope_frequencies(exact, 64);
  const std::pair<size_t, double> want[] = {
      {0, 1}, {8, 0.0508132748}, {9, 0.0317056962}, {13, 0.0038603593}, {17, 0.0001293187}, {18, 0.0000383088}};
  for (auto [i, value] : want) EXPECT_NEAR(f[i], value, 6e-7 * value + 5e-11) << i;
  const RopeConfig cut = parse(yarn(R"("factor": 32)"));
  EXPECT_EQ(yarn_range(cut, 64).low, 8);
  EXPECT_EQ(yarn_range(cut, 64).high, 18);
  const std::vector<float> g = rope_frequencies(cut, 64);
  EXPECT_NEAR(g[9], 0.0316207523, 2e-8);
  EXPECT_NEAR(g[13], 0.0040695547, 3e-9);
  EXPECT_NEAR(g[17], 0.0002279478, 2e-10);
}

TEST(Rope, FC036_CoincidingBoundsAreGuarded) {
  const RopeConfig rope{
      .theta = 10000, .factor = 4, .beta_fast = 1, .beta_slow = 1, .original_positions = 64, .truncate = false};
  for (float f : rope_frequencies(rope, 16)) EXPECT_TRUE(std::isfinite(f));
}

TEST(Rope, SpellingsOfTheConfig) {
  const RopeConfig a = parse(R"({"rope_parameters": {"rope_type": "yarn", "rope_theta": 5000, "factor": 2,
                                 "original_max_position_embeddings": 32}})");
  EXPECT_EQ(a.theta, 5000);
  EXPECT_EQ(a.original_positions, 32);
  EXPECT_TRUE(a.truncate);
  EXPECT_EQ(parse(R"({"rope_theta": 7})").factor, 1);
  EXPECT_EQ(parse(R"({"rope_scaling": {"type": "default"}})").theta, 10000);
  EXPECT_THROW(parse(R"({"rope_scaling": {"type": "longrope", "factor": 2}})"), Error);
  EXPECT_THROW(parse(R"({"rope_scaling": {"type": "yarn"}})"), Error);
  EXPECT_THROW(parse(R"({"rope_scaling": {"type": "yarn", "factor": 0.5}})"), Error);
}

TEST(Rope, AttributesRoundTrip) {
  const RopeConfig a = parse(yarn(R"("factor": 32, "truncate": false)"));
  EXPECT_EQ(rope_frequencies(RopeConfig::from(a.attrs(64)), 64), rope_frequencies(a, 64));
  const RopeConfig plain = parse(R"({"rope_theta": 1234})");
  EXPECT_EQ(rope_frequencies(RopeConfig::from(plain.attrs(64)), 64), rope_frequencies(plain, 64));
}

}  // namespace
}  // namespace moesaic
