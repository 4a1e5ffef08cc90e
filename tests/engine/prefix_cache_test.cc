// What the prefix cache, preemption and scoring must not change: answers are those of an engine without them, bit for
// bit, in every family.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/rng.h"
#include "support/answers.h"
#include "support/checkpoint.h"
#include "support/golden_values.h"

namespace moesaic {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;

struct Said {
  Ids ids;
  std::vector<float> logprobs;
  bool operator==(const Said&) const = default;
};

Said said(const Answer& answer) {
  EXPECT_TRUE(answer.status.ok()) << answer.status.message();
  return {answer.ids, answer.logprobs};
}

Ids random_ids(uint64_t seed, int64_t count) {
  Ids ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(mix64(seed * 7919 + static_cast<uint64_t>(i)) % 300));
  return ids;
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Request greedy(Ids tokens, int64_t count = 12) {
  return {.tokens = std::move(tokens),
          .sampling = {.temperature = 0, .logprobs = 2},
          .max_new_tokens = count,
          .ignore_eos = true};
}

EngineOptions options(const std::string& model, bool prefix_caching = true) {
  return {.model = model,
          .precision = "float32",
          .threads = 2,
          .max_model_len = 1024,
          .max_num_seqs = 8,
          .max_num_batched_tokens = 160,
          .prefix_caching = prefix_caching};
}

class PrefixCache : public testing::TestWithParam<const char*> {};

// FC-039 and FC-040: turns of a conversation, a prompt that is a prefix of another, and the same prompt again.
TEST_P(PrefixCache, FC039_TurnsEqualAColdEngine) {
  Engine cold = Engine::open(options(golden(GetParam()), false)), warm = Engine::open(options(golden(GetParam())));
  Ids turn = random_ids(1, 150);
  int64_t cached = -1;
  for (int i = 0; i < 3; ++i) {
    const Answer want = ask(cold, greedy(turn, 70)), got = ask(warm, greedy(turn, 70));
    EXPECT_EQ(said(got), said(want)) << "turn " << i;
    EXPECT_EQ(want.usage.cached_tokens, 0);
    EXPECT_GT(got.usage.cached_tokens, cached) << "turn " << i;
    EXPECT_LT(got.usage.cached_tokens, got.usage.prompt_tokens);
    cached = std::max<int64_t>(got.usage.cached_tokens, 127);
    turn = joined(joined(turn, got.ids), random_ids(100 + static_cast<uint64_t>(i), 33));
  }
}

TEST_P(PrefixCache, FC039_ConversationsDoNotMix) {
  Engine cold = Engine::open(options(golden(GetParam()), false)), warm = Engine::open(options(golden(GetParam())));
  const Ids shared = random_ids(5, 100);
  const std::vector<Ids> prompts = {joined(shared, random_ids(6, 90)), joined(shared, random_ids(7, 90)),
                                    random_ids(8, 90), joined(shared, random_ids(6, 120))};
  for (int round = 0; round < 2; ++round)
    for (const Ids& prompt : prompts) EXPECT_EQ(said(ask(warm, greedy(prompt))), said(ask(cold, greedy(prompt))));
  std::vector<Request> requests;
  for (const Ids& prompt : prompts) requests.push_back(greedy(prompt));
  const std::vector<Answer> together = ask_together(warm, requests);
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(said(together[i]), said(ask(cold, requests[i]))) << i;
}

TEST_P(PrefixCache, FC040_WholePromptAlreadyCached) {
  Engine engine = Engine::open(options(golden(GetParam())));
  for (int64_t length : {1, 64, 65, 128}) {
    const Request request = greedy(random_ids(20 + static_cast<uint64_t>(length), length), 16);
    const Said first = said(ask(engine, request));
    for (int i = 0; i < 2; ++i) {
      const Answer again = ask(engine, request);
      EXPECT_EQ(said(again), first) << length;
      EXPECT_LE(again.usage.cached_tokens, length - 1);
    }
  }
}

// FC-042: memory for one and a half of four sequences.
TEST_P(PrefixCache, FC042_PreemptionLosesNothing) {
  EngineOptions roomy = options(golden(GetParam())), tight = roomy;
  tight.kv_cache_tokens = 12 * 64;
  Engine plenty = Engine::open(roomy), little = Engine::open(tight);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 4; ++i) {
    requests.push_back(greedy(random_ids(40 + i, 120), 380));
    if (i % 2 == 1) requests.back().sampling = {.temperature = 0.8f, .seed = i};
  }
  const std::vector<Answer> got = ask_together(little, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(said(got[i]), said(ask(plenty, requests[i]))) << i;
    EXPECT_EQ(got[i].reason, FinishReason::length);
    EXPECT_EQ(got[i].ids.size(), 380u);
  }
  const EngineStats stats = little.stats();
  EXPECT_GT(stats.preemptions, 0);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.blocks_used, 0);
  EXPECT_EQ(stats.slots_used, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, PrefixCache, testing::ValuesIn(kGoldenModels), golden_test_name);

