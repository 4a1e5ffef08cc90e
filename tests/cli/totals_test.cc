// `moesaic inspect` of every published config against published totals. Configs alone: formats are assumed from them.
#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "cli/commands.h"

namespace moesaic {
namespace {

// How a model's makers count the two tables of the vocabulary among the active parameters: we count the head and one
// row of the embedding.
enum class Tables { head, both, neither };

struct Published {
  const char* config;
  double total, active;  // billions of parameters
  Tables tables;
  double per_token, per_sequence;  // cache bytes in bf16, recurrent state in float32
};

// Totals of the model cards, to the digits they print (and at best 1 percent); cache sizes are derived in the notes
// beside each family's definition: latent 576 values a layer, index keys 128, grouped-query 2 * heads * head_dim.
const Published kPublished[] = {
    {"gpt-oss-20b", 20.91, 3.61, Tables::head, 12 * 2048, 12 * 128 * 2048},
    {"gpt-oss-120b", 116.83, 5.13, Tables::head, 18 * 2048, 18 * 128 * 2048},
    {"deepseek-v3", 671, 37, Tables::head, 70272, 0},
    {"deepseek-v3.2", 671, 37.5, Tables::head, 70272 + 61 * 256, 0},
    {"deepseek-v4-flash", 284, 13, Tables::head, 6880, 43 * 128 * 1024 + 21 * 80 * 1024 + 20 * 512 * 1024},
    {"deepseek-v4-pro", 1573, 49, Tables::head, 9848, 61 * 128 * 1024 + 30 * 80 * 1024 + 31 * 512 * 1024},
    {"glm-5", 744, 40, Tables::neither, 89856 + 78 * 256, 0},
    {"glm-5.2", 744, 40, Tables::head, 89856 + 21 * 256, 0},
    {"qwen3-30b-a3b", 30.5, 3.35, Tables::both, 48 * 2048, 0},
    {"qwen3-235b-a22b", 235, 22, Tables::both, 94 * 2048, 0},
    {"kimi-k2", 1026, 32, Tables::head, 70272, 0},
    {"kimi-k2.5", 1026, 32, Tables::head, 70272, 0},
    {"kimi-linear-48b", 49.1, 3.1, Tables::head, 7 * 1152, 0},
    {"kimi-k3", 2780, 104.2, Tables::head, 24 * 1152, 0},
};

JsonObject inspect(const std::string& config) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_inspect({.model = MOESAIC_SOURCE_DIR "/configs/" + config + ".json", .json = true}), 0);
  return parse_json(testing::internal::GetCapturedStdout(), config).as_object();
}

double number(const JsonObject& object, const char* key) {
  return object.at(key).to_number<double>();
}

// 1 percent, or half a unit of the last digit of a number as small as 13.
void expect_about(double got, double published, double digit) {
  EXPECT_NEAR(got, published, std::max(0.01 * published, digit / 2));
}

TEST(Totals, ParametersAndCacheOfEveryModel) {
  for (const Published& want : kPublished) {
    SCOPED_TRACE(want.config);
    const JsonObject got = inspect(want.config);
    const double table = number(got, "vocab") * number(got, "hidden") / 1e9;
    const double counted = want.tables == Tables::both ? table : want.tables == Tables::neither ? -table : 0;
    expect_about(number(got, "parameters") / 1e9, want.total, 0);
    const double digit = want.active == std::floor(want.active) ? 1 : 0.1;
    expect_about(number(got, "active_parameters") / 1e9 + counted, want.active, digit);
    const JsonObject& cache = got.at("cache").at("bf16").as_object();
    EXPECT_EQ(number(cache, "bytes_per_token"), want.per_token);
  }
}

