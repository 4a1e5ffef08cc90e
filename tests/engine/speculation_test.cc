// Speculative decoding through the engine: the tokens of plain greedy decoding, the distribution of plain sampling.
#include "engine/speculation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "engine/taps.h"
#include "moesaic/engine.h"
#include "support/answers.h"
#include "support/mtp_checkpoint.h"

namespace moesaic {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;

// ---- the rules

// Logits whose best token is `best`, for each position; and drafts, whose own logits greedy sampling does not read.
Ids emitted(const Ids& drafts, const Ids& best) {
  std::vector<std::vector<float>> rows;
  for (int32_t id : best) {
    rows.emplace_back(10, 0.0f);
    rows.back()[static_cast<size_t>(id)] = 1;
  }
  std::vector<DraftToken> draft_tokens;
  for (int32_t id : drafts) draft_tokens.push_back({id, {}});
  const SamplingParams params{.temperature = 0};
  SamplerState state(params, {}, 10);
  std::vector<SampledToken> out(drafts.size() + 1);
  const auto row_of = [&](int64_t j) { return std::span<float>(rows[static_cast<size_t>(j)]); };
  out.resize(static_cast<size_t>(sample_with_drafts(row_of, draft_tokens, params, state, 7, out)));
  Ids ids;
  for (const SampledToken& token : out) ids.push_back(token.id);
  return ids;
}

TEST(Speculation, FC045_DraftsAreAcceptedUpToTheFirstMismatch) {
  const Ids best = {1, 2, 3, 4, 6, 8};
  EXPECT_EQ(emitted({1, 2, 3, 5, 7}, best), (Ids{1, 2, 3, 4}));
  EXPECT_EQ(emitted({1, 2, 3, 4, 6}, best), (Ids{1, 2, 3, 4, 6, 8})) << "and a bonus token";
  EXPECT_EQ(emitted({2, 2, 3, 4, 6}, best), Ids{1}) << "what agrees after a mismatch counts for nothing";
  EXPECT_EQ(emitted({}, best), Ids{1});
}

TEST(Speculation, NonFiniteRowsEndTheTokens) {
  std::array<std::vector<float>, 3> rows{std::vector<float>{0, 1, 0}, {0, NAN, 0}, {1, 0, 0}};
  const std::vector<DraftToken> drafts = {{1, {}}, {1, {}}};
  const SamplingParams params{.temperature = 0};
  SamplerState state(params, {}, 3);
  std::array<SampledToken, 3> out;
  const auto row_of = [&](int64_t j) { return std::span<float>(rows[static_cast<size_t>(j)]); };
  ASSERT_EQ(sample_with_drafts(row_of, drafts, params, state, 0, out), 2);
  EXPECT_TRUE(out[0].status.ok());
  EXPECT_EQ(out[1].status.code(), StatusCode::internal);
}

std::vector<float> logs(const std::vector<double>& probabilities) {
  std::vector<float> out;
  for (double p : probabilities) out.push_back(static_cast<float>(std::log(p)));
  return out;
}

TEST(Speculation, FC046_SamplingKeepsTheTargetDistribution) {
  constexpr int kTrials = 100'000;
  const std::vector<double> p = {0.5, 0.3, 0.2};
  const std::vector<float> target = logs(p), guess = logs({0.2, 0.3, 0.5});
  std::array<int, 3> count{};
  int accepted = 0;
  for (int i = 0; i < kTrials; ++i) {  // through the engine's own functions, one position of one seed after another
    const SamplingParams params{.temperature = 1, .seed = 46};
    SamplerState state(params, {}, 3);
    const DraftToken draft{draft_token(guess, params, state, i), guess};
    std::vector<float> logits = target;
    const SampledToken token = sample(logits, params, state, i, &draft);
    ASSERT_TRUE(token.status.ok());
    ++count[static_cast<size_t>(token.id)];
    if (token.id == draft.id) ++accepted;
    else ASSERT_EQ(token.id, 0) << "the only token that p likes better than q";
    EXPECT_NEAR(token.logprob, std::log(p[static_cast<size_t>(token.id)]), 1e-5);
  }
  for (size_t t = 0; t < 3; ++t) EXPECT_NEAR(count[t] / double{kTrials}, p[t], 0.01) << t;
  EXPECT_NEAR(accepted / double{kTrials}, 0.70, 0.01);
}

// Filters make zeros in either distribution.
TEST(Speculation, FilteredDistributionsAreKept) {
  constexpr int kTrials = 100'000;
  const std::vector<float> target = logs({0.4, 0.3, 0.2, 0.1}), guess = logs({0.1, 0.15, 0.35, 0.4});
  std::array<int, 4> count{};
  for (int i = 0; i < kTrials; ++i) {
    const SamplingParams params{.temperature = 1, .top_k = 2, .seed = 5};
    SamplerState state(params, {}, 4);
    const DraftToken draft{draft_token(guess, params, state, i), guess};
    EXPECT_GE(draft.id, 2);
    std::vector<float> logits = target;
    ++count[static_cast<size_t>(sample(logits, params, state, i, &draft).id)];
  }
  EXPECT_NEAR(count[0] / double{kTrials}, 4 / 7.0, 0.01);
  EXPECT_NEAR(count[1] / double{kTrials}, 3 / 7.0, 0.01);
}

// ---- the engine

enum class Layer { random, copying, opposite, nan };

struct Tiny {
  const char* model;
  Layer layer;
  double factor = 0;  // of what the model's layers add, where the prediction layer copies it
};

EditedCheckpoint checkpoint(const Tiny& tiny) {
  return EditedCheckpoint(tiny.model, [&](TensorMap& t, JsonObject& config) {
    Rng rng(1);
    const int64_t N = config.at("num_hidden_layers").to_number<int64_t>();
    if (tiny.layer == Layer::random) return add_random_mtp(t, config, rng, N - 1);
    add_copying_mtp(t, config, tiny.factor);
    OwnedTensor head = t.at("lm_head.weight");
    if (tiny.layer == Layer::opposite) scale_tensor(head, -1);
    if (tiny.layer == Layer::nan) scale_tensor(head, NAN);
    t[layer_name(N, "shared_head.head.weight")] = head;
  });
}

struct Setup {
  int64_t drafts = 0, sequences = 16, batched = 512;
  std::string device = "cpu";
};

Engine open(const EditedCheckpoint& model, const Setup& setup) {
  return Engine::open({.model = model.path(),
                       .device = setup.device,
                       .precision = "float32",
                       .threads = 2,
                       .max_model_len = 192,
                       .max_num_seqs = setup.sequences,
                       .max_num_batched_tokens = setup.batched,
                       .num_speculative_tokens = setup.drafts});
}

void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].ids, want[i].ids) << "request " << i;
    EXPECT_EQ(got[i].logprobs, want[i].logprobs) << "request " << i;
    EXPECT_EQ(got[i].gaps, want[i].gaps) << "request " << i;
    EXPECT_EQ(got[i].top, want[i].top) << "request " << i;
    EXPECT_EQ(got[i].text, want[i].text) << "request " << i;
    EXPECT_EQ(got[i].reason, want[i].reason) << "request " << i;
    EXPECT_EQ(got[i].status.code(), want[i].status.code()) << "request " << i;
    EXPECT_EQ(got[i].usage.completion_tokens, want[i].usage.completion_tokens) << "request " << i;
  }
}

