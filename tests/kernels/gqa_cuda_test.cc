// What the CUDA kernels of grouped-query attention promise beyond KernelMatches: bits that do not depend on the batch,
// nor on how a prompt was cut.
#include <gtest/gtest.h>

#include "kernels/attention_steps.h"

namespace moesaic {
namespace {

const Kernel& kernel_named(std::string_view name) {
  for (const Kernel* kernel : registry_of(Backend::cuda).kernels())
    if (kernel->name == name) return *kernel;
  CHECK(false, "no kernel is called {}", name);
  std::abort();
}

std::vector<std::vector<float>> outputs(std::string_view kernel, const AttentionData& data,
                                        const std::vector<std::vector<Chunk>>& steps) {
  KernelCase test = attention_case("", data, steps);
  test.desc.precision = Precision::fast;
  const KernelRun run = run_kernel(kernel_named(kernel), test);
  EXPECT_EQ(run.violation, "");
  return attention_outputs(run, data, steps);
}

class GqaCuda : public testing::TestWithParam<int64_t> {  // a window, or 0
 protected:
  void SetUp() override {
    if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  }
  AttentionShape shape() const {
    return {.heads = 6, .kv_heads = 2, .D = 64, .window = GetParam(), .cache = DType::bf16, .scale = 0.125};
  }
};

TEST_P(GqaCuda, PromptsMayBeCutAnywhere) {
  Rng rng = fresh_rng();
  const AttentionData data = random_attention(rng, shape(), {150, 47});
  const auto whole = outputs("gqa.bf16.cuda", data, {{{0, 0, 150}, {1, 0, 47}}});
  EXPECT_EQ(whole,
            outputs("gqa.bf16.cuda", data, {{{1, 0, 29}, {0, 0, 33}}, {{0, 33, 131}}, {{1, 29, 47}, {0, 131, 150}}}));
}

// Token by token, exact: a prompt at once, its tokens one by one, and few at a time beside another sequence.
TEST_P(GqaCuda, ExactTokensDoNotDependOnTheStep) {
  Rng rng = fresh_rng();
  for (DType cache : {DType::f32, DType::bf16}) {
    AttentionShape small = shape();
    small.cache = cache;
    const AttentionData data = random_attention(rng, small, {262, 6});
    const auto whole = outputs("gqa.cuda", data, {{{1, 0, 6}, {0, 0, 262}}});
    EXPECT_EQ(whole, outputs("gqa.cuda", data,
                             {{{0, 0, 256}}, {{1, 0, 5}, {0, 256, 260}}, {{0, 260, 261}}, {{0, 261, 262}, {1, 5, 6}}}));
  }
}

INSTANTIATE_TEST_SUITE_P(, GqaCuda, testing::Values(0, 60));

}  // namespace
}  // namespace moesaic
