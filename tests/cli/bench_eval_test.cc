// What `moesaic bench` and `moesaic eval` print, and their one-line refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>

#include "base/fresh_rng.h"
#include "base/json.h"
#include "base/temp_dir.h"
#include "cli/commands.h"
#include "text/tokenizer.h"
#include "weights/safetensors_writer.h"

namespace moesaic {
namespace {

using testing::HasSubstr;
using testing::internal::CaptureStdout;
using testing::internal::GetCapturedStdout;

const std::string kGolden = MOESAIC_SOURCE_DIR "/tests/golden/gpt_oss-mxfp4";
const std::string kDemo = MOESAIC_SOURCE_DIR "/models/demo";

LoadOptions tiny(bool dummy = true) {
  LoadOptions load;
  load.model = kGolden;
  load.dummy_weights = dummy;
  load.threads = 2;
  load.progress = false;
  return load;
}

BenchOptions tiny_bench() {
  BenchOptions options;
  options.load = tiny();
  options.prompt_lengths = {5, 20};
  options.batch_sizes = {1, 3};
  options.depths = {0, 6};
  options.generate = 4;
  options.repetitions = 2;
  return options;
}

std::string output_of(const std::function<int()>& command) {
  CaptureStdout();
  EXPECT_EQ(command(), 0);
  return GetCapturedStdout();
}

// The message of the Error that the command ends with: one line.
std::string error_of(const std::function<int()>& command) {
  std::string message;
  try {
    output_of(command);
  } catch (const Error& error) {
    message = error.what();
    GetCapturedStdout();
  }
  EXPECT_NE(message, "");
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

std::string write_tokens(const TempDir& dir, const std::string& name, std::vector<int64_t> ids) {
  const std::string path = (dir.path() / "tokens.safetensors").string();
  write_safetensors(
      path, {{name, {reinterpret_cast<std::byte*>(ids.data()), DType::i64, {static_cast<int64_t>(ids.size())}}}});
  return path;
}

std::vector<int64_t> random_ids(Rng& rng, int64_t count) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(rng.below(320));
  return ids;
}

JsonObject eval_json(EvalOptions options) {
  options.json = true;
  return json_object(parse_json(output_of([&] { return run_eval(options); }), "output"), "output");
}

EvalOptions tiny_eval(const std::string& tokens, int64_t window) {
  EvalOptions options;
  options.load = tiny(false);
  options.load.precision = Precision::float32;
  options.tokens = tokens;
  options.window = window;
  return options;
}

TEST(Bench, PrintsEveryRowAndAppendsCsv) {
  const TempDir dir;
  BenchOptions options = tiny_bench();
  options.csv = (dir.path() / "speeds.csv").string();
  const std::string text = output_of([&] { return run_bench(options); });
  for (const char* row : {" pp5 ", " pp20 ", " tg4 ", " tg4 b3 ", " tg4 @ d6 ", " tg4 b3 @ d6 "})
    EXPECT_THAT(text, HasSubstr(row));
  for (const char* note : {"read bandwidth: ", "f32 product: ", "FMA peak: ", "random weights", "precision fast"})
    EXPECT_THAT(text, HasSubstr(note));
  options.prompt_lengths = {5}, options.depths = {0}, options.generate = 0;
  const std::string prompts = output_of([&] { return run_bench(options); });
  EXPECT_EQ(prompts.find("read bandwidth"), std::string::npos);
  std::ifstream csv(options.csv);
  std::vector<int64_t> commas;
  for (std::string line; std::getline(csv, line);) commas.push_back(std::count(line.begin(), line.end(), ','));
  ASSERT_EQ(commas.size(), 1u + 6 + 1);
  EXPECT_THAT(commas, testing::Each(23));
}

TEST(Bench, JsonIsValidAndConsistent) {
  BenchOptions options = tiny_bench();
  options.json = true;
  const Json json = parse_json(output_of([&] { return run_bench(options); }), "output");
  const JsonObject& all = json_object(json, "output");
  EXPECT_EQ(json_int(all, "threads", ""), 2);
  EXPECT_GT(json_number(json_object(all.at("limits"), ""), "read_bytes_per_second_before", ""), 0);
  const JsonArray& tests = all.at("tests").as_array();
  ASSERT_EQ(tests.size(), 6u);
  for (const Json& item : tests) {
    const JsonObject& test = json_object(item, "test");
    const JsonArray& seconds = test.at("seconds").as_array();
    ASSERT_EQ(seconds.size(), 2u);
    const int64_t tokens =
        std::max(json_int(test, "n_prompt", ""), json_int(test, "n_gen", "") * json_int(test, "batch", ""));
    const double n = static_cast<double>(tokens), mean = (n / seconds[0].as_double() + n / seconds[1].as_double()) / 2;
    EXPECT_NEAR(json_number(json_object(test.at("tokens_per_second"), ""), "mean", "") / mean, 1, 1e-9);
    EXPECT_GT(json_number(test, "weight_bytes_per_step", ""), 0);
    EXPECT_GE(json_number(test, "experts_per_layer", ""), 3);
    EXPECT_LE(json_number(test, "experts_per_layer", ""), 8);
    EXPECT_FALSE(test.at("profile").as_array().empty());
  }
}

TEST(Bench, Refusals) {
  const TempDir dir;
  BenchOptions options = tiny_bench();
  options.depths = {4093};
  EXPECT_THAT(error_of([&] { return run_bench(options); }), HasSubstr("takes 4097 tokens; the context is 4096"));
  options = tiny_bench();
  options.csv = dir.write("other.csv", "a,b\n1,2\n").string();
  EXPECT_THAT(error_of([&] { return run_bench(options); }), HasSubstr("other columns"));
  options.csv = (dir.path() / "missing" / "speeds.csv").string();
  EXPECT_THAT(error_of([&] { return run_bench(options); }), HasSubstr("cannot be written"));
}

TEST(Eval, WindowsAreAveraged) {
  Rng rng = fresh_rng();
  const TempDir dir;
  auto ids = random_ids(rng, 3 * 20 + 1 + 7);
  const JsonObject all = eval_json(tiny_eval(write_tokens(dir, "eval.tokens", ids), 20));
  EXPECT_EQ(json_int(all, "windows", ""), 3);
  EXPECT_EQ(json_int(all, "tokens", ""), 60);
  EXPECT_EQ(json_int(all, "tokens_left_out", ""), 7);
  EXPECT_EQ(json_string(all, "precision", ""), "float32");
  std::vector<double> means;
  for (size_t w = 0; w < 3; ++w) {
    const std::vector<int64_t> part(ids.begin() + static_cast<int64_t>(w) * 20,
                                    ids.begin() + static_cast<int64_t>(w) * 20 + 21);
    const JsonObject one = eval_json(tiny_eval(write_tokens(dir, "tokens", part), 20));
    EXPECT_TRUE(one.at("standard_error").is_null());
    means.push_back(json_number(one, "mean_nll", ""));
  }
  const double mean = (means[0] + means[1] + means[2]) / 3;
  double squares = 0;
  for (double m : means) squares += (m - mean) * (m - mean);
  EXPECT_NEAR(json_number(all, "mean_nll", ""), mean, 1e-12);
  EXPECT_NEAR(json_number(all, "perplexity", ""), std::exp(mean), 1e-6);
  EXPECT_NEAR(json_number(all, "standard_error", ""), std::sqrt(squares / 2 / 3), 1e-7);
}

TEST(Eval, PrintsOneSummary) {
  Rng rng = fresh_rng();
  const TempDir dir;
  EvalOptions options = tiny_eval(write_tokens(dir, "tokens", random_ids(rng, 41)), 20);
  options.max_windows = 1;
  const std::string text = output_of([&] { return run_eval(options); });
  EXPECT_THAT(text, HasSubstr("20 tokens in 1 window of 20: mean NLL "));
  EXPECT_THAT(text, HasSubstr("standard error unknown"));
  EXPECT_THAT(text, HasSubstr("precision float32, device cpu"));
  EXPECT_THAT(text, HasSubstr("20 tokens after the last window were left out"));
}

// A precision from itself: nothing. Rounding moves distributions by little, and some most likely tokens.
TEST(Eval, ComparesWithAnotherPrecision) {
  Rng rng = fresh_rng();
  const TempDir dir;
  EvalOptions options = tiny_eval(write_tokens(dir, "tokens", random_ids(rng, 81)), 20);
  const auto against = [&](Precision precision) {
    options.load.precision = precision;
    options.against = "float32";
    const JsonObject all = eval_json(options);
    return json_object(all.at("against"), "against");
  };
  const JsonObject none = against(Precision::float32), fast = against(Precision::fast), fp8 = against(Precision::fp8);
  EXPECT_EQ(json_number(none, "mean_kl_divergence", ""), 0);
  EXPECT_EQ(json_number(none, "same_most_likely", ""), 1);
  EXPECT_GT(json_number(fast, "mean_kl_divergence", ""), 0);
  EXPECT_GT(json_number(fp8, "mean_kl_divergence", ""), 0);
  EXPECT_NE(json_number(fp8, "mean_kl_divergence", ""), json_number(fast, "mean_kl_divergence", ""));
  EXPECT_GE(json_number(fp8, "largest_kl_divergence", ""), json_number(fp8, "mean_kl_divergence", ""));
  EXPECT_LT(json_number(fp8, "mean_kl_divergence", ""), 0.1);
}

TEST(Eval, TextAndItsTokensAgree) {
  if (!std::filesystem::exists(kDemo + "/model.safetensors")) GTEST_SKIP() << "models/demo is not here";
  const TempDir dir;
  const std::string story =
      "Once upon a time, there was a little fox who lived by the sea.<|endoftext|>The king laughed.";
  const auto ids = load_tokenizer(kDemo + "/tokenizer.json")->encode(story);
  EvalOptions options = tiny_eval(write_tokens(dir, "tokens", {ids.begin(), ids.end()}), 512);
  options.load.model = kDemo;
  const JsonObject tokens = eval_json(options);
  EXPECT_EQ(json_int(tokens, "tokens", ""), static_cast<int64_t>(ids.size()) - 1);
  options.tokens.clear();
  options.text = dir.write("story.txt", story).string();
  EXPECT_EQ(json_number(eval_json(options), "mean_nll", ""), json_number(tokens, "mean_nll", ""));
  EXPECT_LT(json_number(tokens, "mean_nll", ""), 5);  // ln 6144 = 8.7 for a model that knows nothing
}

TEST(Eval, Refusals) {
  Rng rng = fresh_rng();
  const TempDir dir;
  const auto refusal = [](EvalOptions options) { return error_of([&] { return run_eval(options); }); };
  EXPECT_THAT(refusal(tiny_eval(write_tokens(dir, "input_ids", {1, 2}), 8)),
              HasSubstr("neither eval.tokens nor tokens"));
  EXPECT_THAT(refusal(tiny_eval(write_tokens(dir, "tokens", {1}), 8)), HasSubstr("has 1 tokens; expected at least 2"));
  EXPECT_THAT(refusal(tiny_eval(write_tokens(dir, "tokens", {1, 320}), 8)), HasSubstr("vocabulary has 320"));
  EXPECT_THAT(refusal(tiny_eval(write_tokens(dir, "tokens", {1, -5}), 8)), HasSubstr("holds -5"));
  EXPECT_THAT(refusal(tiny_eval(write_tokens(dir, "tokens", random_ids(rng, 30)), 5000)),
              HasSubstr("a window of 5000 tokens is longer than the context of 4096"));
  EXPECT_THAT(refusal(tiny_eval((dir.path() / "none.safetensors").string(), 8)), HasSubstr("none.safetensors"));
  EXPECT_THAT(refusal(tiny_eval("golden", 8)), HasSubstr("neither eval.tokens nor tokens"));
  EXPECT_THAT(refusal(tiny_eval("", 8)), HasSubstr("--text FILE and --tokens FILE"));
  EvalOptions text = tiny_eval("", 8);
  text.text = dir.write("empty.txt", "").string();
  EXPECT_THAT(refusal(text), HasSubstr("no tokenizer.json"));
  if (!std::filesystem::exists(kDemo + "/tokenizer.json")) return;
  text.load.model = kDemo;
  EXPECT_THAT(refusal(text), HasSubstr("has 0 tokens; expected at least 2"));
  text.text = (dir.path() / "missing.txt").string();
  EXPECT_THAT(refusal(text), HasSubstr("cannot be read"));
}

}  // namespace
}  // namespace moesaic
