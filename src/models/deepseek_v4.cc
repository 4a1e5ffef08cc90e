// DeepSeek-V4 (Flash, Pro). Follows transformers models/deepseek_v4/modeling_deepseek_v4.py under the published weight
// names. Multi-token prediction layers are left out.
#include "models/deepseek_v4.h"

#include <cmath>
#include <map>

#include "models/deepseek_v4_config.h"
#include "models/deepseek_v4_names.h"

namespace moesaic::deepseek_v4 {
namespace {

// Angles by ratio, made when first asked for: of tokens, or of compressed entries.
class Tables {
 public:
  Tables(Builder& g, const Config& c) : g_(g), c_(c) {}
  Value of_tokens(int64_t ratio) { return table(ratio > 0 ? c_.compress_rope : c_.rope, ratio > 0 ? 1 : 0, 1); }
  Value of_entries(int64_t ratio) { return table(c_.compress_rope, ratio, ratio); }

 private:
  Value table(const RopeConfig& rope, int64_t key, int64_t ratio) {
    auto& found = tables_[key];
    if (!found) found = g_.rope_table(rope, c_.rope_dim, ratio);
    return *found;
  }
  Builder& g_;
  const Config& c_;
  std::map<int64_t, std::optional<Value>> tables_;
};

RopeOptions tail(const Config& c, int64_t head_dim) {
  return {.begin = head_dim - c.rope_dim, .interleaved = true};
}

// Entries [T, dim] of the windows that close at each token.
Value compressor(Builder& g, const Config& c, Value x, const Layer& layer, int64_t dim, Tables& tables) {
  const auto in = g.scope("compressor");
  const int64_t width = layer.sparse ? 2 * dim : dim;
  const Value kv = g.linear(x, "wkv", width), gate = g.linear(x, "wgate", width);
  const Value pooled = g.compress(kv, gate, layer.ratio, layer.sparse);
  return g.rope(g.rms_norm(pooled, "norm", c.eps), tables.of_entries(layer.ratio), 1, dim, tail(c, dim));
}

// The entries each token attends to.
Value indexer(Builder& g, const Config& c, Value x, Value low_rank, const Layer& layer, Tables& tables) {
  const auto in = g.scope("indexer");
  const int64_t heads = c.index_heads, dim = c.index_dim;
  const Value q =
      g.rope(g.linear(low_rank, "wq_b", heads * dim), tables.of_tokens(layer.ratio), heads, dim, tail(c, dim));
  const Value keys = compressor(g, c, x, layer, dim, tables), weights = g.linear(x, "weights_proj", heads);
  return g.index_topk(q, keys, weights,
                      {.heads = heads,
                       .head_dim = dim,
                       .top_k = c.index_topk,
                       .scale = 1 / std::sqrt(static_cast<double>(dim * heads)),
                       .ratio = layer.ratio});
}

Value attention(Builder& g, const Config& c, Value x, const Layer& layer, Tables& tables) {
  const auto in = g.scope("attn");
  const int64_t D = c.head_dim;
  const Value table = tables.of_tokens(layer.ratio);
  RopeOptions turn = tail(c, D);
  const Value low_rank = g.rms_norm(g.linear(x, "wq_a", c.q_lora), "q_norm", c.eps);
  const Value q =
      g.rope(g.head_norm(g.linear(low_rank, "wq_b", c.heads * D), "", c.heads, c.eps), table, c.heads, D, turn);
  const Value kv = g.rope(g.rms_norm(g.linear(x, "wkv", D), "kv_norm", c.eps), table, 1, D, turn);
  std::optional<Value> entries, positions;
  if (layer.ratio > 0) entries = compressor(g, c, x, layer, D, tables);
  if (layer.sparse) positions = indexer(g, c, x, low_rank, layer, tables);
  const EntryShape shape{.heads = c.heads,
                         .head_dim = D,
                         .scale = 1 / std::sqrt(static_cast<double>(D)),
                         .window = c.window,
                         .ratio = layer.ratio};
  turn.inverse = true;  // values are keys, turned by their own position
  const Value o = g.rope(g.entry_attend(q, kv, "attn_sink", shape, entries, positions), table, c.heads, D, turn);
  return g.linear(g.grouped_linear(o, "wo_a", c.o_groups * c.o_lora, c.o_groups), "wo_b", c.hidden);
}

Value feed_forward(Builder& g, const Config& c, Value x, const Layer& layer) {
  const auto in = g.scope("ffn");
  const Routed routed =
      layer.hash ? g.route_by_token(x, "gate", c.moe.route, c.vocab) : g.route(x, "gate", c.moe.route);
  const Value y = routed_experts(g, x, routed, c.moe);
  const auto shared = g.scope("shared_experts");
  return g.add(y, mlp(g, x, c.moe.intermediate, c.moe.glu, {"w1", "w3", "w2"}));
}

void build(Builder& g, const Config& c) {
  Tables tables(g, c);
  Value x = g.hc_expand(g.embed("embed", c.vocab, c.hidden), c.streams.count);
  g.name(x, "hidden.0");
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const auto in = g.scope("layers", static_cast<int64_t>(i));
    StreamMix mix = g.hc_pre(x, "hc_attn", c.streams);
    x = g.hc_post(attention(g, c, g.rms_norm(mix.x, "attn_norm", c.eps), c.layers[i], tables), x, mix);
    mix = g.hc_pre(x, "hc_ffn", c.streams);
    x = g.hc_post(feed_forward(g, c, g.rms_norm(mix.x, "ffn_norm", c.eps), c.layers[i]), x, mix);
    if (i + 1 < c.layers.size()) g.name(x, fmt::format("hidden.{}", i + 1));
  }
  x = g.hc_head(g.last_token(x), "hc_head", c.streams);
  x = g.rms_norm(x, "norm", c.eps);
  g.name(x, fmt::format("hidden.{}", c.layers.size()));
  g.output("logits", g.head(x, "head", c.vocab, ""));
  rename_weights(g);
}

}  // namespace

Model parse(const JsonObject& json, const std::string& where) {
  const Config c = parse_config(json, where);
  Model model;
  model.layers = static_cast<int64_t>(c.layers.size());
  model.hidden = c.hidden;
  model.vocab = c.vocab;
  model.max_positions = c.max_positions;
  model.experts = c.moe.route.experts;
  model.experts_per_token = c.moe.route.top_k;
  model.stop_tokens = parse_token_ids(json, "eos_token_id", where);
  model.skipped = {"mtp."};
  model.build = [c](Builder& g) { build(g, c); };
  return model;
}

}  // namespace moesaic::deepseek_v4
