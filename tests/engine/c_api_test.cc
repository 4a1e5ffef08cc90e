// The C API: error codes and messages, null arguments, structs of other sizes, lifetimes, threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <thread>

#include "moesaic/c.h"
#include "moesaic/engine.h"
#include "support/checkpoint.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

constexpr const char* kPrompt = "Once upon a time, there was a little fox who";

msc_engine_params engine_params() {
  msc_engine_params params;
  msc_engine_params_init(&params, sizeof params);
  params.threads = 2;
  params.max_model_len = 256;
  return params;
}

msc_engine* open_demo() {
  const msc_engine_params params = engine_params();
  msc_engine* engine = nullptr;
  EXPECT_EQ(msc_engine_open(demo_model().c_str(), &params, &engine), MSC_OK) << msc_last_error();
  return engine;
}

// One engine for the tests that only ask.
class CApi : public testing::Test {
 protected:
  static void SetUpTestSuite() { engine_ = open_demo(); }
  static void TearDownTestSuite() { msc_engine_close(engine_); }

  static msc_request_params request(const char* prompt, int64_t tokens) {
    msc_request_params params;
    msc_request_params_init(engine_, &params, sizeof params);
    params.prompt = prompt;
    params.max_new_tokens = tokens;
    params.temperature = 0;
    return params;
  }
  static msc_completion* submit(const msc_request_params& params) {
    msc_completion* completion = nullptr;
    EXPECT_EQ(msc_submit(engine_, &params, &completion), MSC_OK) << msc_last_error();
    return completion;
  }
  // The text up to the end, which must be a good one; frees the completion.
  static std::string drain(msc_completion* completion) {
    std::string all;
    const char* text = nullptr;
    size_t length = 0;
    msc_status status;
    while ((status = msc_next(completion, &text, &length)) == MSC_OK) {
      EXPECT_EQ(std::strlen(text), length);
      all += text;
    }
    EXPECT_EQ(status, MSC_END) << msc_last_error();
    EXPECT_EQ(length, 0u);
    EXPECT_STREQ(text, "");
    EXPECT_EQ(msc_next(completion, &text, &length), MSC_END);  // and stays ended
    msc_completion_free(completion);
    return all;
  }
  static void expect_refused(const msc_request_params& params, const std::string& part) {
    auto* completion = reinterpret_cast<msc_completion*>(1);
    EXPECT_EQ(msc_submit(engine_, &params, &completion), MSC_INVALID_ARGUMENT);
    EXPECT_EQ(completion, nullptr);
    EXPECT_THAT(msc_last_error(), HasSubstr(part));
    EXPECT_EQ(std::string(msc_last_error()).find('\n'), std::string::npos);
  }

  static msc_engine* engine_;
};
msc_engine* CApi::engine_ = nullptr;

TEST_F(CApi, TextEqualsTheEngines) {
  Engine engine = Engine::open({.model = demo_model(), .threads = 2, .max_model_len = 256});
  const auto ids = engine.tokenizer().encode(kPrompt);
  auto completion = engine.submit({.tokens = ids, .sampling = {.temperature = 0}, .max_new_tokens = 40});
  ASSERT_TRUE(completion.ok());
  std::string want;
  while (auto chunk = completion->next()) want += chunk->text;
  EXPECT_GT(want.size(), 40u);
  EXPECT_EQ(drain(submit(request(kPrompt, 40))), want);
  msc_request_params by_ids = request("not read", 40);
  by_ids.tokens = ids.data();
  by_ids.token_count = ids.size();
  EXPECT_EQ(drain(submit(by_ids)), want);
}

TEST_F(CApi, SeedIsUsedWhereItIsSet) {
  msc_request_params params = request(kPrompt, 60);
  params.temperature = 1.5f;
  params.top_p = 1;
  params.has_seed = 1;
  params.seed = 7;
  const std::string seven = drain(submit(params));
  EXPECT_EQ(drain(submit(params)), seven);
  params.seed = 8;
  EXPECT_NE(drain(submit(params)), seven);
}

TEST_F(CApi, DefaultsAreTheModels) {
  msc_request_params params;
  msc_request_params_init(engine_, &params, sizeof params);
  EXPECT_FLOAT_EQ(params.temperature, 0.8f);  // generation_config.json
  EXPECT_FLOAT_EQ(params.top_p, 0.95f);
  EXPECT_EQ(params.struct_size, sizeof params);
  msc_request_params_init(nullptr, &params, sizeof params);
  EXPECT_FLOAT_EQ(params.temperature, 1);
}

