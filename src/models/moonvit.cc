// Follows transformers models/kimi_k25 (the tower that K2.5's remote code calls MoonViT3d) for one image, a video of
// one frame: no time embedding, no pooling over time.
#include "models/moonvit.h"

#include <cmath>

namespace moesaic::moonvit {
namespace {

struct Config {
  Kind kind;
  int64_t layers, hidden, heads, head_dim, intermediate, patch, merge, grid_rows, grid_columns, text_hidden;
  double eps, projector_eps;

  bool bias() const { return kind == Kind::k25; }
};

constexpr double kTheta = 10000;  // of the rotary positions; the published configs do not say it

// One of two spellings of a field.
int64_t either(const JsonObject& json, std::string_view published, std::string_view other, const std::string& where) {
  return json_find(json, published) != nullptr ? json_int(json, published, where) : json_int(json, other, where);
}

int64_t parse_merge(const JsonObject& json, const std::string& where) {
  const Json* sides = json_find(json, "merge_kernel_size");
  if (sides == nullptr) return 2;
  const bool pair =
      sides->is_array() && sides->get_array().size() == 2 && sides->get_array()[0] == sides->get_array()[1];
  const Json& side = pair ? sides->get_array()[0] : *sides;
  if (!side.is_int64() || side.get_int64() < 1 || side.get_int64() > 16)
    fail_data(where, "\"merge_kernel_size\" is {}; expected two equal numbers from 1 to 16",
              write_json(*sides).substr(0, 80));
  return side.get_int64();
}

void check(const Config& c, const std::string& where) {
  check_sizes(where, {{"vt_num_hidden_layers", c.layers},
                      {"vt_hidden_size", c.hidden},
                      {"vt_num_attention_heads", c.heads},
                      {"vt_intermediate_size", c.intermediate},
                      {"patch_size", c.patch},
                      {"init_pos_emb_height", c.grid_rows},
                      {"init_pos_emb_width", c.grid_columns}});
  if (c.layers > 10'000) fail_data(where, "\"vt_num_hidden_layers\" is {}; expected 1 to 10000", c.layers);
  if (c.head_dim < 4 || c.head_dim % 4 != 0)
    fail_data(where, "the vision tower's heads are {} wide; expected a multiple of 4 (hidden size over heads)",
              c.head_dim);
}

Config parse_config(const JsonObject& config, Kind kind, int64_t text_hidden, const std::string& where) {
  const Json* inner = json_find(config, "vision_config");
  if (inner == nullptr) fail_data(where, "\"vision_config\" is missing");
  const JsonObject& json = json_object(*inner, where);
  Config c{};
  c.kind = kind;
  c.layers = either(json, "vt_num_hidden_layers", "num_hidden_layers", where);
  c.hidden = either(json, "vt_hidden_size", "hidden_size", where);
  c.heads = either(json, "vt_num_attention_heads", "num_attention_heads", where);
  c.intermediate = either(json, "vt_intermediate_size", "intermediate_size", where);
  c.grid_rows = either(json, "init_pos_emb_height", "pos_emb_height", where);
  c.grid_columns = either(json, "init_pos_emb_width", "pos_emb_width", where);
  c.patch = json_int(json, "patch_size", where);
  c.merge = parse_merge(json, where);
  c.text_hidden = text_hidden;
  const int64_t width = json_int(json, "qkv_hidden_size", where, c.hidden);
  c.head_dim = c.heads > 0 && width % c.heads == 0 ? width / c.heads : 0;
  // K3's norms are torch's RMSNorm without an epsilon: that of bfloat16, in which the model runs.
  c.eps = kind == Kind::k3 ? 0x1p-7 : 1e-5;
  c.projector_eps =
      json_number(json, "projector_ln_eps", where, json_number(config, "projection_layer_norm_eps", where, 1e-5));
  check_eps(where, "projector_ln_eps", c.projector_eps);
  check(c, where);
  return c;
}

Value norm(Builder& g, const Config& c, Value x, const std::string& name, double eps) {
  return c.kind == Kind::k3 ? g.rms_norm(x, name, eps) : g.layer_norm(x, name, eps);
}

Value attention(Builder& g, const Config& c, Value x, Value table) {
  const int64_t width = c.heads * c.head_dim;
  const Value qkv = g.linear(x, "wqkv", 3 * width, {.bias = c.bias()});
  const RopeOptions pairs{.interleaved = true};
  const Value q = g.rope(g.slice(qkv, 0, width), table, c.heads, c.head_dim, pairs);
  const Value k = g.rope(g.slice(qkv, width, width), table, c.heads, c.head_dim, pairs);
  const Value o =
      g.full_attention(q, k, g.slice(qkv, 2 * width, width), c.heads, 1 / std::sqrt(static_cast<double>(c.head_dim)));
  return g.linear(o, "wo", c.hidden, {.bias = c.bias()});
}

Value feed_forward(Builder& g, const Config& c, Value x) {
  const Value up = g.linear(x, "mlp.fc0", c.intermediate, {.bias = c.bias()});
  return g.linear(g.gelu(up, true), "mlp.fc1", c.hidden, {.bias = c.bias()});
}

// transformers saves some of these names with a part more or less than the published checkpoints.
std::string spelled(const Builder& g, const std::string& published, const std::string& other, const char* suffix) {
  return g.has_tensor(other + suffix) ? other : published;
}

Value tower(Builder& g, const Config& c) {
  const std::string embed =
      spelled(g, "vision_tower.patch_embed.proj", "vision_tower.encoder.patch_embed.proj", ".weight");
  Value x = g.linear(g.patches(3 * c.patch * c.patch), embed, c.hidden, {.bias = c.bias()});
  x = g.add(
      x, g.grid_embed("vision_tower.patch_embed.pos_emb", c.grid_rows, c.grid_columns, c.hidden, c.kind == Kind::k25));
  const Value table = g.grid_rope_table(kTheta, c.head_dim);
  const auto in = g.scope("vision_tower.encoder");
  for (int64_t i = 0; i < c.layers; ++i) {
    const auto block = g.scope("blocks", i);
    x = g.add(x, attention(g, c, norm(g, c, x, "norm0", c.eps), table));
    x = g.add(x, feed_forward(g, c, norm(g, c, x, "norm1", c.eps)));
  }
  return norm(g, c, x, "final_layernorm", c.eps);
}

void build(Builder& g, const Config& c) {
  Value x = tower(g, c);
  const LinearOptions bias{.bias = c.bias()};
  const std::string before = spelled(g, "mm_projector.pre_norm", "model.mm_projector.pre_norm", ".weight");
  if (c.kind == Kind::k25) x = norm(g, c, x, before, c.projector_eps);
  x = g.merge_patches(x, c.merge);
  x = g.gelu(g.linear(x, "mm_projector.proj.0", c.hidden * c.merge * c.merge, bias), false);
  x = g.linear(x, "mm_projector.proj.2", c.text_hidden, bias);
  if (c.kind == Kind::k3) x = norm(g, c, x, "mm_projector.post_norm", c.projector_eps);
  g.output("image_rows", x);
}

}  // namespace

Vision parse(const JsonObject& config, Kind kind, int64_t text_hidden, const std::string& where) {
  const Config c = parse_config(config, kind, text_hidden, where);
  Vision vision;
  vision.patch = c.patch;
  vision.merge = c.merge;
  vision.placeholder = static_cast<int32_t>(either(config, "media_placeholder_token_id", "image_token_id", where));
  vision.sizes_in_prompt = kind == Kind::k3;
  vision.skipped = {"language_model."};
  vision.build = [c](Builder& g) { build(g, c); };
  return vision;
}

}  // namespace moesaic::moonvit