struct Totals {
  int64_t steps = 0, drafted = 0, accepted = 0;
};

Totals totals(const std::vector<Answer>& answers) {
  Totals sum;
  for (const Answer& a : answers) {
    sum.steps += a.usage.draft_steps, sum.drafted += a.usage.draft_tokens;
    sum.accepted += a.usage.accepted_draft_tokens;
  }
  return sum;
}

// 20 prompts of 1 to 58 tokens, answers of 1 to 90, which cross the blocks' borders.
std::vector<Request> twenty() {
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 20; ++i) {
    Request request{.sampling = {.temperature = 0, .logprobs = 3}};
    for (uint64_t k = 0; k < 1 + 3 * i; ++k) request.tokens.push_back(static_cast<int32_t>(mix64(i * 1000 + k) % 318));
    request.max_new_tokens = 1 + static_cast<int64_t>(mix64(i) % 90);
    request.ignore_eos = true;
    requests.push_back(std::move(request));
  }
  return requests;
}

constexpr const char* kFamilies[] = {"deepseek_v3", "deepseek_v32", "glm_moe_dsa"};

TEST(Speculation, FC045_GreedyTokensEqualPlainDecoding) {
  for (const char* family : kFamilies) {
    for (const Tiny& tiny : {Tiny{family, Layer::copying, 0.25}, {family, Layer::random}}) {
      SCOPED_TRACE(fmt::format("{} layer {}", family, static_cast<int>(tiny.layer)));
      const EditedCheckpoint model = checkpoint(tiny);
      Engine plain = open(model, {});
      const std::vector<Answer> want = ask_together(plain, twenty());
      EXPECT_EQ(totals(want).drafted, 0);
      for (int64_t k : {1, 2, 3}) {
        Engine engine = open(model, {.drafts = k});
        for (int round = 0; round < 2; ++round) {
          const std::vector<Answer> got = ask_together(engine, twenty());
          expect_same(got, want);
          const Totals t = totals(got);
          std::printf("%s, layer %d, k = %d: %d of %d drafts accepted in %d steps\n", family,
                      static_cast<int>(tiny.layer), static_cast<int>(k), static_cast<int>(t.accepted),
                      static_cast<int>(t.drafted), static_cast<int>(t.steps));
          if (tiny.layer == Layer::random) continue;
          EXPECT_GT(t.accepted, t.steps / 4) << "too few to say anything";
          EXPECT_LT(t.accepted, t.drafted) << "no rejection, so nothing is tested";
        }
      }
    }
  }
}

