// The op table: everything a graph can say, one row an op.
//
// clang-format off
//   op             inputs                                      outputs                      attributes
//   embed          table[V,H]                                  x[T,H]
//   rms_norm       x[*,heads*D] (, weight[D])                  y, each head normalised      eps, heads (absent: 1)
//   layer_norm     x[*,H], weight[H], bias[H]                  y[*,H]                       eps
//   gated_rms_norm x[*,heads*D], weight[D], gate like x        rms_norm(x) * sigmoid(gate)  eps, heads
//   add            x, y                                        x + y
//   add_rms_norm   x[*,H], y[*,H], weight[H]                   x + y, its norm              eps
//   linear         x[*,K], weight[N,K] (, bias[N])             y[*,N]
//   slice          x[*,heads*D]                                y[*,heads*count]             heads, begin, count
//   glu            gate[*,I], up[*,I]                          y[*,I]                       activation, limit, beta,
//                                                                                           linear_beta
//   sigmoid_gate   x, gate                                     x * sigmoid(gate)
//   rope_table                                                 cos and sin [T,D/2,2]        theta, head_dim, YaRN's
//   rope           x[T,heads*D], table[T,R/2,2]                y[T,heads*D]                 heads, head_dim; begin,
//                                                                                           interleaved, inverse
//   gqa            q[T,Hq*D], k[T,Hkv*D], v (, sinks[Hq])      o[T,Hq*D]                    heads, kv_heads, head_dim,
//                  (, table)                                                                scale, window, cache
//                                                                                           (, rotate)
//   moe            x[T,H], router, its bias, gate_up, bias,    y[T,H]                       experts, top_k, limit,
//                  down, bias                                                               alpha
//   mla            q[T,heads*(nope+rope)], latent[T,L],        o[T,heads*v]                 heads, nope_dim, rope_dim,
//                  k_pe[T,rope], kv_b[heads*(nope+v),L]                                     v_dim, scale, cache
//                  (, positions i32[T,n])
//   mla_absorb     q, kv_b                                     q[T,heads*(L+rope)]          heads, nope_dim, rope_dim,
//                                                                                           v_dim
//   mla_attend     q, latent, k_pe (, positions) (, table)     o[T,heads*L]                 heads, rope_dim, scale,
//                                                                                           cache (, rotate)
//   mla_up         o[T,heads*L], kv_b                          o[T,heads*v]                 heads, nope_dim, v_dim
//   index_topk     q[T,heads*D], k[T,D], w[T,heads]            positions i32[T,top_k]       heads, head_dim, top_k,
//                                                                                           scale, cache (, hash_bits)
//   short_conv     x[T,C], weight[C,1,W]                       silu(conv)[T,C]              cache
//   kda_gate       z[T,heads*D], A_log, dt_bias[heads*D]       log decay[T,heads*D]         heads (, lower_bound)
//   kda            q, k[T,heads*D], v[T,heads*V], g,           o[T,heads*V]                 heads, head_dim, v_dim,
//                  b[T,heads]                                                               cache
//   attn_res       prefix[T,H], norm[H], proj[1,H], block...   mix[T,H]                     eps
//   route          logits[T,E] (, bias[E], or table[V,k])      weights[T,k], ids i32[T,k]   top_k (, scoring, groups,
//                                                                                           top_groups, normalize,
//                                                                                           routed_scale)
//   dispatch       ids[T,k]                                    rows i32[T*k], offsets i32[E+1], places i32[T*k] experts
//   quantize       x[*,K]                                      e4m3[*,W], see quant/quantized_row.h
//   expert_linear  x, rows, offsets, weight[E,N,K], bias[E,N]  y[T*k,N]                     gather
//   expert_swiglu  as expert_linear                            y[T*k,N/2]                   gather, limit, alpha
//   clamped_swiglu h[*,2I] (gate and up interleaved)           y[*,I]                       limit, alpha
//   combine        y[T*k,H], places, weights[T,k]              out[T,H]
//   last_token     x[T,H]                                      y[S,H]
//   hc_expand      x[T,H]                                      X[T,n*H], n copies           streams
//   hc_pre         X[T,n*H], mix[T,n*(n+2)], base, scale[3]    x[T,H], post[T,n], comb[T,n*n]  streams, eps, hc_eps,
//                                                                                           iterations
//   hc_post        y[T,H], X[T,n*H], post, comb                X[T,n*H]                     streams
//   hc_head        X[*,n*H], mix[*,n], base[n], scale[1]       x[*,H]                       streams, eps, hc_eps
//   compress       kv[T,c*D], gate[T,c*D], ape[m,c*D]          entries[T,D]                 ratio (m), overlap, cache
//   entry_attend   q[T,heads*D], kv[T,D], sinks[heads]         o[T,heads*D]                 heads, head_dim, scale,
//                  (, entries[T,D] (, positions i32[T,n]))                                  window, cache (, ratio)
//   grouped_linear x[T,G*K], weight[G*N,K]                     y[T,G*N]                     groups
//   join_hidden    x[T,H], weight[D]                           y[T,H+D]                     eps
//
//   patches                                                    x[T,count]                   count
//   grid_embed     table[G,G,H]                                x[T,H]                       cubic
//   grid_rope_table                                            cos and sin [T,D/2,2]        theta, head_dim
//   full_attention q, k, v[T,heads*D]                          o[T,heads*D]                 heads, head_dim, scale
//   gelu           x                                           gelu(x)                      approximate (1: tanh form)
//   merge_patches  x[T,H]                                      y[S,merge*merge*H]           merge
// clang-format on
//
// dispatch sorts the routed rows by expert: `rows` holds the token of each, expert e's are offsets[e] to offsets[e+1],
// and `places` says where slot j of token t went (index t*k + j). An id of -1 has no row and place -1: offsets[E]
// counts the real rows, and combine leaves such slots out. expert ops with gather=1 read x by token; x may be what
// quantize made. glu activations:
// see Activation. route scorings: see Scoring; `bias` is added for the choice alone, `table` holds the ids of every
// vocabulary entry (hash routing). `positions` of mla are those a query sees, -1 for none. index_topk chooses, for each
// query, the min(top_k, visible) visible positions with the largest sum over heads of w * relu(scale * q . k), ties to
// the lowest position, NaN last, and lists them ascending, then -1. With hash_bits it caches a key as signs of that
// many random projections (a multiple of 64) and its length, and takes |q| |k| cos(pi * differing signs / hash_bits)
// for q . k: an approximation that reads a fraction of the bytes.
//
// hc_*: manifold-constrained hyper-connections, n residual streams side by side (DeepSeek-V4). `mix` is a linear of X
// that hc_pre and hc_head divide by the root mean square of X. compress pools the `ratio` tokens of each window, and
// with `overlap` (c = 2, else 1) those of the window before, into one entry: row t holds the entry of the window that
// token t closes, or zeros where it closes none. rope_table and index_topk take `ratio` too: angles of the window's
// first token, and keys that are entries. entry_attend sees the last `window` tokens and all entries closed so far, or
// those chosen.
//
// join_hidden puts beside x, in every row, the normalised hidden state that another graph left for the token:
// y = x, then rms_norm(hidden[hidden_rows[t]]) * weight. It is how a multi-token prediction layer sees its model.
//
// The last six see one image: token t is the patch in row t / columns and column t % columns of its grid. grid_embed
// stretches the table to the grid (bicubic with a = -0.75, or bilinear; half-pixel centres, edges repeated).
// grid_rope_table turns pair 2i by column * theta^(-4i/D) and pair 2i+1 by row * the same. merge_patches lays
// merge x merge neighbours side by side; S is then their number.
//
// With `rotate` (see Rotate) gqa turns every head of q and k by the table of rope, its last input, before anything
// else; mla_attend turns k_pe and the last rope_dim channels of every head of q.
//
// Every op reads its activations once and writes its outputs; gqa also appends to its cache. `embed`, `rope_table`,
// `gqa`, `mla`, `mla_attend`, `index_topk`, `last_token` and `join_hidden` read the step's batch (token ids, positions,
// sequences, hidden states).
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/dim.h"

