#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <numeric>
#include <random>
#include <string>

#include "base/rng.h"
#include "engine/sampling_check.h"

namespace {
std::atomic<int64_t> allocations = 0;

void* counted_malloc(std::size_t size) {
  ++allocations;
  if (void* p = std::malloc(size > 0 ? size : 1)) return p;
  throw std::bad_alloc();
}
}  // namespace

// Every allocation of this program is counted; see Sampler.AllocatesNothingPerStep.
void* operator new(std::size_t size) {
  return counted_malloc(size);
}
void* operator new[](std::size_t size) {
  return counted_malloc(size);
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return ++allocations, std::malloc(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return ++allocations, std::malloc(size);
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  std::free(p);
}

namespace moesaic {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Logits = std::vector<float>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

uint64_t fresh_seed() {
  const char* replay = std::getenv("MOESAIC_SEED");
  const uint64_t seed = replay != nullptr ? std::strtoull(replay, nullptr, 10) : std::random_device{}();
  std::printf("MOESAIC_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

// Normal logits; some cases with many ties, signed zeros, masked tokens, a wide or an extreme range.
Logits random_logits(Rng& rng, int64_t count) {
  Logits logits(count);
  const int64_t kind = rng.below(5);
  const double scale = kind == 2 ? 40 : kind == 3 ? 1e37 : 3;
  for (float& x : logits) {
    x = static_cast<float>(scale * rng.normal());
    if (kind == 1) x = std::round(x) * (rng.below(2) != 0 ? 1.0f : -1.0f);
    if (kind == 4 && rng.below(3) == 0) x = -kInf;
  }
  logits[rng.below(count)] = 1;
  return logits;
}

float best_of(const Logits& logits) {
  return *std::max_element(logits.begin(), logits.end());
}

// Token ids by falling logit, equal ones by id.
std::vector<int32_t> best_first(const Logits& logits) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  return order;
}

// The definition: sort by logit and id; keep top_k; keep the shortest prefix whose mass reaches top_p; drop below
// min_p.
std::vector<double> reference_weights(const Logits& logits, const SamplingParams& params) {
  std::vector<int32_t> order = best_first(logits);
  if (params.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(params.top_k)));
  const auto weight = [&](int32_t id) { return std::exp((logits[id] - logits[order[0]]) / params.temperature); };
  double total = 0;
  for (int32_t id : order) total += weight(id);
  std::vector<double> kept(logits.size(), 0);
  double sum = 0;
  for (int32_t id : order) {
    if (params.top_p < 1 && sum >= params.top_p * total) break;
    sum += weight(id);
    if (weight(id) >= params.min_p) kept[id] = weight(id);
  }
  return kept;
}

SampledToken sample_copy(Logits logits, const SamplingParams& params, SamplerState& state, int64_t position) {
  return sample(logits, params, state, position);
}

SampledToken sample_once(const Logits& logits, const SamplingParams& params) {
  SamplerState state(params, {}, static_cast<int64_t>(logits.size()));
  return sample_copy(logits, params, state, 0);
}

TEST(Sampler, FC053_PenaltySemantics) {
  const SamplingParams params{.repetition_penalty = 2, .presence_penalty = 0.3f, .frequency_penalty = 0.1f};
  const std::vector<int32_t> prompt = {0, 1};
  SamplerState state(params, prompt, 4);
  state.append(2);
  state.append(2);
  Logits logits = {2, -1, 0.5f, 0};
  adjust_logits(logits, params, state);
  EXPECT_THAT(logits, ElementsAre(1, -2, ::testing::FloatEq(-0.25f), 0));
}

TEST(Sampler, BiasComesBeforePenalties) {
  const SamplingParams params{.repetition_penalty = 2, .logit_bias = {{0, -3}, {1, 100}, {1, 1}, {3, 5}}};
  const std::vector<int32_t> prompt = {0, 0, 7, -1};  // 7 and -1 are no token ids of this vocabulary
  SamplerState state(params, prompt, 4);
  Logits logits = {2, 0, 1, -kInf};
  adjust_logits(logits, params, state);
  EXPECT_THAT(logits, ElementsAre(-2, 101, 1, -kInf));  // (2 - 3) * 2; a masked token stays masked
}

TEST(Sampler, ExtremePenaltyKeepsLogitsFinite) {
  for (float penalty : {1e-38f, kMax}) {
    const SamplingParams params{.temperature = 1, .repetition_penalty = penalty};
    const std::vector<int32_t> prompt = {0, 1};
    SamplerState state(params, prompt, 2);
    const SampledToken token = sample_copy({50, -50}, params, state, 2);
    EXPECT_TRUE(token.status.ok());
    EXPECT_EQ(token.id, 0);
  }
}

// A stand-in for a model: logits that depend on everything generated so far.
Logits logits_after(const std::vector<int32_t>& tokens) {
  uint64_t hash = 0;
  for (int32_t token : tokens) hash = mix64(hash ^ static_cast<uint64_t>(token));
  Rng rng(hash);
  Logits logits(50);
  for (float& x : logits) x = static_cast<float>(2 * rng.normal());
  return logits;
}

struct Sequence {
  explicit Sequence(const SamplingParams& p, uint32_t choice = 0) : params(p), state(p, prompt(), 50, choice) {}
  static std::vector<int32_t> prompt() { return {1, 2, 3}; }

  void step() {
    const auto id = sample_copy(logits_after(tokens), params, state, static_cast<int64_t>(tokens.size())).id;
    state.append(id);
    tokens.push_back(id);
  }

  SamplingParams params;
  SamplerState state;
  std::vector<int32_t> tokens = prompt();
};

std::vector<int32_t> tokens_beside(Sequence a, std::vector<Sequence> neighbours) {
  for (int i = 0; i < 40; ++i) {
    for (Sequence& n : neighbours) n.step();
    a.step();
  }
  return a.tokens;
}

TEST(Sampler, FC054_SeededRequestIsReproducibleInAnyBatch) {
  const SamplingParams a{.temperature = 0.8f, .frequency_penalty = 0.2f, .seed = 42};
  SamplingParams other_seed = a;
  other_seed.seed = 43;
  const auto alone = tokens_beside(Sequence(a), {});
  for (int repeat = 0; repeat < 4; ++repeat) {
    EXPECT_EQ(tokens_beside(Sequence(a), {}), alone);
    EXPECT_EQ(tokens_beside(Sequence(a), {Sequence(SamplingParams{})}), alone);
    EXPECT_EQ(tokens_beside(Sequence(a), {Sequence(other_seed), Sequence(a)}), alone);
  }
  EXPECT_NE(tokens_beside(Sequence(other_seed), {}), alone);
  EXPECT_NE(tokens_beside(Sequence(a, 1), {}), alone);
  EXPECT_NE(tokens_beside(Sequence(SamplingParams{}), {}), tokens_beside(Sequence(SamplingParams{}), {}));
}

TEST(Sampler, FC042_SamplingContinuesAfterRecompute) {
  const SamplingParams params{.presence_penalty = 0.5f, .seed = 7};
  Sequence whole(params);
  Sequence preempted(params);
  for (int i = 0; i < 20; ++i) {
    whole.step();
    // The step is lost after sampling and repeated: sampling alone must leave no trace in the state.
    sample_copy(logits_after(preempted.tokens), params, preempted.state, static_cast<int64_t>(preempted.tokens.size()));
    preempted.step();
  }
  EXPECT_EQ(preempted.tokens, whole.tokens);
}

TEST(Sampler, FiltersMatchReference) {
  Rng rng(fresh_seed());
  for (int round = 0; round < 4000; ++round) {
    const int64_t count = 1 + rng.below(round % 100 == 0 ? 20000 : 200);
    const Logits logits = random_logits(rng, count);
    SamplingParams params;
    params.temperature = static_cast<float>(rng.below(8) == 0 ? 2e-5 : rng.uniform(0.05, 2));
    if (rng.below(2) != 0) params.top_k = static_cast<int>(1 + rng.below(count + 3));
    if (rng.below(2) != 0) params.top_p = rng.below(4) == 0 ? 0.5f : static_cast<float>(1 - rng.uniform());
    if (rng.below(2) != 0) params.min_p = static_cast<float>(rng.uniform());
    const std::vector<double> want = reference_weights(logits, params);
    const Distribution got = filter(logits, best_of(logits), params);
    for (int32_t id = 0; id < count; ++id) {
      ASSERT_EQ(got.weight(id), want[id]) << "round " << round << " token " << id << " of " << count << " top_k "
                                          << params.top_k << " top_p " << params.top_p << " min_p " << params.min_p;
    }
  }
}

TEST(Sampler, WeightsAreTheSoftmax) {
  Rng rng(fresh_seed());
  const Logits logits = random_logits(rng, 100);
  const float best = best_of(logits);
  const Distribution d = filter(logits, best, {.temperature = 0.7f});
  for (int32_t id = 0; id < 100; ++id) {
    // The exponent is rounded twice to float; beyond -20 that error no longer matters.
    const double exponent = (double{logits[id]} - best) / double{0.7f};
    EXPECT_NEAR(d.weight(id), std::exp(exponent), 4e-6 * std::exp(std::max(exponent, -20.0)));
  }
}

// Pearson's statistic must stay below the quantile that a right sampler exceeds once in 10^7 runs (Wilson, Hilferty).
void expect_distribution(const std::vector<int64_t>& counts, const std::vector<double>& weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto draws = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double chi_square = 0;
  int freedom = -1;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " is filtered out";
      continue;
    }
    const double expected = draws * weights[i] / total;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++freedom;
  }
  if (freedom == 0) return;
  const double spread = 2.0 / (9 * freedom);
  EXPECT_LT(chi_square, freedom * std::pow(1 - spread + 5.2 * std::sqrt(spread), 3))
      << freedom << " degrees of freedom";
}

