// Images through the public API: Kimi K2.5's golden image as a file, cut into chunks, beside text, and refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "moesaic/engine.h"
#include "support/checkpoint.h"

namespace moesaic {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;
constexpr int32_t kImage = 310;  // image_token_id of the golden model

std::string media_file(const std::string& name) {
  std::ifstream file(std::string(MOESAIC_SOURCE_DIR) + "/tests/media/data/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Ids golden_ids(const std::string& name) {
  const TensorMap tensors = read_tensors(golden("kimi_k25") + "/golden.safetensors");
  const OwnedTensor& t = tensors.at(name);
  Ids ids;
  for (int64_t i = 0; i < t.shape[-1]; ++i) {
    int64_t id;
    std::memcpy(&id, t.bytes.data() + i * 8, 8);
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

// The golden prompt with one image token, as it was before expansion.
Ids short_prompt() {
  Ids out;
  for (int32_t id : golden_ids("input_ids"))
    if (id != kImage || out.empty() || out.back() != kImage) out.push_back(id);
  return out;
}

Engine open(int64_t batched = 512) {
  return Engine::open(
      {.model = golden("kimi_k25"), .precision = "float32", .threads = 2, .max_num_batched_tokens = batched});
}

Request with_image(const std::string& file) {
  return {.tokens = short_prompt(),
          .images = {media_file(file)},
          .sampling = {.temperature = 0, .logprobs = 3},
          .max_new_tokens = 12,
          .ignore_eos = true};
}

struct Answer {
  Ids ids;
  std::vector<float> logprobs;
  Usage usage;
};

Answer drain(Completion& completion) {
  Answer answer;
  while (auto chunk = completion.next())
    for (const GeneratedToken& token : chunk->tokens)
      answer.ids.push_back(token.id), answer.logprobs.push_back(token.logprob);
  EXPECT_TRUE(completion.status().ok()) << completion.status().message();
  answer.usage = completion.usage();
  return answer;
}

Answer ask(Engine& engine, Request request) {
  auto completion = engine.submit(std::move(request));
  EXPECT_TRUE(completion.ok()) << completion.status().message();
  return completion.ok() ? drain(*completion) : Answer{};
}

TEST(Images, TheGoldenImageGivesTheGoldenTokens) {
  Engine engine = open();
  EXPECT_EQ(engine.info().image_token, kImage);
  const Answer answer = ask(engine, with_image("kimi_k25.png"));
  EXPECT_EQ(answer.ids, golden_ids("greedy"));
  EXPECT_EQ(answer.usage.prompt_tokens, 62);  // 20 image tokens
}

TEST(Images, ChunksAndNeighboursChangeNothing) {
  Engine engine = open();
  const Answer whole = ask(engine, with_image("kimi_k25.png"));
  for (int64_t batched : {1, 7, 30}) {
    Engine small = open(batched);
    EXPECT_EQ(ask(small, with_image("kimi_k25.png")).logprobs, whole.logprobs) << batched;
  }
  const Request text{
      .tokens = {5, 6, kImage, 8}, .sampling = {.temperature = 0}, .max_new_tokens = 12, .ignore_eos = true};
  const Answer text_alone = ask(engine, text), other_alone = ask(engine, with_image("photo.jpg"));
  auto a = engine.submit(with_image("kimi_k25.png")), b = engine.submit(text),
       c = engine.submit(with_image("photo.jpg"));
  EXPECT_EQ(drain(*a).logprobs, whole.logprobs);
  EXPECT_EQ(drain(*b).logprobs, text_alone.logprobs);
  EXPECT_EQ(drain(*c).logprobs, other_alone.logprobs);
}

TEST(Images, FC038_AnotherImageIsAnotherPrompt) {
  Engine engine = open();
  const Answer first = ask(engine, with_image("kimi_k25.png")), second = ask(engine, with_image("photo.png"));
  const Answer third = ask(engine, with_image("kimi_k25.png"));
  EXPECT_NE(first.logprobs, second.logprobs);
  EXPECT_EQ(first.logprobs, third.logprobs);
}

TEST(Images, WithoutAPlaceTheyComeFirst) {
  Engine engine = open();
  Request marked = with_image("photo.png"), plain = with_image("photo.png");
  marked.tokens = {kImage, 9, 10, 11};
  plain.tokens = {9, 10, 11};
  EXPECT_EQ(ask(engine, marked).logprobs, ask(engine, plain).logprobs);
}

TEST(Images, TwoImagesKeepTheirOrder) {
  Engine engine = open();
  const auto both = [&](const std::string& a, const std::string& b) {
    Request request = with_image(a);
    request.images.push_back(media_file(b));
    request.tokens = {9, kImage, 10, kImage, 11};
    return ask(engine, std::move(request)).logprobs;
  };
  EXPECT_NE(both("photo.png", "kimi_k25.png"), both("kimi_k25.png", "photo.png"));
}

Status refusal(Engine& engine, Request request) {
  return engine.submit(std::move(request)).status();
}

TEST(Images, WhatCannotBeIsRefusedWithAReason) {
  Engine engine = open();
  Request request = with_image("photo.png");
  request.tokens = {kImage, 1, kImage};
  EXPECT_THAT(refusal(engine, request).message(),
              HasSubstr("there are 1 images, and the prompt has 2 image tokens (id 310)"));
  request = with_image("photo.png");
  request.images[0].resize(120);
  EXPECT_THAT(refusal(engine, request).message(), HasSubstr("image 1: the PNG image is damaged"));
  EXPECT_EQ(refusal(engine, request).param(), "images");
  EXPECT_EQ(refusal(engine, request).code(), StatusCode::invalid_argument);
  request.images[0] = "text";
  EXPECT_THAT(refusal(engine, request).message(), HasSubstr("image 1: this is no JPEG, PNG or WebP image"));
  // Lengths count the tokens that an image becomes.
  Engine narrow = Engine::open({.model = golden("kimi_k25"), .threads = 1, .max_model_len = 62});
  EXPECT_THAT(refusal(narrow, with_image("kimi_k25.png")).message(), HasSubstr("the prompt has 62 tokens"));
  Engine blind = Engine::open({.model = golden("gpt_oss-mxfp4"), .threads = 1});
  EXPECT_EQ(blind.info().image_token, -1);
  EXPECT_THAT(refusal(blind, with_image("photo.png")).message(), HasSubstr("this model sees no images"));
}

}  // namespace
}  // namespace moesaic
