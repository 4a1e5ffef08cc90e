#include "ir/builder.h"

namespace moesaic {

Builder::Scope Builder::scope(const std::string& name) {
  const size_t length = scope_.size();
  scope_ = label(name);
  return {*this, length};
}

Builder::Scope Builder::scope(const std::string& name, int64_t index) {
  return scope(fmt::format("{}.{}", name, index));
}

Value Builder::weight(const std::string& name, WeightKind kind, Shape shape, const std::string& fallback) {
  WeightSpec spec;
  spec.name = label(name);
  spec.kind = kind;
  spec.shape = shape;
  spec.fallback = fallback;
  return graph_.add_weight(std::move(spec));
}

Value Builder::embed(const std::string& name, int64_t vocab, int64_t hidden) {
  return op(Op::embed, {weight(name + ".weight", WeightKind::embedding, {vocab, hidden})}, {}, name);
}

Value Builder::rms_norm(Value x, const std::string& name, double eps) {
  const int64_t hidden = graph_.type(x).dim(-1).factor;
  return op(Op::rms_norm, {x, weight(name + ".weight", WeightKind::vector, {hidden})}, {{Attr::eps, eps}}, name);
}

Value Builder::linear(Value x, const std::string& name, int64_t out, LinearOptions options) {
  const int64_t in = graph_.type(x).dim(-1).factor;
  std::vector<Value> inputs = {x, weight(name + ".weight", WeightKind::matrix, {out, in})};
  if (options.bias) inputs.push_back(weight(name + ".bias", WeightKind::vector, {out}));
  return op(Op::linear, std::move(inputs), {}, name);
}

Value Builder::add(Value x, Value y) {
  return op(Op::add, {x, y}, {}, "add");
}

Value Builder::rope_table(const RopeConfig& rope, int64_t head_dim) {
  return op(Op::rope_table, {}, rope.attrs(head_dim), "rope_table");
}

Value Builder::rope(Value x, Value table, int64_t heads, int64_t head_dim) {
  return op(Op::rope, {x, table}, {{Attr::heads, static_cast<double>(heads)}, {Attr::head_dim, static_cast<double>(head_dim)}},
            "rope");
}

Value Builder::gqa(Value q, Value k, Value v, const GqaShape& s) {
  const CacheSpec full = gqa_cache(s.kv_heads, s.head_dim, dtype_bytes(options_.cache));
  graph_.caches.push_back({scope_, s.window > 0 ? window_cache(full, s.window) : full});
  std::vector<Value> inputs = {q, k, v};
  if (s.sinks) inputs.push_back(weight("sinks", WeightKind::vector, {s.heads}));
  const Attrs attrs{{Attr::heads, static_cast<double>(s.heads)},     {Attr::kv_heads, static_cast<double>(s.kv_heads)},
                    {Attr::head_dim, static_cast<double>(s.head_dim)}, {Attr::scale, s.scale},
                    {Attr::window, static_cast<double>(s.window)},
                    {Attr::cache, static_cast<double>(graph_.caches.size() - 1)}};
  return op(Op::gqa, std::move(inputs), attrs, "gqa");
}

Value Builder::moe(Value x, const MoeShape& s) {
  const int64_t E = s.experts, H = s.hidden, I = s.intermediate;
  const Attrs attrs{{Attr::experts, static_cast<double>(E)},
                    {Attr::top_k, static_cast<double>(s.top_k)},
                    {Attr::limit, s.limit},
                    {Attr::alpha, s.alpha}};
  const std::vector<Value> inputs = {x,
                                     weight("router.weight", WeightKind::matrix, {E, H}),
                                     weight("router.bias", WeightKind::vector, {E}),
                                     weight("experts.gate_up_proj", WeightKind::experts, {E, 2 * I, H}),
                                     weight("experts.gate_up_proj_bias", WeightKind::vector, {E, 2 * I}),
                                     weight("experts.down_proj", WeightKind::experts, {E, H, I}),
                                     weight("experts.down_proj_bias", WeightKind::vector, {E, H})};
  return op(Op::moe, inputs, attrs, "experts");
}

Value Builder::last_token(Value x) {
  return op(Op::last_token, {x}, {}, "last_token");
}

Value Builder::head(Value x, const std::string& name, int64_t vocab, const std::string& tied) {
  const int64_t in = graph_.type(x).dim(-1).factor;
  std::vector<Value> inputs = {x, weight(name + ".weight", WeightKind::matrix, {vocab, in}, tied)};
  if (has_tensor(label(name + ".bias"))) inputs.push_back(weight(name + ".bias", WeightKind::vector, {vocab}));
  return op(Op::linear, std::move(inputs), {}, name);
}

}  // namespace moesaic
