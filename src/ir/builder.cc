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

Value Builder::rope_table(const RopeConfig& rope, int64_t head_dim, int64_t ratio) {
  Attrs attrs = rope.attrs(head_dim);
  if (ratio > 1) attrs.set(Attr::ratio, static_cast<double>(ratio));
  return op(Op::rope_table, {}, attrs, "rope_table");
}

Value Builder::rope(Value x, Value table, int64_t heads, int64_t head_dim, RopeOptions options) {
  Attrs attrs{{Attr::heads, static_cast<double>(heads)}, {Attr::head_dim, static_cast<double>(head_dim)}};
  if (options.begin > 0) attrs.set(Attr::begin, static_cast<double>(options.begin));
  if (options.interleaved) attrs.set(Attr::interleaved, 1);
  if (options.inverse) attrs.set(Attr::inverse, 1);
  return op(Op::rope, {x, table}, attrs, "rope");
}

Value Builder::layer_norm(Value x, const std::string& name, double eps) {
  const int64_t hidden = graph_.type(x).dim(-1).factor;
  return op(
      Op::layer_norm,
      {x, weight(name + ".weight", WeightKind::vector, {hidden}), weight(name + ".bias", WeightKind::vector, {hidden})},
      {{Attr::eps, eps}}, name);
}

Value Builder::slice(Value x, int64_t begin, int64_t count, int64_t heads) {
  const Attrs attrs{{Attr::heads, static_cast<double>(heads)},
                    {Attr::begin, static_cast<double>(begin)},
                    {Attr::count, static_cast<double>(count)}};
  return op(Op::slice, {x}, attrs, "slice");
}

Value Builder::sigmoid_gate(Value x, Value gate) {
  return op(Op::sigmoid_gate, {x, gate}, {}, "gate");
}

Value Builder::mla(Value q, Value latent, Value k_pe, const MlaShape& s, std::optional<Value> positions) {
  const int64_t L = graph_.type(latent).dim(1).factor;
  graph_.caches.push_back({scope_, mla_cache(L, s.rope_dim, dtype_bytes(options_.cache))});
  std::vector<Value> inputs = {q, latent, k_pe,
                               weight("kv_b_proj.weight", WeightKind::matrix, {s.heads * (s.nope_dim + s.v_dim), L})};
  if (positions) inputs.push_back(*positions);
  const Attrs attrs{{Attr::heads, static_cast<double>(s.heads)},
                    {Attr::nope_dim, static_cast<double>(s.nope_dim)},
                    {Attr::rope_dim, static_cast<double>(s.rope_dim)},
                    {Attr::v_dim, static_cast<double>(s.v_dim)},
                    {Attr::scale, s.scale},
                    {Attr::cache, static_cast<double>(graph_.caches.size() - 1)}};
  return op(Op::mla, std::move(inputs), attrs, "mla");
}

Value Builder::index_topk(Value q, Value k, Value weights, const IndexShape& s) {
  graph_.caches.push_back({scope_, s.hash_bits > 0 ? hash_cache(s.hash_bits)
                                                   : index_cache(s.head_dim, dtype_bytes(options_.cache), s.ratio)});
  Attrs attrs{{Attr::heads, static_cast<double>(s.heads)},
              {Attr::head_dim, static_cast<double>(s.head_dim)},
              {Attr::top_k, static_cast<double>(s.top_k)},
              {Attr::scale, s.scale},
              {Attr::cache, static_cast<double>(graph_.caches.size() - 1)}};
  if (s.hash_bits > 0) attrs.set(Attr::hash_bits, static_cast<double>(s.hash_bits));
  if (s.ratio > 1) attrs.set(Attr::ratio, static_cast<double>(s.ratio));
  return op(Op::index_topk, {q, k, weights}, attrs, "index_topk");
}

Value Builder::gqa(Value q, Value k, Value v, const GqaShape& s) {
  const CacheSpec full = gqa_cache(s.kv_heads, s.head_dim, dtype_bytes(options_.cache));
  graph_.caches.push_back({scope_, s.window > 0 ? window_cache(full, s.window) : full});
  std::vector<Value> inputs = {q, k, v};
  if (s.sinks) inputs.push_back(weight("sinks", WeightKind::vector, {s.heads}));
  const Attrs attrs{
      {Attr::heads, static_cast<double>(s.heads)},       {Attr::kv_heads, static_cast<double>(s.kv_heads)},
      {Attr::head_dim, static_cast<double>(s.head_dim)}, {Attr::scale, s.scale},
      {Attr::window, static_cast<double>(s.window)},     {Attr::cache, static_cast<double>(graph_.caches.size() - 1)}};
  return op(Op::gqa, std::move(inputs), attrs, "gqa");
}

