// Kimi K3, the text part: attention residuals instead of a residual stream, KDA and gated NoPE-MLA layers, experts on a
// latent. The release's own modeling files, read through public ports; transformers has no such class yet.
#include "models/kimi_k3.h"

#include "models/blocks.h"
#include "models/kda.h"
#include "models/mla.h"
#include "models/moonvit.h"

namespace moesaic::kimi_k3 {
namespace {

constexpr double kResidualEps = 1e-5;  // of the scores of attention residuals, whatever rms_norm_eps says

struct Config {
  int64_t layers, hidden, vocab, max_positions, intermediate, dense_layers, block_size, latent;
  MlaConfig mla;
  KdaConfig kda;
  MoeConfig moe;
  double eps;
  bool latent_norm;
};

GluShape parse_activation(const JsonObject& json, const std::string& where) {
  const std::string act = json_string(json, "hidden_act", where, "situ");
  if (act != "situ") fail_data(where, "hidden_act is \"{}\"; expected \"situ\"", act);
  const GluShape glu{.activation = Activation::situ,
                     .beta = json_number(json, "activation_situ_beta", where),
                     .linear_beta = json_number(json, "activation_situ_linear_beta", where, 0)};
  if (!(glu.beta > 0) || !(glu.linear_beta >= 0))
    fail_data(where, "activation_situ_beta is {} and activation_situ_linear_beta {}; expected positive numbers",
              glu.beta, glu.linear_beta);
  return glu;
}

Config parse_config(const JsonObject& json, const std::string& where) {
  Config c{};
  c.layers = json_int(json, "num_hidden_layers", where);
  c.hidden = json_int(json, "hidden_size", where);
  c.vocab = json_int(json, "vocab_size", where);
  c.max_positions = json_int(json, "max_position_embeddings", where, 1048576);
  c.intermediate = json_int(json, "intermediate_size", where);
  c.dense_layers = json_int(json, "first_k_dense_replace", where, 0);
  c.block_size = json_int(json, "attn_res_block_size", where);
  c.latent = json_int(json, "routed_expert_hidden_size", where);
  c.latent_norm = json_bool(json, "latent_moe_use_norm", where, true);
  c.eps = json_number(json, "rms_norm_eps", where, 1e-5);
  c.mla = parse_mla(json, where);
  c.mla.gate = json_bool(json, "mla_use_output_gate", where, false);
  c.kda = parse_kda(json, where);
  c.moe = parse_kimi_moe(json, where);
  c.moe.glu = parse_activation(json, where);
  if (!json_bool(json, "mla_use_nope", where, true)) fail_data(where, "mla_use_nope is false; expected true");
  check_sizes(where, {{"num_hidden_layers", c.layers},
                      {"hidden_size", c.hidden},
                      {"vocab_size", c.vocab},
                      {"max_position_embeddings", c.max_positions},
                      {"intermediate_size", c.intermediate},
                      {"attn_res_block_size", c.block_size},
                      {"routed_expert_hidden_size", c.latent}});
  check_eps(where, "rms_norm_eps", c.eps);
  if ((c.layers + c.block_size - 1) / c.block_size > 12)
    fail_data(where, "attn_res_block_size {} makes more than 12 blocks of {} layers", c.block_size, c.layers);
  return c;
}

Value attention(Builder& g, const Config& c, Value x, int64_t layer) {
  if (!c.kda.layers[static_cast<size_t>(layer)]) return mla_attention(g, c.mla, x, std::nullopt);
  const auto in = g.scope("self_attn");
  return kda_attention(g, c.kda, x);
}

// Experts work on a latent of the token; the router and the shared expert read the token itself.
Value latent_moe(Builder& g, const Config& c, Value x) {
  const auto in = g.scope("block_sparse_moe");
  const Routed routed = g.route(x, "gate", c.moe.route);
  Value y = routed_experts(g, g.linear(x, "routed_expert_down_proj", c.latent), routed, c.moe);
  if (c.latent_norm) y = g.rms_norm(y, "routed_expert_norm", c.eps);
  y = g.linear(y, "routed_expert_up_proj", c.hidden);
  if (c.moe.shared_intermediate == 0) return y;
  const auto shared = g.scope("shared_experts");
  return g.add(y, mlp(g, x, c.moe.shared_intermediate, c.moe.glu));
}

Value feed_forward(Builder& g, const Config& c, Value x, int64_t layer) {
  if (layer >= c.dense_layers) return latent_moe(g, c, x);
  const auto in = g.scope("mlp");
  return mlp(g, x, c.intermediate, c.moe.glu);
}

// One layer: reads the running prefix and the frozen blocks, returns the new prefix; at a block's first layer the
// incoming prefix is frozen and the new one starts from the attention's output alone.
Value layer(Builder& g, const Config& c, Value prefix, std::vector<Value>& blocks, int64_t i) {
  const auto in = g.scope("model.layers", i);
  const Value mixed = blocks.empty() ? prefix : g.attn_res(prefix, blocks, "self_attention_res", kResidualEps);
  const bool first = i % c.block_size == 0;
  if (first) blocks.push_back(prefix);
  const Value h = attention(g, c, g.rms_norm(mixed, "input_layernorm", c.eps), i);
  prefix = first ? h : g.add(prefix, h);
  const Value m = g.attn_res(prefix, blocks, "mlp_res", kResidualEps);
  return g.add(prefix, feed_forward(g, c, g.rms_norm(m, "post_attention_layernorm", c.eps), i));
}

void build(Builder& g, const Config& c) {
  const auto in = g.scope("language_model");
  Value x = g.embed("model.embed_tokens", c.vocab, c.hidden);
  g.name(x, "hidden.0");
  std::vector<Value> blocks;
  for (int64_t i = 0; i < c.layers; ++i) {
    x = layer(g, c, x, blocks, i);
    g.name(x, fmt::format("hidden.{}", i + 1));
  }
  x = g.attn_res(x, blocks, "model.output_attn_res", kResidualEps);
  x = g.rms_norm(g.last_token(x), "model.norm", c.eps);
  g.output("logits", g.head(x, "lm_head", c.vocab, ""));
}

}  // namespace

Model parse(const JsonObject& json, const std::string& where) {
  const Json* text = json_find(json, "text_config");
  const Config c = parse_config(text != nullptr ? json_object(*text, where + ": text_config") : json, where);
  Model model;
  model.layers = c.layers;
  model.hidden = c.hidden;
  model.vocab = c.vocab;
  model.max_positions = c.max_positions;
  model.experts = c.moe.route.experts;
  model.experts_per_token = c.moe.route.top_k;
  model.stop_tokens = parse_token_ids(json, "eos_token_id", where);
  model.stop_names = {"<|end_of_msg|>"};
  // The first layer has no blocks to mix, yet its weights are there; the vision part is not used for text.
  // Text-only miniatures have no vision_config.
  if (json_find(json, "vision_config") != nullptr)
    model.vision = moonvit::parse(json, moonvit::Kind::k3, model.hidden, where);
  model.skipped = {"language_model.model.layers.0.self_attention_res_", "vision_tower.", "mm_projector."};
  model.build = [c](Builder& g) { build(g, c); };
  return model;
}

}  // namespace moesaic::kimi_k3
