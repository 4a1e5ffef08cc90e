// What a config.json promises of formats, and the tensors that such a checkpoint has.
#include "weights/quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/builder.h"

namespace moesaic {
namespace {

Graph small_graph() {
  Graph graph;
  const BuildOptions options;
  Builder g(graph, options);
  const Value x = g.embed("embed", 100, 256);
  const auto in = g.scope("layers.0");
  const RouteShape route{.experts = 4, .top_k = 2, .scoring = Scoring::sigmoid, .bias = true};
  const Value y = g.experts(g.linear(x, "self_attn.o_proj", 256), g.route(x, "mlp.gate", route), 4, 64, {},
                            {"mlp.experts.{}.gate_proj.weight"}, {"mlp.experts.{}.up_proj.weight"},
                            {"mlp.experts.{}.down_proj.weight"});
  g.output("logits", g.head(g.last_token(y), "lm_head", 100, ""));
  return graph;
}

std::map<std::string, std::string> formats(const JsonObject& config) {
  Graph graph = small_graph();
  assume_formats(graph, parse_quantization(config, "config.json"));
  std::map<std::string, std::string> out;
  for (const WeightSpec& weight : graph.weights) out[weight.name] = format_name(weight);
  return out;
}

int64_t tensors(const JsonObject& config) {
  Graph graph = small_graph();
  assume_formats(graph, parse_quantization(config, "config.json"));
  int64_t sum = 0;
  for (const WeightSpec& weight : graph.weights) sum += checkpoint_tensors(graph, weight);
  return sum;
}

const std::string kLinear = "layers.0.self_attn.o_proj.weight", kExperts = "layers.0.mlp.experts.{}.down_proj.weight";
const JsonObject kFp8 = {{"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}}};
const JsonObject kInt4 = {
    {"text_config", {{"quantization_config", {{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}}}}}};

std::string error_of(const JsonObject& config) {
  try {
    parse_quantization(config, "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Quantization, PlainWithoutConfig) {
  for (const auto& [name, format] : formats({}))
    EXPECT_EQ(format, name.find("e_score_correction_bias") == std::string::npos ? "bf16" : "f32") << name;
  EXPECT_EQ(tensors({}), 5 + 3 * 4);  // embedding, linear, router, its bias, head; three matrices of four experts
}

TEST(Quantization, Fp8LeavesRoutersAndHeadsAlone) {
  auto found = formats(kFp8);
  EXPECT_EQ(found.at(kLinear), "fp8_128x128");
  EXPECT_EQ(found.at(kExperts), "fp8_128x128");
  for (const char* name : {"embed.weight", "layers.0.lm_head.weight", "layers.0.mlp.gate.weight"})
    EXPECT_EQ(found.at(name), "bf16");
  EXPECT_EQ(tensors(kFp8), 5 + 1 + 6 * 4);
  JsonObject excepting = kFp8;
  excepting["quantization_config"].as_object()["modules_to_not_convert"] = JsonArray{"layers.*.self_attn"};
  found = formats(excepting);
  EXPECT_EQ(found.at(kLinear), "bf16");
  EXPECT_EQ(found.at(kExperts), "fp8_128x128");
}

TEST(Quantization, Fp4ExpertsBesideFp8) {
  JsonObject config = kFp8;
  config["expert_dtype"] = "fp4";
  EXPECT_EQ(formats(config).at(kLinear), "fp8_128x128");
  EXPECT_EQ(formats(config).at(kExperts), "mxfp4");
}

TEST(Quantization, CompressedTensorsPackTheExperts) {
  EXPECT_EQ(formats(kInt4).at(kLinear), "bf16");
  EXPECT_EQ(formats(kInt4).at(kExperts), "int4");
  EXPECT_EQ(tensors(kInt4), 5 + 9 * 4);  // packed, scale and shape
  const JsonObject mxfp4 = {
      {"quantization_config", {{"quant_method", "compressed-tensors"}, {"format", "mxfp4-pack-quantized"}}}};
  EXPECT_EQ(formats(mxfp4).at(kExperts), "mxfp4");
  EXPECT_EQ(tensors(mxfp4), 5 + 6 * 4);
}

TEST(Quantization, RefusesWhatCannotBeRead) {
  EXPECT_THAT(error_of({{"quantization_config", {{"quant_method", "awq"}}}}), testing::HasSubstr("awq"));
  EXPECT_THAT(
      error_of({{"quantization_config", {{"quant_method", "compressed-tensors"}, {"format", "float-quantized"}}}}),
      testing::HasSubstr("float-quantized"));
  EXPECT_THAT(error_of({{"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {128}}}}}),
              testing::HasSubstr("weight_block_size"));
  EXPECT_THAT(error_of({{"quantization_config", {{"quant_method", "fp8"}}}}), testing::HasSubstr("missing"));
}

}  // namespace
}  // namespace moesaic
