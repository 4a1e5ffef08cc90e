// Checkpoints under the names that transformers gives tensors in memory, against the same numbers under the published
// names: Kimi-Linear and DeepSeek-V4.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "engine/taps.h"
#include "support/checkpoint.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

std::vector<double> logits_of(const std::string& model) {
  LoadOptions options;
  options.model = model;
  options.precision = Precision::float32;
  options.progress = false;
  options.threads = 2;
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 40; ++i) ids.push_back(i * 7 % 320);
  LoadedModel loaded = load_model(forward_limits(options, 1, std::ssize(ids)));
  return forward(loaded, {ids}).named.back().second.values;
}

OwnedTensor take(TensorMap& tensors, const std::string& name) {
  const auto node = tensors.extract(name);
  EXPECT_FALSE(node.empty()) << name;
  return node.mapped();
}

// The rows of all, one after the other.
OwnedTensor joined(const std::vector<OwnedTensor>& parts) {
  OwnedTensor out = parts[0];
  std::vector<int64_t> dims(out.shape.dims().begin(), out.shape.dims().end());
  for (size_t i = 1; i < parts.size(); ++i) {
    dims[0] += parts[i].shape[0];
    out.bytes.insert(out.bytes.end(), parts[i].bytes.begin(), parts[i].bytes.end());
  }
  out.shape = Shape(dims);
  return out;
}

OwnedTensor stacked(std::vector<OwnedTensor> matrices) {
  const auto E = std::ssize(matrices);
  OwnedTensor out = joined(matrices);
  out.shape = {E, out.shape[0] / E, out.shape[1]};
  return out;
}

// experts.<e>.w1, w3 and w2 under `from` become the fused stacks under `to`, the rows of gate before those of up.
void fuse_experts(TensorMap& tensors, const std::string& from, const std::string& to) {
  std::vector<OwnedTensor> gate_up, down;
  for (int e = 0; tensors.contains(fmt::format("{}.{}.w1.weight", from, e)); ++e) {
    const auto one = [&](const char* name) { return take(tensors, fmt::format("{}.{}.{}.weight", from, e, name)); };
    const OwnedTensor gate = one("w1"), up = one("w3");
    gate_up.push_back(joined({gate, up}));
    down.push_back(one("w2"));
  }
  ASSERT_FALSE(down.empty()) << from;
  tensors[to + ".gate_up_proj"] = stacked(gate_up);
  tensors[to + ".down_proj"] = stacked(down);
}

using Pairs = std::vector<std::pair<std::string, std::string>>;

// Every tensor whose name holds a `first` gets `second` in its place.
void rename(TensorMap& tensors, const Pairs& pairs) {
  for (const auto& [from, to] : pairs) {
    TensorMap renamed;
    for (auto& [name, tensor] : tensors) {
      const size_t at = name.find(from);
      renamed[at == std::string::npos ? name : name.substr(0, at) + to + name.substr(at + from.size())] =
          std::move(tensor);
    }
    tensors = std::move(renamed);
  }
}

void kimi_linear_in_memory(TensorMap& tensors, JsonObject&) {
  for (int i = 0; i < 5; ++i) {
    const std::string attention = fmt::format("model.layers.{}.self_attn.", i);
    if (tensors.contains(attention + "q_conv1d.weight"))
      tensors[attention + "conv1d.weight"] =
          joined({take(tensors, attention + "q_conv1d.weight"), take(tensors, attention + "k_conv1d.weight"),
                  take(tensors, attention + "v_conv1d.weight")});
    const std::string block = fmt::format("model.layers.{}.block_sparse_moe.experts", i);
    if (tensors.contains(block + ".0.w1.weight")) fuse_experts(tensors, block, block);
  }
  rename(tensors, {{".block_sparse_moe.", ".mlp."},
                   {".f_a_proj.", ".forget_gate.f_a_proj."},
                   {".f_b_proj.", ".forget_gate.f_b_proj."},
                   {".dt_bias", ".forget_gate.dt_bias"},
                   {".A_log", ".forget_gate.A_log"}});
}

TEST(Spellings, KimiLinearAsTransformersHoldsIt) {
  const EditedCheckpoint edited("kimi_linear", kimi_linear_in_memory);
  const TensorMap tensors = read_tensors(edited.path() + "/model.safetensors");
  EXPECT_TRUE(tensors.contains("model.layers.0.self_attn.forget_gate.A_log"));
  EXPECT_TRUE(tensors.contains("model.layers.1.mlp.experts.gate_up_proj"));
  EXPECT_EQ(logits_of(edited.path()), logits_of(golden("kimi_linear")));
}

