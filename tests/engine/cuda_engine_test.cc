// The engine on the CUDA backend (a GPU, or fibers): captured steps, sampling on the device, and steps in flight give
// what the CPU gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/fresh_rng.h"
#include "engine/sampler.h"
#include "support/answers.h"
#include "support/checkpoint.h"
#include "support/mirror.h"
#ifdef MOESAIC_CUDA_IS_EMULATED
#include "faults.h"
#endif

namespace moesaic {
namespace {

using Tokens = std::vector<int32_t>;

Engine open(const std::string& model, const char* device, int64_t batched = 16) {
  return Engine::open({.model = golden(model),
                       .device = device,
                       .precision = "float32",
                       .threads = 2,
                       .max_num_seqs = 3,
                       .max_num_batched_tokens = batched});
}

std::vector<Request> some_requests() {
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) {
    Request request;
    for (int t = 0; t < 5 + 9 * i; ++t) request.tokens.push_back((37 * i + 11 * t) % 250);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    request.sampling.top_p = i == 3 ? 0.7f : 1.0f;
    request.sampling.seed = 5 + static_cast<uint64_t>(i);
    request.max_new_tokens = 6 + i;
    request.ignore_eos = true;
    requests.push_back(std::move(request));
  }
  return requests;
}

class CudaEngine : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda_unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(CudaEngine, AnswersAsTheCpuDoes) {
  Engine cuda = open(GetParam(), "cuda"), cpu = open(GetParam(), "cpu");
  const std::vector<Answer> got = ask_together(cuda, some_requests()), want = ask_together(cpu, some_requests());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(got[i].status.ok()) << got[i].status.message();
    EXPECT_EQ(got[i].ids, want[i].ids) << i;
    EXPECT_EQ(got[i].reason, want[i].reason);
    for (size_t t = 0; t < got[i].logprobs.size() && t < want[i].logprobs.size(); ++t)
      EXPECT_NEAR(got[i].logprobs[t], want[i].logprobs[t], 1e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaEngine, testing::Values("gpt_oss-mxfp4", "kimi_linear"));

TEST(CudaEngineMixed, TokensThatTheHostSamplesAndThoseOfTheDeviceShareABatch) {
  if (const std::string reason = cuda_unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  std::vector<Request> requests = some_requests();
  requests[1].sampling.logprobs = 3;
  requests[2].sampling.repetition_penalty = 1.3f;
  Engine cuda = open("gpt_oss-mxfp4", "cuda"), cpu = open("gpt_oss-mxfp4", "cpu");
  const std::vector<Answer> got = ask_together(cuda, requests), want = ask_together(cpu, requests);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i].ids, want[i].ids) << i;
}

// Prefixes are found again, memory for two of three sequences is enough, and prompts are scored: all with steps in
// flight.
TEST_P(CudaEngine, SharesPreemptsAndScoresAsTheCpuDoes) {
  EngineOptions tight{.model = golden(GetParam()), .device = "cuda", .precision = "float32", .threads = 2};
  tight.max_num_seqs = 3, tight.max_num_batched_tokens = 64, tight.max_model_len = 256, tight.kv_cache_tokens = 5 * 64;
  EngineOptions roomy = tight;
  roomy.device = "cpu", roomy.kv_cache_tokens = 0, roomy.prefix_caching = false;
  Engine cuda = Engine::open(tight), cpu = Engine::open(roomy);
  std::vector<Request> requests = some_requests();
  requests.resize(3);
  for (size_t i = 0; i < 3; ++i) {
    for (int32_t t = std::ssize(requests[i].tokens); t < 59; ++t) requests[i].tokens.push_back((t * 7 + 31) % 250);
    requests[i].max_new_tokens = 9;
  }
  const std::vector<Answer> want = ask_together(cpu, requests);
  const std::vector<Answer> all = ask_together(cuda, requests);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(all[i].ids, want[i].ids) << i;
  EXPECT_GT(cuda.stats().preemptions, 0);
  EXPECT_EQ(cuda.stats().blocks_used, 0);
  Request next = requests[0];
  next.tokens.insert(next.tokens.end(), want[0].ids.begin(), want[0].ids.end());
  next.max_new_tokens = 3;
  const Answer got = ask(cuda, next);
  EXPECT_EQ(got.usage.cached_tokens, 64);
  EXPECT_EQ(got.ids, ask(cpu, next).ids);
  next.tokens.resize(10);
  next.prompt_logprobs = 1;
  const auto scores = [&](Engine& engine) {
    auto completion = engine.submit(next);
    std::vector<float> logprobs;
    while (auto chunk = completion->next())
      for (const GeneratedToken& token : chunk->prompt) logprobs.push_back(token.logprob);
    return logprobs;
  };
  EXPECT_THAT(scores(cuda), testing::Pointwise(testing::FloatNear(1e-3f), scores(cpu)));
  EXPECT_EQ(scores(cpu).size(), next.tokens.size() - 1);
}

TEST(CudaEngineErrors, NonFiniteLogitsEndOnlyTheirSequence) {
  if (const std::string reason = cuda_unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  const EditedCheckpoint poisoned("gpt_oss-mxfp4", [](TensorMap& tensors, JsonObject&) {
    OwnedTensor& table = tensors.at("model.embed_tokens.weight");  // token 7 is not a number
    const auto row = static_cast<size_t>(table.shape[1]) * static_cast<size_t>(dtype_bytes(table.dtype));
    std::memset(table.bytes.data() + 7 * row, 0xFF, row);
  });
  Engine engine = Engine::open({.model = poisoned.path(), .device = "cuda", .precision = "float32", .threads = 2});
  std::vector<Request> requests = some_requests();
  requests[1].tokens.back() = 7;
  for (Request& request : requests) request.sampling.temperature = 0;
  const std::vector<Answer> answers = ask_together(engine, requests);
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].status.ok(), i != 1) << i << answers[i].status.message();
    EXPECT_TRUE(i == 1 || std::ssize(answers[i].ids) == requests[i].max_new_tokens) << i;
  }
}

