#include "models/deepseek_v4_names.h"

#include <span>

namespace moesaic::deepseek_v4 {
namespace {

// A part of a published name and what stands for it; "^" is where a name begins.
struct Rule {
  const char *published, *other;
};

constexpr Rule kSaved[] = {{"^layers.", "model.layers."},
                           {"^embed.", "model.embed_tokens."},
                           {"^norm.", "model.norm."},
                           {"^hc_head_", "model.hc_head.hc_"},
                           {".attn.kv_norm.", ".attn.norm."}};

// In order: each rule reads what those before it left.
constexpr Rule kTransformers[] = {
    {"^layers.", "model.layers."},
    {"^embed.", "model.embed_tokens."},
    {"^norm.", "model.norm."},
    {"^head.", "lm_head."},
    {"^hc_head_", "model.hc_head.hc_"},
    {".hc_attn_", ".attn_hc."},
    {".hc_ffn_", ".ffn_hc."},
    {".attn_norm.", ".input_layernorm."},
    {".ffn_norm.", ".post_attention_layernorm."},
    {".attn.indexer.compressor.", ".attn.compressor.indexer."},
    {".attn.indexer.weights_proj.", ".attn.compressor.indexer.scorer.weights_proj."},
    {".attn.indexer.", ".attn.compressor.indexer."},
    {".compressor.norm.", ".compressor.kv_norm."},
    {".indexer.norm.", ".indexer.kv_norm."},
    {".wq_a.", ".q_a_proj."},
    {".q_norm.", ".q_a_norm."},
    {".wq_b.", ".q_b_proj."},
    {".wkv.", ".kv_proj."},
    {".wgate.", ".gate_proj."},
    {".wo_a.", ".o_a_proj."},
    {".wo_b.", ".o_b_proj."},
    {".attn_sink", ".sinks"},
    {".ape", ".position_bias"},
    {".shared_experts.w1.", ".shared_experts.gate_proj."},
    {".shared_experts.w3.", ".shared_experts.up_proj."},
    {".shared_experts.w2.", ".shared_experts.down_proj."},
    {".attn.", ".self_attn."},
    {".ffn.", ".mlp."},
};

std::string spelled(std::string name, std::span<const Rule> rules) {
  if (name.empty()) return name;
  name.insert(0, "^");
  for (const auto& [published, other] : rules) {
    const size_t at = name.find(published);
    if (at != std::string::npos) name.replace(at, std::string_view(published).size(), other);
  }
  return name.substr(name.starts_with('^') ? 1 : 0);
}

}  // namespace

void rename_weights(Builder& g) {
  const auto rename = [&](std::span<const Rule> rules) {
    g.rename_weights([rules](const std::string& name) { return spelled(name, rules); });
  };
  if (g.has_tensor("model.layers.0.input_layernorm.weight")) rename(kTransformers);
  else if (g.has_tensor("model.embed_tokens.weight")) rename(kSaved);
}

}  // namespace moesaic::deepseek_v4