// Requests that begin alike compute what they share once, also when they come together.
TEST(PrefixCacheDemo, ConcurrentRequestsShareTheirBeginning) {
  EngineOptions cold_options = options(demo_model(), false);
  Engine cold = Engine::open(cold_options), warm = Engine::open(options(demo_model()));
  const Ids shared = random_ids(1, 300);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 8; ++i) requests.push_back(greedy(joined(shared, random_ids(50 + i, 20)), 8));
  const std::vector<Answer> got = ask_together(warm, requests);
  int64_t cached = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(said(got[i]), said(ask(cold, requests[i]))) << i;
    cached += got[i].usage.cached_tokens;
  }
  EXPECT_EQ(cached, 7 * 256);
}

TEST(PrefixCacheDemo, SaltsKeepCachesApart) {
  Engine engine = Engine::open(options(demo_model()));
  Request request = greedy(random_ids(1, 200), 4);
  const auto cached = [&](const std::string& salt) {
    request.cache_salt = salt;
    return ask(engine, request).usage.cached_tokens;
  };
  EXPECT_EQ(cached("a"), 0);
  EXPECT_EQ(cached("b"), 0);
  EXPECT_EQ(cached(""), 0);
  EXPECT_EQ(cached("a"), 192);
  EXPECT_EQ(cached(""), 192);
  EXPECT_TRUE(engine.clear_prefix_cache().ok());
  EXPECT_EQ(cached("a"), 0);
}

// What leaves the device's cache comes back from the host's.
TEST(PrefixCacheDemo, EvictedBlocksReturnFromTheHost) {
  EngineOptions small = options(demo_model());
  small.kv_cache_tokens = 8 * 64, small.max_model_len = 512, small.prefix_cache_slots = 2;
  EngineOptions tiered = small;
  tiered.host_cache_bytes = int64_t{256} << 20;
  Engine without = Engine::open(small), with = Engine::open(tiered);
  std::vector<Said> first;
  for (uint64_t i = 0; i < 4; ++i) first.push_back(said(ask(with, greedy(random_ids(i, 330), 4))));
  for (uint64_t i = 0; i < 4; ++i) ask(without, greedy(random_ids(i, 330), 4));
  EXPECT_EQ(ask(without, greedy(random_ids(0, 330), 4)).usage.cached_tokens, 0);
  for (uint64_t i = 0; i < 4; ++i) {
    const Answer again = ask(with, greedy(random_ids(i, 330), 4));
    EXPECT_EQ(again.usage.cached_tokens, 320) << i;
    EXPECT_EQ(said(again), first[i]) << i;
  }
  EXPECT_GT(with.stats().host_blocks_used, 0);
}

