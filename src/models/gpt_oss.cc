// gpt-oss-20b and -120b. Follows transformers models/gpt_oss/modeling_gpt_oss.py and openai/gpt-oss torch/model.py.
#include "models/gpt_oss.h"

#include <cmath>

#include "models/blocks.h"

namespace moesaic::gpt_oss {
namespace {

constexpr double kAlpha = 1.702;  // of the experts' activation; hard-coded in the reference

struct Config {
  int64_t layers, hidden, heads, kv_heads, head_dim, vocab, max_positions, experts, top_k, intermediate, window;
  double eps, limit;
  bool attention_bias, tied;
  std::vector<bool> sliding;  // by layer
  RopeConfig rope;
};

// layer_types, or their default: even layers slide.
std::vector<bool> parse_layer_types(const JsonObject& json, int64_t layers, const std::string& where) {
  std::vector<bool> sliding;
  const Json* types = json_find(json, "layer_types");
  for (int64_t i = 0; types == nullptr && i < layers; ++i) sliding.push_back(i % 2 == 0);
  if (types == nullptr) return sliding;
  for (const Json& type : types->is_array() ? types->get_array() : JsonArray{}) {
    if (type != "sliding_attention" && type != "full_attention")
      fail_data(where, "layer_types holds {}; expected \"sliding_attention\" or \"full_attention\"", write_json(type));
    sliding.push_back(type == "sliding_attention");
  }
  if (static_cast<int64_t>(sliding.size()) != layers)
    fail_data(where, "layer_types has {} entries; expected num_hidden_layers = {}", sliding.size(), layers);
  return sliding;
}

void check(const Config& c, const std::string& where) {
  check_sizes(where, {{"num_hidden_layers", c.layers},
                      {"hidden_size", c.hidden},
                      {"vocab_size", c.vocab},
                      {"num_attention_heads", c.heads},
                      {"num_key_value_heads", c.kv_heads},
                      {"head_dim", c.head_dim},
                      {"max_position_embeddings", c.max_positions},
                      {"num_local_experts", c.experts},
                      {"intermediate_size", c.intermediate},
                      {"sliding_window", c.window},
                      {"num_experts_per_tok", c.top_k}});
  check_eps(where, "rms_norm_eps", c.eps);
  if (!(c.limit >= 0)) fail_data(where, "\"swiglu_limit\" is {}; expected 0 (no limit) or more", c.limit);
  if (c.top_k > c.experts) fail_data(where, "num_experts_per_tok is {} of {} experts", c.top_k, c.experts);
  if (c.heads % c.kv_heads != 0)
    fail_data(where, "num_attention_heads is {}; expected a multiple of num_key_value_heads = {}", c.heads, c.kv_heads);
  if (c.head_dim % 2 != 0) fail_data(where, "head_dim is {}; expected an even number", c.head_dim);
}

Config parse_config(const JsonObject& json, const std::string& where) {
  Config c{};
  c.layers = json_int(json, "num_hidden_layers", where);
  c.hidden = json_int(json, "hidden_size", where);
  c.heads = json_int(json, "num_attention_heads", where);
  c.kv_heads = json_int(json, "num_key_value_heads", where);
  c.head_dim = json_int(json, "head_dim", where, 64);
  c.vocab = json_int(json, "vocab_size", where);
  c.max_positions = json_int(json, "max_position_embeddings", where, 131072);
  c.experts = json_int(json, "num_local_experts", where, json_int(json, "num_experts", where, 128));
  c.top_k = json_int(json, "num_experts_per_tok", where, json_int(json, "experts_per_token", where, 4));
  c.intermediate = json_int(json, "intermediate_size", where);
  c.window = json_int(json, "sliding_window", where, 128);
  c.eps = json_number(json, "rms_norm_eps", where, 1e-5);
  c.limit = json_number(json, "swiglu_limit", where, 7.0);
  c.attention_bias = json_bool(json, "attention_bias", where, true);
  c.tied = json_bool(json, "tie_word_embeddings", where, false);
  c.rope = parse_rope(json, where);
  check(c, where);
  c.sliding = parse_layer_types(json, c.layers, where);
  return c;
}

Value attention(Builder& g, const Config& c, Value x, Value table, bool sliding) {
  const auto in = g.scope("self_attn");
  const LinearOptions bias{.bias = c.attention_bias};
  const Value q = g.rope(g.linear(x, "q_proj", c.heads * c.head_dim, bias), table, c.heads, c.head_dim);
  const Value k = g.rope(g.linear(x, "k_proj", c.kv_heads * c.head_dim, bias), table, c.kv_heads, c.head_dim);
  const Value v = g.linear(x, "v_proj", c.kv_heads * c.head_dim, bias);
  const Value o = g.gqa(q, k, v,
                        {.heads = c.heads,
                         .kv_heads = c.kv_heads,
                         .head_dim = c.head_dim,
                         .scale = 1 / std::sqrt(static_cast<double>(c.head_dim)),
                         .window = sliding ? c.window : 0,
                         .sinks = true});
  return g.linear(o, "o_proj", c.hidden, bias);
}

Value experts(Builder& g, const Config& c, Value x) {
  const auto in = g.scope("mlp");
  return g.moe(x, {.experts = c.experts,
                   .top_k = c.top_k,
                   .hidden = c.hidden,
                   .intermediate = c.intermediate,
                   .limit = c.limit,
                   .alpha = kAlpha});
}

void build(Builder& g, const Config& c) {
  Value x = g.embed("model.embed_tokens", c.vocab, c.hidden);
  const Value table = g.rope_table(c.rope, c.head_dim);
  g.name(x, "hidden.0");
  for (int64_t i = 0; i < c.layers; ++i) {
    const auto in = g.scope("model.layers", i);
    x = g.add(x, attention(g, c, g.rms_norm(x, "input_layernorm", c.eps), table, c.sliding[static_cast<size_t>(i)]));
    x = g.add(x, experts(g, c, g.rms_norm(x, "post_attention_layernorm", c.eps)));  // a pre-norm despite its name
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
  model.experts = c.experts;
  model.experts_per_token = c.top_k;
  model.stop_tokens = parse_token_ids(json, "eos_token_id", where);
  model.stop_names = {"<|return|>", "<|call|>"};
  model.build = [c](Builder& g) { build(g, c); };
  return model;
}

}  // namespace moesaic::gpt_oss
