#include "weights/synth.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/fresh_rng.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/temp_dir.h"
#include "cli/commands.h"
#include "quant/bf16.h"
#include "quant/fp4.h"
#include "runtime/loaded_model.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/";
const std::string kMxfp4 = kGolden + "gpt_oss-mxfp4/config.json", kBf16 = kGolden + "gpt_oss-bf16/config.json";

void synth(SynthOptions options) {
  testing::internal::CaptureStdout();
  int code = 1;
  try {
    code = run_synth(options);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 0);
}

std::string weights_of(const fs::path& directory) {
  return read_text_file(directory / "model.safetensors");
}

Binding bind(const fs::path& directory) {
  const ModelSource source = open_model(directory.string(), true);
  return build_graph(source, Backend::cpu, DType::bf16).binding;
}

TEST(Synth, LoadsCompleteInBothLayouts) {
  const TempDir dir;
  const uint64_t seed = fresh_rng().bits();
  for (const std::string& config : {kMxfp4, kBf16}) {
    const fs::path out = dir.path() / (config == kMxfp4 ? "mxfp4" : "bf16");
    synth({.config = config, .out = out.string(), .seed = seed});
    const Binding binding = bind(out);
    EXPECT_TRUE(binding.complete()) << config;
    const ModelSource source = open_model(out.string(), true);
    const std::string experts = "model.layers.0.mlp.experts.gate_up_proj";
    EXPECT_EQ(source.shards->find(experts + "_blocks").has_value(), config == kMxfp4);
    EXPECT_EQ(source.shards->find(experts).has_value(), config == kBf16);
    const ModelSource original = open_model(fs::path(config).parent_path().string(), true);
    EXPECT_EQ(source.shards->names(), original.shards->names());
    for (std::string_view name : source.shards->names())
      EXPECT_EQ(source.shards->at(name).shape(), original.shards->at(name).shape()) << name;
  }
}

TEST(Synth, SeedDecidesTheNumbers) {
  const TempDir dir;
  const uint64_t seed = fresh_rng().bits();
  const auto write = [&](const char* name, uint64_t s) {
    synth({.config = kMxfp4, .out = (dir.path() / name).string(), .seed = s});
    return weights_of(dir.path() / name);
  };
  const std::string first = write("first", seed), again = write("again", seed), other = write("other", seed + 1);
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

// What a tensor holds does not depend on the others: a shallow model is the beginning of a deep one.
TEST(Synth, LayersAreIndependent) {
  const TempDir dir;
  synth({.config = kMxfp4, .out = (dir.path() / "two").string(), .layers = 2});
  synth({.config = kMxfp4, .out = (dir.path() / "six").string(), .layers = 6});
  const ModelSource two = open_model((dir.path() / "two").string(), true);
  const ModelSource six = open_model((dir.path() / "six").string(), true);
  EXPECT_EQ(two.model.layers, 2);
  EXPECT_EQ(six.model.layers, 6);
  EXPECT_TRUE(bind(dir.path() / "two").complete());
  EXPECT_TRUE(bind(dir.path() / "six").complete());
  for (std::string_view name : two.shards->names()) {
    const Tensor a = two.shards->at(name).tensor, b = six.shards->at(name).tensor;
    ASSERT_EQ(a.shape, b.shape) << name;
    EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())), 0) << name;
  }
  const Tensor q1 = six.shards->at("model.layers.1.self_attn.q_proj.weight").tensor;
  const Tensor q3 = six.shards->at("model.layers.3.self_attn.q_proj.weight").tensor;
  EXPECT_NE(std::memcmp(q1.data, q3.data, static_cast<size_t>(q1.bytes())), 0);
}

TEST(Synth, ValuesAreValid) {
  const TempDir dir;
  const fs::path out = dir.path() / "out";
  synth({.config = kMxfp4, .out = out.string(), .seed = fresh_rng().bits()});
  const ModelSource source = open_model(out.string(), true);
  for (std::string_view name : source.shards->names()) {
    const Tensor t = source.shards->at(name).tensor;
    double sum = 0;
    for (int64_t i = 0; i < t.shape.elements(); ++i) {
      if (t.dtype == DType::u8) {
        ASSERT_TRUE(!name.ends_with("_scales") || static_cast<uint8_t>(t.data[i]) != kE8m0Nan) << name;
        continue;
      }
      uint16_t bits;
      std::memcpy(&bits, t.data + 2 * i, 2);
      const double value = bf16_to_float(bits);
      ASSERT_TRUE(std::isfinite(value)) << name;
      ASSERT_TRUE(name.find("norm") == std::string_view::npos || value == 1) << name;
      sum += value * value;
    }
    // Deviation 1/sqrt(K) within 5 standard errors.
    if (t.dtype != DType::bf16 || t.shape.rank() != 2 || name.find("proj.weight") == std::string_view::npos) continue;
    const double n = static_cast<double>(t.shape.elements());
    EXPECT_NEAR(sum / n * static_cast<double>(t.shape[-1]), 1, 5 * std::sqrt(2 / n)) << name;
  }
}