std::string media_file(const std::string& name) {
  std::ifstream file(std::string(MOESAIC_SOURCE_DIR) + "/tests/media/data/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// FC-038: the same token ids, another image.
TEST(PrefixCacheImages, FC038_AnotherImageIsAnotherPrefix) {
  constexpr int32_t kImage = 310;
  Engine cold = Engine::open(options(golden("kimi_k25"), false)), warm = Engine::open(options(golden("kimi_k25")));
  const auto request = [&](const std::string& image) {
    Request r = greedy(joined(joined(random_ids(1, 70), {kImage}), random_ids(2, 80)));
    r.images = {media_file(image)};
    return r;
  };
  const Request a = request("photo.png"), b = request("photo.jpg");
  EXPECT_EQ(ask(warm, a).usage.cached_tokens, 0);
  const Answer again = ask(warm, a);
  EXPECT_GE(again.usage.cached_tokens, 128);
  EXPECT_EQ(said(again), said(ask(cold, a)));
  const Answer other = ask(warm, b);
  EXPECT_EQ(other.usage.cached_tokens, 64) << "the text before the image is shared, nothing from it on";
  EXPECT_EQ(said(other), said(ask(cold, b)));
  EXPECT_GE(ask(warm, a).usage.cached_tokens, 128);
}

// A step that fails costs the requests in it; the others and the next ones are answered.
TEST(Faults, AFailedStepCostsItsRequests) {
  setenv("MOESAIC_FAULTS", "5", 1);
  Engine engine = Engine::open(options(demo_model()));
  unsetenv("MOESAIC_FAULTS");
  const std::vector<Answer> got = ask_together(engine, {greedy(random_ids(1, 20), 40), greedy(random_ids(2, 20), 40)});
  int failed = 0;
  for (const Answer& answer : got) {
    if (answer.status.ok()) continue;
    ++failed;
    EXPECT_EQ(answer.status.code(), StatusCode::internal);
    EXPECT_THAT(answer.status.message(), HasSubstr("injected fault in step 5"));
    EXPECT_EQ(answer.reason, FinishReason::error);
  }
  EXPECT_GE(failed, 1);
  EXPECT_EQ(ask(engine, greedy(random_ids(3, 20), 8)).ids.size(), 8u);
  EXPECT_EQ(engine.stats().running, 0);
  EXPECT_EQ(engine.stats().blocks_used, 0);
}

// FC-051: a prompt's log-probabilities, with and without an answer, cached or not.
TEST(PromptLogprobs, EqualThoseOfTheTokensAsGenerated) {
  Engine engine = Engine::open(options(demo_model()));
  const Ids prompt = random_ids(3, 100);
  const Answer answer = ask(engine, greedy(prompt, 60));
  Request score = greedy(joined(prompt, answer.ids));
  score.prompt_logprobs = 2, score.score_only = true;
  auto completion = engine.submit(score);
  ASSERT_TRUE(completion.ok()) << completion.status().message();
  std::vector<GeneratedToken> scores;
  while (auto chunk = completion->next()) {
    EXPECT_TRUE(chunk->tokens.empty());
    scores.insert(scores.end(), chunk->prompt.begin(), chunk->prompt.end());
  }
  EXPECT_TRUE(completion->status().ok()) << completion->status().message();
  EXPECT_EQ(completion->finish_reason(), FinishReason::length);
  EXPECT_EQ(completion->usage().completion_tokens, 0);
  ASSERT_EQ(scores.size(), prompt.size() + answer.ids.size() - 1);
  for (size_t i = 0; i < answer.ids.size(); ++i) {
    const GeneratedToken& token = scores[prompt.size() - 1 + i];
    EXPECT_EQ(token.id, answer.ids[i]);
    EXPECT_EQ(token.logprob, answer.logprobs[i]) << i;
    EXPECT_EQ(token.top, answer.top[i]) << i;
  }
  Request both = greedy(prompt, 5);
  both.prompt_logprobs = 0;
  auto with_answer = engine.submit(both);
  ASSERT_TRUE(with_answer.ok());
  const auto first = with_answer->next();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->prompt.size(), prompt.size() - 1);
  EXPECT_EQ(first->tokens.at(0).id, answer.ids[0]);
}

TEST(Requests, MinTokensKeepsTheAnswerGoing) {
  Engine engine = Engine::open(options(demo_model()));
  const auto prompt =
      engine.tokenizer().encode_chat(R"([{"role": "user", "content": "What sound does an owl make?"}])");
  ASSERT_TRUE(prompt.ok());
  Request request{.tokens = *prompt, .sampling = {.temperature = 0}, .max_new_tokens = 100, .chat = true};
  const Answer plain = ask(engine, request);
  ASSERT_EQ(plain.reason, FinishReason::stop);
  request.min_tokens = static_cast<int64_t>(plain.ids.size()) + 10;
  const Answer longer = ask(engine, request);
  EXPECT_GE(longer.ids.size(), plain.ids.size() + 10);
  EXPECT_TRUE(std::equal(plain.ids.begin(), plain.ids.end() - 1, longer.ids.begin()));
  request.min_tokens = 101;
  const auto refused = engine.submit(request);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().param(), "min_tokens");
}

TEST(Requests, StopStringIsPartOfTheTextWhenAsked) {
  Engine engine = Engine::open(options(demo_model()));
  const Ids prompt = engine.tokenizer().encode("Once upon a time, there was a little fox who");
  Request request = greedy(prompt, 40);
  const std::string whole = ask(engine, request).text;
  request.stop = {"zzz", whole.substr(whole.find('.') - 3, 4)};
  const auto text_of = [&](bool include) {
    request.include_stop = include;
    auto completion = engine.submit(request);
    const Answer answer = drain(*completion);
    EXPECT_EQ(completion->stop_match().text, request.stop[1]);
    return answer.text;
  };
  EXPECT_EQ(text_of(true), text_of(false) + request.stop[1]);
}

TEST(Requests, ChoicesDrawDifferently) {
  Engine engine = Engine::open(options(demo_model()));
  Request request = greedy(random_ids(1, 20), 20);
  request.sampling = {.temperature = 1, .seed = 7};
  const Ids first = ask(engine, request).ids;
  request.choice = 1;
  const Ids second = ask(engine, request).ids;
  EXPECT_NE(first, second);
  EXPECT_EQ(ask(engine, request).ids, second);
}

TEST(Requests, DeadlineEndsWhatHasNoTokenYet) {
  EngineOptions one = options(demo_model());
  one.max_num_seqs = 1;
  Engine engine = Engine::open(one);
  auto busy = engine.submit(greedy(random_ids(1, 20), 500));
  ASSERT_TRUE(busy.ok());
  busy->next();
  Request late = greedy(random_ids(2, 20), 5);
  late.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(30);
  const Answer answer = ask(engine, late);
  EXPECT_EQ(answer.status.code(), StatusCode::deadline_exceeded);
  EXPECT_TRUE(answer.ids.empty());
}

TEST(Stats, CountWhatWasDone) {
  Engine engine = Engine::open(options(demo_model()));
  ask(engine, greedy(random_ids(1, 100), 10));
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.finished_length, 1);
  EXPECT_EQ(stats.generated_tokens, 10);
  EXPECT_EQ(stats.prompt_tokens, 100);
  EXPECT_EQ(stats.experts, 16);
  ASSERT_EQ(stats.expert_tokens.size(), 8u * 16u);
  int64_t routed = 0;
  for (int64_t tokens : stats.expert_tokens) routed += tokens;
  EXPECT_EQ(routed, (100 + 9) * 4 * 8);
}

}  // namespace
}  // namespace moesaic
