// The engine through its public API: greedy continuations of the golden and demo models, batching, limits, errors.
#include "moesaic/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "engine/taps.h"
#include "support/answers.h"
#include "support/checkpoint.h"

namespace moesaic {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;

Ids read_ids(const OwnedTensor& t, int64_t row = 0) {
  const int64_t length = t.shape[-1];
  Ids ids;
  for (int64_t i = 0; i < length; ++i) {
    int64_t id;
    std::memcpy(&id, t.bytes.data() + (row * length + i) * 8, 8);
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

Request greedy(Ids tokens, int64_t count) {
  return {.tokens = std::move(tokens), .sampling = {.temperature = 0}, .max_new_tokens = count, .ignore_eos = true};
}

Engine open(const std::string& model, const std::string& precision = "float32", int64_t batched = 512) {
  return Engine::open({.model = model, .precision = precision, .threads = 2, .max_num_batched_tokens = batched});
}

TEST(GoldenGreedy, TokensEqualTheReference) {
  for (const char* name : {"gpt_oss-mxfp4", "gpt_oss-bf16", "kimi_linear", "qwen3_moe", "deepseek_v3",
                           "deepseek_v3-fp8", "kimi_k3", "kimi_k3-grouped"}) {
    const TensorMap reference = read_tensors(golden(name) + "/golden.safetensors");
    const Json info = read_json_file(golden(name) + "/golden.json");
    const auto prompt_length = static_cast<size_t>(json_int(info.as_object(), "prompt_len", name));
    Engine engine = open(golden(name));
    for (int64_t row = 0; row < 2; ++row) {
      Ids prompt = read_ids(reference.at("input_ids"), row);
      prompt.resize(prompt_length);
      const Answer answer = ask(engine, greedy(prompt, 12));
      EXPECT_EQ(answer.ids, read_ids(reference.at("greedy"), row)) << name;
      EXPECT_EQ(answer.reason, FinishReason::length);
    }
  }
}

// Continuations are compared up to the first near-tie of the reference's order: there, rounding may choose either.
TEST(Demo, GreedyContinuationsEqualTheReference) {
  constexpr float kNearTie = 1e-3f;
  const TensorMap reference = read_tensors(demo_model() + "/golden.safetensors");
  Engine engine = open(demo_model());
  for (int i = 0; i < 4; ++i) {
    const Ids prompt = read_ids(reference.at(fmt::format("prompt.{}", i)));
    const Ids want = read_ids(reference.at(fmt::format("greedy.{}", i)));
    const Answer answer = ask(engine, greedy(prompt, static_cast<int64_t>(want.size())));
    ASSERT_EQ(answer.ids.size(), want.size());
    for (size_t k = 0; k < want.size(); ++k) {
      if (answer.gaps[k] < kNearTie) {
        std::printf("prompt %d, token %zu: a near-tie, the two best logits are %g apart\n", i, k,
                    static_cast<double>(answer.gaps[k]));
        if (answer.ids[k] != want[k]) break;
      }
      ASSERT_EQ(answer.ids[k], want[k]) << "prompt " << i << ", token " << k;
    }
  }
}

std::vector<float> read_floats(const OwnedTensor& t) {
  std::vector<float> out(static_cast<size_t>(t.shape.elements()));
  std::memcpy(out.data(), t.bytes.data(), out.size() * 4);
  return out;
}

// The last rows of `logits` against those of a reference with the same vocabulary.
double relative_l2(std::span<const double> logits, std::span<const float> reference) {
  double difference = 0, square = 0;
  const size_t offset = logits.size() - reference.size();
  for (size_t i = 0; i < reference.size(); ++i) {
    const double want = static_cast<double>(reference[i]);
    difference += (logits[offset + i] - want) * (logits[offset + i] - want);
    square += want * want;
  }
  return std::sqrt(difference / square);
}

TEST(Demo, LogitsEqualTheReference) {
  const TensorMap exact = read_tensors(golden("demo") + "/float32.safetensors");
  for (int i = 0; i < 4; ++i) {
    const Ids ids = read_ids(exact.at(fmt::format("input_ids.{}", i)));
    LoadOptions options;
    options.model = demo_model();
    options.precision = Precision::float32;
    options.progress = false;
    LoadedModel loaded = load_model(forward_limits(options, 1, static_cast<int64_t>(ids.size())));
    const std::vector<double> got = forward(loaded, {ids}).named.back().second.values;
    EXPECT_LE(relative_l2(got, read_floats(exact.at(fmt::format("logits.{}", i)))), 2e-6) << i;
  }
}

TEST(Demo, PromptsTokenizeAsTheReference) {
  const TensorMap reference = read_tensors(demo_model() + "/golden.safetensors");
  const Json info = read_json_file(demo_model() + "/golden.json");
  Engine engine = open(demo_model());
  for (int i = 0; i < 4; ++i) {
    const std::string text(info.at("prompts").at(static_cast<size_t>(i)).as_string());
    EXPECT_EQ(engine.tokenizer().encode(text), read_ids(reference.at(fmt::format("prompt.{}", i)))) << text;
  }
  const auto chat = engine.tokenizer().encode_chat(R"([{"role": "user", "content": "What sound does an owl make?"}])");
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  EXPECT_EQ(*chat, read_ids(reference.at("prompt.3")));
}

TEST(Demo, ChatAnswersWithoutMarkers) {
  Engine engine = open(demo_model(), "fast");
  const auto tokens =
      engine.tokenizer().encode_chat(R"([{"role": "user", "content": "What sound does an owl make?"}])");
  ASSERT_TRUE(tokens.ok());
  const Answer answer =
      ask(engine, {.tokens = *tokens, .sampling = {.temperature = 0}, .max_new_tokens = 64, .chat = true});
  EXPECT_EQ(answer.reason, FinishReason::stop);
  EXPECT_GT(answer.text.size(), 5u);
  EXPECT_EQ(answer.text.find("<|"), std::string::npos) << answer.text;
  EXPECT_EQ(answer.text.find("final"), std::string::npos) << answer.text;
}

// FC-027 and FC-054: neighbours, order and chunking change nothing, bit for bit.
TEST(Engine, FC027_NeighboursDoNotMatter) {
  Engine engine = open(demo_model(), "fast", 48);  // prompts are cut into chunks of at most 48 tokens
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 9; ++i) {
    Ids prompt;
    for (uint64_t k = 0; k < 5 + 17 * i; ++k) prompt.push_back(static_cast<int32_t>(mix64(i * 1000 + k) % 6000));
    requests.push_back({.tokens = prompt,
                        .sampling = {.temperature = 0.8f, .top_p = 0.9f, .seed = i},
                        .max_new_tokens = 20,
                        .ignore_eos = true});
  }
  std::vector<Answer> alone;
  for (const Request& request : requests) alone.push_back(ask(engine, request));
  std::vector<Completion> together;
  for (const Request& request : requests) {
    auto completion = engine.submit(request);
    ASSERT_TRUE(completion.ok());
    together.push_back(std::move(*completion));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const Answer answer = drain(together[i]);
    EXPECT_EQ(answer.ids, alone[i].ids) << i;
    EXPECT_EQ(answer.logprobs, alone[i].logprobs) << i;
    EXPECT_EQ(answer.ids.size(), 20u);
  }
  Request other = requests[3];
  other.sampling.seed = 43;
  EXPECT_NE(ask(engine, other).ids, alone[3].ids);
}

TEST(Engine, StopStringsAndTokens) {
  Engine engine = open(demo_model());
  const Ids prompt = engine.tokenizer().encode("Once upon a time, there was a little fox who");
  const Answer whole = ask(engine, greedy(prompt, 40));
  const std::string stop = whole.text.substr(whole.text.find('.') - 3, 4);
  Request request = greedy(prompt, 40);
  request.stop = {stop};
  const Answer cut = ask(engine, request);
  EXPECT_EQ(cut.reason, FinishReason::stop);
  EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(stop)));
  request = greedy(prompt, 40);
  request.stop_token_ids = {whole.ids[5]};
  const Answer token = ask(engine, request);
  EXPECT_EQ(token.reason, FinishReason::stop);
  EXPECT_EQ(token.ids.back(), whole.ids[5]);
  EXPECT_EQ(token.text, engine.tokenizer().decode({token.ids.data(), token.ids.size() - 1}));
}

