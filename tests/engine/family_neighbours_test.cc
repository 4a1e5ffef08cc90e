// FC-027 for every family: what else is in the batch changes neither tokens nor log-probabilities, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/answers.h"
#include "support/golden_values.h"

namespace moesaic {
namespace {

// What must not change.
struct Said {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  bool operator==(const Said&) const = default;
};

Request prompt(int32_t first, int32_t stride) {
  Request request{.sampling = {.temperature = 0, .logprobs = 2}, .max_new_tokens = 32, .ignore_eos = true};
  for (int32_t i = 0; i < 21; ++i) request.tokens.push_back((first + i * stride) % 300);
  return request;
}

std::vector<Said> together(Engine& engine, const std::vector<Request>& requests) {
  std::vector<Said> said;
  for (const Answer& answer : ask_together(engine, requests)) {
    EXPECT_TRUE(answer.status.ok()) << answer.status.message();
    said.push_back({answer.ids, answer.logprobs});
  }
  return said;
}

class FamilyNeighbours : public testing::TestWithParam<const char*> {};

TEST_P(FamilyNeighbours, FC027_NeighboursDoNotMatter) {
  Engine engine =
      Engine::open({.model = golden(GetParam()), .precision = "float32", .threads = 2, .max_num_batched_tokens = 48});
  const Request a = prompt(3, 7), b = prompt(50, 11), other = prompt(120, 13);
  const Said alone = together(engine, {a})[0];
  EXPECT_EQ(alone.ids.size(), 32u);
  EXPECT_EQ(together(engine, {a, b})[0], alone) << "with b";
  EXPECT_EQ(together(engine, {b, a})[1], alone) << "after b";
  EXPECT_EQ(together(engine, {a, other})[0], alone) << "with another of the same length";
  const std::vector<Said> twice = together(engine, {a, a});
  EXPECT_EQ(twice[0], alone) << "twice, the first";
  EXPECT_EQ(twice[1], alone) << "twice, the second";
  EXPECT_NE(together(engine, {b})[0], alone);
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyNeighbours, testing::ValuesIn(kGoldenModels), golden_test_name);

}  // namespace
}  // namespace moesaic