TEST(Synth, ExpertsAreCutInTheConfigToo) {
  const TempDir dir;
  const fs::path out = dir.path() / "out";
  synth({.config = kMxfp4, .out = out.string(), .layers = 3, .experts = 5});
  const JsonObject config = read_json_file((out / "config.json").string()).as_object();
  EXPECT_EQ(config.at("num_local_experts").as_int64(), 5);
  EXPECT_EQ(config.at("num_hidden_layers").as_int64(), 3);
  EXPECT_EQ(config.at("layer_types").as_array().size(), 3u);
  EXPECT_TRUE(bind(out).complete());
  EXPECT_THROW(synth({.config = kMxfp4, .out = (dir.path() / "few").string(), .experts = 2}), Error);
}

TEST(Synth, RefusesToOverwrite) {
  const TempDir dir;
  const fs::path out = dir.path() / "out";
  synth({.config = kMxfp4, .out = out.string(), .seed = 1});
  const std::string before = weights_of(out);
  EXPECT_THROW(synth({.config = kMxfp4, .out = out.string(), .seed = 2}), Error);
  EXPECT_EQ(weights_of(out), before);
  dir.write("out/model-00001-of-00009.safetensors", "left over from another model");
  synth({.config = kMxfp4, .out = out.string(), .seed = 2, .force = true});
  EXPECT_NE(weights_of(out), before);
  EXPECT_FALSE(fs::exists(out / "model-00001-of-00009.safetensors"));
  EXPECT_TRUE(bind(out).complete());
}

TEST(Synth, NeverWritesOverItsConfig) {
  const TempDir dir;
  const auto config = dir.write("config.json", read_text_file(kMxfp4));
  EXPECT_THROW(synth({.config = config.string(), .out = dir.path().string(), .force = true}), Error);
  EXPECT_FALSE(fs::exists(dir.path() / "model.safetensors"));
}

TEST(Synth, CopiesTokenizerFiles) {
  const TempDir dir;
  const auto config = dir.write("in/config.json", read_text_file(kMxfp4));
  dir.write("in/tokenizer.json", "{\"version\": \"1.0\"}");
  dir.write("in/notes.txt", "not for the copy");
  const fs::path out = dir.path() / "out";
  synth({.config = config.string(), .out = out.string()});
  EXPECT_EQ(read_text_file(out / "tokenizer.json"), "{\"version\": \"1.0\"}");
  EXPECT_FALSE(fs::exists(out / "notes.txt"));
}

TEST(Synth, ShardsHoldTheSameNumbers) {
  const TempDir dir;
  const uint64_t seed = fresh_rng().bits();
  const ModelSource source = open_model(kMxfp4, false);
  const BoundGraph bound = build_graph(source, Backend::cpu, DType::bf16);
  ThreadPool pool(2);
  const auto write = [&](const char* name, int64_t shard_bytes) {
    const fs::path out = dir.path() / name;
    fs::create_directories(out);
    fs::copy_file(kMxfp4, out / "config.json");
    Progress bar("", 1, ProgressUnit::bytes, false);
    const SynthResult result = write_random_checkpoint(bound.graph, out, seed, shard_bytes, pool, bar);
    EXPECT_EQ(result.bytes, random_checkpoint_bytes(bound.graph));
    EXPECT_TRUE(bind(out).complete());
    return result.files;
  };
  EXPECT_EQ(write("one", int64_t{1} << 40), 1);
  EXPECT_GT(write("many", 100'000), 5);
  const Shards one = Shards::open(dir.path() / "one"), many = Shards::open(dir.path() / "many");
  ASSERT_EQ(one.names(), many.names());
  for (const SafetensorsFile& file : many.files()) EXPECT_LE(fs::file_size(file.path()), 110'000u);
  for (std::string_view name : one.names()) {
    const Tensor a = one.at(name).tensor, b = many.at(name).tensor;
    EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())), 0) << name;
  }
}

}  // namespace
}  // namespace moesaic
