#include "ir/op.h"

#include <fmt/format.h>

#include "quant/quantized_row.h"

namespace moesaic {
namespace {

constexpr std::string_view kAttrNames[] = {
    "eps",
    "heads",
    "kv_heads",
    "head_dim",
    "scale",
    "window",
    "cache",
    "experts",
    "top_k",
    "limit",
    "alpha",
    "gather",
    "theta",
    "factor",
    "beta_fast",
    "beta_slow",
    "original_positions",
    "truncate",
    "attention_factor",
    "begin",
    "count",
    "interleaved",
    "inverse",
    "activation",
    "beta",
    "linear_beta",
    "nope_dim",
    "rope_dim",
    "v_dim",
    "lower_bound",
    "scoring",
    "groups",
    "top_groups",
    "normalize",
    "routed_scale",
    "hash_bits",
    "streams",
    "iterations",
    "hc_eps",
    "ratio",
    "overlap",
    "cubic",
    "approximate",
    "merge",
    "rotate",
};
static_assert(std::size(kAttrNames) == kAttrCount);

using Types = std::vector<ValueType>;

void expect(bool condition, const OpTypes& t, const char* rule) {
  if (condition) return;
  std::string found;
  for (const ValueType& in : t.inputs) found += " " + to_string(in);
  throw Error(StatusCode::internal, fmt::format("input types{} break the rule {}", found, rule));
}

// The same leading dimensions with another innermost one, in the activation type.
ValueType with_last(const ValueType& x, Dim last, DType dtype) {
  ValueType y = x;
  y.dtype = dtype;
  y.dims.back() = last;
  return y;
}

Types embed(const OpTypes& t) {
  expect(t.inputs[0].rank() == 2, t, "table[V,H]");
  return {{t.activation, {Symbol::T, t.inputs[0].dim(1)}}};
}

Types rms_norm(const OpTypes& t) {
  const int64_t heads = t.attrs.integer(Attr::heads, 1), width = t.inputs[0].dim(-1).factor;
  expect(width % heads == 0 && (t.inputs.size() == 1 || t.inputs[1].dims == std::vector<Dim>{width / heads}), t,
         "x[*,heads*D], weight[D]");
  return {t.inputs[0]};
}

Types layer_norm(const OpTypes& t) {
  expect(t.inputs[1].dims == std::vector<Dim>{t.inputs[0].dim(-1)} && t.inputs[2].dims == t.inputs[1].dims, t,
         "x[*,H], weight[H], bias[H]");
  return {t.inputs[0]};
}

Types gated_rms_norm(const OpTypes& t) {
  const int64_t heads = t.attrs.integer(Attr::heads), width = t.inputs[0].dim(-1).factor;
  expect(width % heads == 0 && t.inputs[1].dims == std::vector<Dim>{width / heads} && t.inputs[2] == t.inputs[0], t,
         "x[*,heads*D], weight[D], gate[*,heads*D]");
  return {t.inputs[0]};
}

Types slice(const OpTypes& t) {
  const int64_t heads = t.attrs.integer(Attr::heads), begin = t.attrs.integer(Attr::begin);
  const int64_t count = t.attrs.integer(Attr::count), width = t.inputs[0].dim(-1).factor;
  expect(width % heads == 0 && begin >= 0 && count > 0 && begin + count <= width / heads, t,
         "x[*,heads*D] with begin + count <= D");
  return {with_last(t.inputs[0], heads * count, t.activation)};
}

Types same_two(const OpTypes& t) {
  expect(t.inputs[0] == t.inputs[1], t, "two inputs of one type");
  return {t.inputs[0]};
}

Types add(const OpTypes& t) {
  expect(t.inputs[0] == t.inputs[1], t, "x, y of one type");
  return {t.inputs[0]};
}

Types add_rms_norm(const OpTypes& t) {
  expect(t.inputs[0] == t.inputs[1] && t.inputs[0].dim(-1) == t.inputs[2].dim(0), t, "x[*,H], y[*,H], weight[H]");
  return {t.inputs[0], t.inputs[0]};
}

Types linear(const OpTypes& t) {
  const ValueType &x = t.inputs[0], &w = t.inputs[1];
  expect(w.rank() == 2 && x.dim(-1) == w.dim(1), t, "x[*,K], weight[N,K]");
  if (t.inputs.size() == 3) expect(t.inputs[2].dims == std::vector<Dim>{w.dim(0)}, t, "bias[N]");
  return {with_last(x, w.dim(0), t.activation)};
}

Types rope_table(const OpTypes& t) {
  return {{t.activation, {Symbol::T, t.attrs.integer(Attr::head_dim) / 2, 2}}};
}

Types rope(const OpTypes& t) {
  const int64_t heads = t.attrs.integer(Attr::heads), dim = t.attrs.integer(Attr::head_dim);
  const int64_t begin = t.attrs.integer(Attr::begin, 0);
  expect(t.inputs[0].dim(-1) == Dim(heads * dim) && begin + 2 * t.inputs[1].dim(1).factor <= dim, t,
         "x[T,heads*D], table[T,R/2,2] with begin + R <= D");
  return {t.inputs[0]};
}

// Dimensions that the ops of multi-head latent attention share.
struct MlaDims {
  int64_t heads, rope, latent;
  explicit MlaDims(const OpTypes& t, int64_t latent_width)
      : heads(t.attrs.integer(Attr::heads)), rope(t.attrs.integer(Attr::rope_dim, 0)), latent(latent_width) {}
};

void expect_kv_b(const OpTypes& t, const ValueType& kv_b, const MlaDims& d) {
  const int64_t rows = d.heads * (t.attrs.integer(Attr::nope_dim) + t.attrs.integer(Attr::v_dim));
  expect(kv_b.dims == std::vector<Dim>{rows, d.latent}, t, "kv_b[heads*(nope+v),L]");
}

// Inputs before the table that `rotate` asks for.
size_t inputs_before_table(const OpTypes& t, int64_t pairs) {
  if (t.attrs.integer(Attr::rotate, 0) == 0) return t.inputs.size();
  expect(t.inputs.back().rank() == 3 && t.inputs.back().dim(1) == Dim(pairs), t, "table[T,R/2,2] last");
  return t.inputs.size() - 1;
}

void expect_positions(const OpTypes& t, size_t input, size_t inputs) {
  if (inputs <= input) return;
  expect(t.inputs[input].dtype == DType::i32 && t.inputs[input].rank() == 2, t, "positions i32[T,n]");
}

Types mla(const OpTypes& t) {
  const MlaDims d(t, t.inputs[1].dim(1).factor);
  expect_kv_b(t, t.inputs[3], d);
  expect_positions(t, 4, t.inputs.size());
  expect(t.inputs[0].dim(1) == Dim(d.heads * (t.attrs.integer(Attr::nope_dim) + d.rope)) &&
             t.inputs[2].dim(1) == Dim(d.rope),
         t, "q[T,heads*(nope+rope)], latent[T,L], k_pe[T,rope]");
  return {with_last(t.inputs[0], d.heads * t.attrs.integer(Attr::v_dim), t.activation)};
}

Types mla_absorb(const OpTypes& t) {
  const MlaDims d(t, t.inputs[1].dim(1).factor);
  expect_kv_b(t, t.inputs[1], d);
  expect(t.inputs[0].dim(1) == Dim(d.heads * (t.attrs.integer(Attr::nope_dim) + d.rope)), t, "q[T,heads*(nope+rope)]");
  return {with_last(t.inputs[0], d.heads * (d.latent + d.rope), t.activation)};
}

Types mla_attend(const OpTypes& t) {
  const MlaDims d(t, t.inputs[1].dim(1).factor);
  expect_positions(t, 3, inputs_before_table(t, d.rope / 2));
  expect(t.inputs[0].dim(1) == Dim(d.heads * (d.latent + d.rope)) && t.inputs[2].dim(1) == Dim(d.rope), t,
         "q[T,heads*(L+rope)], latent[T,L], k_pe[T,rope]");
  return {with_last(t.inputs[0], d.heads * d.latent, t.activation)};
}

Types mla_up(const OpTypes& t) {
  const MlaDims d(t, t.inputs[1].dim(1).factor);
  expect_kv_b(t, t.inputs[1], d);
  expect(t.inputs[0].dim(1) == Dim(d.heads * d.latent), t, "o[T,heads*L]");
  return {with_last(t.inputs[0], d.heads * t.attrs.integer(Attr::v_dim), t.activation)};
}

Types index_topk(const OpTypes& t) {
  const int64_t heads = t.attrs.integer(Attr::heads), dim = t.attrs.integer(Attr::head_dim);
  expect(t.inputs[0].dim(1) == Dim(heads * dim) && t.inputs[1].dim(1) == Dim(dim) && t.inputs[2].dim(1) == Dim(heads),
         t, "q[T,heads*D], k[T,D], w[T,heads]");
  return {{DType::i32, {Symbol::T, t.attrs.integer(Attr::top_k)}}};
}

Types short_conv(const OpTypes& t) {
  expect(t.inputs[1].rank() == 3 && t.inputs[1].dim(0) == t.inputs[0].dim(1) && t.inputs[1].dim(1) == Dim(1), t,
         "x[T,C], weight[C,1,W]");
  return {t.inputs[0]};
}

Types kda_gate(const OpTypes& t) {
  const int64_t heads = t.attrs.integer(Attr::heads), width = t.inputs[0].dim(1).factor;
  int64_t biases = 1, rates = 1;
  for (Dim d : t.inputs[1].dims) rates *= d.factor;
  for (Dim d : t.inputs[2].dims) biases *= d.factor;
  expect(width % heads == 0 && rates >= heads && biases == width, t,
         "z[T,heads*D], A_log[heads or more], dt_bias[heads*D]");
  return {t.inputs[0]};
}

Types kda(const OpTypes& t) {
  const int64_t heads = t.attrs.integer(Attr::heads);
  const Dim keys = heads * t.attrs.integer(Attr::head_dim), values = heads * t.attrs.integer(Attr::v_dim);
  expect(t.inputs[0].dim(1) == keys && t.inputs[1].dim(1) == keys && t.inputs[2].dim(1) == values &&
             t.inputs[3].dim(1) == keys && t.inputs[4].dim(1) == Dim(heads),
         t, "q, k, g[T,heads*D], v[T,heads*V], b[T,heads]");
  return {t.inputs[2]};
}

Types attn_res(const OpTypes& t) {
  const ValueType& prefix = t.inputs[0];
  bool fits = t.inputs[1].dim(-1) == prefix.dim(1) && t.inputs[2].dim(-1) == prefix.dim(1);
  for (size_t i = 3; i < t.inputs.size(); ++i) fits &= t.inputs[i] == prefix;
  expect(fits, t, "prefix[T,H], norm[H], proj[1,H], blocks[T,H]");
  return {prefix};
}

Types gqa(const OpTypes& t) {
  const int64_t dim = t.attrs.integer(Attr::head_dim), heads = t.attrs.integer(Attr::heads);
  const int64_t kv_heads = t.attrs.integer(Attr::kv_heads);
  expect(heads % kv_heads == 0 && t.inputs[0].dim(-1) == Dim(heads * dim) && t.inputs[1] == t.inputs[2] &&
             t.inputs[1].dim(-1) == Dim(kv_heads * dim),
         t, "q[T,heads*D], k and v[T,kv_heads*D]");
  if (inputs_before_table(t, dim / 2) == 4) expect(t.inputs[3].dims == std::vector<Dim>{heads}, t, "sinks[heads]");
  return {t.inputs[0]};
}

Types moe(const OpTypes& t) {
  const Dim experts = t.attrs.integer(Attr::experts), hidden = t.inputs[0].dim(-1);
  const ValueType &router = t.inputs[1], &up = t.inputs[3], &down = t.inputs[5];
  expect(router.dim(0) == experts && router.dim(1) == hidden && up.dim(0) == experts && up.dim(2) == hidden &&
             down.dim(1) == hidden && down.dim(2) * 2 == up.dim(1),
         t, "x[T,H], router[E,H], bias[E], gate_up[E,2I,H], bias[E,2I], down[E,H,I], bias[E,H]");
  return {t.inputs[0]};
}

Types route(const OpTypes& t) {
  const Dim k = t.attrs.integer(Attr::top_k);
  expect(t.inputs[0].rank() == 2 && t.inputs[0].dim(1).factor >= k.factor, t, "logits[T,E] with E >= top_k");
  if (t.inputs.size() > 1 && t.inputs[1].rank() == 1) expect(t.inputs[1].dim(0) == t.inputs[0].dim(1), t, "bias[E]");
  if (t.inputs.size() > 1 && t.inputs[1].rank() == 2) expect(t.inputs[1].dim(1) == k, t, "table[V,k]");
  return {{t.activation, {Symbol::T, k}}, {DType::i32, {Symbol::T, k}}};
}

Types dispatch(const OpTypes& t) {
  expect(t.inputs[0].dtype == DType::i32 && t.inputs[0].rank() == 2, t, "ids i32[T,k]");
  const Dim routed(Symbol::T, t.inputs[0].dim(1).factor);
  return {{DType::i32, {routed}}, {DType::i32, {t.attrs.integer(Attr::experts) + 1}}, {DType::i32, {routed}}};
}

Types expert_linear(const OpTypes& t) {
  const ValueType &x = t.inputs[0], &rows = t.inputs[1], &w = t.inputs[3];
  const bool gather = t.attrs.integer(Attr::gather) != 0;
  const Dim width = x.dtype == DType::e4m3 ? Dim(quantized_width(w.dim(2).factor)) : w.dim(2);
  expect(w.rank() == 3 && x.dim(-1) == width && t.inputs[2].dim(0) == Dim(w.dim(0).factor + 1) &&
             (gather || x.dim(0) == rows.dim(0)),
         t, "x[T or R,K], rows[R], offsets[E+1], weight[E,N,K]");
  if (t.inputs.size() == 5) expect(t.inputs[4].dims == std::vector<Dim>{w.dim(0), w.dim(1)}, t, "bias[E,N]");
  return {{t.activation, {rows.dim(0), w.dim(1)}}};
}

Types quantize(const OpTypes& t) {
  return {with_last(t.inputs[0], quantized_width(t.inputs[0].dim(-1).factor), DType::e4m3)};
}

Types expert_swiglu(const OpTypes& t) {
  Types out = expert_linear(t);
  expect(out[0].dim(1).factor % 2 == 0, t, "weight[E,2I,K]");
  out[0].dims[1] = out[0].dim(1).factor / 2;
  return out;
}

Types clamped_swiglu(const OpTypes& t) {
  expect(t.inputs[0].dim(-1).factor % 2 == 0, t, "h[*,2I]");
  return {with_last(t.inputs[0], t.inputs[0].dim(-1).factor / 2, t.activation)};
}

Types combine(const OpTypes& t) {
  const ValueType &y = t.inputs[0], &weights = t.inputs[2];
  expect(y.dim(0) == Dim(Symbol::T, weights.dim(1).factor) && t.inputs[1].dim(0) == y.dim(0), t,
         "y[T*k,H], places[T*k], weights[T,k]");
  return {{t.activation, {Symbol::T, y.dim(1)}}};
}

Types last_token(const OpTypes& t) {
  expect(t.inputs[0].dim(0) == Dim(Symbol::T), t, "x[T,H]");
  ValueType y = t.inputs[0];
  y.dims[0] = Symbol::S;
  return {y};
}

Types hc_expand(const OpTypes& t) {
  const ValueType& x = t.inputs[0];
  return {with_last(x, x.dim(-1) * t.attrs.integer(Attr::streams), t.activation)};
}

Types hc_pre(const OpTypes& t) {
  const int64_t n = t.attrs.integer(Attr::streams), width = t.inputs[0].dim(-1).factor, mix = n * (n + 2);
  expect(width % n == 0 && t.inputs[1] == with_last(t.inputs[0], mix, t.activation) &&
             t.inputs[2].dims == std::vector<Dim>{mix} && t.inputs[3].dims == std::vector<Dim>{3},
         t, "X[T,n*H], mix[T,n*(n+2)], base[n*(n+2)], scale[3]");
  return {with_last(t.inputs[0], width / n, t.activation), with_last(t.inputs[0], n, t.activation),
          with_last(t.inputs[0], n * n, t.activation)};
}

Types hc_post(const OpTypes& t) {
  const int64_t n = t.attrs.integer(Attr::streams);
  expect(t.inputs[1].dim(-1) == t.inputs[0].dim(-1) * n && t.inputs[2].dim(-1) == Dim(n) &&
             t.inputs[3].dim(-1) == Dim(n * n),
         t, "y[T,H], X[T,n*H], post[T,n], comb[T,n*n]");
  return {t.inputs[1]};
}

Types hc_head(const OpTypes& t) {
  const int64_t n = t.attrs.integer(Attr::streams), width = t.inputs[0].dim(-1).factor;
  expect(width % n == 0 && t.inputs[1] == with_last(t.inputs[0], n, t.activation) &&
             t.inputs[2].dims == std::vector<Dim>{n} && t.inputs[3].dims == std::vector<Dim>{1},
         t, "X[*,n*H], mix[*,n], base[n], scale[1]");
  return {with_last(t.inputs[0], width / n, t.activation)};
}

Types compress(const OpTypes& t) {
  const int64_t halves = t.attrs.integer(Attr::overlap) != 0 ? 2 : 1, width = t.inputs[0].dim(-1).factor;
  expect(t.inputs[0] == t.inputs[1] && width % halves == 0 &&
             t.inputs[2].dims == std::vector<Dim>{t.attrs.integer(Attr::ratio), width},
         t, "kv[T,c*D], gate[T,c*D], ape[ratio,c*D]");
  return {with_last(t.inputs[0], width / halves, t.activation)};
}

Types entry_attend(const OpTypes& t) {
  const int64_t heads = t.attrs.integer(Attr::heads), dim = t.attrs.integer(Attr::head_dim);
  expect(t.inputs[0].dim(-1) == Dim(heads * dim) && t.inputs[1].dim(-1) == Dim(dim) &&
             t.inputs[2].dims == std::vector<Dim>{heads},
         t, "q[T,heads*D], kv[T,D], sinks[heads]");
  if (t.inputs.size() > 3) expect(t.inputs[3] == t.inputs[1] && t.attrs.has(Attr::ratio), t, "entries[T,D]");
  if (t.inputs.size() > 4) expect(t.inputs[4].dtype == DType::i32 && t.inputs[4].rank() == 2, t, "positions i32[T,n]");
  return {t.inputs[0]};
}

Types grouped_linear(const OpTypes& t) {
  const int64_t groups = t.attrs.integer(Attr::groups);
  const ValueType &x = t.inputs[0], &w = t.inputs[1];
  expect(w.rank() == 2 && x.dim(-1) == w.dim(1) * groups && w.dim(0).factor % groups == 0, t,
         "x[T,G*K], weight[G*N,K]");
  return {with_last(x, w.dim(0), t.activation)};
}

Types join_hidden(const OpTypes& t) {
  expect(t.inputs[0].rank() == 2 && t.inputs[0].dim(0) == Dim(Symbol::T) && t.inputs[1].rank() == 1, t,
         "x[T,H], weight[D]");
  return {with_last(t.inputs[0], t.inputs[0].dim(1).factor + t.inputs[1].dim(0).factor, t.activation)};
}

Types patches(const OpTypes& t) {
  return {{t.activation, {Symbol::T, t.attrs.integer(Attr::count)}}};
}

Types grid_embed(const OpTypes& t) {
  expect(t.inputs[0].rank() == 3, t, "table[G,G,H]");
  return {{t.activation, {Symbol::T, t.inputs[0].dim(2)}}};
}

Types grid_rope_table(const OpTypes& t) {
  return {{t.activation, {Symbol::T, t.attrs.integer(Attr::head_dim) / 2, 2}}};
}

Types full_attention(const OpTypes& t) {
  const Dim width = t.attrs.integer(Attr::heads) * t.attrs.integer(Attr::head_dim);
  expect(t.inputs[0].dim(-1) == width && t.inputs[1] == t.inputs[0] && t.inputs[2] == t.inputs[0], t,
         "q, k, v[T,heads*D]");
  return {t.inputs[0]};
}

Types same_one(const OpTypes& t) {
  return {t.inputs[0]};
}

Types merge_patches(const OpTypes& t) {
  const int64_t side = t.attrs.integer(Attr::merge);
  expect(t.inputs[0].dim(0) == Dim(Symbol::T), t, "x[T,H]");
  return {{t.activation, {Symbol::S, t.inputs[0].dim(1) * (side * side)}}};
}

using enum Attr;
const OpInfo kOps[] = {
    {Op::embed, "embed", 1, 1, 1, false, {}, embed},
    {Op::rms_norm, "rms_norm", 1, 2, 1, false, {eps}, rms_norm},
    {Op::add, "add", 2, 2, 1, false, {}, add},
    {Op::add_rms_norm, "add_rms_norm", 3, 3, 2, false, {eps}, add_rms_norm},
    {Op::linear, "linear", 2, 3, 1, false, {}, linear},
    {Op::rope_table, "rope_table", 0, 0, 1, false, {theta, head_dim, attention_factor}, rope_table},
    {Op::rope, "rope", 2, 2, 1, false, {heads, head_dim}, rope},
    {Op::gqa, "gqa", 3, 5, 1, true, {heads, kv_heads, head_dim, scale, window, cache}, gqa},
    {Op::moe, "moe", 7, 7, 1, false, {experts, top_k, limit, alpha}, moe},
    {Op::route, "route", 1, 2, 2, false, {top_k}, route},
    {Op::dispatch, "dispatch", 1, 1, 3, false, {experts}, dispatch},
    {Op::expert_linear, "expert_linear", 4, 5, 1, false, {gather}, expert_linear},
    {Op::expert_swiglu, "expert_swiglu", 4, 5, 1, false, {gather, limit, alpha}, expert_swiglu},
    {Op::clamped_swiglu, "clamped_swiglu", 1, 1, 1, false, {limit, alpha}, clamped_swiglu},
    {Op::combine, "combine", 3, 3, 1, false, {}, combine},
    {Op::last_token, "last_token", 1, 1, 1, false, {}, last_token},
    {Op::layer_norm, "layer_norm", 3, 3, 1, false, {eps}, layer_norm},
    {Op::gated_rms_norm, "gated_rms_norm", 3, 3, 1, false, {eps, heads}, gated_rms_norm},
    {Op::slice, "slice", 1, 1, 1, false, {heads, begin, count}, slice},
    {Op::glu, "glu", 2, 2, 1, false, {activation, limit}, same_two},
    {Op::sigmoid_gate, "sigmoid_gate", 2, 2, 1, false, {}, same_two},
    {Op::mla, "mla", 4, 5, 1, true, {heads, nope_dim, rope_dim, v_dim, scale, cache}, mla},
    {Op::mla_absorb, "mla_absorb", 2, 2, 1, false, {heads, nope_dim, rope_dim, v_dim}, mla_absorb},
    {Op::mla_attend, "mla_attend", 3, 5, 1, true, {heads, rope_dim, scale, cache}, mla_attend},
    {Op::mla_up, "mla_up", 2, 2, 1, false, {heads, nope_dim, v_dim}, mla_up},
    {Op::index_topk, "index_topk", 3, 3, 1, true, {heads, head_dim, top_k, scale, cache}, index_topk},
    {Op::short_conv, "short_conv", 2, 2, 1, true, {cache}, short_conv},
    {Op::kda_gate, "kda_gate", 3, 3, 1, false, {heads}, kda_gate},
    {Op::kda, "kda", 5, 5, 1, true, {heads, head_dim, v_dim, cache}, kda},
    {Op::attn_res, "attn_res", 4, 16, 1, false, {eps}, attn_res},
    {Op::hc_expand, "hc_expand", 1, 1, 1, false, {streams}, hc_expand},
    {Op::hc_pre, "hc_pre", 4, 4, 3, false, {streams, eps, hc_eps, iterations}, hc_pre},
    {Op::hc_post, "hc_post", 4, 4, 1, false, {streams}, hc_post},
    {Op::hc_head, "hc_head", 4, 4, 1, false, {streams, eps, hc_eps}, hc_head},
    {Op::compress, "compress", 3, 3, 1, true, {ratio, overlap, cache}, compress},
    {Op::entry_attend, "entry_attend", 3, 5, 1, true, {heads, head_dim, scale, window, cache}, entry_attend},
    {Op::grouped_linear, "grouped_linear", 2, 2, 1, false, {groups}, grouped_linear},
    {Op::join_hidden, "join_hidden", 2, 2, 1, false, {eps}, join_hidden},
    {Op::patches, "patches", 0, 0, 1, false, {count}, patches},
    {Op::grid_embed, "grid_embed", 1, 1, 1, false, {cubic}, grid_embed},
    {Op::grid_rope_table, "grid_rope_table", 0, 0, 1, false, {theta, head_dim}, grid_rope_table},
    {Op::full_attention, "full_attention", 3, 3, 1, false, {heads, head_dim, scale}, full_attention},
    {Op::gelu, "gelu", 1, 1, 1, false, {approximate}, same_one},
    {Op::merge_patches, "merge_patches", 1, 1, 1, false, {merge}, merge_patches},
    {Op::quantize, "quantize", 1, 1, 1, false, {}, quantize},
};
static_assert(std::size(kOps) == kOpCount);

}  // namespace

std::string_view attr_name(Attr attr) {
  return kAttrNames[static_cast<size_t>(attr)];
}

std::optional<Attr> parse_attr(std::string_view name) {
  for (int i = 0; i < kAttrCount; ++i)
    if (kAttrNames[i] == name) return static_cast<Attr>(i);
  return std::nullopt;
}

const OpInfo& op_info(Op op) {
  const OpInfo& info = kOps[static_cast<size_t>(op)];
  CHECK(info.op == op);
  return info;
}

std::optional<Op> parse_op(std::string_view name) {
  for (const OpInfo& info : kOps)
    if (info.name == name) return info.op;
  return std::nullopt;
}

}  // namespace moesaic
