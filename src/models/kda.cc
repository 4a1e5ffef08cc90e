#include "models/kda.h"

#include "models/model.h"

namespace moesaic {
namespace {

// A list of layer numbers, the first layer being 1.
void mark(const JsonObject& json, const char* key, bool linear, std::vector<int>& kinds, const std::string& where) {
  const Json* list = json_find(json, key);
  if (list == nullptr || !list->is_array())
    fail_data(where, "linear_attn_config.{} is missing; expected a list of layers", key);
  for (const Json& item : list->get_array()) {
    const int64_t layer = item.is_int64() ? item.get_int64() : 0;
    if (layer < 1 || layer > std::ssize(kinds))
      fail_data(where, "linear_attn_config.{} holds {}; expected 1 to num_hidden_layers = {}", key,
                write_json(item).substr(0, 40), kinds.size());
    int& kind = kinds[static_cast<size_t>(layer - 1)];
    if (kind >= 0) fail_data(where, "linear_attn_config lists layer {} twice", layer);
    kind = linear ? 1 : 0;
  }
}

std::vector<bool> listed_layers(const JsonObject& linear, int64_t layers, const std::string& where) {
  std::vector<int> kinds(static_cast<size_t>(layers), -1);
  mark(linear, "kda_layers", true, kinds, where);
  mark(linear, "full_attn_layers", false, kinds, where);
  for (size_t i = 0; i < kinds.size(); ++i)
    if (kinds[i] < 0) fail_data(where, "linear_attn_config lists layer {} neither as KDA nor as full attention", i + 1);
  return {kinds.begin(), kinds.end()};
}

std::vector<bool> typed_layers(const JsonObject& config, int64_t layers, const std::string& where) {
  const Json* types = json_find(config, "layer_types");
  if (types == nullptr || !types->is_array() || std::ssize(types->get_array()) != layers)
    fail_data(where, "neither linear_attn_config nor layer_types with {} entries says which layers are linear", layers);
  std::vector<bool> linear;
  for (const Json& type : types->get_array()) {
    if (type != "linear_attention" && type != "full_attention")
      fail_data(where, "layer_types holds {}; expected \"linear_attention\" or \"full_attention\"",
                write_json(type).substr(0, 40));
    linear.push_back(type == "linear_attention");
  }
  return linear;
}

}  // namespace

KdaConfig parse_kda(const JsonObject& config, const std::string& where) {
  KdaConfig c;
  const int64_t layers = json_int(config, "num_hidden_layers", where);
  c.hidden = json_int(config, "hidden_size", where);
  c.eps = json_number(config, "rms_norm_eps", where, 1e-6);
  check_sizes(where, {{"num_hidden_layers", layers}, {"hidden_size", c.hidden}});
  const Json* found = json_find(config, "linear_attn_config");
  const bool nested = found != nullptr && found->is_object();
  const JsonObject& linear = nested ? found->get_object() : config;
  const auto key = [&](const char* in_object, const char* flat) { return nested ? in_object : flat; };
  c.heads = json_int(linear, key("num_heads", "linear_num_heads"), where);
  c.head_dim = json_int(linear, key("head_dim", "linear_head_dim"), where);
  c.conv_width = json_int(linear, key("short_conv_kernel_size", "linear_conv_kernel_dim"), where, 4);
  check_sizes(where, {{key("num_heads", "linear_num_heads"), c.heads},
                      {key("head_dim", "linear_head_dim"), c.head_dim},
                      {key("short_conv_kernel_size", "linear_conv_kernel_dim"), c.conv_width}});
  c.full_rank_gate = json_bool(linear, "use_full_rank_gate", where, false);
  const Json* bound = json_find(linear, "gate_lower_bound");
  if (bound != nullptr && !bound->is_null()) c.lower_bound = json_number(linear, "gate_lower_bound", where);
  if (c.lower_bound && !(*c.lower_bound < 0))
    fail_data(where, "gate_lower_bound is {}; expected a negative number", *c.lower_bound);
  c.layers = nested ? listed_layers(linear, layers, where) : typed_layers(config, layers, where);
  return c;
}

Value kda_attention(Builder& g, const KdaConfig& c, Value x) {
  const int64_t width = c.heads * c.head_dim;
  const auto convolved = [&](const std::string& name, int part) {  // transformers keeps the three filters in one tensor
    return g.short_conv(g.linear(x, name + "_proj", width), name + "_conv1d", c.conv_width, {"conv1d.weight", part, 3});
  };
  const auto low_rank = [&](const std::string& name) {
    return g.linear(g.linear(x, name + "_a_proj", c.head_dim), name + "_b_proj", width);
  };
  const auto forget_gate = [&] { return g.kda_gate(low_rank("f"), c.heads, c.lower_bound); };
  const auto decay_of = [&] {
    if (!g.has_here("forget_gate.A_log")) return forget_gate();
    const auto in = g.scope("forget_gate");
    return forget_gate();
  };
  const Value q = convolved("q", 0), k = convolved("k", 1), v = convolved("v", 2), decay = decay_of();
  const Value o = g.kda(q, k, v, decay, g.linear(x, "b_proj", c.heads),
                        {.heads = c.heads, .head_dim = c.head_dim, .v_dim = c.head_dim});
  const Value gate = c.full_rank_gate ? g.linear(x, "g_proj", width) : low_rank("g");
  return g.linear(g.gated_rms_norm(o, "o_norm", gate, c.heads, c.eps), "o_proj", c.hidden);
}

}  // namespace moesaic
