// DeepSeek-V3, R1, V3.1, and Kimi K2, which is the same with other numbers. Follows transformers
// models/deepseek_v3/modeling_deepseek_v3.py.
#include "models/deepseek_v3.h"

#include "models/blocks.h"
#include "models/mla.h"
#include "models/mtp.h"

namespace moesaic::deepseek_v3 {
namespace {

struct Config {
  int64_t layers, hidden, vocab, max_positions, intermediate, dense_layers;
  MlaConfig mla;
  MoeConfig moe;
  double eps;
  bool tied;
  RopeConfig rope;
};

Config parse_config(const JsonObject& json, const std::string& where) {
  Config c{};
  c.layers = json_int(json, "num_hidden_layers", where);
  c.hidden = json_int(json, "hidden_size", where);
  c.vocab = json_int(json, "vocab_size", where);
  c.max_positions = json_int(json, "max_position_embeddings", where, 4096);
  c.intermediate = json_int(json, "intermediate_size", where);
  c.dense_layers = json_int(json, "first_k_dense_replace", where, 0);
  c.mla = parse_mla(json, where);
  c.moe = parse_moe(json, where);
  c.eps = json_number(json, "rms_norm_eps", where, 1e-6);
  c.tied = json_bool(json, "tie_word_embeddings", where, false);
  c.rope = parse_rope(json, where);
  expect_silu(json, where);
  check_eps(where, "rms_norm_eps", c.eps);
  check_sizes(where, {{"num_hidden_layers", c.layers},
                      {"hidden_size", c.hidden},
                      {"vocab_size", c.vocab},
                      {"max_position_embeddings", c.max_positions},
                      {"intermediate_size", c.intermediate}});
  return c;
}

TextEnd end_of(const Config& c) {
  return {c.layers, c.hidden, c.vocab, c.eps, c.tied};
}

Value feed_forward(Builder& g, const Config& c, Value x, bool dense) {
  const auto in = g.scope("mlp");
  return dense ? mlp(g, x, c.intermediate) : moe_block(g, x, c.moe);
}

Value decoder_layer(Builder& g, const Config& c, Value x, Value table, bool dense) {
  x = g.add(x, mla_attention(g, c.mla, g.rms_norm(x, "input_layernorm", c.eps), table));
  return g.add(x, feed_forward(g, c, g.rms_norm(x, "post_attention_layernorm", c.eps), dense));
}

void build(Builder& g, const Config& c) {
  Value x = g.embed("model.embed_tokens", c.vocab, c.hidden);
  const Value table = g.rope_table(c.rope, c.mla.rope_dim);
  // transformers saves the layers of Kimi K2.5 under the name of its vision tower's.
  const char* layers = g.has_here("model.blocks.0.input_layernorm.weight") ? "model.blocks" : "model.layers";
  g.name(x, "hidden.0");
  for (int64_t i = 0; i < c.layers; ++i) {
    const auto in = g.scope(layers, i);
    x = decoder_layer(g, c, x, table, i < c.dense_layers);
    if (i + 1 < c.layers) g.name(x, fmt::format("hidden.{}", i + 1));
  }
  build_end(g, x, end_of(c));
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
  model.skipped = mtp_prefixes(json, c.layers, where);
  model.build = [c](Builder& g) { build(g, c); };
  const auto layer = [c](Builder& g, Value x) {
    return decoder_layer(g, c, x, g.rope_table(c.rope, c.mla.rope_dim), false);
  };
  model.mtp = make_mtp(json, end_of(c), Carry::raw, layer, where);
  return model;
}

}  // namespace moesaic::deepseek_v3