class SamplerDraws : public ::testing::TestWithParam<SamplingParams> {};

TEST_P(SamplerDraws, FollowExactProbabilities) {
  const uint64_t seed = fresh_seed();
  const Logits logits = {1.5f, 0, -1, 2.25f, 0.5f, 2.25f, -kInf, -0.5f, 1, 0.75f, -1.5f, 0};
  SamplingParams params = GetParam();
  params.seed = seed;
  SamplerState state(params, {}, static_cast<int64_t>(logits.size()));
  std::vector<int64_t> counts(logits.size());
  Logits scratch = logits;  // without penalties sample() leaves it alone
  for (int64_t position = 0; position < 1000000; ++position) ++counts[sample(scratch, params, state, position).id];
  expect_distribution(counts, reference_weights(logits, params));
  EXPECT_EQ(scratch, logits);
}

INSTANTIATE_TEST_SUITE_P(
    All, SamplerDraws,
    ::testing::Values(SamplingParams{}, SamplingParams{.temperature = 0.6f}, SamplingParams{.temperature = 2},
                      SamplingParams{.top_k = 5}, SamplingParams{.temperature = 1.3f, .top_p = 0.8f},
                      SamplingParams{.min_p = 0.2f},
                      SamplingParams{.temperature = 1.5f, .top_p = 0.85f, .top_k = 7, .min_p = 0.3f}));

