#include <gtest/gtest.h>

#include <cmath>

#include "base/fresh_rng.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/temp_dir.h"
#include "cli/commands.h"
#include "cli/model_source.h"
#include "weights/safetensors_writer.h"

namespace moesaic {
namespace {

const std::string kSource = MOESAIC_SOURCE_DIR;
const std::string kGolden = kSource + "/tests/golden/gpt_oss-mxfp4";

struct Printed {
  int code = 0;
  std::string text;
};

Printed inspect(const std::string& model, bool json, bool tensors = false) {
  testing::internal::CaptureStdout();
  const int code = run_inspect({.model = model, .tensors = tensors, .json = json});
  return {code, testing::internal::GetCapturedStdout()};
}

JsonObject inspect_json(const std::string& model, int code) {
  const Printed printed = inspect(model, true, true);
  EXPECT_EQ(printed.code, code);
  return parse_json(printed.text, "inspect").as_object();
}

double number(const JsonObject& object, const char* key) {
  return object.at(key).to_number<double>();
}

// The golden checkpoint with one change to its tensors.
void write_changed(const TempDir& dir, const std::function<void(std::vector<NamedTensor>&)>& change) {
  const SafetensorsFile file = SafetensorsFile::open(kGolden + "/model.safetensors");
  std::vector<NamedTensor> tensors;
  for (const SafetensorsEntry& entry : file.tensors()) tensors.emplace_back(entry.name, file.tensor(entry));
  change(tensors);
  write_safetensors(dir.path() / "model.safetensors", tensors);
  std::filesystem::copy_file(kGolden + "/config.json", dir.path() / "config.json");
}

TEST(Inspect, PublishedSizesOfGptOss) {
  struct Published {
    const char* config;
    double parameters, active, bytes;
  };
  for (const Published& want :
       {Published{"gpt-oss-20b", 20.91e9, 3.61e9, 13.8e9}, Published{"gpt-oss-120b", 116.83e9, 5.13e9, 65.2e9}}) {
    const JsonObject got = inspect_json(kSource + "/configs/" + want.config + ".json", 0);
    EXPECT_NEAR(number(got, "parameters") / want.parameters, 1, 0.01);
    EXPECT_NEAR(number(got, "active_parameters") / want.active, 1, 0.01);
    EXPECT_NEAR(number(got, "bytes") / want.bytes, 1, 0.01);
    EXPECT_FALSE(got.at("checkpoint").at("checked").as_bool());
  }
}

TEST(Inspect, CacheAndLayersOfGptOss20b) {
  const JsonObject got = inspect_json(kSource + "/configs/gpt-oss-20b.json", 0);
  const JsonObject& fast = got.at("cache").at("bf16").as_object();
  const JsonObject& exact = got.at("cache").at("f32").as_object();
  EXPECT_EQ(number(fast, "bytes_per_token"), 12 * 2048);           // full layers, bf16 keys and values
  EXPECT_EQ(number(fast, "bytes_per_sequence"), 12 * 128 * 2048);  // sliding layers keep 128 tokens
  EXPECT_EQ(number(exact, "bytes_per_token"), 12 * 4096);
  EXPECT_EQ(number(exact, "bytes_per_sequence"), 12 * 128 * 4096);
  std::map<std::string, size_t> counts;
  for (const Json& kind : got.at("layer_kinds").as_array())
    counts[kind.at("kind").as_string().c_str()] = kind.at("layers").as_array().size();
  EXPECT_EQ(counts, (std::map<std::string, size_t>{
                        {"full attention", 12}, {"mixture of experts", 24}, {"sliding attention", 12}}));
}

TEST(Inspect, CompleteCheckpoint) {
  const JsonObject got = inspect_json(kGolden, 0);
  EXPECT_TRUE(got.at("checkpoint").at("complete").as_bool());
  const SafetensorsFile file = SafetensorsFile::open(kGolden + "/model.safetensors");
  uint64_t stored = 0;
  for (const SafetensorsEntry& entry : file.tensors()) stored += entry.bytes();
  EXPECT_EQ(number(got, "bytes"), static_cast<double>(stored));
  double listed = 0;
  for (const Json& weight : got.at("weights").as_array()) listed += weight.at("bytes").to_number<double>();
  EXPECT_EQ(listed, static_cast<double>(stored));
}

TEST(Inspect, TextNamesEveryWeight) {
  const Printed printed = inspect(kGolden, false, true);
  EXPECT_EQ(printed.code, 0);
  for (const char* text :
       {"gpt_oss", "sliding attention", "window 8", "model.layers.3.mlp.experts.down_proj", "complete"})
    EXPECT_NE(printed.text.find(text), std::string::npos) << text << " in\n" << printed.text;
  EXPECT_EQ(inspect(kGolden, false).text.find("model.layers.3.mlp.experts.down_proj"), std::string::npos);
}

TEST(Inspect, ListsMissingUnexpectedAndMismatched) {
  const TempDir dir;
  Rng rng = fresh_rng();
  std::string gone, renamed;
  write_changed(dir, [&](std::vector<NamedTensor>& tensors) {
    std::erase_if(tensors, [](const NamedTensor& t) { return t.first.find("experts") != std::string::npos; });
    const auto victim = static_cast<size_t>(rng.below(static_cast<int64_t>(tensors.size())));
    gone = tensors[victim].first;
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(victim));
    size_t next = victim % tensors.size();
    while (tensors[next].second.shape.rank() < 2) next = (next + 1) % tensors.size();  // vectors may come in any shape
    NamedTensor& other = tensors[next];
    renamed = other.first;
    other.second.shape = {1, other.second.shape.elements()};
    tensors.emplace_back("model.extra", tensors[0].second);
  });
  const JsonObject got = inspect_json(dir.path().string(), 1);
  const JsonObject& checkpoint = got.at("checkpoint").as_object();
  EXPECT_FALSE(checkpoint.at("complete").as_bool());
  const auto lists = [&](const char* key, const std::string& name) {
    for (const Json& item : checkpoint.at(key).as_array())
      if (std::string_view(item.as_string()).starts_with(name)) return true;
    return false;
  };
  EXPECT_TRUE(lists("missing", gone)) << gone;
  EXPECT_TRUE(lists("missing", "model.layers.2.mlp.experts.gate_up_proj"));
  EXPECT_TRUE(lists("unexpected", "model.extra"));
  EXPECT_TRUE(lists("mismatched", renamed)) << renamed;
  const Printed text = inspect(dir.path().string(), false);
  EXPECT_EQ(text.code, 1);
  EXPECT_NE(text.text.find("INCOMPLETE"), std::string::npos);
  EXPECT_NE(text.text.find(gone), std::string::npos);
}

TEST(Inspect, DirectoryWithoutWeights) {
  const TempDir dir;
  std::filesystem::copy_file(kGolden + "/config.json", dir.path() / "config.json");
  const Printed printed = inspect(dir.path().string(), false);
  EXPECT_EQ(printed.code, 0);
  EXPECT_NE(printed.text.find("not checked: no .safetensors file"), std::string::npos);
}

TEST(Inspect, TiedHeadCountsOnce) {
  const TempDir dir;
  JsonObject config = read_json_file(kGolden + "/config.json").as_object();
  const double untied = number(inspect_json(kGolden + "/config.json", 0), "parameters");
  config["tie_word_embeddings"] = true;
  const auto path = dir.write("tied.json", write_json(config));
  const JsonObject tied = inspect_json(path.string(), 0);
  EXPECT_EQ(number(tied, "parameters"), untied - 320 * 96);
  // Every token still reads the whole head.
  EXPECT_EQ(number(tied, "active_parameters"), number(inspect_json(kGolden + "/config.json", 0), "active_parameters"));
}

TEST(LayerLabels, SplitAndList) {
  EXPECT_EQ(split_layer("model.layers.12.mlp.router").pattern, "model.layers.*.mlp.router");
  EXPECT_EQ(split_layer("model.layers.12.mlp.router").name, "mlp.router");
  EXPECT_EQ(split_layer("model.layers.12.mlp.router").layer, 12);
  EXPECT_EQ(split_layer("lm_head").layer, -1);
  EXPECT_EQ(split_layer("lm_head").name, "lm_head");
  EXPECT_EQ(layer_list({}), "");
  EXPECT_EQ(layer_list({4, 5}), "4,5");
  EXPECT_EQ(layer_list({0, 1, 2, 3}), "0-3");
  EXPECT_EQ(layer_list({1, 3, 5, 7}), "1,3,...,7");
  EXPECT_EQ(layer_list({0, 1, 2, 5, 9, 10}), "0-2,5,9,10");
}

}  // namespace
}  // namespace moesaic
