// Scorer against reference logits, and its independence of chunks and of earlier texts.
#include "engine/score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/fresh_rng.h"
#include "base/temp_dir.h"
#include "weights/safetensors.h"

namespace moesaic {
namespace {

const std::string kGolden = MOESAIC_SOURCE_DIR "/tests/golden/gpt_oss-mxfp4";

LoadOptions options_for(Precision precision, bool dummy = false) {
  LoadOptions options;
  options.model = kGolden;
  options.precision = precision;
  options.dummy_weights = dummy;
  options.threads = 2;
  options.progress = false;
  return options;
}

std::vector<double> score(const LoadOptions& options, const std::vector<int32_t>& tokens, int64_t chunk) {
  LoadedModel loaded = load_model(score_limits(options, static_cast<int64_t>(tokens.size()) - 1, chunk));
  Scorer scorer(loaded);
  const auto values = scorer.score(tokens);
  return {values.begin(), values.end()};
}

std::vector<int32_t> random_tokens(Rng& rng, int64_t count) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(rng.below(320)));
  return tokens;
}

template <typename T>
std::vector<T> copy(const Tensor& tensor) {
  std::vector<T> out(static_cast<size_t>(tensor.shape.elements()));
  std::memcpy(out.data(), tensor.data, out.size() * sizeof(T));
  return out;
}

TEST(Score, DivergenceOfDistributions) {
  const std::vector<double> p = {1, 3, -2}, shifted = {101, 103, 98}, q = {0, 0, 0};
  EXPECT_NEAR(kl_divergence(p, p), 0, 1e-15);
  EXPECT_NEAR(kl_divergence(p, shifted), 0, 1e-13) << "logits are defined up to a constant";
  double want = 0;
  for (size_t i = 0; i < 3; ++i) {
    const double log_p = log_softmax_at(std::span<const double>(p), static_cast<int64_t>(i));
    want += std::exp(log_p) * (log_p - std::log(1.0 / 3));
  }
  EXPECT_NEAR(kl_divergence(p, q), want, 1e-14);
  EXPECT_GT(kl_divergence(q, p), kl_divergence(p, q));
}

TEST(Score, GivesEveryRowOfLogits) {
  Rng rng = fresh_rng();
  const std::vector<int32_t> tokens = random_tokens(rng, 30);
  LoadedModel loaded = load_model(score_limits(options_for(Precision::float32), 29, 8));
  Scorer scorer(loaded);
  std::vector<double> again;
  const auto values = scorer.score(tokens, [&](int64_t i, std::span<const double> logits) {
    ASSERT_EQ(i, std::ssize(again));
    again.push_back(log_softmax_at(logits, tokens[static_cast<size_t>(i + 1)]));
  });
  ASSERT_EQ(again.size(), values.size());
  for (size_t i = 0; i < again.size(); ++i) EXPECT_DOUBLE_EQ(again[i], values[i]);
}

TEST(Score, MatchesReferenceLogits) {
  const SafetensorsFile file = SafetensorsFile::open(kGolden + "/golden.safetensors");
  const auto ids = copy<int64_t>(file.tensor("input_ids"));
  const auto logits = copy<float>(file.tensor("logits"));
  const auto B = static_cast<size_t>(file.tensor("input_ids").shape[0]), T = ids.size() / B,
             V = logits.size() / ids.size();
  for (size_t b = 0; b < B; ++b) {
    const std::vector<int32_t> tokens(ids.begin() + static_cast<int64_t>(b * T),
                                      ids.begin() + static_cast<int64_t>((b + 1) * T));
    const auto got = score(options_for(Precision::float32), tokens, 0);
    ASSERT_EQ(got.size(), T - 1);
    for (size_t t = 0; t + 1 < T; ++t) {
      const float* row = logits.data() + (b * T + t) * V;
      long double sum = 0;
      for (size_t v = 0; v < V; ++v) sum += std::exp(static_cast<long double>(row[v]));
      const double want = static_cast<double>(row[tokens[t + 1]] - std::log(sum));
      EXPECT_NEAR(got[t], want, 2e-5) << "sequence " << b << ", position " << t;
    }
  }
}

TEST(Score, ChunksAgreeBitForBit) {
  Rng rng = fresh_rng();
  const auto tokens = random_tokens(rng, 151);  // crosses cache blocks and windows
  const auto whole = score(options_for(Precision::float32), tokens, 150);
  for (int64_t chunk : {int64_t{1}, int64_t{64}, 2 + rng.below(100)})
    EXPECT_EQ(score(options_for(Precision::float32), tokens, chunk), whole) << "chunk " << chunk;
}

TEST(Score, TextsAreIndependent) {
  Rng rng = fresh_rng();
  const auto first = random_tokens(rng, 70), second = random_tokens(rng, 40);
  LoadedModel loaded = load_model(score_limits(options_for(Precision::fast, true), 69, 32));
  Scorer scorer(loaded);
  const auto copy_of = [](std::span<const double> values) { return std::vector<double>(values.begin(), values.end()); };
  const auto alone = copy_of(scorer.score(first));
  const auto other = copy_of(scorer.score(second));
  EXPECT_EQ(copy_of(scorer.score(first)), alone);
  EXPECT_EQ(copy_of(scorer.score(second)), other);
  EXPECT_NE(other[0], alone[0]);
}

TEST(Score, LogSoftmaxOfExtremes) {
  const std::vector<float> far{1000, -1000, 999};
  EXPECT_NEAR(log_softmax_at(far, 0), -std::log1p(std::exp(-1.0)), 1e-12);
  EXPECT_NEAR(log_softmax_at(far, 1), -2000 - std::log1p(std::exp(-1.0)), 1e-9);
  EXPECT_NEAR(log_softmax_at(std::vector<double>(1000, 3.5), 7), -std::log(1000.0), 1e-12);
  for (float bad : {NAN, INFINITY}) {
    EXPECT_FALSE(std::isfinite(log_softmax_at(std::vector<float>{0, bad, 1}, 1)));
    EXPECT_FALSE(std::isfinite(log_softmax_at(std::vector<float>{bad, 0, 1}, 1)));
  }
}

TEST(Score, ChunkBoundsLogits) {
  const TempDir dir;
  std::ifstream in(kGolden + "/config.json");
  std::string config{std::istreambuf_iterator<char>(in), {}};
  const std::string small = "\"vocab_size\": 320";
  config.replace(config.find(small), small.size(), "\"vocab_size\": 200000");
  dir.write("config.json", config);
  LoadOptions options = options_for(Precision::float32, true);
  options.model = dir.path().string();
  const int64_t rows = score_limits(options, 512).prefill_rows;
  EXPECT_LE(rows * 200000 * 4, kScoreLogitsBytes);
  EXPECT_GT((rows + 1) * 200000 * 4, kScoreLogitsBytes);
  EXPECT_EQ(score_limits(options, 5).prefill_tokens, 5);
}

TEST(Score, WindowLongerThanContext) {
  LoadOptions options = options_for(Precision::float32);
  EXPECT_EQ(score_limits(options, 4096).max_model_len, 4096);  // max_position_embeddings
  const auto message_of = [&](int64_t window) -> std::string {
    try {
      score_limits(options, window);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message_of(4097), testing::HasSubstr("a window of 4097 tokens is longer than the context of 4096"));
  options.max_model_len = 100;
  EXPECT_THAT(message_of(101), testing::HasSubstr("context of 100 (--max-model-len)"));
}

}  // namespace
}  // namespace moesaic