TEST(Totals, ConstantStateOfASequence) {
  for (const Published& want : kPublished) {
    SCOPED_TRACE(want.config);
    const JsonObject cache = inspect(want.config).at("cache").at("bf16").as_object();
    if (want.per_sequence == 0) continue;
    EXPECT_NEAR(number(cache, "bytes_per_sequence") / want.per_sequence, 1, 0.02);
  }
  // Delta attention: heads x 128 x 128 float32, and three rows of short convolutions.
  const double k3 = number(inspect("kimi-k3").at("cache").at("bf16").as_object(), "bytes_per_sequence");
  EXPECT_GE(k3, 69 * (96 * 128 * 128 * 4 + 3 * 3 * 12288 * 2.0));
  EXPECT_LE(k3, 69 * (96 * 128 * 128 * 4 + 3 * 3 * 12288 * 4.0));
  const double linear = number(inspect("kimi-linear-48b").at("cache").at("bf16").as_object(), "bytes_per_sequence");
  EXPECT_GE(linear, 20 * (32 * 128 * 128 * 4 + 3 * 12288 * 2.0));
  EXPECT_LE(linear, 20 * (32 * 128 * 128 * 4 + 3 * 12288 * 4.0));
}

// Of one multi-token prediction layer, which we do not read: tensors and bytes.
struct Skipped {
  double tensors, bytes;
};

// mtp.0 of DeepSeek-V4-Pro, from its shapes: attention and shared expert in FP8, experts in FP4, 34 other tensors.
Skipped v4_pro_mtp() {
  const double H = 7168, I = 3072, experts = 384.0 * 3 * H * I * 17 / 32;
  const double attention = 1536 * H + 65536.0 * 1536 + 512 * H + 16384.0 * 4096 + H * 16384;
  return {384 * 6 + 6 + 33, experts + attention + 3 * H * I + 2 * H * H + 384 * H * 2};
}

TEST(Totals, BytesAndTensorsOfCheckpoints) {
  const JsonObject k3 = inspect("kimi-k3");
  const double vision = 168, unused = 2;  // layer 0 mixes nothing, but has a norm and a projection for it
  EXPECT_EQ(number(k3, "checkpoint_tensors") + vision + unused, 497220);
  EXPECT_NEAR(number(k3, "bytes") / 1.56e12, 1, 0.01);
  EXPECT_NEAR(number(k3.at("bytes_by_format").as_object(), "mxfp4") / 1.446e12, 1, 0.001);
  EXPECT_NEAR(number(k3.at("bytes_by_format").as_object(), "bf16") / 113.5e9, 1, 0.01);

  const JsonObject pro = inspect("deepseek-v4-pro");
  EXPECT_EQ(number(pro, "checkpoint_tensors") + v4_pro_mtp().tensors, 145116);
  EXPECT_NEAR((number(pro, "bytes") + v4_pro_mtp().bytes) / 864704792696.0, 1, 0.0005);
  EXPECT_NEAR((number(inspect("deepseek-v4-flash"), "bytes") + 3.5e9) / 160e9, 1, 0.01);

  EXPECT_NEAR(number(inspect("gpt-oss-20b"), "bytes") / 13.8e9, 1, 0.01);
  EXPECT_NEAR(number(inspect("gpt-oss-120b"), "bytes") / 65.2e9, 1, 0.01);
  EXPECT_EQ(number(inspect("gpt-oss-20b"), "checkpoint_tensors"), 459);
  EXPECT_NEAR(number(inspect("glm-5"), "bytes") / (2 * 744e9), 1, 0.01);  // bf16
  EXPECT_NEAR(number(inspect("qwen3-30b-a3b"), "bytes") / (2 * 30.53e9), 1, 0.01);
}

TEST(Totals, FormatsFollowTheConfig) {
  const auto share = [](const char* config, const char* format) {
    const JsonObject got = inspect(config);
    return number(got.at("bytes_by_format").as_object(), format) / number(got, "bytes");
  };
  EXPECT_GT(share("deepseek-v3", "fp8_128x128"), 0.99);
  EXPECT_GT(share("kimi-k2", "fp8_128x128"), 0.99);
  EXPECT_GT(share("kimi-k2.5", "int4"), 0.95);
  EXPECT_GT(share("kimi-k3", "mxfp4"), 0.92);
  EXPECT_GT(share("deepseek-v4-flash", "mxfp4"), 0.94);
  EXPECT_GT(share("deepseek-v4-flash", "fp8_128x128"), 0.03);
  EXPECT_GT(share("glm-5.2", "bf16"), 0.9999);
}

}  // namespace
}  // namespace moesaic