Value Builder::head_norm(Value x, const std::string& name, int64_t heads, double eps) {
  const Attrs attrs{{Attr::eps, eps}, {Attr::heads, static_cast<double>(heads)}};
  const int64_t D = graph_.type(x).dim(-1).factor / heads;
  std::vector<Value> inputs = {x};
  if (!name.empty()) inputs.push_back(weight(name + ".weight", WeightKind::vector, {D}));
  return op(Op::rms_norm, std::move(inputs), attrs, name.empty() ? "head_norm" : name);
}

Value Builder::glu(Value gate, Value up, const GluShape& s) {
  Attrs attrs{{Attr::activation, static_cast<double>(s.activation)}, {Attr::limit, s.limit}};
  if (s.activation == Activation::situ) {
    attrs.set(Attr::beta, s.beta);
    attrs.set(Attr::linear_beta, s.linear_beta);
  }
  return op(Op::glu, {gate, up}, attrs, "glu");
}

Value Builder::attn_res(Value prefix, const std::vector<Value>& blocks, const std::string& name, double eps) {
  const int64_t H = graph_.type(prefix).dim(1).factor;
  std::vector<Value> inputs = {prefix, weight(name + "_norm.weight", WeightKind::vector, {H}),
                               weight(name + "_proj.weight", WeightKind::vector, {1, H})};
  inputs.insert(inputs.end(), blocks.begin(), blocks.end());
  return op(Op::attn_res, std::move(inputs), {{Attr::eps, eps}}, name);
}

Routed Builder::route_op(Value logits, std::vector<Value> more, const std::string& name, const RouteShape& s) {
  Attrs attrs{{Attr::top_k, static_cast<double>(s.top_k)},
              {Attr::scoring, static_cast<double>(s.scoring)},
              {Attr::normalize, s.normalize ? 1.0 : 0.0},
              {Attr::routed_scale, s.routed_scale}};
  if (s.groups > 1) {
    attrs.set(Attr::groups, static_cast<double>(s.groups));
    attrs.set(Attr::top_groups, static_cast<double>(s.top_groups));
  }
  more.insert(more.begin(), logits);
  const Node* node = graph_.add(Op::route, std::move(more), attrs, label(name + ".route"));
  return {node->outputs[0], node->outputs[1]};
}

Routed Builder::route(Value x, const std::string& name, const RouteShape& s) {
  std::vector<Value> bias;
  if (s.bias)
    bias.push_back(weight(name + ".e_score_correction_bias", WeightKind::vector, {s.experts}, label(name + ".bias")));
  return route_op(linear(x, name, s.experts), std::move(bias), name, s);
}

Routed Builder::route_by_token(Value x, const std::string& name, const RouteShape& s, int64_t vocab) {
  return route_op(linear(x, name, s.experts), {weight(name + ".tid2eid", WeightKind::table, {vocab, s.top_k})}, name,
                  s);
}

Value Builder::expert_weight(const ExpertNames& names, int64_t experts, int64_t rows, int64_t columns) {
  WeightSpec spec;
  spec.name = label(names.each);
  spec.kind = WeightKind::experts;
  spec.shape = {experts, rows, columns};
  if (!names.other.empty()) spec.fallback = label(names.other);
  if (!names.fused.empty()) spec.fused = label(names.fused);
  spec.fused_part = names.part;
  spec.fused_parts = names.parts;
  return graph_.add_weight(std::move(spec));
}

