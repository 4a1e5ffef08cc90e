// Kimi-Linear-48B-A3B: three layers of Kimi delta attention to one of multi-head latent attention without positions.
// Follows transformers models/kimi_linear/modeling_kimi_linear.py.
#include "models/kimi_linear.h"

#include "models/blocks.h"
#include "models/kda.h"
#include "models/mla.h"

namespace moesaic::kimi_linear {
namespace {

struct Config {
  int64_t layers, hidden, vocab, max_positions, intermediate;
  MlaConfig mla;
  KdaConfig kda;
  MoeConfig moe;
  std::vector<bool> dense;  // by layer
  double eps;
  bool tied;
};

// mlp_layer_types, or the first first_k_dense_replace layers.
std::vector<bool> parse_dense(const JsonObject& json, int64_t layers, const std::string& where) {
  std::vector<bool> dense;
  const int64_t first = json_int(json, "first_k_dense_replace", where, 0);
  if (json_int(json, "moe_layer_freq", where, 1) != 1) fail_data(where, "moe_layer_freq is not 1: it is not supported");
  const Json* types = json_find(json, "mlp_layer_types");
  for (int64_t i = 0; types == nullptr && i < layers; ++i) dense.push_back(i < first);
  if (types == nullptr) return dense;
  if (!types->is_array() || std::ssize(types->get_array()) != layers)
    fail_data(where, "mlp_layer_types is no list of num_hidden_layers = {} entries", layers);
  for (const Json& type : types->get_array()) {
    if (type != "dense" && type != "sparse")
      fail_data(where, "mlp_layer_types holds {}; expected \"dense\" or \"sparse\"", write_json(type).substr(0, 40));
    dense.push_back(type == "dense");
  }
  return dense;
}

Config parse_config(const JsonObject& json, const std::string& where) {
  Config c{};
  c.layers = json_int(json, "num_hidden_layers", where);
  c.hidden = json_int(json, "hidden_size", where);
  c.vocab = json_int(json, "vocab_size", where);
  c.max_positions =
      json_int(json, "model_max_length", where, json_int(json, "max_position_embeddings", where, 1048576));
  c.intermediate = json_int(json, "intermediate_size", where);
  c.eps = json_number(json, "rms_norm_eps", where, 1e-6);
  c.tied = json_bool(json, "tie_word_embeddings", where, false);
  check_sizes(where, {{"num_hidden_layers", c.layers},
                      {"hidden_size", c.hidden},
                      {"vocab_size", c.vocab},
                      {"model_max_length", c.max_positions},
                      {"intermediate_size", c.intermediate}});
  check_eps(where, "rms_norm_eps", c.eps);
  expect_silu(json, where);
  if (!json_bool(json, "mla_use_nope", where, true)) fail_data(where, "mla_use_nope is false; expected true");
  c.mla = parse_mla(json, where);
  c.kda = parse_kda(json, where);
  c.moe = parse_kimi_moe(json, where);
  c.dense = parse_dense(json, c.layers, where);
  return c;
}

Value attention(Builder& g, const Config& c, Value x, size_t layer) {
  if (!c.kda.layers[layer]) return mla_attention(g, c.mla, x, std::nullopt);
  const auto in = g.scope("self_attn");
  return kda_attention(g, c.kda, x);
}

// Published checkpoints call a dense block mlp and a sparse one block_sparse_moe; some exporters use one name for both.
std::string block_name(const Builder& g, size_t layer, bool dense) {
  const std::string published = dense ? "mlp" : "block_sparse_moe", other = dense ? "block_sparse_moe" : "mlp";
  const bool renamed =
      g.has_tensor(fmt::format("model.layers.{}.{}.{}.weight", layer, other, dense ? "gate_proj" : "gate"));
  return renamed ? other : published;
}

Value feed_forward(Builder& g, const Config& c, Value x, size_t layer) {
  const auto in = g.scope(block_name(g, layer, c.dense[layer]));
  return c.dense[layer] ? mlp(g, x, c.intermediate) : moe_block(g, x, c.moe);
}

void build(Builder& g, const Config& c) {
  Value x = g.embed("model.embed_tokens", c.vocab, c.hidden);
  g.name(x, "hidden.0");
  for (int64_t i = 0; i < c.layers; ++i) {
    const auto in = g.scope("model.layers", i);
    const auto layer = static_cast<size_t>(i);
    x = g.add(x, attention(g, c, g.rms_norm(x, "input_layernorm", c.eps), layer));
    x = g.add(x, feed_forward(g, c, g.rms_norm(x, "post_attention_layernorm", c.eps), layer));
    if (i + 1 < c.layers) g.name(x, fmt::format("hidden.{}", i + 1));
  }
  build_end(g, x, {c.layers, c.hidden, c.vocab, c.eps, c.tied});
}

}  // namespace

Model parse(const JsonObject& json, const std::string& where) {
  const Config c = parse_config(json, where);
  Model model;
  model.layers = c.layers;
  model.hidden = c.hidden;
  model.vocab = c.vocab;
  model.max_positions = c.max_positions;
  model.experts = c.moe.route.experts;
  model.experts_per_token = c.moe.route.top_k;
  model.stop_tokens = parse_token_ids(json, "eos_token_id", where);
  model.stop_names = {"<|im_end|>", "[EOS]"};
  model.skipped = mtp_prefixes(json, c.layers, where);
  model.build = [c](Builder& g) { build(g, c); };
  return model;
}

}  // namespace moesaic::kimi_linear
