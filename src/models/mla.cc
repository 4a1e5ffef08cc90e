#include "models/mla.h"

#include <cmath>

namespace moesaic {
namespace {

constexpr double kIndexNormEps = 1e-6;  // of the indexer's k_norm; hard-coded in the reference

int64_t positive(const JsonObject& config, const char* key, const std::string& where) {
  const int64_t value = json_int(config, key, where);
  if (value < 1 || value > (int64_t{1} << 31)) fail_data(where, "\"{}\" is {}; expected 1 to 2^31", key, value);
  return value;
}

// YaRN's factor for the logits: (0.1 mscale_all_dim ln(factor) + 1)^2. The one for cos and sin is RopeConfig's.
double softmax_factor(const JsonObject& config, const std::string& where) {
  const Json* found = json_find(config, "rope_parameters");
  if (found == nullptr) found = json_find(config, "rope_scaling");
  if (found == nullptr || !found->is_object()) return 1;
  const JsonObject& scaling = found->get_object();
  const std::string type = json_string(scaling, "rope_type", where, json_string(scaling, "type", where, "default"));
  const double all_dim = json_number(scaling, "mscale_all_dim", where, 0),
               factor = json_number(scaling, "factor", where, 1);
  if (type == "default" || all_dim == 0 || factor <= 1) return 1;
  return std::pow(0.1 * all_dim * std::log(factor) + 1, 2);
}

// Queries [T, heads * (nope + rope)]; `low_rank` becomes the normalised q_a output where there is one.
Value queries(Builder& g, const MlaConfig& c, Value x, Value& low_rank) {
  const int64_t width = c.heads * (c.nope_dim + c.rope_dim);
  if (c.q_lora == 0) return g.linear(x, "q_proj", width);
  low_rank = g.rms_norm(g.linear(x, "q_a_proj", c.q_lora, {.bias = c.bias}), "q_a_layernorm", c.norm_eps);
  return g.linear(low_rank, "q_b_proj", width);
}

// The positions each query attends to, chosen by the scores of a few small heads.
Value lightning_indexer(Builder& g, const IndexerConfig& c, Value x, Value low_rank, Value table) {
  const auto in = g.scope("indexer");
  const RopeOptions first_dims{.begin = 0, .interleaved = c.interleaved};
  const Value q = g.rope(g.linear(low_rank, "wq_b", c.heads * c.head_dim), table, c.heads, c.head_dim, first_dims);
  const Value k = g.layer_norm(g.linear(x, "wk", c.head_dim), "k_norm", kIndexNormEps);
  return g.index_topk(q, g.rope(k, table, 1, c.head_dim, first_dims), g.linear(x, "weights_proj", c.heads),
                      {.heads = c.heads,
                       .head_dim = c.head_dim,
                       .top_k = c.top_k,
                       .scale = 1 / std::sqrt(static_cast<double>(c.head_dim) * static_cast<double>(c.heads))});
}

}  // namespace

MlaConfig parse_mla(const JsonObject& config, const std::string& where) {
  MlaConfig c;
  c.hidden = positive(config, "hidden_size", where);
  c.heads = positive(config, "num_attention_heads", where);
  const Json* q_lora = json_find(config, "q_lora_rank");
  if (q_lora != nullptr && !q_lora->is_null()) c.q_lora = positive(config, "q_lora_rank", where);
  c.kv_lora = positive(config, "kv_lora_rank", where);
  c.nope_dim = positive(config, "qk_nope_head_dim", where);
  c.rope_dim = positive(config, "qk_rope_head_dim", where);
  c.v_dim = positive(config, "v_head_dim", where);
  if (c.rope_dim % 2 != 0) fail_data(where, "qk_rope_head_dim is {}; expected an even number", c.rope_dim);
  c.bias = json_bool(config, "attention_bias", where, false);
  c.scale = softmax_factor(config, where) / std::sqrt(static_cast<double>(c.nope_dim + c.rope_dim));
  return c;
}

IndexerConfig parse_indexer(const JsonObject& config, const std::string& where) {
  IndexerConfig c;
  c.heads = positive(config, "index_n_heads", where);
  c.head_dim = positive(config, "index_head_dim", where);
  c.top_k = positive(config, "index_topk", where);
  return c;
}

Value mla_attention(Builder& g, const MlaConfig& c, Value x, std::optional<Value> table, const SparseLayer* sparse) {
  const auto in = g.scope("self_attn");
  Value low_rank;
  Value q = queries(g, c, x, low_rank);
  const Value kv = g.linear(x, "kv_a_proj_with_mqa", c.kv_lora + c.rope_dim, {.bias = c.bias});
  const Value latent = g.rms_norm(g.slice(kv, 0, c.kv_lora), "kv_a_layernorm", c.norm_eps);
  Value k_pe = g.slice(kv, c.kv_lora, c.rope_dim);
  if (table) {
    q = g.rope(q, *table, c.heads, c.nope_dim + c.rope_dim, {.begin = c.nope_dim, .interleaved = true});
    k_pe = g.rope(k_pe, *table, 1, c.rope_dim, {.begin = 0, .interleaved = true});
  }
  if (sparse != nullptr && sparse->own_indexer)
    sparse->positions = lightning_indexer(g, sparse->indexer, x, low_rank, *table);
  const MlaShape shape{
      .heads = c.heads, .nope_dim = c.nope_dim, .rope_dim = c.rope_dim, .v_dim = c.v_dim, .scale = c.scale};
  Value o = g.mla(q, latent, k_pe, shape, sparse != nullptr ? sparse->positions : std::nullopt);
  if (c.gate) o = g.sigmoid_gate(o, g.linear(x, "g_proj", c.heads * c.v_dim));
  return g.linear(o, "o_proj", c.hidden, {.bias = c.bias});
}

}  // namespace moesaic