Value Builder::experts(Value z, const Routed& routed, int64_t count, int64_t I, const GluShape& glu_shape,
                       const ExpertNames& gate, const ExpertNames& up, const ExpertNames& down) {
  const int64_t H = graph_.type(z).dim(1).factor;
  const Node* table =
      graph_.add(Op::dispatch, {routed.ids}, {{Attr::experts, static_cast<double>(count)}}, label("experts.dispatch"));
  const auto product = [&](Value x, const ExpertNames& names, int64_t rows, int64_t columns, double gather,
                           const char* name) {
    return op(Op::expert_linear, {x, table->outputs[0], table->outputs[1], expert_weight(names, count, rows, columns)},
              {{Attr::gather, gather}}, name);
  };
  const Value h =
      glu(product(z, gate, I, H, 1, "experts.gate_proj"), product(z, up, I, H, 1, "experts.up_proj"), glu_shape);
  return op(Op::combine, {product(h, down, H, I, 0, "experts.down_proj"), table->outputs[2], routed.weights}, {},
            "experts.combine");
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

Value Builder::short_conv(Value x, const std::string& name, int64_t width, const FusedRows& fused) {
  const int64_t channels = graph_.type(x).dim(1).factor;
  graph_.caches.push_back({label(name), short_conv_cache(channels, width, dtype_bytes(graph_.activation))});
  WeightSpec taps;
  taps.name = label(name + ".weight");
  taps.shape = {channels, 1, width};
  if (!fused.tensor.empty()) taps.fused = label(fused.tensor);
  taps.fused_part = fused.part, taps.fused_parts = fused.parts;
  return op(Op::short_conv, {x, graph_.add_weight(std::move(taps))},
            {{Attr::cache, static_cast<double>(graph_.caches.size() - 1)}}, name);
}

void Builder::rename_weights(const std::function<std::string(const std::string&)>& spelled) {
  for (WeightSpec& spec : graph_.weights)
    for (std::string* name : {&spec.name, &spec.fallback, &spec.fused}) *name = spelled(*name);
}

Value Builder::kda_gate(Value z, int64_t heads, std::optional<double> lower_bound) {
  Attrs attrs{{Attr::heads, static_cast<double>(heads)}};
  if (lower_bound) attrs.set(Attr::lower_bound, *lower_bound);
  WeightSpec rates;
  rates.name = label("A_log");
  rates.shape = {heads};
  rates.padded = true;
  const Value dt_bias = weight("dt_bias", WeightKind::vector, {graph_.type(z).dim(1).factor});
  return op(Op::kda_gate, {z, graph_.add_weight(std::move(rates)), dt_bias}, attrs, "kda_gate");
}

Value Builder::kda(Value q, Value k, Value v, Value decay, Value b, const KdaShape& s) {
  graph_.caches.push_back({scope_, kda_cache(s.heads, s.head_dim, s.v_dim, dtype_bytes(graph_.activation))});
  const Attrs attrs{{Attr::heads, static_cast<double>(s.heads)},
                    {Attr::head_dim, static_cast<double>(s.head_dim)},
                    {Attr::v_dim, static_cast<double>(s.v_dim)},
                    {Attr::cache, static_cast<double>(graph_.caches.size() - 1)}};
  return op(Op::kda, {q, k, v, decay, b}, attrs, "kda");
}

Value Builder::gated_rms_norm(Value x, const std::string& name, Value gate, int64_t heads, double eps) {
  const int64_t width = graph_.type(x).dim(-1).factor;
  return op(Op::gated_rms_norm, {x, weight(name + ".weight", WeightKind::vector, {width / heads}), gate},
            {{Attr::eps, eps}, {Attr::heads, static_cast<double>(heads)}}, name);
}

Value Builder::hc_expand(Value x, int64_t streams) {
  return op(Op::hc_expand, {x}, {{Attr::streams, static_cast<double>(streams)}}, "hc_expand");
}

StreamMix Builder::hc_pre(Value streams, const std::string& name, const StreamShape& s) {
  const int64_t mix = s.count * (s.count + 2);
  const Attrs attrs{{Attr::streams, static_cast<double>(s.count)},
                    {Attr::eps, s.eps},
                    {Attr::hc_eps, s.hc_eps},
                    {Attr::iterations, static_cast<double>(s.iterations)}};
  const Value mixed =
      op(Op::linear, {streams, weight(name + "_fn", WeightKind::matrix, {mix, width(streams)})}, {}, name + "_fn");
  const std::vector<Value> inputs = {streams, mixed, weight(name + "_base", WeightKind::vector, {mix}),
                                     weight(name + "_scale", WeightKind::vector, {3})};
  const Node* node = graph_.add(Op::hc_pre, inputs, attrs, label(name));
  return {node->outputs[0], node->outputs[1], node->outputs[2]};
}

Value Builder::hc_post(Value y, Value streams, const StreamMix& mix) {
  return op(Op::hc_post, {y, streams, mix.post, mix.comb}, {{Attr::streams, static_cast<double>(width(mix.post))}},
            "hc_post");
}

Value Builder::hc_head(Value streams, const std::string& name, const StreamShape& s) {
  const Attrs attrs{{Attr::streams, static_cast<double>(s.count)}, {Attr::eps, s.eps}, {Attr::hc_eps, s.hc_eps}};
  const Value mixed =
      op(Op::linear, {streams, weight(name + "_fn", WeightKind::matrix, {s.count, width(streams)})}, {}, name + "_fn");
  return op(Op::hc_head,
            {streams, mixed, weight(name + "_base", WeightKind::vector, {s.count}),
             weight(name + "_scale", WeightKind::vector, {1})},
            attrs, name);
}

Value Builder::compress(Value kv, Value gate, int64_t ratio, bool overlap) {
  graph_.caches.push_back({scope_, compress_cache(ratio, width(kv), overlap, dtype_bytes(graph_.activation))});
  const Attrs attrs{{Attr::ratio, static_cast<double>(ratio)},
                    {Attr::overlap, overlap ? 1.0 : 0.0},
                    {Attr::cache, static_cast<double>(graph_.caches.size() - 1)}};
  return op(Op::compress, {kv, gate, weight("ape", WeightKind::vector, {ratio, width(kv)})}, attrs, "compress");
}

Value Builder::entry_attend(Value q, Value kv, const std::string& sinks_name, const EntryShape& s,
                            std::optional<Value> entries, std::optional<Value> positions) {
  graph_.caches.push_back({scope_, entry_cache(s.head_dim, s.window, s.ratio, dtype_bytes(options_.cache))});
  Attrs attrs{{Attr::heads, static_cast<double>(s.heads)},
              {Attr::head_dim, static_cast<double>(s.head_dim)},
              {Attr::scale, s.scale},
              {Attr::window, static_cast<double>(s.window)},
              {Attr::cache, static_cast<double>(graph_.caches.size() - 1)}};
  if (s.ratio > 0) attrs.set(Attr::ratio, static_cast<double>(s.ratio));
  std::vector<Value> inputs = {q, kv, weight(sinks_name, WeightKind::vector, {s.heads})};
  if (entries) inputs.push_back(*entries);
  if (positions) inputs.push_back(*positions);
  return op(Op::entry_attend, std::move(inputs), attrs, "entry_attend");
}

Value Builder::grouped_linear(Value x, const std::string& name, int64_t out, int64_t groups) {
  const Value w = weight(name + ".weight", WeightKind::matrix, {out, width(x) / groups});
  return op(Op::grouped_linear, {x, w}, {{Attr::groups, static_cast<double>(groups)}}, name);
}

Value Builder::last_token(Value x) {
  return op(Op::last_token, {x}, {}, "last_token");
}

Value Builder::join_hidden(Value x, const std::string& name, double eps) {
  return op(Op::join_hidden, {x, weight(name + ".weight", WeightKind::vector, {width(x)})}, {{Attr::eps, eps}}, name);
}

Value Builder::patches(int64_t width) {
  return op(Op::patches, {}, {{Attr::count, static_cast<double>(width)}}, "patches");
}

Value Builder::grid_embed(const std::string& name, int64_t rows, int64_t columns, int64_t hidden, bool cubic) {
  return op(Op::grid_embed, {weight(name + ".weight", WeightKind::vector, {rows, columns, hidden})},
            {{Attr::cubic, cubic ? 1.0 : 0.0}}, name);
}

Value Builder::grid_rope_table(double theta, int64_t head_dim) {
  return op(Op::grid_rope_table, {}, {{Attr::theta, theta}, {Attr::head_dim, static_cast<double>(head_dim)}},
            "grid_rope_table");
}

Value Builder::full_attention(Value q, Value k, Value v, int64_t heads, double scale) {
  const Attrs attrs{{Attr::heads, static_cast<double>(heads)},
                    {Attr::head_dim, static_cast<double>(width(q) / heads)},
                    {Attr::scale, scale}};
  return op(Op::full_attention, {q, k, v}, attrs, "full_attention");
}

Value Builder::gelu(Value x, bool approximate) {
  return op(Op::gelu, {x}, {{Attr::approximate, approximate ? 1.0 : 0.0}}, "gelu");
}

Value Builder::merge_patches(Value x, int64_t side) {
  return op(Op::merge_patches, {x}, {{Attr::merge, static_cast<double>(side)}}, "merge_patches");
}

Value Builder::head(Value x, const std::string& name, int64_t vocab, const std::string& tied) {
  const int64_t in = graph_.type(x).dim(-1).factor;
  std::vector<Value> inputs = {x, weight(name + ".weight", WeightKind::matrix, {vocab, in}, tied)};
  if (has_tensor(label(name + ".bias"))) inputs.push_back(weight(name + ".bias", WeightKind::vector, {vocab}));
  return op(Op::linear, std::move(inputs), {}, name);
}

}  // namespace moesaic