TEST(Speculation, NeitherNeighboursNorChunksMatter) {
  const EditedCheckpoint model = checkpoint({"deepseek_v32", Layer::copying, 0.25});
  Engine plain = open(model, {});
  const std::vector<Answer> want = ask_together(plain, twenty());
  Engine alone = open(model, {.drafts = 3, .sequences = 1, .batched = 7});
  expect_same(ask_together(alone, twenty()), want);
  Engine few = open(model, {.drafts = 2, .sequences = 3, .batched = 16});
  expect_same(ask_together(few, twenty()), want);
}

TEST(Speculation, ReferenceBackendToo) {
  const EditedCheckpoint model = checkpoint({"glm_moe_dsa", Layer::copying, 0.25});
  std::vector<Request> requests = twenty();
  requests.resize(4);
  Engine plain = open(model, {.device = "ref"}), engine = open(model, {.drafts = 3, .device = "ref"});
  const std::vector<Answer> got = ask_together(engine, requests);
  expect_same(got, ask_together(plain, requests));
  EXPECT_GT(totals(got).accepted, 0);
}

// What the engine should draft, worked out anew for every step: the layer runs over all tokens known so far, with the
// hidden states of one pass of the model over the whole answer.
class Rehearsal {
 public:
  Rehearsal(const std::string& model, int64_t drafts, int64_t tokens) : drafts_(drafts) {
    LoadOptions options;
    options.model = model;
    options.precision = Precision::float32;
    options.progress = false;
    options.speculative_tokens = drafts;
    loaded_ = load_model(forward_limits(options, 1, tokens));
  }

  Totals play(const Ids& tokens, int64_t prompt) {
    forward(loaded_, {tokens});
    Totals sum;
    for (int64_t known = prompt + 1; known < std::ssize(tokens);) {
      const int64_t wanted = std::min(drafts_, std::ssize(tokens) - known - 1);
      const Ids drafts = drafts_after(tokens, known, wanted);
      int64_t accepted = 0;
      while (accepted < wanted &&
             drafts[static_cast<size_t>(accepted)] == tokens[static_cast<size_t>(known + accepted)])
        ++accepted;
      sum.steps += wanted > 0 ? 1 : 0, sum.drafted += wanted, sum.accepted += accepted;
      known += accepted + 1;
    }
    return sum;
  }