TEST(Spellings, FusedFiltersOfTheWrongLengthAreRefused) {
  const EditedCheckpoint edited("kimi_linear", [](TensorMap& tensors, JsonObject& config) {
    kimi_linear_in_memory(tensors, config);
    OwnedTensor& taps = tensors.at("model.layers.0.self_attn.conv1d.weight");
    taps.shape = {taps.shape[0] / 3, 1, taps.shape[2]};
    taps.bytes.resize(taps.bytes.size() / 3);
  });
  EXPECT_THAT([&] { logits_of(edited.path()); },
              testing::ThrowsMessage<Error>(HasSubstr("model.layers.0.self_attn.conv1d.weight is ")));
}

// From what save_pretrained wrote, which is between the two.
void deepseek_v4_in_memory(TensorMap& tensors, JsonObject&) {
  for (int i = 0; i < 5; ++i) {
    const std::string experts = fmt::format("model.layers.{}.ffn.experts", i);
    fuse_experts(tensors, experts, experts);
  }
  rename(tensors, {{"head.weight", "lm_head.weight"},
                   {".hc_attn_", ".attn_hc."},
                   {".hc_ffn_", ".ffn_hc."},
                   {".attn_norm.", ".input_layernorm."},
                   {".ffn_norm.", ".post_attention_layernorm."},
                   {".attn.wq_a.", ".self_attn.q_a_proj."},
                   {".attn.q_norm.", ".self_attn.q_a_norm."},
                   {".attn.wq_b.", ".self_attn.q_b_proj."},
                   {".attn.wkv.", ".self_attn.kv_proj."},
                   {".attn.norm.", ".self_attn.kv_norm."},
                   {".attn.wo_a.", ".self_attn.o_a_proj."},
                   {".attn.wo_b.", ".self_attn.o_b_proj."},
                   {".attn.attn_sink", ".self_attn.sinks"},
                   {".attn.compressor.wkv.", ".self_attn.compressor.kv_proj."},
                   {".attn.compressor.wgate.", ".self_attn.compressor.gate_proj."},
                   {".attn.compressor.ape", ".self_attn.compressor.position_bias"},
                   {".attn.compressor.norm.", ".self_attn.compressor.kv_norm."},
                   {".attn.indexer.wq_b.", ".self_attn.compressor.indexer.q_b_proj."},
                   {".attn.indexer.weights_proj.", ".self_attn.compressor.indexer.scorer.weights_proj."},
                   {".attn.indexer.compressor.wkv.", ".self_attn.compressor.indexer.kv_proj."},
                   {".attn.indexer.compressor.wgate.", ".self_attn.compressor.indexer.gate_proj."},
                   {".attn.indexer.compressor.ape", ".self_attn.compressor.indexer.position_bias"},
                   {".attn.indexer.compressor.norm.", ".self_attn.compressor.indexer.kv_norm."},
                   {".ffn.gate.bias", ".mlp.gate.e_score_correction_bias"},
                   {".ffn.shared_experts.w1.", ".mlp.shared_experts.gate_proj."},
                   {".ffn.shared_experts.w3.", ".mlp.shared_experts.up_proj."},
                   {".ffn.shared_experts.w2.", ".mlp.shared_experts.down_proj."},
                   {".ffn.", ".mlp."}});
}

TEST(Spellings, DeepSeekV4AsTransformersHoldsIt) {
  const EditedCheckpoint edited("deepseek_v4", deepseek_v4_in_memory);
  for (const auto& [name, tensor] : read_tensors(edited.path() + "/model.safetensors"))
    EXPECT_TRUE(name == "lm_head.weight" || name.starts_with("model.")) << name;
  EXPECT_EQ(logits_of(edited.path()), logits_of(golden("deepseek_v4")));
}

TEST(Spellings, WhatIsMissingIsNamedAsTheCheckpointWould) {
  const EditedCheckpoint edited("deepseek_v4", [](TensorMap& tensors, JsonObject& config) {
    deepseek_v4_in_memory(tensors, config);
    take(tensors, "model.layers.2.self_attn.compressor.indexer.q_b_proj.weight");
  });
  EXPECT_THAT([&] { logits_of(edited.path()); },
              testing::ThrowsMessage<Error>(
                  HasSubstr("1 missing: model.layers.2.self_attn.compressor.indexer.q_b_proj.weight")));
}

}  // namespace
}  // namespace moesaic
