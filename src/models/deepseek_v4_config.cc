#include "models/deepseek_v4_config.h"

#include <algorithm>

namespace moesaic::deepseek_v4 {
namespace {

constexpr int64_t kSparseRatio = 4;  // of the sparse layers

const JsonArray* find_list(const JsonObject& json, const char* key, size_t least, size_t most,
                           const std::string& where) {
  const Json* found = json_find(json, key);
  if (found == nullptr) return nullptr;
  const size_t size = found->is_array() ? found->get_array().size() : 0;
  if (size < least || size > most)
    fail_data(where, "\"{}\" has {} entries; expected {}, one for each layer", key, size, most);
  return &found->get_array();
}

// Kinds under their newer names, by layer_types and compress_rates.
Layer parse_kind(const JsonObject& json, const Json& type, const std::string& where) {
  if (type == "sliding_attention") return {};
  const bool sparse = type == "compressed_sparse_attention";
  if (!sparse && type != "heavily_compressed_attention")
    fail_data(where,
              "layer_types holds {}; expected sliding_attention, compressed_sparse_attention or "
              "heavily_compressed_attention",
              write_json(type));
  const Json* rates = json_find(json, "compress_rates");
  const JsonObject none;
  const JsonObject& by_type = rates != nullptr ? json_object(*rates, where + ": compress_rates") : none;
  return {json_int(by_type, type.get_string(), where, sparse ? kSparseRatio : 128), sparse, false};
}

std::vector<Layer> parse_layers(const JsonObject& json, const std::string& where) {
  const int64_t count = json_int(json, "num_hidden_layers", where);
  check_sizes(where, {{"num_hidden_layers", count}});
  const auto n = static_cast<size_t>(count);
  const auto more =
      static_cast<size_t>(std::clamp<int64_t>(json_int(json, "num_nextn_predict_layers", where, 0), 0, 64));
  const JsonArray* types = find_list(json, "layer_types", n, n, where);
  const JsonArray* ratios = find_list(json, "compress_ratios", n, n + more, where);
  const JsonArray* mlps = find_list(json, "mlp_layer_types", n, n, where);
  std::vector<Layer> layers;
  for (size_t i = 0; i < n; ++i) {
    Layer layer{i > 1 && i % 2 == 0 ? kSparseRatio : 128, i > 1 && i % 2 == 0, false};  // neither list: as in Pro
    if (types != nullptr) layer = parse_kind(json, (*types)[i], where);
    else if (ratios != nullptr && !(*ratios)[i].is_int64())
      fail_data(where, "compress_ratios holds {}", write_json((*ratios)[i]));
    else if (ratios != nullptr) layer = {(*ratios)[i].get_int64(), (*ratios)[i] == kSparseRatio, false};
    const int64_t r = layer.ratio;
    if (r != 0 && (r < 1 || r > 65536 || (kBlockTokens % r != 0 && r % kBlockTokens != 0)))
      fail_data(where, "layer {} compresses {} tokens into one; expected a divisor or a multiple of {}", i, r,
                kBlockTokens);
    layer.hash = mlps != nullptr ? (*mlps)[i] == "hash_moe"
                                 : static_cast<int64_t>(i) < json_int(json, "num_hash_layers", where, 3);
    layers.push_back(layer);
  }
  return layers;
}

// Layers without compression turn by plain angles, the others by YaRN's, without its factor on cos and sin.
void parse_ropes(Config& c, const JsonObject& json, const std::string& where) {
  c.rope.theta = json_number(json, "rope_theta", where, 10000);
  JsonObject compress = json;
  if (const Json* nested = json_find(json, "rope_parameters"); nested != nullptr && nested->is_object()) {
    if (const Json* own = json_find(nested->get_object(), "main"))
      c.rope = parse_rope({{"rope_parameters", *own}}, where);
    if (const Json* own = json_find(nested->get_object(), "compress")) compress["rope_parameters"] = *own;
  }
  c.compress_rope = parse_rope(compress, where);
  c.compress_rope.theta = json_number(json, "compress_rope_theta", where, 160000);
  c.compress_rope.attention_factor = 1;
}

void check(const Config& c, const JsonObject& json, const std::string& where) {
  check_sizes(where, {{"hidden_size", c.hidden},
                      {"num_attention_heads", c.heads},
                      {"head_dim", c.head_dim},
                      {"qk_rope_head_dim", c.rope_dim},
                      {"q_lora_rank", c.q_lora},
                      {"o_groups", c.o_groups},
                      {"o_lora_rank", c.o_lora},
                      {"sliding_window", c.window},
                      {"vocab_size", c.vocab},
                      {"max_position_embeddings", c.max_positions},
                      {"index_n_heads", c.index_heads},
                      {"index_head_dim", c.index_dim},
                      {"index_topk", c.index_topk},
                      {"hc_mult", c.streams.count},
                      {"hc_sinkhorn_iters", c.streams.iterations},
                      {"n_routed_experts", c.moe.route.experts},
                      {"num_experts_per_tok", c.moe.route.top_k},
                      {"moe_intermediate_size", c.moe.intermediate}});
  if (c.rope_dim % 2 != 0 || c.rope_dim > std::min(c.head_dim, c.index_dim))
    fail_data(where, "qk_rope_head_dim is {}; expected an even number up to head_dim and index_head_dim", c.rope_dim);
  if (c.heads * c.head_dim % c.o_groups != 0)
    fail_data(where, "{} heads do not divide into {} o_groups", c.heads, c.o_groups);
  if (c.streams.count > 8) fail_data(where, "hc_mult is {}; expected 1 to 8", c.streams.count);
  if (c.moe.route.top_k > c.moe.route.experts)
    fail_data(where, "num_experts_per_tok is {} of {} experts", c.moe.route.top_k, c.moe.route.experts);
  const std::string scoring = json_string(json, "scoring_func", where, "sqrtsoftplus");
  if (scoring != "sqrtsoftplus") fail_data(where, "scoring_func is \"{}\"; expected \"sqrtsoftplus\"", scoring);
  if (json_int(json, "n_shared_experts", where, 1) != 1 || json_int(json, "num_key_value_heads", where, 1) != 1)
    fail_data(where, "n_shared_experts and num_key_value_heads must be 1");
  if (json_bool(json, "attention_bias", where, false)) fail_data(where, "attention_bias is true; it is not supported");
  expect_silu(json, where);
}

}  // namespace

Config parse_config(const JsonObject& json, const std::string& where) {
  Config c{};
  c.hidden = json_int(json, "hidden_size", where), c.heads = json_int(json, "num_attention_heads", where);
  c.head_dim = json_int(json, "head_dim", where, 512);
  const double partial =
      json_number(json, "partial_rotary_factor", where, 64.0 / 512) * static_cast<double>(c.head_dim);
  c.rope_dim = json_int(json, "qk_rope_head_dim", where, static_cast<int64_t>(partial));
  c.q_lora = json_int(json, "q_lora_rank", where);
  c.o_groups = json_int(json, "o_groups", where), c.o_lora = json_int(json, "o_lora_rank", where);
  c.window = json_int(json, "sliding_window", where, 128), c.vocab = json_int(json, "vocab_size", where);
  c.max_positions = json_int(json, "max_position_embeddings", where, 1048576);
  c.index_heads = json_int(json, "index_n_heads", where, 64),
  c.index_dim = json_int(json, "index_head_dim", where, 128);
  c.index_topk = json_int(json, "index_topk", where, 512), c.eps = json_number(json, "rms_norm_eps", where, 1e-6);
  c.streams = {.count = json_int(json, "hc_mult", where, 4),
               .eps = c.eps,
               .hc_eps = json_number(json, "hc_eps", where, 1e-6),
               .iterations = json_int(json, "hc_sinkhorn_iters", where, 20)};
  c.moe.route = {.experts = json_int(json, "n_routed_experts", where),
                 .top_k = json_int(json, "num_experts_per_tok", where),
                 .scoring = Scoring::sqrt_softplus,
                 .bias = true,
                 .normalize = json_bool(json, "norm_topk_prob", where, true),
                 .routed_scale = json_number(json, "routed_scaling_factor", where, 1.5)};
  c.moe.intermediate = json_int(json, "moe_intermediate_size", where);
  c.moe.glu = {.activation = Activation::silu, .limit = json_number(json, "swiglu_limit", where, 10)};
  c.layers = parse_layers(json, where);
  parse_ropes(c, json, where);
  check(c, json, where);
  return c;
}

}  // namespace moesaic::deepseek_v4
