// Kimi-Linear: what its config.json may say, which layers are of which kind, and what is refused with one clear line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "models/kda.h"
#include "models/model.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

// As published, with small numbers: layers are listed from 1.
JsonObject config() {
  return parse_json(R"({"architectures": ["KimiLinearForCausalLM"], "num_hidden_layers": 4, "hidden_size": 64,
      "num_attention_heads": 4, "vocab_size": 320, "intermediate_size": 96, "kv_lora_rank": 32, "q_lora_rank": null,
      "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24, "mla_use_nope": true, "rms_norm_eps": 1e-5,
      "num_experts": 16, "num_experts_per_token": 4, "num_shared_experts": 1, "moe_intermediate_size": 32,
      "first_k_dense_replace": 1, "routed_scaling_factor": 2.446, "model_max_length": 4096, "eos_token_id": 319,
      "linear_attn_config": {"num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4, "kda_layers": [1, 2, 4],
                             "full_attn_layers": [3]}})",
                    "config")
      .as_object();
}

// As transformers writes it.
JsonObject flat_config() {
  JsonObject json = config();
  json.erase("linear_attn_config"), json.erase("first_k_dense_replace");
  json["linear_num_heads"] = 4, json["linear_head_dim"] = 16, json["linear_conv_kernel_dim"] = 4;
  json["layer_types"] = JsonArray{"linear_attention", "linear_attention", "full_attention", "linear_attention"};
  json["mlp_layer_types"] = JsonArray{"dense", "sparse", "sparse", "sparse"};
  return json;
}

Graph graph_of(const JsonObject& json, const std::set<std::string>& tensors = {}) {
  const Model model = parse_model(json, "config.json");
  const BuildOptions options{.has_tensor = [&](const std::string& name) { return tensors.contains(name); }};
  Graph graph;
  graph.family = model.family;
  Builder builder(graph, options);
  model.build(builder);
  return graph;
}

std::vector<std::string> weight_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const WeightSpec& weight : graph.weights) names.push_back(weight.name);
  return names;
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

std::string error_with_linear(const std::string& key, Json value) {
  JsonObject json = config();
  json["linear_attn_config"].as_object()[key] = std::move(value);
  return error_of(json);
}

TEST(KimiLinear, ReadsItsConfig) {
  const Model model = parse_model(config(), "config.json");
  EXPECT_EQ(model.family, "kimi_linear");
  EXPECT_EQ(model.max_positions, 4096);
  EXPECT_EQ(model.experts_per_token, 4);
  EXPECT_EQ(model.stop_tokens, (std::vector<int32_t>{319}));
  EXPECT_THAT(model.stop_names, testing::Contains("<|im_end|>"));
}

TEST(KimiLinear, BothSpellingsOfTheConfigGiveOneGraph) {
  EXPECT_EQ(print(graph_of(config())), print(graph_of(flat_config())));
}

TEST(KimiLinear, GraphPrintsAndParses) {
  JsonObject json = config();
  json["linear_attn_config"].as_object()["gate_lower_bound"] = -5;
  for (const JsonObject& each : {config(), json}) {
    const std::string text = print(graph_of(each));
    EXPECT_EQ(print(parse_graph(text)), text);
  }
}

TEST(KimiLinear, ListedLayersCountFromOne) {
  EXPECT_EQ(parse_kda(config(), "").layers, (std::vector<bool>{true, true, false, true}));
  const std::vector<std::string> names = weight_names(graph_of(config()));
  EXPECT_THAT(names, testing::Contains("model.layers.1.self_attn.A_log"));
  EXPECT_THAT(names, testing::Contains("model.layers.2.self_attn.kv_b_proj.weight"));
  EXPECT_THAT(names, testing::Contains("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_THAT(names, testing::Contains("model.layers.1.block_sparse_moe.gate.weight"));
}

TEST(KimiLinear, NamesOfFeedForwardBlocksFollowTheCheckpoint) {
  const std::vector<std::string> names = weight_names(
      graph_of(config(), {"model.layers.0.block_sparse_moe.gate_proj.weight", "model.layers.1.mlp.gate.weight"}));
  EXPECT_THAT(names, testing::Contains("model.layers.0.block_sparse_moe.gate_proj.weight"));
  EXPECT_THAT(names, testing::Contains("model.layers.1.mlp.gate.weight"));
  EXPECT_THAT(names, testing::Contains("model.layers.2.block_sparse_moe.gate.weight"));
}

// Three convolutions of 3 rows of 64 and a state of 4 x 16 x 16 in each linear layer; positions nowhere.
TEST(KimiLinear, StateAndNoPositions) {
  const Graph graph = graph_of(config());
  int64_t per_sequence = 0, per_token = 0;
  for (const CacheDecl& cache : graph.caches)
    per_sequence += cache.spec.bytes_per_sequence, per_token += cache.spec.bytes_per_entry;
  EXPECT_EQ(per_sequence, 3 * (3 * 3 * 64 + 4 * 16 * 16) * 4);
  EXPECT_EQ(per_token, (32 + 16) * 4);
  for (const auto& node : graph.nodes()) {
    EXPECT_NE(node->op, Op::rope);
    if (node->op == Op::kda_gate) {
      EXPECT_FALSE(node->attrs.has(Attr::lower_bound));
    }
  }
}

TEST(KimiLinear, RefusesImpossibleConfigs) {
  EXPECT_THAT(error_with("hidden_act", "gelu"), HasSubstr("hidden_act"));
  EXPECT_THAT(error_with("mla_use_nope", false), HasSubstr("mla_use_nope"));
  EXPECT_THAT(error_with("moe_router_activation_func", "softmax"), HasSubstr("moe_router_activation_func"));
  EXPECT_THAT(error_with("moe_layer_freq", 2), HasSubstr("moe_layer_freq"));
  EXPECT_THAT(error_with("num_experts_per_token", 17), HasSubstr("17 of 16 experts"));
  EXPECT_THAT(error_with("num_hidden_layers", 3), HasSubstr("kda_layers holds 4"));
  EXPECT_THAT(error_with("num_hidden_layers", 5), HasSubstr("layer 5 neither"));
  EXPECT_THAT(error_with("mlp_layer_types", JsonArray{"dense"}), HasSubstr("mlp_layer_types"));
  EXPECT_THAT(error_with("linear_attn_config", nullptr), HasSubstr("linear_num_heads"));
  EXPECT_THAT(error_with_linear("kda_layers", JsonArray{0, 2, 4}), HasSubstr("kda_layers holds 0"));
  EXPECT_THAT(error_with_linear("kda_layers", JsonArray{1, 2, 3, 4}), HasSubstr("layer 3 twice"));
  EXPECT_THAT(error_with_linear("full_attn_layers", nullptr), HasSubstr("full_attn_layers"));
  EXPECT_THAT(error_with_linear("num_heads", 0), HasSubstr("num_heads"));
  EXPECT_THAT(error_with_linear("short_conv_kernel_size", -1), HasSubstr("short_conv_kernel_size"));
  EXPECT_THAT(error_with_linear("gate_lower_bound", 5), HasSubstr("gate_lower_bound"));
  JsonObject flat = flat_config();
  flat["layer_types"] = JsonArray{"linear_attention", "linear_attention", "full_attention", "mamba"};
  EXPECT_THAT(error_of(flat), HasSubstr("mamba"));
}

}  // namespace
}  // namespace moesaic
