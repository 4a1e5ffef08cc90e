#include "models/blocks.h"

namespace moesaic {

Value mlp(Builder& g, Value x, int64_t intermediate, const GluShape& glu, const MlpNames& names) {
  const Value h = g.glu(g.linear(x, names.gate, intermediate), g.linear(x, names.up, intermediate), glu);
  return g.linear(h, names.down, g.width(x));
}

Value routed_experts(Builder& g, Value z, const Routed& routed, const MoeConfig& c) {
  return g.experts(z, routed, c.route.experts, c.intermediate, c.glu,
                   {"experts.{}.gate_proj.weight", "experts.{}.w1.weight", "experts.gate_up_proj", 0, 2},
                   {"experts.{}.up_proj.weight", "experts.{}.w3.weight", "experts.gate_up_proj", 1, 2},
                   {"experts.{}.down_proj.weight", "experts.{}.w2.weight", "experts.down_proj"});
}

Value moe_block(Builder& g, Value x, const MoeConfig& c) {
  const Value y = routed_experts(g, x, g.route(x, "gate", c.route), c);
  if (c.shared_intermediate == 0) return y;
  const auto in = g.scope("shared_experts");
  return g.add(y, mlp(g, x, c.shared_intermediate, c.glu));
}

void build_end(Builder& g, Value x, const TextEnd& end) {
  if (g.options().hidden) {
    x = g.rms_norm(x, "model.norm", end.eps);
    g.output("hidden", x);
    x = g.last_token(x);
  } else {
    x = g.rms_norm(g.last_token(x), "model.norm", end.eps);
  }
  g.name(x, fmt::format("hidden.{}", end.layers));
  g.output("logits", g.head(x, "lm_head", end.vocab, end.tied_to()));
}

namespace {

// What DeepSeek and Kimi call the same fields.
struct MoeFields {
  const char *experts, *top_k, *shared, *groups, *normalize, *scoring;
};

MoeConfig parse_sigmoid_moe(const JsonObject& json, const MoeFields& f, const std::string& where) {
  MoeConfig c{};
  c.route = {.experts = json_int(json, f.experts, where),
             .top_k = json_int(json, f.top_k, where),
             .scoring = Scoring::sigmoid,
             .bias = true,
             .groups = json_int(json, f.groups, where, 1),
             .top_groups = json_int(json, "topk_group", where, 1),
             .normalize = json_bool(json, f.normalize, where, true),
             .routed_scale = json_number(json, "routed_scaling_factor", where, 1)};
  c.intermediate = json_int(json, "moe_intermediate_size", where);
  c.shared_intermediate = c.intermediate * json_int(json, f.shared, where, 0);
  const std::string scoring = json_string(json, f.scoring, where, "sigmoid");
  if (scoring != "sigmoid") fail_data(where, "{} is \"{}\"; expected \"sigmoid\"", f.scoring, scoring);
  check_sizes(where, {{f.experts, c.route.experts},
                      {f.top_k, c.route.top_k},
                      {"moe_intermediate_size", c.intermediate},
                      {f.groups, c.route.groups},
                      {"topk_group", c.route.top_groups}});
  if (c.route.top_k > c.route.experts || c.route.experts % c.route.groups != 0 || c.route.top_groups > c.route.groups)
    fail_data(where, "{} of {} experts in {} of {} groups cannot be chosen", c.route.top_k, c.route.experts,
              c.route.top_groups, c.route.groups);
  return c;
}

}  // namespace

MoeConfig parse_moe(const JsonObject& json, const std::string& where) {
  return parse_sigmoid_moe(
      json,
      {"n_routed_experts", "num_experts_per_tok", "n_shared_experts", "n_group", "norm_topk_prob", "scoring_func"},
      where);
}

MoeConfig parse_kimi_moe(const JsonObject& json, const std::string& where) {
  return parse_sigmoid_moe(json,
                           {"num_experts", "num_experts_per_token", "num_shared_experts", "num_expert_group",
                            "moe_renormalize", "moe_router_activation_func"},
                           where);
}

std::vector<std::string> mtp_prefixes(const JsonObject& json, int64_t layers, const std::string& where) {
  std::vector<std::string> out;
  for (int64_t i = 0; i < json_int(json, "num_nextn_predict_layers", where, 0); ++i)
    out.push_back(fmt::format("model.layers.{}.", layers + i));
  return out;
}

void expect_silu(const JsonObject& json, const std::string& where) {
  const std::string act = json_string(json, "hidden_act", where, "silu");
  if (act != "silu") fail_data(where, "hidden_act is \"{}\"; expected \"silu\"", act);
}

}  // namespace moesaic
