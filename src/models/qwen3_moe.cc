// Qwen3-MoE (30B-A3B, 235B-A22B). Follows transformers models/qwen3_moe/modeling_qwen3_moe.py.
#include "models/qwen3_moe.h"

#include <algorithm>
#include <cmath>

#include "models/blocks.h"

namespace moesaic::qwen3_moe {
namespace {

struct Config {
  int64_t layers, hidden, heads, kv_heads, head_dim, vocab, max_positions, intermediate, sparse_step;
  std::vector<int64_t> dense_layers;
  MoeConfig moe;
  double eps;
  bool attention_bias, tied;
  RopeConfig rope;

  bool sparse(int64_t layer) const {
    const bool dense = std::find(dense_layers.begin(), dense_layers.end(), layer) != dense_layers.end();
    return !dense && moe.route.experts > 0 && (layer + 1) % sparse_step == 0;
  }
};

Config parse_config(const JsonObject& json, const std::string& where) {
  Config c{};
  c.layers = json_int(json, "num_hidden_layers", where);
  c.hidden = json_int(json, "hidden_size", where);
  c.heads = json_int(json, "num_attention_heads", where);
  c.kv_heads = json_int(json, "num_key_value_heads", where);
  c.head_dim = json_int(json, "head_dim", where, c.hidden / std::max<int64_t>(c.heads, 1));
  c.vocab = json_int(json, "vocab_size", where);
  c.max_positions = json_int(json, "max_position_embeddings", where, 32768);
  c.intermediate = json_int(json, "intermediate_size", where, 0);
  c.sparse_step = json_int(json, "decoder_sparse_step", where, 1);
  if (const Json* dense = json_find(json, "mlp_only_layers"); dense != nullptr && dense->is_array())
    for (const Json& layer : dense->get_array()) c.dense_layers.push_back(layer.to_number<int64_t>());
  c.moe.route = {.experts = json_int(json, "num_experts", where, json_int(json, "num_local_experts", where, 128)),
                 .top_k = json_int(json, "num_experts_per_tok", where),
                 .scoring = Scoring::softmax,
                 .normalize = json_bool(json, "norm_topk_prob", where, false)};
  c.moe.intermediate = json_int(json, "moe_intermediate_size", where);
  c.eps = json_number(json, "rms_norm_eps", where, 1e-6);
  c.attention_bias = json_bool(json, "attention_bias", where, false);
  c.tied = json_bool(json, "tie_word_embeddings", where, false);
  c.rope = parse_rope(json, where);
  expect_silu(json, where);
  if (json_bool(json, "use_sliding_window", where, false))
    fail_data(where, "use_sliding_window is true; it is not supported");
  check_eps(where, "rms_norm_eps", c.eps);
  check_sizes(where, {{"num_hidden_layers", c.layers},
                      {"hidden_size", c.hidden},
                      {"vocab_size", c.vocab},
                      {"head_dim", c.head_dim},
                      {"num_attention_heads", c.heads},
                      {"num_key_value_heads", c.kv_heads},
                      {"num_experts", c.moe.route.experts},
                      {"num_experts_per_tok", c.moe.route.top_k},
                      {"moe_intermediate_size", c.moe.intermediate},
                      {"decoder_sparse_step", c.sparse_step}});
  if (c.heads % c.kv_heads != 0 || c.head_dim % 2 != 0)
    fail_data(where, "num_attention_heads {} is not a multiple of num_key_value_heads {}, or head_dim {} is odd",
              c.heads, c.kv_heads, c.head_dim);
  return c;
}

Value attention(Builder& g, const Config& c, Value x, Value table) {
  const auto in = g.scope("self_attn");
  const LinearOptions bias{.bias = c.attention_bias};
  const auto project = [&](const char* name, int64_t heads) { return g.linear(x, name, heads * c.head_dim, bias); };
  const Value q = g.head_norm(project("q_proj", c.heads), "q_norm", c.heads, c.eps);
  const Value k = g.head_norm(project("k_proj", c.kv_heads), "k_norm", c.kv_heads, c.eps);
  const Value o = g.gqa(g.rope(q, table, c.heads, c.head_dim), g.rope(k, table, c.kv_heads, c.head_dim),
                        project("v_proj", c.kv_heads),
                        {.heads = c.heads,
                         .kv_heads = c.kv_heads,
                         .head_dim = c.head_dim,
                         .scale = 1 / std::sqrt(static_cast<double>(c.head_dim))});
  return g.linear(o, "o_proj", c.hidden, bias);
}

Value feed_forward(Builder& g, const Config& c, Value x, int64_t layer) {
  const auto in = g.scope("mlp");
  return c.sparse(layer) ? moe_block(g, x, c.moe) : mlp(g, x, c.intermediate);
}

void build(Builder& g, const Config& c) {
  Value x = g.embed("model.embed_tokens", c.vocab, c.hidden);
  const Value table = g.rope_table(c.rope, c.head_dim);
  g.name(x, "hidden.0");
  for (int64_t i = 0; i < c.layers; ++i) {
    const auto in = g.scope("model.layers", i);
    x = g.add(x, attention(g, c, g.rms_norm(x, "input_layernorm", c.eps), table));
    x = g.add(x, feed_forward(g, c, g.rms_norm(x, "post_attention_layernorm", c.eps), i));
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
  model.stop_names = {"<|im_end|>", "<|endoftext|>"};
  model.build = [c](Builder& g) { build(g, c); };
  return model;
}

}  // namespace moesaic::qwen3_moe
