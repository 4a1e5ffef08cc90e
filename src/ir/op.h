// The op table: everything a graph can say, one row an op.
//
//   op             inputs                                      outputs                      attributes
//   embed          table[V,H]                                  x[T,H]
//   rms_norm       x[*,H], weight[H]                           y[*,H]                       eps
//   add            x, y                                        x + y
//   add_rms_norm   x[*,H], y[*,H], weight[H]                   x + y, its norm              eps
//   linear         x[*,K], weight[N,K] (, bias[N])             y[*,N]
//   rope_table                                                 cos and sin [T,D/2,2]        theta, head_dim, YaRN's
//   rope           x[T,heads*D], table                         y[T,heads*D]                 heads, head_dim
//   gqa            q[T,Hq*D], k[T,Hkv*D], v (, sinks[Hq])      o[T,Hq*D]                    heads, kv_heads, head_dim,
//                                                                                           scale, window, cache
//   moe            x[T,H], router, its bias, gate_up, bias,    y[T,H]                       experts, top_k, limit, alpha
//                  down, bias
//   route          logits[T,E]                                 weights[T,k], ids i32[T,k]   top_k
//   dispatch       ids[T,k]                                    rows i32[T*k], offsets i32[E+1], places i32[T*k]  experts
//   expert_linear  x, rows, offsets, weight[E,N,K], bias[E,N]  y[T*k,N]                     gather
//   expert_swiglu  as expert_linear                            y[T*k,N/2]                   gather, limit, alpha
//   clamped_swiglu h[*,2I] (gate and up interleaved)           y[*,I]                       limit, alpha
//   combine        y[T*k,H], places, weights[T,k]              out[T,H]
//   last_token     x[T,H]                                      y[S,H]
//
// dispatch sorts the routed rows by expert: `rows` holds the token of each, expert e's are offsets[e] to offsets[e+1],
// and `places` says where slot j of token t went (index t*k + j). expert ops with gather=1 read x by token.
//
// Every op reads its activations once and writes its outputs; gqa also appends to its cache. `embed`, `rope_table`,
// `gqa` and `last_token` read the step's batch (token ids, positions, sequences).
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
  embed, rms_norm, add, add_rms_norm, linear, rope_table, rope, gqa, moe, route, dispatch, expert_linear, expert_swiglu,
  clamped_swiglu, combine, last_token,
};
constexpr int kOpCount = static_cast<int>(Op::last_token) + 1;

enum class Attr : uint8_t {
  eps, heads, kv_heads, head_dim, scale, window, cache, experts, top_k, limit, alpha, gather,
  theta, factor, beta_fast, beta_slow, original_positions, truncate, attention_factor,
};
constexpr int kAttrCount = static_cast<int>(Attr::attention_factor) + 1;

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
    present_ |= 1u << index(attr);
  }
  bool has(Attr attr) const { return (present_ >> index(attr) & 1) != 0; }
  double number(Attr attr) const {
    CHECK(has(attr), "attribute {} is missing", attr_name(attr));
    return values_[index(attr)];
  }
  float real(Attr attr) const { return static_cast<float>(number(attr)); }
  int64_t integer(Attr attr) const { return static_cast<int64_t>(number(attr)); }
  bool operator==(const Attrs& other) const { return present_ == other.present_ && values_ == other.values_; }

 private:
  static size_t index(Attr attr) { return static_cast<size_t>(attr); }
  std::array<double, kAttrCount> values_{};
  uint32_t present_ = 0;
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