TEST(Sampler, SeedsAndChoicesGiveIndependentDraws) {
  const uint64_t start = fresh_seed();
  const Logits logits = {0, 1, 2, 0.5f};
  for (int by_choice : {0, 1}) {
    std::vector<int64_t> counts(logits.size());
    std::vector<int64_t> pairs(2);  // whether neighbours agree
    int32_t last = 0;
    for (uint32_t i = 0; i < 200000; ++i) {
      SamplingParams params;
      params.seed = by_choice != 0 ? start : start + i;
      SamplerState state(params, {}, 4, by_choice != 0 ? i : 0);
      const int32_t id = sample_copy(logits, params, state, 17).id;
      ++counts[id];
      if (i % 2 == 1) ++pairs[id == last];
      last = id;
    }
    const std::vector<double> weights = reference_weights(logits, {});
    expect_distribution(counts, weights);
    double total = 0, same = 0;
    for (double w : weights) total += w;
    for (double w : weights) same += w * w / (total * total);
    expect_distribution(pairs, {1 - same, same});
  }
}

TEST(Sampler, GreedyTakesLowestIdOfBest) {
  Rng rng(fresh_seed());
  for (int round = 0; round < 500; ++round) {
    const Logits logits = random_logits(rng, 1 + rng.below(300));
    const SampledToken token = sample_once(logits, {.temperature = 0, .top_p = 0.1f, .top_k = 1, .min_p = 1});
    const auto best = std::max_element(logits.begin(), logits.end());  // the first of equals
    ASSERT_EQ(token.id, best - logits.begin());
    Logits sorted = logits;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    if (sorted.size() > 1) {
      ASSERT_EQ(token.gap, sorted[0] - sorted[1]);
    }
  }
}