TEST(Engine, RefusesWhatCannotRun) {
  Engine engine = Engine::open({.model = demo_model(), .threads = 1, .max_model_len = 100});
  const auto refusal = [&](Request request) {
    const auto result = engine.submit(std::move(request));
    return result.ok() ? std::string("accepted") : std::string(result.status().message());
  };
  EXPECT_THAT(refusal({}), HasSubstr("no tokens"));
  EXPECT_THAT(refusal(greedy(Ids(100, 5), 1)),
              testing::AllOf(HasSubstr("maximum context length is 100 tokens"), HasSubstr("100")));
  EXPECT_THAT(refusal(greedy(Ids(60, 5), 41)),
              testing::AllOf(HasSubstr("maximum context length is 100 tokens"), HasSubstr("41")));
  EXPECT_EQ(refusal(greedy(Ids(60, 5), 40)), "accepted");
  EXPECT_THAT(refusal(greedy({6144}, 1)), HasSubstr("6144"));
  EXPECT_THAT(refusal(greedy({-1}, 1)), HasSubstr("-1"));
  Request hot = greedy({1}, 1);
  hot.sampling.top_p = 0;
  EXPECT_THAT(refusal(hot), HasSubstr("top_p"));
  EXPECT_EQ(ask(engine, greedy(Ids(99, 5), 0)).ids.size(), 1u);
}