 private:
  Ids drafts_after(const Ids& tokens, int64_t known, int64_t wanted) {
    Ids blocks, drafts;
    for (int32_t b = 0; b < loaded_.max_blocks(); ++b) blocks.push_back(b);
    Batch batch(loaded_.draft->start_limits(), loaded_.draft->next_limits(), loaded_.max_blocks());
    batch.add({tokens.data() + 1, static_cast<size_t>(known - 1)}, 0, blocks, 0, 1);
    batch.set_hidden_rows(0);
    Stream& stream = loaded_.device->stream();
    loaded_.draft->start(batch.view(), hidden_states(loaded_.compiled.prefill, loaded_.memory()), stream);
    while (std::ssize(drafts) < wanted) {
      const auto* row = reinterpret_cast<const float*>(loaded_.draft->logits());
      drafts.push_back(static_cast<int32_t>(std::max_element(row, row + 320) - row));
      batch.clear();
      batch.add({&drafts.back(), 1}, known - 2 + std::ssize(drafts), blocks, 0, 1);
      batch.set_hidden_rows(0);
      if (std::ssize(drafts) < wanted) loaded_.draft->next(batch.view(), stream);
    }
    return drafts;
  }

  int64_t drafts_;
  LoadedModel loaded_;
};

// A layer that reads everything it can: the embedding, the hidden state, and its own attention and experts.
EditedCheckpoint attentive(const char* family) {
  return EditedCheckpoint(family, [&](TensorMap& t, JsonObject& config) {
    Rng rng(7);
    const int64_t N = config.at("num_hidden_layers").to_number<int64_t>();
    scale_layers(t, 0.1);
    add_random_mtp(t, config, rng, N - 1);
    std::vector<double> mix(static_cast<size_t>(2 * 64 * 64));
    for (size_t h = 0; h < 64; ++h) mix[h * 128 + h] = 1, mix[h * 128 + 64 + h] = 0.3;
    t[layer_name(N, "eh_proj.weight")] = float_tensor({64, 128}, mix);
  });
}

TEST(Speculation, DraftsAreThoseOfARehearsal) {
  for (const char* family : kFamilies) {
    const EditedCheckpoint model = attentive(family);
    for (int64_t k : {1, 3}) {
      Engine engine = open(model, {.drafts = k, .sequences = 4, .batched = 24});
      const std::vector<Request> requests = twenty();
      const std::vector<Answer> answers = ask_together(engine, requests);
      Rehearsal rehearsal(model.path(), k, 160);
      for (size_t i = 0; i < requests.size(); ++i) {
        Ids tokens = requests[i].tokens;
        tokens.insert(tokens.end(), answers[i].ids.begin(), answers[i].ids.end());
        const Totals want = rehearsal.play(tokens, std::ssize(requests[i].tokens)), got = totals({answers[i]});
        EXPECT_EQ(got.steps, want.steps) << family << " request " << i;
        EXPECT_EQ(got.drafted, want.drafted) << family << " request " << i;
        EXPECT_EQ(got.accepted, want.accepted) << family << " request " << i;
      }
      const Totals t = totals(answers);
      std::printf("%s, k = %d: %d of %d drafts accepted\n", family, static_cast<int>(k), static_cast<int>(t.accepted),
                  static_cast<int>(t.drafted));
      EXPECT_GT(t.accepted, t.drafted / 20);
      EXPECT_LT(t.accepted, t.drafted);
    }
  }
}

TEST(Speculation, ACopyOfTheModelIsAlwaysRight) {
  for (const char* family : kFamilies) {
    const EditedCheckpoint model = checkpoint({family, Layer::copying, 0});
    Engine plain = open(model, {}), engine = open(model, {.drafts = 3});
    const std::vector<Answer> got = ask_together(engine, twenty());
    expect_same(got, ask_together(plain, twenty()));
    EXPECT_EQ(totals(got).accepted, totals(got).drafted);
    EXPECT_GT(totals(got).accepted, 0);
    // The first token comes from the prompt; each step gives four, and the last what is left.
    for (const Answer& a : got) {
      const int64_t n = a.usage.completion_tokens - 1, rest = n % 4;
      EXPECT_EQ(a.usage.draft_steps, n / 4 + (rest > 1 ? 1 : 0)) << n;
      EXPECT_EQ(a.usage.draft_tokens, n / 4 * 3 + std::max<int64_t>(rest - 1, 0)) << n;
    }
  }
}