TEST(Sampler, GapIsTakenAfterPenalties) {
  const SamplingParams params{.temperature = 0, .logit_bias = {{0, -1}}};
  SamplerState state(params, {}, 3);
  const SampledToken token = sample_copy({3, 1.5f, 0}, params, state, 0);
  EXPECT_EQ(token.id, 0);
  EXPECT_EQ(token.gap, 0.5f);
}

TEST(Sampler, LogprobsAreRaw) {
  Rng rng(fresh_seed());
  for (int round = 0; round < 300; ++round) {
    const auto count = static_cast<int32_t>(1 + rng.below(100));
    Logits logits(count);
    for (float& x : logits) x = static_cast<float>(std::round(8 * rng.normal()) / 4);
    double norm = 0;
    for (float x : logits) norm += std::exp(double{x});
    norm = std::log(norm);
    SamplingParams params{.temperature = 0.5f, .repetition_penalty = 1.5f, .presence_penalty = 1, .logprobs = 5};
    params.logit_bias = {{count / 2, 7}};
    const std::vector<int32_t> prompt = {0, count - 1};
    SamplerState state(params, prompt, count);
    state.append(count / 3);
    const SampledToken token = sample_copy(logits, params, state, 3);
    ASSERT_NEAR(token.logprob, logits[token.id] - norm, 1e-5);
    const std::vector<int32_t> order = best_first(logits);
    ASSERT_EQ(token.top_count, std::min(5, count));
    for (int i = 0; i < token.top_count; ++i) {
      ASSERT_EQ(token.top[i].id, order[i]) << i;
      ASSERT_NEAR(token.top[i].logprob, logits[order[i]] - norm, 1e-5);
    }
  }
}

TEST(Sampler, NonFiniteLogitsEndTheSequence) {
  Rng rng(fresh_seed());
  for (float bad : {kNan, -kNan, kInf}) {
    for (float temperature : {0.0f, 1.0f}) {
      Logits logits = random_logits(rng, 1 + rng.below(100));
      const int64_t at = rng.below(static_cast<int64_t>(logits.size()));
      logits[at] = bad;
      const SampledToken token = sample_once(logits, {.temperature = temperature, .top_p = 0.9f, .logprobs = 2});
      EXPECT_EQ(token.status.code(), StatusCode::internal);
      EXPECT_EQ(token.id, -1);
      EXPECT_THAT(token.status.message(), HasSubstr("token " + std::to_string(at) + " at position 0"));
    }
  }
  EXPECT_EQ(sample_once(Logits(10, -kInf), {}).status.code(), StatusCode::internal);
  EXPECT_EQ(sample_once({-kInf, -5, -kInf}, {.top_p = 0.9f, .top_k = 2}).id, 1);
}

TEST(Sampler, PaddingRowsAreNeverSampled) {
  Logits logits = {0, 1, 1000, kNan, kInf};  // the tokenizer knows two ids
  for (float temperature : {0.0f, 2.0f}) {
    const SamplingParams params{.temperature = temperature, .logit_bias = {{2, 100}}, .logprobs = 20};
    SamplerState state(params, {}, 2);
    for (int64_t position = 0; position < 100; ++position) {
      const SampledToken token = sample_copy(logits, params, state, position);
      ASSERT_TRUE(token.status.ok());
      ASSERT_LT(token.id, 2);
      ASSERT_EQ(token.top_count, 2);
      ASSERT_NEAR(token.top[0].logprob, -std::log1p(std::exp(-1.0)), 1e-6);
    }
  }
}