TEST(CudaEngineErrors, TooLargeForTheGpuIsOneLine) {
  if (const std::string reason = cuda_unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  try {
    Engine::open({.model = golden("gpt_oss-mxfp4"), .device = "cuda", .kv_cache_tokens = int64_t{1} << 40});
    FAIL() << "a cache of 2^40 tokens fits";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("the key-value cache needs"));
    EXPECT_THAT(error.what(), testing::HasSubstr("free of"));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

Tokens read_ids(const OwnedTensor& t) {
  Tokens ids;
  for (int64_t i = 0; i < t.shape.elements(); ++i) {
    int64_t id;
    std::memcpy(&id, t.bytes.data() + i * 8, 8);
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

// In fast precision, so that products round to bf16: a token may differ where the two best logits are that close.
TEST(CudaDemo, GreedyTextIsTheReferencesUpToNearTies) {
  if (const std::string reason = cuda_unavailable(); !reason.empty()) GTEST_SKIP() << reason;
#ifdef MOESAIC_CUDA_IS_EMULATED
  GTEST_SKIP() << "needs a GPU: the demo model takes minutes on fibers";
#endif
  constexpr float kNearTie = 0.05f;
  const TensorMap reference = read_tensors(demo_model() + "/golden.safetensors");
  Engine engine = Engine::open({.model = demo_model(), .device = "cuda"});
  for (int i = 0; i < 4; ++i) {
    const Tokens want = read_ids(reference.at(fmt::format("greedy.{}", i)));
    Request request;
    request.tokens = read_ids(reference.at(fmt::format("prompt.{}", i)));
    request.sampling.temperature = 0;
    request.max_new_tokens = std::ssize(want);
    request.ignore_eos = true;
    const Answer answer = ask_together(engine, {request})[0];
    ASSERT_EQ(answer.ids.size(), want.size());
    size_t same = 0;
    while (same < want.size() && answer.ids[same] == want[same]) ++same;
    std::printf("prompt %d: %zu of %zu tokens are the reference's\n", i, same, want.size());
    if (same == want.size()) continue;
    std::printf("prompt %d: the two best logits of token %zu are %g apart\n", i, same,
                static_cast<double>(answer.gaps[same]));
    EXPECT_LT(answer.gaps[same], kNearTie) << "prompt " << i << ", token " << same;
  }
}

#ifdef MOESAIC_CUDA_IS_EMULATED
TEST(CudaEngineErrors, AFailedStepFailsItsRequestsAndTheEngine) {
  Engine engine = open("gpt_oss-mxfp4", "cuda");
  EXPECT_TRUE(ask_together(engine, {some_requests()[0]})[0].status.ok());
  emulated_cuda::graphs_fail = true;
  const std::vector<Answer> answers = ask_together(engine, {some_requests()[0], some_requests()[1]});
  emulated_cuda::graphs_fail = false;
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.status.code(), StatusCode::internal);
    EXPECT_THAT(answer.status.message(), testing::HasSubstr("launch failure"));
  }
  EXPECT_EQ(engine.submit(some_requests()[0]).status().code(), StatusCode::internal);
}
#endif

// The device's sampler against the host's, on the same rows and draws: `count` rows of the `kinds` in turn.
void expect_choices_of_the_host(int64_t vocab, int64_t valid, std::span<const SamplingParams> kinds, int count) {
  Rng rng = fresh_rng();
  const auto turns = static_cast<int>(kinds.size());
  std::vector<float> logits;
  std::vector<SampleRow> rows;
  std::vector<SampledToken> want;
  for (int i = 0; i < count; ++i) {
    SamplingParams params = kinds[static_cast<size_t>(i % turns)];
    params.seed = static_cast<uint64_t>(rng.below(1 << 30));
    std::vector<float> row(static_cast<size_t>(vocab));
    const bool ties = i / turns % 2 == 1;
    for (float& x : row) x = static_cast<float>(ties ? std::round(2 * rng.normal()) : 3 * rng.normal());
    if (i == count / 2) row[static_cast<size_t>(valid / 2)] = std::numeric_limits<float>::quiet_NaN();
    if (i == count - 1) std::fill(row.begin(), row.begin() + valid / 2, -std::numeric_limits<float>::infinity());
    logits.insert(logits.end(), row.begin(), row.end());
    SamplerState state(params, {}, valid);
    rows.push_back({.temperature = params.temperature,
                    .top_p = params.top_p,
                    .min_p = params.min_p,
                    .top_k = params.top_k,
                    .uniform = draw_of(state, 9),
                    .slot = count - 1 - i});
    want.push_back(sample(row, params, state, 9));
  }
  std::vector<SampledRow> got(rows.size());
  std::vector<int32_t> next(rows.size(), -5);
  std::vector<std::byte> workspace(static_cast<size_t>(sample_workspace_bytes(count)));
  Mirror mirror(Backend::cuda);
  auto* sampled = reinterpret_cast<SampledRow*>(mirror.of(std::as_writable_bytes(std::span(got)), true));
  auto* tokens = reinterpret_cast<int32_t*>(mirror.of(std::as_writable_bytes(std::span(next)), true));
  sample_on_gpu(mirror.of(logits.data(), std::ssize(logits)), count, vocab, valid, mirror.of(rows.data(), count),
                sampled, tokens, mirror.of(workspace, false), test_device(Backend::cuda).stream());
  mirror.finish();
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampledToken token = sampled_on_device(got[i], 9);
    EXPECT_EQ(token.status.ok(), want[i].status.ok()) << i;
    EXPECT_EQ(got[i].bad, want[i].status.ok() ? 0 : valid / 2 + 1) << i;
    if (!token.status.ok()) continue;
    EXPECT_EQ(token.id, want[i].id) << i;
    EXPECT_EQ(next[rows.size() - 1 - i], token.id);
    EXPECT_NEAR(token.logprob, want[i].logprob, 1e-4);
    EXPECT_EQ(token.gap, want[i].gap);
  }
}

class DeviceSampler : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda_unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_F(DeviceSampler, ChoosesAsTheHostDoes) {
  const SamplingParams kinds[] = {{.temperature = 0},
                                  {.temperature = 1},
                                  {.temperature = 0.7f, .top_p = 0.8f},
                                  {.temperature = 1.5f, .top_k = 5},
                                  {.temperature = 1, .top_k = 40, .min_p = 0.05f},
                                  {.temperature = 0.9f, .top_p = 0.5f, .top_k = 7, .min_p = 0.01f}};
  for (int64_t vocab : {1003, 1004}) expect_choices_of_the_host(vocab, 1000, kinds, 36);
  expect_choices_of_the_host(5, 3, std::span(kinds, 1), 4);
}

// More logits than a part's block holds in flight, with few candidates: draws over many are within a rounding of
// others.
TEST_F(DeviceSampler, ChoosesAsTheHostDoesFromManyLogits) {
  const SamplingParams kinds[] = {{.temperature = 0}, {.temperature = 1, .top_k = 5}};
  for (int64_t vocab : {280004, 280003}) expect_choices_of_the_host(vocab, 280002, kinds, 6);
}

}  // namespace
}  // namespace moesaic
