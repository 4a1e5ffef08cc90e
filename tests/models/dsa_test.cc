// DeepSeek-V3.2 and GLM-5: rotations, indexer schedules, scales, and what is refused with one clear line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/mla.h"
#include "models/model.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

JsonObject config(const std::string& architecture) {
  JsonObject json = parse_json(R"({"num_hidden_layers": 5, "hidden_size": 64, "intermediate_size": 96,
      "moe_intermediate_size": 32, "first_k_dense_replace": 1, "num_attention_heads": 4, "q_lora_rank": 48,
      "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24, "n_routed_experts": 8,
      "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "vocab_size": 320,
      "index_n_heads": 4, "index_head_dim": 32, "index_topk": 16, "max_position_embeddings": 512,
      "rope_parameters": {"rope_type": "default", "rope_theta": 10000}})",
                               "config")
                        .as_object();
  json["architectures"] = JsonArray{Json(architecture)};
  return json;
}
constexpr const char* kDeepseek = "DeepseekV32ForCausalLM";
constexpr const char* kGlm = "GlmMoeDsaForCausalLM";

Graph graph_of(const JsonObject& json) {
  Graph graph;
  const BuildOptions options;
  Builder builder(graph, options);
  parse_model(json, "config.json").build(builder);
  verify(graph);
  return graph;
}