TEST_F(CApi, RequestsThatCannotRun) {
  expect_refused(request("", 1), "no tokens");
  expect_refused(request(nullptr, 1), "no tokens");
  expect_refused(request(kPrompt, 1000), "256 tokens");
  expect_refused(request(kPrompt, -1), "max_new_tokens is -1");
  msc_request_params params = request(nullptr, 1);
  const std::vector<int32_t> ids(300, 5), foreign = {1, 6144};
  params.tokens = ids.data(), params.token_count = ids.size();
  expect_refused(params, "300 tokens");
  params.tokens = foreign.data(), params.token_count = foreign.size();
  expect_refused(params, "6144");
  params = request(kPrompt, 1);
  params.top_p = 0;
  expect_refused(params, "top_p is 0");
}

TEST_F(CApi, NullArguments) {
  const msc_request_params params = request(kPrompt, 3);
  msc_completion* completion = nullptr;
  EXPECT_EQ(msc_submit(nullptr, &params, &completion), MSC_INVALID_ARGUMENT);
  EXPECT_STREQ(msc_last_error(), "engine is null");
  EXPECT_EQ(msc_submit(engine_, &params, nullptr), MSC_INVALID_ARGUMENT);
  EXPECT_STREQ(msc_last_error(), "completion is null");
  EXPECT_EQ(msc_submit(engine_, nullptr, &completion), MSC_INVALID_ARGUMENT);  // defaults have no prompt
  EXPECT_EQ(completion, nullptr);
  const char* text = nullptr;
  size_t length = 0;
  EXPECT_EQ(msc_next(nullptr, &text, &length), MSC_INVALID_ARGUMENT);
  completion = submit(params);
  EXPECT_EQ(msc_next(completion, nullptr, &length), MSC_INVALID_ARGUMENT);
  EXPECT_EQ(msc_next(completion, &text, nullptr), MSC_INVALID_ARGUMENT);
  EXPECT_FALSE(drain(completion).empty());  // nothing was lost
  msc_cancel(nullptr);
  msc_completion_free(nullptr);
  msc_engine_close(nullptr);
}

TEST_F(CApi, OlderAndNewerStructs) {
  msc_request_params params = request(kPrompt, 20);
  params.has_seed = 1, params.seed = 3;
  params.temperature = 0.8f;
  const std::string want = drain(submit(params));
  // A caller whose struct ends before min_p: what follows is not read.
  params.struct_size = offsetof(msc_request_params, min_p);
  params.min_p = -5;
  params.has_seed = 0;
  EXPECT_FALSE(drain(submit(params)).empty());
  // A caller with fields that this library does not know.
  struct {
    msc_request_params known;
    char more[64];
  } newer{};
  msc_request_params_init(engine_, &newer.known, sizeof newer);
  EXPECT_EQ(newer.known.struct_size, sizeof newer);
  newer.known.prompt = kPrompt, newer.known.max_new_tokens = 20, newer.known.has_seed = 1, newer.known.seed = 3;
  std::memset(newer.more, 0xFF, sizeof newer.more);
  EXPECT_EQ(drain(submit(newer.known)), want);
  params = request(kPrompt, 20);
  params.struct_size = 0;
  expect_refused(params, "struct_size is 0");
}

TEST_F(CApi, InitWritesNoFurtherThanItsSize) {
  constexpr size_t kOld = offsetof(msc_engine_params, device);
  msc_engine_params params;
  std::memset(static_cast<void*>(&params), 0xAB, sizeof params);
  msc_engine_params_init(&params, kOld);
  EXPECT_EQ(params.struct_size, kOld);
  EXPECT_EQ(params.max_num_seqs, EngineOptions{}.max_num_seqs);
  const auto* bytes = reinterpret_cast<const unsigned char*>(&params);
  for (size_t i = kOld; i < sizeof params; ++i) EXPECT_EQ(bytes[i], 0xAB) << i;
  params.threads = 1;
  msc_engine* engine = nullptr;
  EXPECT_EQ(msc_engine_open(demo_model().c_str(), &params, &engine), MSC_OK)
      << msc_last_error();  // wild pointers unread
  msc_engine_close(engine);
}

TEST_F(CApi, CancelledAndAbandoned) {
  msc_completion* completion = submit(request(kPrompt, 200));
  const char* text = nullptr;
  size_t length = 0;
  ASSERT_EQ(msc_next(completion, &text, &length), MSC_OK);
  msc_cancel(completion);
  msc_status status = MSC_OK;
  while (status == MSC_OK) status = msc_next(completion, &text, &length);
  EXPECT_TRUE(status == MSC_CANCELLED || status == MSC_END) << status;  // it may have ended before
  msc_completion_free(completion);
  for (int i = 0; i < 40; ++i) {  // more than fit at once
    msc_completion* dropped = submit(request(kPrompt, 200));
    if (i % 3 == 0) msc_next(dropped, &text, &length);
    msc_completion_free(dropped);
  }
  EXPECT_FALSE(drain(submit(request(kPrompt, 5))).empty());
}