TEST(Speculation, TheOppositeIsAlwaysWrong) {
  const EditedCheckpoint model = checkpoint({"deepseek_v3", Layer::opposite, 0.25});
  Engine plain = open(model, {}), engine = open(model, {.drafts = 3});
  const std::vector<Answer> got = ask_together(engine, twenty());
  expect_same(got, ask_together(plain, twenty()));
  EXPECT_EQ(totals(got).accepted, 0);
  EXPECT_GT(totals(got).drafted, 0);
  for (const Answer& a : got)  // a step for every token but the first and the last, for which no draft is of use
    EXPECT_EQ(a.usage.draft_steps, std::max<int64_t>(a.usage.completion_tokens - 2, 0));
}

TEST(Speculation, NonFiniteDraftsAreNone) {
  const EditedCheckpoint model = checkpoint({"deepseek_v3", Layer::nan, 0.25});
  Engine plain = open(model, {}), engine = open(model, {.drafts = 3});
  std::vector<Request> requests = twenty();
  requests[3].sampling = {.temperature = 1, .seed = 4};
  const std::vector<Answer> got = ask_together(engine, requests);
  expect_same(got, ask_together(plain, requests));
  EXPECT_EQ(totals(got).drafted, 0);
}

TEST(Speculation, StopTokensEndInsideAcceptedDrafts) {
  const EditedCheckpoint model = checkpoint({"deepseek_v3", Layer::copying, 0});
  Engine plain = open(model, {}), engine = open(model, {.drafts = 3});
  Request request = twenty()[7];
  request.max_new_tokens = 12;
  const Ids whole = ask(plain, request).ids;
  for (size_t i = 0; i < whole.size(); ++i) {
    request.stop_token_ids = {whole[i]};
    const Answer want = ask(plain, request);
    expect_same({ask(engine, request)}, {want});
    EXPECT_EQ(want.reason, FinishReason::stop);
  }
}

// Biases and penalties count every token before the one they change, drafted ones included.
TEST(Speculation, PenaltiesSeeAcceptedDrafts) {
  const EditedCheckpoint model = checkpoint({"deepseek_v3", Layer::copying, 0.25});
  Engine plain = open(model, {}), engine = open(model, {.drafts = 3});
  std::vector<Request> requests = twenty();
  for (size_t i = 0; i < requests.size(); ++i) {
    SamplingParams& s = requests[i].sampling;
    s.repetition_penalty = i % 2 == 0 ? 1.02f : 1, s.frequency_penalty = i % 3 == 0 ? 0.01f : 0;
    s.presence_penalty = i % 5 == 0 ? 0.02f : 0;
    if (i % 4 == 0) s.logit_bias = {{5, 0.5f}, {7, -100.0f}};
  }
  const std::vector<Answer> got = ask_together(engine, requests);
  expect_same(got, ask_together(plain, requests));
  EXPECT_GT(totals(got).accepted, 0);
}

TEST(Speculation, TheLastPositionOfTheContextIsReached) {
  const EditedCheckpoint model = checkpoint({"deepseek_v3", Layer::copying, 0});
  for (int64_t length : {64, 65}) {
    Engine engine = Engine::open({.model = model.path(),
                                  .precision = "float32",
                                  .threads = 1,
                                  .max_model_len = length,
                                  .max_num_seqs = 1,
                                  .num_speculative_tokens = 3});
    Request request = twenty()[10];
    request.tokens.resize(29);
    request.max_new_tokens = 0;
    EXPECT_EQ(std::ssize(ask(engine, request).ids), length - 29);
  }
}