TEST(Engine, DroppedCompletionsFreeTheirPlace) {
  Engine engine = Engine::open({.model = demo_model(), .threads = 2, .max_model_len = 512, .max_num_seqs = 2});
  for (int i = 0; i < 20; ++i) {
    auto completion = engine.submit(greedy(Ids(20, 7), 400));
    ASSERT_TRUE(completion.ok());
    if (i % 2 == 0) completion->next();
  }  // dropped before its end
  EXPECT_EQ(ask(engine, greedy(Ids(20, 7), 3)).ids.size(), 3u);
}

TEST(Engine, CancelEndsWithItsStatus) {
  Engine engine = open(demo_model());
  auto completion = engine.submit(greedy(Ids(20, 7), 1500));
  ASSERT_TRUE(completion.ok());
  completion->next();
  completion->cancel();
  const Answer answer = drain(*completion);
  EXPECT_EQ(answer.reason, FinishReason::cancelled);
  EXPECT_EQ(answer.status.code(), StatusCode::cancelled);
}

TEST(Engine, FullQueueIsRefused) {
  Engine engine = Engine::open({.model = demo_model(), .threads = 1, .max_num_seqs = 1, .max_queue = 2});
  std::vector<Completion> held;
  Status refused;
  for (int i = 0; i < 20 && refused.ok(); ++i) {
    auto completion = engine.submit(greedy(Ids(20, 7), 1000));
    if (completion.ok()) held.push_back(std::move(*completion));
    else refused = completion.status();
  }
  EXPECT_EQ(refused.code(), StatusCode::resource_exhausted);
  EXPECT_LE(held.size(), 4u);
}

TEST(Engine, NonFiniteLogitsEndOnlyTheirSequence) {
  // The embedding row of token 9 is NaN: a prompt that holds it has NaN logits.
  const EditedCheckpoint edited("gpt_oss-mxfp4", [](TensorMap& t, JsonObject&) {
    OwnedTensor& table = t.at("model.embed_tokens.weight");
    const uint16_t nan = 0x7FC0;
    for (int64_t h = 0; h < table.shape[1]; ++h)
      std::memcpy(table.bytes.data() + (9 * table.shape[1] + h) * 2, &nan, 2);
  });
  Engine engine = open(edited.path());
  const Ids good = {3, 4, 5, 6};
  const Answer alone = ask(engine, greedy(good, 8));
  auto first = engine.submit(greedy(good, 8));
  auto poisoned = engine.submit(greedy({3, 9, 4}, 8));
  auto second = engine.submit(greedy(good, 8));
  ASSERT_TRUE(first.ok() && poisoned.ok() && second.ok());
  EXPECT_EQ(drain(*first).ids, alone.ids);
  const Answer bad = drain(*poisoned);
  EXPECT_EQ(bad.status.code(), StatusCode::internal);
  EXPECT_EQ(bad.reason, FinishReason::error);
  EXPECT_EQ(drain(*second).ids, alone.ids);
}

TEST(Engine, ErrorsWhileOpening) {
  EXPECT_THAT([] { Engine::open({.model = "no-such-directory"}); },
              testing::ThrowsMessage<Error>(HasSubstr("no-such-directory")));
  EXPECT_THAT([] { Engine::open({.model = demo_model(), .device = "abacus"}); },
              testing::ThrowsMessage<Error>(HasSubstr("abacus")));
  EXPECT_THAT([] { Engine::open({.model = demo_model(), .precision = "half"}); },
              testing::ThrowsMessage<Error>(HasSubstr("half")));
  EXPECT_THAT([] { Engine::open({.model = demo_model(), .max_model_len = 5000}); },
              testing::ThrowsMessage<Error>(testing::AllOf(HasSubstr("5000"), HasSubstr("2048"))));
  EXPECT_THAT([] { Engine::open({.model = demo_model(), .kv_cache_tokens = int64_t{1} << 40}); },
              testing::ThrowsMessage<Error>(HasSubstr("needs")));
}

}  // namespace
}  // namespace moesaic
