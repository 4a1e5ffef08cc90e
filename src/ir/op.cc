#include "ir/op.h"

#include <fmt/format.h>

namespace moesaic {
namespace {

constexpr std::string_view kAttrNames[] = {
    "eps",   "heads",  "kv_heads",  "head_dim",  "scale",              "window",   "cache",
    "experts", "top_k",  "limit",     "alpha",     "gather",             "theta",    "factor",
    "beta_fast", "beta_slow", "original_positions", "truncate", "attention_factor",
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
  expect(t.inputs[0].dim(-1) == t.inputs[1].dim(0), t, "x[*,H], weight[H]");
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
  expect(t.inputs[0].dim(-1) == Dim(heads * dim) && t.inputs[1].dim(1) == Dim(dim / 2), t,
         "x[T,heads*D], table[T,D/2,2]");
  return {t.inputs[0]};
}

Types gqa(const OpTypes& t) {
  const int64_t dim = t.attrs.integer(Attr::head_dim), heads = t.attrs.integer(Attr::heads);
  const int64_t kv_heads = t.attrs.integer(Attr::kv_heads);
  expect(heads % kv_heads == 0 && t.inputs[0].dim(-1) == Dim(heads * dim) && t.inputs[1] == t.inputs[2] &&
             t.inputs[1].dim(-1) == Dim(kv_heads * dim),
         t, "q[T,heads*D], k and v[T,kv_heads*D]");
  if (t.inputs.size() == 4) expect(t.inputs[3].dims == std::vector<Dim>{heads}, t, "sinks[heads]");
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
  expect(w.rank() == 3 && x.dim(-1) == w.dim(2) && t.inputs[2].dim(0) == Dim(w.dim(0).factor + 1) &&
             (gather || x.dim(0) == rows.dim(0)),
         t, "x[T or R,K], rows[R], offsets[E+1], weight[E,N,K]");
  if (t.inputs.size() == 5) expect(t.inputs[4].dims == std::vector<Dim>{w.dim(0), w.dim(1)}, t, "bias[E,N]");
  return {{t.activation, {rows.dim(0), w.dim(1)}}};
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

using enum Attr;
const OpInfo kOps[] = {
    {Op::embed, "embed", 1, 1, 1, false, {}, embed},
    {Op::rms_norm, "rms_norm", 2, 2, 1, false, {eps}, rms_norm},
    {Op::add, "add", 2, 2, 1, false, {}, add},
    {Op::add_rms_norm, "add_rms_norm", 3, 3, 2, false, {eps}, add_rms_norm},
    {Op::linear, "linear", 2, 3, 1, false, {}, linear},
    {Op::rope_table, "rope_table", 0, 0, 1, false, {theta, head_dim, attention_factor}, rope_table},
    {Op::rope, "rope", 2, 2, 1, false, {heads, head_dim}, rope},
    {Op::gqa, "gqa", 3, 4, 1, true, {heads, kv_heads, head_dim, scale, window, cache}, gqa},
    {Op::moe, "moe", 7, 7, 1, false, {experts, top_k, limit, alpha}, moe},
    {Op::route, "route", 1, 1, 2, false, {top_k}, route},
    {Op::dispatch, "dispatch", 1, 1, 3, false, {experts}, dispatch},
    {Op::expert_linear, "expert_linear", 4, 5, 1, false, {gather}, expert_linear},
    {Op::expert_swiglu, "expert_swiglu", 4, 5, 1, false, {gather, limit, alpha}, expert_swiglu},
    {Op::clamped_swiglu, "clamped_swiglu", 1, 1, 1, false, {limit, alpha}, clamped_swiglu},
    {Op::combine, "combine", 3, 3, 1, false, {}, combine},
    {Op::last_token, "last_token", 1, 1, 1, false, {}, last_token},
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
