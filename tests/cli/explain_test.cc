#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "base/temp_dir.h"
#include "cli/commands.h"
#include "engine/load_options.h"
#include "ir/graph.h"

namespace moesaic {
namespace {

const std::string kGolden = std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/gpt_oss-mxfp4";

ExplainOptions options_of(const std::string& phase, const std::string& dump_after = "",
                          Precision precision = Precision::fast) {
  ExplainOptions options;
  options.load.model = kGolden;
  options.load.precision = precision;
  options.load.threads = 2;
  options.phase = phase;
  options.dump_after = dump_after;
  return options;
}

std::string explain(const ExplainOptions& options) {
  testing::internal::CaptureStdout();
  int code = 1;
  try {
    code = run_explain(options);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  EXPECT_EQ(code, 0);
  return testing::internal::GetCapturedStdout();
}

JsonObject explain_json(const std::string& model, Precision precision = Precision::fast,
                        Backend backend = Backend::cpu) {
  ExplainOptions options = options_of("", "", precision);
  options.load.model = model;
  options.load.backend = backend;
  options.json = true;
  return parse_json(explain(options), "explain").as_object();
}

// The golden config with another depth.
std::string write_config(const TempDir& dir, int64_t layers) {
  JsonObject config = read_json_file(kGolden + "/config.json").as_object();
  config["num_hidden_layers"] = layers;
  config.erase("layer_types");
  return dir.write("layers" + std::to_string(layers) + ".json", write_json(config)).string();
}

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

TEST(Explain, BothPhasesAndEveryStep) {
  const JsonObject got = explain_json(kGolden);
  const JsonArray& phases = got.at("phases").as_array();
  ASSERT_EQ(phases.size(), 2u);
  EXPECT_EQ(phases[0].at("phase"), "prefill");
  EXPECT_EQ(phases[1].at("phase"), "decode");
  EXPECT_EQ(got.at("formats"), "checkpoint");
  for (const Json& phase : phases) {
    const JsonArray& steps = phase.at("steps").as_array();
    // The graph's last pass leaves as many ops as the plan has steps.
    EXPECT_EQ(phase.at("passes").as_array().back().at("ops_after").as_int64(), static_cast<int64_t>(steps.size()));
    for (const Json& step : steps) EXPECT_FALSE(step.at("kernel").as_string().empty());
    EXPECT_EQ(steps.back().at("step"), "lm_head");
    EXPECT_EQ(steps.back().at("outputs").at(0), "f32[S,320]");
    EXPECT_EQ(steps.back().at("weight_bytes").as_int64(), 320 * 96 * 2);
  }
}

TEST(Explain, ReusedActivationsNeverOverlap) {
  const JsonObject got = explain_json(kGolden);
  for (const Json& phase : got.at("phases").as_array()) {
    const JsonObject& activations = phase.at("activations").as_object();
    int64_t peak = 0, sum = 0;
    const JsonArray& all = activations.at("allocations").as_array();
    const auto before = [](const Json& a, const char* end, int64_t extra, const Json& b, const char* begin) {
      return a.at(end).as_int64() + extra <= b.at(begin).as_int64();
    };
    for (size_t i = 0; i < all.size(); ++i)
      for (size_t k = 0; k < i; ++k) {
        const Json &a = all[i], &b = all[k];
        EXPECT_TRUE(before(a, "last_step", 1, b, "first_step") || before(b, "last_step", 1, a, "first_step") ||
                    before(a, "offset", a.at("bytes").as_int64(), b, "offset") ||
                    before(b, "offset", b.at("bytes").as_int64(), a, "offset"))
            << a << " and " << b;
      }
    for (const Json& a : all) {
      peak = std::max(peak, a.at("offset").as_int64() + a.at("bytes").as_int64());
      sum += a.at("bytes").as_int64();
    }
    EXPECT_EQ(activations.at("bytes").as_int64(), peak);
    EXPECT_EQ(activations.at("bytes_without_reuse").as_int64(), sum);
    EXPECT_LT(peak, sum);
  }
}

TEST(Explain, MemoryDoesNotGrowWithDepth) {
  const TempDir dir;
  const JsonObject four = explain_json(write_config(dir, 4)), eight = explain_json(write_config(dir, 8));
  EXPECT_GT(four.at("memory").at("workspace_bytes").as_int64(), 0);
  for (const char* key : {"workspace_bytes", "activation_bytes"})
    EXPECT_EQ(four.at("memory").at(key), eight.at("memory").at(key)) << key;
  EXPECT_LT(four.at("memory").at("weights_bytes").as_int64(), eight.at("memory").at("weights_bytes").as_int64());
  EXPECT_EQ(2 * four.at("memory").at("cache").at("bytes").as_int64(),
            eight.at("memory").at("cache").at("bytes").as_int64());
  EXPECT_EQ(four.at("formats"), "assumed");
}

// On a GPU alike, in every precision: no layer keeps a copy of its experts.
TEST(Explain, MemoryOfAGpuDoesNotGrowWithDepth) {
  if (registry_of(Backend::cuda).kernels().empty()) GTEST_SKIP() << cuda_unavailable();
  const TempDir dir;
  for (Precision precision : {Precision::float32, Precision::fast, Precision::fp8}) {
    const JsonObject four = explain_json(write_config(dir, 4), precision, Backend::cuda),
                     many = explain_json(write_config(dir, 36), precision, Backend::cuda);
    EXPECT_GT(four.at("memory").at("workspace_bytes").as_int64(), 0);
    for (const char* key : {"workspace_bytes", "activation_bytes"})
      EXPECT_EQ(four.at("memory").at(key), many.at("memory").at(key)) << key << " " << precision_name(precision);
  }
}

// The workspace is the largest request of any step of either phase: one region, not a sum.
TEST(Explain, WorkspaceIsTheMaximum) {
  const JsonObject got = explain_json(kGolden);
  int64_t largest = 0;
  for (const Json& phase : got.at("phases").as_array())
    for (const Json& step : phase.at("steps").as_array())
      largest = std::max(largest, step.at("workspace_bytes").as_int64());
  EXPECT_EQ(got.at("memory").at("workspace_bytes").as_int64(), largest);
  EXPECT_EQ(occurrences(explain(options_of("")), "ONE region"), 1u);
}

TEST(Explain, RefusalsAreShownOnceWithTheirOps) {
  const JsonObject json = explain_json(kGolden, Precision::float32);
  size_t refused = 0;
  std::string reason;
  for (const Json& step : json.at("phases").at(0).at("steps").as_array())
    for (const Json& refusal : step.at("refused").as_array()) {
      ++refused;
      if (step.at("step") == "model.layers.0.mlp.experts.down_proj") reason = refusal.at("reason").as_string().c_str();
    }
  EXPECT_GE(refused, 4u);  // of every layer
  ASSERT_FALSE(reason.empty());
  const std::string text = explain(options_of("prefill", "", Precision::float32));
  EXPECT_NE(text.find("in 4 steps: mlp.experts.down_proj"), std::string::npos) << text;
  EXPECT_LE(occurrences(text, reason), 2u) << text;  // of two kernels
}

// Without a GPU, where the build has its kernels.
TEST(Explain, AGpuNeedNotBeThere) {
  ExplainOptions options = options_of("prefill", "", Precision::fp8);
  options.load.backend = Backend::cuda;
  if (registry_of(Backend::cuda).kernels().empty()) {
    EXPECT_THROW(explain(options), Error);
    return;
  }
  const std::string text = explain(options);
  for (const char* part : {"on cuda (sm_90a), precision fp8", "fuse_rope", "gqa.bf16.cuda", "^ dispatch.cuda",
                           "^ quantize.cuda", "expert_swiglu.mxfp4.cuda", "in the launch of the step before it"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_EQ(text.find("rope.cuda"), std::string::npos) << "rotations are inside attention";
}

TEST(Explain, AlikeLayersAreOneRow) {
  const TempDir dir;
  ExplainOptions options = options_of("decode");
  options.load.model = write_config(dir, 8);
  const std::string text = explain(options);
  EXPECT_NE(text.find("0-7"), std::string::npos) << text;
  EXPECT_NE(text.find("0,2,...,6"), std::string::npos) << text;
  EXPECT_EQ(text.find("prefill:"), std::string::npos);
  const std::string table = text.substr(0, text.find("== memory"));
  EXPECT_EQ(occurrences(table, "\nself_attn.q_proj "), 1u) << table;
}

TEST(Explain, DumpIsTheGraphAfterThePass) {
  const auto dump = [](const std::string& pass) { return explain(options_of("decode", pass)); };
  const std::string build = dump("build"), expanded = dump("expand_moe");
  EXPECT_EQ(print(parse_graph(build)), build);
  EXPECT_EQ(print(parse_graph(expanded)), expanded);
  EXPECT_EQ(occurrences(build, " = moe "), 4u);
  EXPECT_EQ(occurrences(expanded, " = moe "), 0u);
  EXPECT_EQ(occurrences(expanded, " = combine "), 4u);
  const std::string both = explain(options_of("", "build"));
  EXPECT_EQ(both, "# prefill after build\n" + build + "# decode after build\n" + build);
}

TEST(Explain, UnknownPassListsThePasses) {
  try {
    run_explain(options_of("", "fuse_all"));
    FAIL() << "no error";
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const char* name : {"fuse_all", "build", "expand_moe", "fuse_add_norm"})
      EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(Explain, SkippedPassIsMarked) {
  ExplainOptions options = options_of("decode");
  options.load.skip_passes = {"fuse_add_norm"};
  const std::string text = explain(options);
  EXPECT_NE(text.find("fuse_add_norm (skipped)"), std::string::npos);
  EXPECT_NE(text.find("0-3 x2"), std::string::npos) << text;  // two sums a layer
  options.dump_after = "fuse_add_norm";
  EXPECT_THROW(explain(options), Error);
}

}  // namespace
}  // namespace moesaic
