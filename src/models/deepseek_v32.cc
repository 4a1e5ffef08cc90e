// DeepSeek-V3.2: DeepSeek-V3 with sparse attention. Follows transformers models/deepseek_v32/modeling_deepseek_v32.py.
#include "models/deepseek_v32.h"

namespace moesaic::deepseek_v32 {
namespace {

// mlp_layer_types, or first_k_dense_replace dense layers first.
std::vector<bool> parse_dense_layers(const JsonObject& json, int64_t layers, const std::string& where) {
  std::vector<bool> dense;
  const Json* types = json_find(json, "mlp_layer_types");
  const int64_t first = json_int(json, "first_k_dense_replace", where, 0);
  for (int64_t i = 0; types == nullptr && i < layers; ++i) dense.push_back(i < first);
  if (types == nullptr) return dense;
  for (const Json& type : types->is_array() ? types->get_array() : JsonArray{}) {
    if (type != "dense" && type != "sparse")
      fail_data(where, "mlp_layer_types holds {}; expected \"dense\" or \"sparse\"", write_json(type));
    dense.push_back(type == "dense");
  }
  if (static_cast<int64_t>(dense.size()) != layers)
    fail_data(where, "mlp_layer_types has {} entries; expected num_hidden_layers = {}", dense.size(), layers);
  return dense;
}

void check(const Config& c, const std::string& where) {
  if (c.mla.q_lora == 0) fail_data(where, "q_lora_rank is missing; the indexer reads the low-rank queries");
  if (c.indexer.head_dim < c.mla.rope_dim)
    fail_data(where, "index_head_dim is {}; expected at least qk_rope_head_dim = {}", c.indexer.head_dim,
              c.mla.rope_dim);
}

TextEnd end_of(const Config& c) {
  return {c.layers, c.hidden, c.vocab, c.eps, c.tied};
}

Value feed_forward(Builder& g, const Config& c, Value x, bool dense) {
  const auto in = g.scope("mlp");
  return dense ? mlp(g, x, c.intermediate) : moe_block(g, x, c.moe);
}

// `sparse` null: attention to everything before.
Value decoder_layer(Builder& g, const Config& c, Value x, Value table, const SparseLayer* sparse, bool dense) {
  x = g.add(x, mla_attention(g, c.mla, g.rms_norm(x, "input_layernorm", c.eps), table, sparse));
  return g.add(x, feed_forward(g, c, g.rms_norm(x, "post_attention_layernorm", c.eps), dense));
}

// The prediction layer chooses positions itself, never from the model's choice; GLM-5.2 is reported to ship layers with
// and without an indexer, so the checkpoint decides.
Value prediction_layer(Builder& g, const Config& c, Value x) {
  const bool indexer = !g.options().has_tensor || g.has_here("self_attn.indexer.k_norm.weight");
  std::optional<Value> positions;
  const SparseLayer sparse{c.indexer, true, positions};
  return decoder_layer(g, c, x, g.rope_table(c.rope, c.mla.rope_dim), indexer ? &sparse : nullptr, false);
}

void build(Builder& g, const Config& c) {
  Value x = g.embed("model.embed_tokens", c.vocab, c.hidden);
  const Value table = g.rope_table(c.rope, c.mla.rope_dim);
  std::optional<Value> positions;
  g.name(x, "hidden.0");
  for (int64_t i = 0; i < c.layers; ++i) {
    const auto in = g.scope("model.layers", i);
    const auto layer = static_cast<size_t>(i);
    const SparseLayer sparse{c.indexer, c.own_indexer[layer], positions};
    x = decoder_layer(g, c, x, table, &sparse, c.dense[layer]);
    if (i + 1 < c.layers) g.name(x, fmt::format("hidden.{}", i + 1));
  }
  build_end(g, x, end_of(c));
}

}  // namespace

Config parse_config(const JsonObject& json, const std::string& where) {
  Config c{};
  c.layers = json_int(json, "num_hidden_layers", where);
  c.hidden = json_int(json, "hidden_size", where);
  c.vocab = json_int(json, "vocab_size", where);
  c.max_positions = json_int(json, "max_position_embeddings", where, 4096);
  c.intermediate = json_int(json, "intermediate_size", where);
  check_sizes(where, {{"num_hidden_layers", c.layers},
                      {"hidden_size", c.hidden},
                      {"vocab_size", c.vocab},
                      {"max_position_embeddings", c.max_positions},
                      {"intermediate_size", c.intermediate}});
  c.mla = parse_mla(json, where);
  c.indexer = parse_indexer(json, where);
  c.indexer.interleaved = json_bool(json, "indexer_rope_interleave", where, false);
  c.own_indexer.assign(static_cast<size_t>(c.layers), true);
  c.dense = parse_dense_layers(json, c.layers, where);
  c.moe = parse_moe(json, where);
  c.eps = json_number(json, "rms_norm_eps", where, 1e-6);
  c.tied = json_bool(json, "tie_word_embeddings", where, false);
  c.rope = parse_rope(json, where);
  expect_silu(json, where);
  check(c, where);
  return c;
}

Model make_model(const Config& c, const JsonObject& json, const std::string& where) {
  Model model;
  model.layers = c.layers;
  model.hidden = c.hidden;
  model.vocab = c.vocab;
  model.max_positions = c.max_positions;
  model.experts = c.moe.route.experts;
  model.experts_per_token = c.moe.route.top_k;
  model.stop_tokens = parse_token_ids(json, "eos_token_id", where);
  model.skipped = mtp_prefixes(json, c.layers, where);
  model.build = [c](Builder& g) { build(g, c); };
  model.mtp = make_mtp(
      json, end_of(c), c.carry, [c](Builder& g, Value x) { return prediction_layer(g, c, x); }, where);
  return model;
}

Model parse(const JsonObject& json, const std::string& where) {
  return make_model(parse_config(json, where), json, where);
}

}  // namespace moesaic::deepseek_v32