TEST_F(CApi, ThreadsHaveTheirOwnErrors) {
  expect_refused(request("", 1), "no tokens");
  const std::string alone = drain(submit(request(kPrompt, 40)));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      EXPECT_STREQ(msc_last_error(), "");
      EXPECT_EQ(drain(submit(request(kPrompt, 40))), alone);
      expect_refused(request(kPrompt, 1000), "256 tokens");
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(msc_last_error(), HasSubstr("no tokens"));
}

msc_status open_status(const std::string& model, const msc_engine_params& params) {
  auto* engine = reinterpret_cast<msc_engine*>(1);
  const msc_status status = msc_engine_open(model.c_str(), &params, &engine);
  EXPECT_EQ(engine, nullptr);
  return status;
}

TEST(CApiOpen, Errors) {
  msc_engine_params params = engine_params();
  EXPECT_EQ(open_status("no-such-directory", params), MSC_NOT_FOUND);
  EXPECT_THAT(msc_last_error(), HasSubstr("no-such-directory"));
  params.device = "abacus";
  EXPECT_EQ(open_status(demo_model(), params), MSC_INVALID_ARGUMENT);
  EXPECT_THAT(msc_last_error(), HasSubstr("abacus"));
  params.device = nullptr;
  EXPECT_EQ(open_status(demo_model(), params), MSC_INVALID_ARGUMENT);
  EXPECT_STREQ(msc_last_error(), "device is null");
  params = engine_params();
  params.max_model_len = 5000;
  EXPECT_EQ(open_status(demo_model(), params), MSC_INVALID_ARGUMENT);
  EXPECT_THAT(msc_last_error(), HasSubstr("5000"));
  params = engine_params();
  params.struct_size = 0;
  EXPECT_EQ(open_status(demo_model(), params), MSC_INVALID_ARGUMENT);
  EXPECT_THAT(msc_last_error(), HasSubstr("struct_size"));
  const EditedCheckpoint corrupt("gpt_oss-mxfp4", [](TensorMap& t, JsonObject&) {
    t.at("model.layers.0.mlp.experts.down_proj_scales").bytes[0] = std::byte{0xFF};
  });
  EXPECT_EQ(open_status(corrupt.path(), engine_params()), MSC_DATA_LOSS);
  EXPECT_THAT(msc_last_error(), HasSubstr("down_proj_scales"));
}

TEST(CApiOpen, NullArguments) {
  msc_engine* engine = nullptr;
  EXPECT_EQ(msc_engine_open(nullptr, nullptr, &engine), MSC_INVALID_ARGUMENT);
  EXPECT_STREQ(msc_last_error(), "model_dir is null");
  EXPECT_EQ(msc_engine_open(demo_model().c_str(), nullptr, nullptr), MSC_INVALID_ARGUMENT);
  EXPECT_STREQ(msc_last_error(), "engine is null");
  ASSERT_EQ(msc_engine_open(demo_model().c_str(), nullptr, &engine), MSC_OK) << msc_last_error();  // all defaults
  msc_engine_close(engine);
}

TEST(CApiOpen, ModelWithoutTokenizer) {
  const msc_engine_params params = engine_params();
  msc_engine* engine = nullptr;
  ASSERT_EQ(msc_engine_open(golden("gpt_oss-mxfp4").c_str(), &params, &engine), MSC_OK) << msc_last_error();
  msc_request_params request;
  msc_request_params_init(engine, &request, sizeof request);
  request.prompt = "text";
  msc_completion* completion = nullptr;
  EXPECT_EQ(msc_submit(engine, &request, &completion), MSC_NOT_FOUND);
  EXPECT_THAT(msc_last_error(), HasSubstr("tokenizer.json"));
  const int32_t ids[] = {1, 2, 3};
  request.tokens = ids, request.token_count = 3, request.max_new_tokens = 4;
  ASSERT_EQ(msc_submit(engine, &request, &completion), MSC_OK) << msc_last_error();
  const char* text = nullptr;
  size_t length = 1;
  int steps = 0;
  msc_status status;
  while ((status = msc_next(completion, &text, &length)) == MSC_OK) {
    ++steps;
    EXPECT_EQ(length, 0u);
  }
  EXPECT_EQ(status, MSC_END);
  EXPECT_GE(steps, 1);
  msc_completion_free(completion);
  msc_engine_close(engine);
}

}  // namespace
}  // namespace moesaic
