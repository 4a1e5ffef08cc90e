// FC-027 for every family: what else is in the batch changes neither tokens nor log-probabilities, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>

#include "moesaic/engine.h"
#include "support/checkpoint.h"

namespace moesaic {
namespace {

struct Answer {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  bool operator==(const Answer&) const = default;
};

Answer drain(Completion& completion) {
  Answer answer;
  while (auto chunk = completion.next())
    for (const GeneratedToken& token : chunk->tokens)
      answer.ids.push_back(token.id), answer.logprobs.push_back(token.logprob);
  EXPECT_TRUE(completion.status().ok()) << completion.status().message();
  return answer;
}

Request prompt(int32_t first, int32_t stride) {
  Request request{.sampling = {.temperature = 0, .logprobs = 2}, .max_new_tokens = 32, .ignore_eos = true};
  for (int32_t i = 0; i < 21; ++i) request.tokens.push_back((first + i * stride) % 300);
  return request;
}

std::vector<Answer> together(Engine& engine, const std::vector<Request>& requests) {
  std::vector<Completion> open;
  for (const Request& request : requests) {
    auto completion = engine.submit(request);
    EXPECT_TRUE(completion.ok()) << completion.status().message();
    if (completion.ok()) open.push_back(std::move(*completion));
  }
  std::vector<Answer> answers;
  for (Completion& completion : open) answers.push_back(drain(completion));
  return answers;
}

class FamilyNeighbours : public testing::TestWithParam<const char*> {};

TEST_P(FamilyNeighbours, FC027_NeighboursDoNotMatter) {
  Engine engine =
      Engine::open({.model = golden(GetParam()), .precision = "float32", .threads = 2, .max_num_batched_tokens = 48});
  const Request a = prompt(3, 7), b = prompt(50, 11), other = prompt(120, 13);
  const Answer alone = together(engine, {a})[0];
  EXPECT_EQ(alone.ids.size(), 32u);
  EXPECT_EQ(together(engine, {a, b})[0], alone) << "with b";
  EXPECT_EQ(together(engine, {b, a})[1], alone) << "after b";
  EXPECT_EQ(together(engine, {a, other})[0], alone) << "with another of the same length";
  const std::vector<Answer> twice = together(engine, {a, a});
  EXPECT_EQ(twice[0], alone) << "twice, the first";
  EXPECT_EQ(twice[1], alone) << "twice, the second";
  EXPECT_NE(together(engine, {b})[0], alone);
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyNeighbours,
                         testing::Values("gpt_oss-mxfp4", "gpt_oss-bf16", "qwen3_moe", "deepseek_v3", "deepseek_v3-fp8",
                                         "deepseek_v32", "deepseek_v4", "glm_moe_dsa", "kimi_k25", "kimi_linear",
                                         "kimi_k3", "kimi_k3-grouped"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace moesaic