namespace moesaic {

enum class Op : uint8_t {
  embed,
  rms_norm,
  add,
  add_rms_norm,
  linear,
  rope_table,
  rope,
  gqa,
  moe,
  route,
  dispatch,
  expert_linear,
  expert_swiglu,
  clamped_swiglu,
  combine,
  last_token,
  layer_norm,
  gated_rms_norm,
  slice,
  glu,
  sigmoid_gate,
  mla,
  mla_absorb,
  mla_attend,
  mla_up,
  index_topk,
  short_conv,
  kda_gate,
  kda,
  attn_res,
  hc_expand,
  hc_pre,
  hc_post,
  hc_head,
  compress,
  entry_attend,
  grouped_linear,
  join_hidden,
  patches,
  grid_embed,
  grid_rope_table,
  full_attention,
  gelu,
  merge_patches,
  quantize,
};
constexpr int kOpCount = static_cast<int>(Op::quantize) + 1;

enum class Attr : uint8_t {
  eps,
  heads,
  kv_heads,
  head_dim,
  scale,
  window,
  cache,
  experts,
  top_k,
  limit,
  alpha,
  gather,
  theta,
  factor,
  beta_fast,
  beta_slow,
  original_positions,
  truncate,
  attention_factor,
  begin,
  count,
  interleaved,
  inverse,
  activation,
  beta,
  linear_beta,
  nope_dim,
  rope_dim,
  v_dim,
  lower_bound,
  scoring,
  groups,
  top_groups,
  normalize,
  routed_scale,
  hash_bits,
  streams,
  iterations,
  hc_eps,
  ratio,
  overlap,
  cubic,
  approximate,
  merge,
  rotate,
};
constexpr int kAttrCount = static_cast<int>(Attr::rotate) + 1;

// Attr::activation of glu.
enum class Activation : uint8_t {
  silu,  // silu(g) * u; with a limit g = min(g, limit), u = clamp(u, -limit, limit)
  situ,  // beta tanh(g / beta) sigmoid(g) * linear_beta tanh(u / linear_beta); linear_beta 0: u as it is (Kimi K3)
};

// Attr::rotate of gqa and mla_attend: which channels make a pair.
enum class Rotate : uint8_t {
  none,
  halves,      // (i, i + R/2)
  neighbours,  // (2i, 2i + 1)
};

// Attr::scoring of route; absent means softmax_chosen.
enum class Scoring : uint8_t {
  softmax_chosen,  // gpt-oss: choose by logit, weights are the softmax over the chosen
  softmax,         // Qwen3-MoE: softmax over all experts, then choose
  sigmoid,         // DeepSeek-V3, GLM-5, Kimi
  sqrt_softplus,   // DeepSeek-V4
};

std::string_view attr_name(Attr attr);
std::optional<Attr> parse_attr(std::string_view name);

// A set of numeric attributes. Integers are exact up to 2^53.
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<Attr, double>> items) {
    for (auto [attr, value] : items) set(attr, value);
  }
  void set(Attr attr, double value) {
    values_[index(attr)] = value;
    present_ |= uint64_t{1} << index(attr);
  }
  bool has(Attr attr) const { return (present_ >> index(attr) & 1) != 0; }
  double number(Attr attr) const {
    CHECK(has(attr), "attribute {} is missing", attr_name(attr));
    return values_[index(attr)];
  }
  float real(Attr attr) const { return static_cast<float>(number(attr)); }
  int64_t integer(Attr attr) const { return static_cast<int64_t>(number(attr)); }
  double number(Attr attr, double fallback) const { return has(attr) ? number(attr) : fallback; }
  int64_t integer(Attr attr, int64_t fallback) const { return has(attr) ? integer(attr) : fallback; }
  bool operator==(const Attrs& other) const { return present_ == other.present_ && values_ == other.values_; }

 private:
  static size_t index(Attr attr) { return static_cast<size_t>(attr); }
  std::array<double, kAttrCount> values_{};
  uint64_t present_ = 0;
};

// What a shape rule sees and says: the types of the inputs, and the activation type of the graph; it returns the types
// of the outputs or throws Error with the mismatch.
struct OpTypes {
  std::span<const ValueType> inputs;
  const Attrs& attrs;
  DType activation;
};

struct OpInfo {
  Op op;
  std::string_view name;
  int min_inputs, max_inputs, outputs;
  bool has_cache;  // appends to the cache named by its `cache` attribute: never removed, never reordered with another
  std::vector<Attr> attrs;  // required
  std::vector<ValueType> (*types)(const OpTypes&);
};

const OpInfo& op_info(Op op);
std::optional<Op> parse_op(std::string_view name);

}  // namespace moesaic
