// DeepSeek-V4: what its config.json may say, and what is refused with one clear line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/model.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

// A tiny model under the published names.
JsonObject config() {
  return parse_json(R"({"architectures": ["DeepseekV4ForCausalLM"], "num_hidden_layers": 4, "hidden_size": 64,
      "num_attention_heads": 4, "head_dim": 32, "qk_rope_head_dim": 8, "q_lora_rank": 32, "o_groups": 2, "o_lora_rank": 16,
      "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "vocab_size": 320, "index_n_heads": 4,
      "index_head_dim": 16, "index_topk": 4, "compress_ratios": [0, 128, 4, 128, 0], "num_nextn_predict_layers": 1,
      "num_hash_layers": 1, "eos_token_id": 1, "rope_scaling": {"type": "yarn", "factor": 16,
      "original_max_position_embeddings": 65536}})",
                    "config")
      .as_object();
}

std::string error_of(const JsonObject& json) {
  try {
    parse_model(json, "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

std::string error_with(const std::string& key, Json value) {
  JsonObject json = config();
  json[key] = std::move(value);
  return error_of(json);
}

std::string graph_of(const JsonObject& json) {
  Graph graph;
  graph.family = "deepseek_v4";
  const BuildOptions options;
  Builder builder(graph, options);
  parse_model(json, "config.json").build(builder);
  verify(graph);
  return print(graph);
}

TEST(DeepSeekV4Config, ReadsItsConfig) {
  const Model model = parse_model(config(), "config.json");
  EXPECT_EQ(model.family, "deepseek_v4");
  EXPECT_EQ(model.layers, 4);
  EXPECT_EQ(model.experts_per_token, 3);
  EXPECT_EQ(model.max_positions, 1048576);
  EXPECT_EQ(model.stop_tokens, (std::vector<int32_t>{1}));
}

TEST(DeepSeekV4Config, BothNamingsGiveOneGraph) {
  JsonObject json = config();
  for (const char* key : {"compress_ratios", "qk_rope_head_dim", "num_hash_layers", "rope_scaling"}) json.erase(key);
  json["layer_types"] = {"sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention",
                         "heavily_compressed_attention"};
  json["mlp_layer_types"] = {"hash_moe", "moe", "moe", "moe"};
  json["partial_rotary_factor"] = 0.25;
  json["rope_parameters"] = {
      {"main", {{"rope_type", "default"}, {"rope_theta", 10000}}},
      {"compress", {{"rope_type", "yarn"}, {"factor", 16}, {"original_max_position_embeddings", 65536}}}};
  EXPECT_EQ(graph_of(json), graph_of(config()));
}

TEST(DeepSeekV4Config, GraphPrintsAndParses) {
  const std::string text = graph_of(config());
  EXPECT_EQ(print(parse_graph(text)), text);
  for (const char* op : {"hc_expand", "hc_pre", "hc_post", "hc_head", "compress", "entry_attend", "grouped_linear"})
    EXPECT_THAT(text, HasSubstr(op));
}

TEST(DeepSeekV4Config, LayersWithoutAListAlternateAsInPro) {
  JsonObject json = config();
  json.erase("compress_ratios");
  JsonObject listed = config();
  listed["compress_ratios"] = JsonArray{128, 128, 4, 128};
  EXPECT_EQ(graph_of(json), graph_of(listed));
}

TEST(DeepSeekV4Config, FC024_UnknownScoringIsRefused) {
  EXPECT_THAT(error_with("scoring_func", "softplus"), testing::AllOf(HasSubstr("scoring_func"), HasSubstr("softplus")));
}

TEST(DeepSeekV4Config, RefusesImpossibleConfigs) {
  EXPECT_THAT(error_with("compress_ratios", JsonArray{0, 4, 4}), HasSubstr("compress_ratios"));
  EXPECT_THAT(error_with("compress_ratios", JsonArray{0, 4, 4, 4, 0, 0}),
              HasSubstr("compress_ratios"));  // a later format
  EXPECT_THAT(error_with("compress_ratios", JsonArray{0, 5, 4, 4}), HasSubstr("layer 1"));
  EXPECT_THAT(error_with("compress_ratios", JsonArray{0, -64, 4, 4}), HasSubstr("layer 1"));
  EXPECT_THAT(error_with("compress_ratios", JsonArray{0, "4", 4, 4}), HasSubstr("compress_ratios"));
  EXPECT_THAT(error_with("layer_types", JsonArray{"a", "b", "c", "d"}), HasSubstr("layer_types"));
  EXPECT_THAT(error_with("num_hidden_layers", 0), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(error_with("qk_rope_head_dim", 7), HasSubstr("qk_rope_head_dim"));
  EXPECT_THAT(error_with("qk_rope_head_dim", 32), HasSubstr("qk_rope_head_dim"));
  EXPECT_THAT(error_with("o_groups", 3), HasSubstr("o_groups"));
  EXPECT_THAT(error_with("hc_mult", 9), HasSubstr("hc_mult"));
  EXPECT_THAT(error_with("num_experts_per_tok", 9), HasSubstr("num_experts_per_tok"));
  EXPECT_THAT(error_with("hidden_act", "gelu"), HasSubstr("hidden_act"));
  EXPECT_THAT(error_with("attention_bias", true), HasSubstr("attention_bias"));
  EXPECT_THAT(error_with("n_shared_experts", 2), HasSubstr("n_shared_experts"));
}

}  // namespace
}  // namespace moesaic
