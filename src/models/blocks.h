// What families share: feed-forward blocks and ends, under their Hugging Face names.
#pragma once

#include "models/model.h"

namespace moesaic {

struct MlpNames {
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
};

// down(glu(gate x, up x)).
Value mlp(Builder& g, Value x, int64_t intermediate, const GluShape& glu = {}, const MlpNames& names = {});

struct MoeConfig {
  RouteShape route;
  int64_t intermediate;             // of one routed expert
  int64_t shared_intermediate = 0;  // of the shared expert; 0: none
  GluShape glu = {};
};

// Router `gate`, experts.{} and shared_experts in the current scope: routed sum plus the shared expert.
Value moe_block(Builder& g, Value x, const MoeConfig& config);
// The routed experts alone, reading `z` (the router may have read something else).
Value routed_experts(Builder& g, Value z, const Routed& routed, const MoeConfig& config);

// How a text model ends: hidden.<layers>, the final norm's output, and the head.
struct TextEnd {
  int64_t layers, hidden, vocab;
  double eps;
  bool tied;  // lm_head is the embedding where the checkpoint has no other

  std::string tied_to() const { return tied ? "model.embed_tokens.weight" : ""; }
};

// model.norm and lm_head: output "logits" from x[T, hidden]. With BuildOptions::hidden every token is normalised, not
// only those whose logits are wanted, and is the output "hidden": what vLLM and SGLang hand to the prediction layer.
void build_end(Builder& g, Value x, const TextEnd& end);

// n_routed_experts, n_shared_experts, num_experts_per_tok, moe_intermediate_size, n_group, topk_group, norm_topk_prob,
// routed_scaling_factor; sigmoid scores with a correction bias (DeepSeek's noaux_tc).
MoeConfig parse_moe(const JsonObject& json, const std::string& where);

// The same under Kimi's names: num_experts, num_experts_per_token, num_shared_experts, num_expert_group,
// moe_renormalize.
MoeConfig parse_kimi_moe(const JsonObject& json, const std::string& where);

// Prefixes of multi-token prediction layers, which follow the main ones: num_nextn_predict_layers of them.
std::vector<std::string> mtp_prefixes(const JsonObject& json, int64_t layers, const std::string& where);

// hidden_act, or throws Error for one we do not have.
void expect_silu(const JsonObject& json, const std::string& where);

}  // namespace moesaic