// Of the second and third token, which come from drafts, over many seeds: the two histograms must be draws from one
// distribution. With n draws each and b cells, the statistic has b - 1 degrees of freedom; seeds are fixed, so is it.
TEST(Speculation, FC046_SampledAnswersHaveTheSameDistribution) {
  constexpr uint64_t kSeeds = 3000;
  const EditedCheckpoint model = checkpoint({"deepseek_v3", Layer::copying, 0.25});
  Engine plain = open(model, {}), engine = open(model, {.drafts = 2});
  std::vector<Request> requests;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    requests.push_back({.tokens = {3, 1, 4, 1, 5},
                        .sampling = {.temperature = 1.5f, .top_k = 3, .seed = seed},
                        .max_new_tokens = 4,
                        .ignore_eos = true});
  }
  const auto histogram = [&](Engine& e, size_t place, Totals& sum) {
    std::map<int32_t, double> counts;
    for (size_t begin = 0; begin < requests.size(); begin += 500) {
      const auto answers = ask_together(e, {requests.begin() + static_cast<ptrdiff_t>(begin),
                                            requests.begin() + static_cast<ptrdiff_t>(begin + 500)});
      for (const Answer& a : answers) counts[a.ids[place]] += 1;
      const Totals t = totals(answers);
      sum.drafted += t.drafted, sum.accepted += t.accepted;
    }
    return counts;
  };
  for (size_t place : {size_t{1}, size_t{2}}) {
    Totals unused, sum;
    std::map<int32_t, double> a = histogram(plain, place, unused), b = histogram(engine, place, sum);
    double chi_square = 0, cells = 0;
    std::map<int32_t, double> all = a;
    for (auto [id, n] : b) all[id] += n;
    for (auto [id, n] : all) chi_square += (a[id] - b[id]) * (a[id] - b[id]) / n, ++cells;
    std::printf("token %zu: chi square %.1f in %.0f cells, %d of %d drafts accepted\n", place, chi_square, cells,
                static_cast<int>(sum.accepted), static_cast<int>(sum.drafted));
    EXPECT_LT(chi_square, cells - 1 + 4 * std::sqrt(2 * (cells - 1)));  // four standard deviations
    EXPECT_GT(sum.accepted, sum.drafted / 10);
    EXPECT_LT(sum.accepted, sum.drafted * 9 / 10);
  }
}

TEST(Speculation, SeedsReproduceSampledAnswersInAnyBatch) {
  const EditedCheckpoint model = checkpoint({"deepseek_v3", Layer::copying, 0.25});
  Engine engine = open(model, {.drafts = 2, .sequences = 5, .batched = 20});
  std::vector<Request> requests = twenty();
  for (size_t i = 0; i < requests.size(); ++i)
    requests[i].sampling = {.temperature = 1.2f, .top_p = 0.9f, .seed = i, .logprobs = 2};
  std::vector<Answer> alone;
  for (const Request& request : requests) alone.push_back(ask(engine, request));
  expect_same(ask_together(engine, requests), alone);
}

TEST(Speculation, StopStringsCutTheSameText) {
  const EditedCheckpoint model("deepseek_v3", make_talking_mtp);
  add_demo_tokenizer(model);
  Engine plain = open(model, {}), engine = open(model, {.drafts = 3});
  Request request{.tokens = {17, 400, 12}, .sampling = {.temperature = 0}, .max_new_tokens = 60, .ignore_eos = true};
  const Answer whole = ask(plain, request);
  ASSERT_GT(whole.text.size(), 40u);
  int64_t accepted = 0;
  for (size_t i = 5; i + 3 < whole.text.size(); i += 7) {
    request.stop = {whole.text.substr(i, 3)};
    const Answer got = ask(engine, request);
    expect_same({got}, {ask(plain, request)});
    EXPECT_EQ(got.reason, FinishReason::stop);
    accepted += got.usage.accepted_draft_tokens;
  }
  EXPECT_GT(accepted, 0);
}

TEST(Speculation, OpeningWithoutALayerIsRefused) {
  EXPECT_THAT([] { Engine::open({.model = golden("qwen3_moe"), .num_speculative_tokens = 1}); },
              testing::ThrowsMessage<Error>(HasSubstr("no multi-token prediction layer")));
}

}  // namespace
}  // namespace moesaic