std::vector<int32_t> kept_ids(const Logits& logits, const SamplingParams& params) {
  const Distribution d = filter(logits, best_of(logits), params);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < static_cast<int32_t>(logits.size()); ++i) {
    if (d.weight(i) > 0) ids.push_back(i);
  }
  return ids;
}

TEST(Sampler, FilterEdges) {
  const Logits tied = {1, 3, 2, 3, 3, 2};
  EXPECT_THAT(kept_ids(tied, {.top_p = 1e-45f}), ElementsAre(1));
  EXPECT_THAT(kept_ids(tied, {.top_k = 1}), ElementsAre(1));
  EXPECT_THAT(kept_ids(tied, {.top_k = 2}), ElementsAre(1, 3));
  EXPECT_THAT(kept_ids(tied, {.top_k = 4}), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(kept_ids(tied, {.min_p = 1}), ElementsAre(1, 3, 4));
  for (int off : {-1, 0, 6, 7, std::numeric_limits<int>::max()}) {
    EXPECT_EQ(kept_ids(tied, {.top_k = off}).size(), 6u) << off;
  }
  EXPECT_THAT(kept_ids({0.0f, -0.0f, 0.0f, -0.0f}, {.top_k = 2}), ElementsAre(0, 1));  // -0 and +0 are a tie
  EXPECT_THAT(kept_ids({2, 2, 2, 2}, {.top_p = 0.5f}), ElementsAre(0, 1));             // exactly half is enough
  EXPECT_THAT(kept_ids({-kMax, kMax, 0}, {.temperature = 2e-5f}), ElementsAre(1));
  EXPECT_EQ(filter(tied, 3, {.temperature = 1e30f}).weight(0), 1);  // close to uniform
  const SampledToken only =
      sample_once({-7}, {.temperature = 2, .top_p = 0.5f, .top_k = 3, .min_p = 1, .logprobs = 20});
  EXPECT_EQ(only.id, 0);
  EXPECT_EQ(only.logprob, 0);
  EXPECT_EQ(only.gap, kInf);
  EXPECT_EQ(only.top_count, 1);
}

TEST(Sampler, DrawCoversTheWholeRange) {
  Rng rng(fresh_seed());
  for (int round = 0; round < 300; ++round) {
    const Logits logits = random_logits(rng, 1 + rng.below(2000));
    const Distribution d = filter(logits, best_of(logits), {.top_p = 0.9f});
    int32_t first = 0, last = 0;
    double total = 0;
    for (int32_t i = static_cast<int32_t>(logits.size()); i-- > 0;) {
      if (d.weight(i) <= 0) continue;
      first = i;
      if (total == 0) last = i;
      total += d.weight(i);
    }
    ASSERT_EQ(d.draw(0), first);
    if (d.weight(last) > 1e-9 * total) {
      ASSERT_EQ(d.draw(1 - 0x1p-53), last);
    }
    // Any u must give the token that the plain running sum gives, but for rounding at a boundary.
    const double u = rng.uniform();
    const int32_t got = d.draw(u);
    double below = 0;
    for (int32_t i = 0; i < got; ++i) below += d.weight(i);
    ASSERT_LE(below, u * total * (1 + 1e-12));
    ASSERT_GE((below + d.weight(got)) * (1 + 1e-12), u * total);
  }
}

TEST(Sampler, AllocatesNothingPerStep) {
  const uint64_t seed = fresh_seed();
  SamplingParams params{.temperature = 0.9f, .top_p = 0.9f, .top_k = 400, .min_p = 0.01f, .repetition_penalty = 1.1f};
  params.presence_penalty = params.frequency_penalty = 0.1f;
  params.logit_bias = {{3, 1}, {9, -1}};
  params.logprobs = 20;
  Rng rng(seed);
  Logits logits(1000);
  const std::vector<int32_t> prompt = {5, 6, 7};
  SamplerState state(params, prompt, 1000);
  const int64_t before = allocations;
  for (int64_t position = 0; position < 3000; ++position) {
    for (float& x : logits) x = static_cast<float>(rng.normal());
    state.append(sample(logits, params, state, position).id);
    state.append(static_cast<int32_t>(position % 1000));  // every token has occurred in the end
  }
  EXPECT_EQ(allocations, before);
  EXPECT_GT(before, 0);
}

TEST(SamplingCheck, AcceptsTheEndsOfEveryRange) {
  EXPECT_TRUE(check_sampling({}, 10).ok());
  EXPECT_TRUE(check_sampling({.temperature = 0,
                              .top_p = 1e-45f,
                              .top_k = -1,
                              .min_p = 1,
                              .repetition_penalty = 1e-45f,
                              .presence_penalty = -2,
                              .frequency_penalty = 2,
                              .logit_bias = {{0, -100}},
                              .logprobs = 20},
                             10)
                  .ok());
  EXPECT_TRUE(check_sampling({.temperature = 2,
                              .top_k = 1 << 30,
                              .repetition_penalty = kMax,
                              .presence_penalty = 2,
                              .frequency_penalty = -2,
                              .logit_bias = {{9, 100}},
                              .logprobs = 0},
                             10)
                  .ok());
}

TEST(SamplingCheck, NamesTheParameterOutOfRange) {
  const std::vector<std::pair<SamplingParams, std::string>> cases = {
      {{.temperature = -0.1f}, "temperature"},
      {{.temperature = 2.01f}, "temperature"},
      {{.temperature = kNan}, "temperature"},
      {{.temperature = kInf}, "temperature"},
      {{.top_p = 0}, "top_p"},
      {{.top_p = 1.01f}, "top_p"},
      {{.top_p = kNan}, "top_p"},
      {{.top_k = -2}, "top_k"},
      {{.min_p = -0.1f}, "min_p"},
      {{.min_p = 1.1f}, "min_p"},
      {{.min_p = kNan}, "min_p"},
      {{.repetition_penalty = 0}, "repetition_penalty"},
      {{.repetition_penalty = kInf}, "repetition_penalty"},
      {{.repetition_penalty = kNan}, "repetition_penalty"},
      {{.presence_penalty = -2.1f}, "presence_penalty"},
      {{.presence_penalty = kNan}, "presence_penalty"},
      {{.frequency_penalty = 2.1f}, "frequency_penalty"},
      {{.frequency_penalty = -kInf}, "frequency_penalty"},
      {{.logprobs = -2}, "logprobs"},
      {{.logprobs = 21}, "logprobs"},
  };
  for (const auto& [params, name] : cases) {
    const Status status = check_sampling(params, 10);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << name;
    EXPECT_EQ(status.param(), name);
    EXPECT_THAT(status.message(), HasSubstr(name + " is "));
  }
  EXPECT_STREQ(check_sampling({.temperature = 3}, 10).message(), "temperature is 3; it must be a number in [0, 2]");
}

TEST(SamplingCheck, FC047_LogitBiasWithBadIds) {
  using Bias = std::vector<std::pair<int32_t, float>>;
  for (const Bias& bias :
       {Bias{{999999, 5}}, Bias{{-1, 5}}, Bias{{64, 5}}, Bias{{5, 1e9f}}, Bias{{5, kNan}}, Bias{{3, 1}, {5, -kInf}}}) {
    const Status status = check_sampling({.logit_bias = bias}, 64);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.param(), "logit_bias");
  }
  const SamplingParams valid{.logit_bias = {{5, -100}}};
  ASSERT_TRUE(check_sampling(valid, 64).ok());
  SamplerState state(valid, {}, 64);
  Logits logits(64, 0.0f);
  logits[5] = 20;
  for (int64_t position = 0; position < 1000; ++position) ASSERT_NE(sample_copy(logits, valid, state, position).id, 5);
}

}  // namespace
}  // namespace moesaic