std::string error_of(const JsonObject& json) {
  try {
    parse_model(json, "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

// Layers with an indexer, by its weights and its op: "FSF.." reads full, shared, full.
std::string schedule(const Graph& graph) {
  std::string out;
  for (int layer = 0; layer < 64; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
    int weights = 0, ops = 0, attention = 0;
    for (const WeightSpec& weight : graph.weights) weights += weight.name.starts_with(prefix + "indexer.") ? 1 : 0;
    for (const auto& node : graph.nodes()) {
      ops += node->op == Op::index_topk && node->label.starts_with(prefix) ? 1 : 0;
      attention += node->op == Op::mla && node->label.starts_with(prefix) ? 1 : 0;
    }
    if (attention == 0) return out;
    EXPECT_TRUE((weights == 5 && ops == 1) || (weights == 0 && ops == 0)) << layer;
    out += ops == 1 ? 'F' : 'S';
  }
  return out;
}

TEST(Dsa, FC028_WhichRotationsAreInterleaved) {
  for (auto [architecture, interleaved] : {std::pair(kDeepseek, false), {kGlm, true}}) {
    int indexer = 0, attention = 0;
    const Graph graph = graph_of(config(architecture));
    for (const auto& node : graph.nodes()) {
      if (node->op != Op::rope) continue;
      const bool of_indexer = node->label.find(".indexer.") != std::string::npos;
      EXPECT_EQ(node->attrs.integer(Attr::interleaved, 0) != 0, of_indexer ? interleaved : true) << node->label;
      EXPECT_EQ(node->attrs.integer(Attr::begin, 0), of_indexer || node->attrs.integer(Attr::heads) == 1 ? 0 : 32);
      ++(of_indexer ? indexer : attention);
    }
    EXPECT_EQ(indexer, 10) << "queries and keys of 5 layers";
    EXPECT_EQ(attention, 10);
  }
  JsonObject json = config(kDeepseek);
  json["indexer_rope_interleave"] = true;
  const Graph graph = graph_of(json);
  for (const auto& node : graph.nodes())
    EXPECT_TRUE(node->op != Op::rope || node->attrs.integer(Attr::interleaved, 0) == 1) << node->label;
}

TEST(Dsa, SharedLayersHaveNoIndexer) {
  EXPECT_EQ(schedule(graph_of(config(kDeepseek))), "FFFFF");
  JsonObject json = config(kGlm);
  EXPECT_EQ(schedule(graph_of(json)), "FFFFF");
  json["index_topk_freq"] = 2, json["index_skip_topk_offset"] = 1;
  EXPECT_EQ(schedule(graph_of(json)), "FSFSF");
  json["index_topk_pattern"] = "FSSFS";
  EXPECT_EQ(schedule(graph_of(json)), "FSSFS");
  json["indexer_types"] = JsonArray{"full", "full", "shared", "full", "shared"};
  EXPECT_EQ(schedule(graph_of(json)), "FFSFS");
}

// GLM-5.2: layers 0, 1, 2, 6, 10, ... of 78 are full.
TEST(Dsa, ScheduleOfGlm52) {
  JsonObject json = config(kGlm);
  json["num_hidden_layers"] = 48, json["index_topk_freq"] = 4, json["index_skip_topk_offset"] = 3;
  std::string want = "FFF";
  while (want.size() < 48) want += want.size() % 4 == 2 ? 'F' : 'S';
  EXPECT_EQ(schedule(graph_of(json)), want);
}

TEST(Dsa, SharedLayersReadTheLastFullLayersPositions) {
  JsonObject json = config(kGlm);
  json["indexer_types"] = JsonArray{"full", "full", "shared", "full", "shared"};
  const Graph graph = graph_of(json);
  std::vector<Value> chosen, used;
  for (const auto& node : graph.nodes()) {
    if (node->op == Op::index_topk) chosen.push_back(node->outputs[0]);
    if (node->op == Op::mla) used.push_back(node->inputs[4]);
  }
  EXPECT_EQ(used, (std::vector<Value>{chosen[0], chosen[1], chosen[1], chosen[2], chosen[2]}));
  EXPECT_EQ(graph.caches.size(), 5u + 3u) << "no key cache without an indexer";
}

TEST(Dsa, SoftmaxScaleAndAmplitudeOfYarn) {
  JsonObject json = config(kDeepseek);
  json["qk_nope_head_dim"] = 128, json["qk_rope_head_dim"] = 64;
  const std::string yarn =
      R"({"rope_type": "yarn", "rope_theta": 10000, "factor": 40, "original_max_position_embeddings": 4096)";
  json["rope_parameters"] = parse_json(yarn + R"(, "mscale": 1.0, "mscale_all_dim": 1.0})", "config");
  EXPECT_NEAR(parse_mla(json, "config").scale, 0.1352337789, 1e-10);
  EXPECT_NEAR(parse_rope(json, "config").attention_factor, 1.0, 1e-15);
  json["rope_parameters"] = parse_json(yarn + R"(, "mscale": 1.0, "mscale_all_dim": 0.7})", "config");
  EXPECT_NEAR(parse_rope(json, "config").attention_factor, 1.3688879454 / 1.2582215618, 1e-9);
  json["rope_parameters"] = parse_json(yarn + R"(, "mscale_all_dim": 0.7})", "config");
  EXPECT_NEAR(parse_rope(json, "config").attention_factor, 1.3688879454, 1e-9) << "one of the two is missing";
  json["rope_parameters"] = parse_json(yarn + "}", "config");
  EXPECT_NEAR(parse_mla(json, "config").scale, 1 / std::sqrt(192.0), 1e-15);
}

TEST(Dsa, LatentNormsKeepTheirOwnEps) {
  JsonObject json = config(kGlm);
  json["rms_norm_eps"] = 1e-5;
  int latent = 0;
  const Graph graph = graph_of(json);
  for (const auto& node : graph.nodes()) {
    if (node->op != Op::rms_norm) continue;
    const bool of_latent = node->label.find("_a_layernorm") != std::string::npos;
    latent += of_latent ? 1 : 0;
    EXPECT_EQ(node->attrs.number(Attr::eps), of_latent ? 1e-6 : 1e-5) << node->label;
  }
  EXPECT_EQ(latent, 10);
}

TEST(Dsa, RefusesImpossibleConfigs) {
  const auto error_with = [](const char* architecture, const char* key, Json value) {
    JsonObject json = config(architecture);
    json[key] = std::move(value);
    return error_of(json);
  };
  EXPECT_THAT(error_with(kDeepseek, "q_lora_rank", nullptr), HasSubstr("q_lora_rank"));
  EXPECT_THAT(error_with(kDeepseek, "kv_lora_rank", 0), HasSubstr("kv_lora_rank"));
  EXPECT_THAT(error_with(kDeepseek, "qk_rope_head_dim", 15), HasSubstr("qk_rope_head_dim"));
  EXPECT_THAT(error_with(kDeepseek, "index_topk", -1), HasSubstr("index_topk"));
  EXPECT_THAT(error_with(kDeepseek, "index_head_dim", 8), HasSubstr("index_head_dim"));
  EXPECT_THAT(error_with(kDeepseek, "mlp_layer_types", JsonArray{"dense"}), HasSubstr("mlp_layer_types"));
  EXPECT_THAT(error_with(kGlm, "indexer_types", JsonArray{"full", "half"}), HasSubstr("half"));
  EXPECT_THAT(error_with(kGlm, "index_topk_pattern", "FS"), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(error_with(kGlm, "index_topk_pattern", "SFFFF"), HasSubstr("layer 0"));
  EXPECT_THAT(error_with(kGlm, "index_topk_freq", 0), HasSubstr("index_topk_freq"));
}

}  // namespace
}  // namespace moesaic
