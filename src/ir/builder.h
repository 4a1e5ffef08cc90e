// Builder: how a model file declares its graph. Weight names are the Hugging Face names under the current scope.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "ir/graph.h"
#include "ir/rope.h"

namespace moesaic {

struct BuildOptions {
  DType activation = DType::f32;
  DType cache = DType::f32;  // elements of keys and values
  // Whether the checkpoint holds a tensor; optional biases depend on it. Null: nothing optional.
  std::function<bool(const std::string&)> has_tensor;
  bool hidden = false;  // the graph also outputs `hidden` [T, hidden], which a multi-token prediction layer reads
};

struct LinearOptions {
  bool bias = false;
};

struct GqaShape {
  int64_t heads, kv_heads, head_dim;
  double scale;
  int64_t window = 0;  // keys visible to a query, itself included; 0 means all
  bool sinks = false;  // weight `sinks` [heads]: one more logit per head that carries no value
};

// Which part of a head rope turns.
struct RopeOptions {
  int64_t begin = 0;         // the first channel that turns; the table says how many do
  bool interleaved = false;  // pairs (2i, 2i + 1) instead of (i, i + R/2)
  bool inverse = false;      // turns back
};

struct MlaShape {
  int64_t heads, nope_dim, rope_dim, v_dim;
  double scale;
};

struct IndexShape {
  int64_t heads, head_dim, top_k;
  double scale;
  int64_t hash_bits = 0;  // > 0: keys are cached as that many sign bits, and scores estimated from them
  int64_t ratio = 1;      // > 1: keys are compressed entries of so many tokens
};

// Residual streams side by side, [T, count * H].
struct StreamShape {
  int64_t count;
  double eps, hc_eps;  // of the root mean square; of the sums of Sinkhorn-Knopp
  int64_t iterations = 0;
};
// What a sublayer reads, [T, H], and how its output goes back into the streams.
struct StreamMix {
  Value x, post, comb;
};

struct EntryShape {
  int64_t heads, head_dim;
  double scale;
  int64_t window;     // tokens visible to a query, itself included
  int64_t ratio = 0;  // tokens of a compressed entry; 0: there are none
};

struct KdaShape {
  int64_t heads, head_dim, v_dim;  // head_dim: channels of a key
};

struct MoeShape {
  int64_t experts, top_k, hidden, intermediate;
  double limit, alpha;  // clamped SwiGLU; limit 0 means no clamp
};

// A router whose choice and weights are apart (op route).
struct RouteShape {
  int64_t experts, top_k;
  Scoring scoring;
  bool bias = false;  // weight `<name>.e_score_correction_bias`, added for the choice alone
  int64_t groups = 1, top_groups = 1;
  bool normalize = true;  // weights of the chosen sum to 1 before routed_scale
  double routed_scale = 1;
};
// Weights [T,k] and ids [T,k] of the chosen experts.
struct Routed {
  Value weights, ids;
};

// Gate and up projections, elementwise.
struct GluShape {
  Activation activation = Activation::silu;
  double limit = 0;                  // silu: 0 means no clamp
  double beta = 0, linear_beta = 0;  // situ
};

// Names of one projection of all experts: a tensor each, with "{}" for the number, perhaps under another spelling, or
// one tensor of which it is a part.
struct ExpertNames {
  std::string each, other = {}, fused = {};
  int part = 0, parts = 1;
};

// The tensor of several weights' rows one after the other, where a checkpoint has that instead, and which part this is.
struct FusedRows {
  std::string tensor = {};
  int part = 0, parts = 1;
};

class Builder {
 public:
  Builder(Graph& graph, const BuildOptions& options) : graph_(graph), options_(options) {
    graph.activation = options.activation;
  }

  // Prefixes weight names until the returned guard goes out of scope: scope("model.layers", 3).
  class Scope {
   public:
    Scope(Builder& builder, size_t length) : builder_(builder), length_(length) {}
    ~Scope() { builder_.scope_.resize(length_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Builder& builder_;
    size_t length_;
  };
  [[nodiscard]] Scope scope(const std::string& name);
  [[nodiscard]] Scope scope(const std::string& name, int64_t index);

  Value embed(const std::string& name, int64_t vocab, int64_t hidden);  // [T, hidden]
  Value rms_norm(Value x, const std::string& name, double eps);         // like x
  // Each of `heads` heads on its own: one weight [D] for all, or none where `name` is empty.
  Value head_norm(Value x, const std::string& name, int64_t heads, double eps);
  Value linear(Value x, const std::string& name, int64_t out, LinearOptions options = {});
  Value glu(Value gate, Value up, const GluShape& shape);
  // A softmax mix of earlier blocks and the running prefix; weights <name>_norm.weight and <name>_proj.weight.
  Value attn_res(Value prefix, const std::vector<Value>& blocks, const std::string& name, double eps);
  Value add(Value x, Value y);
  // [T, head_dim/2, 2]: angles of each token, or of the first token of its window of `ratio`.
  Value rope_table(const RopeConfig& rope, int64_t head_dim, int64_t ratio = 1);
  Value rope(Value x, Value table, int64_t heads, int64_t head_dim, RopeOptions options = {});  // like x
  Value gqa(Value q, Value k, Value v, const GqaShape& shape);
  Value layer_norm(Value x, const std::string& name, double eps);  // like x; weights `name`.weight and `name`.bias
  Value slice(Value x, int64_t begin, int64_t count, int64_t heads = 1);  // [.., heads * count]: part of every head
  Value sigmoid_gate(Value x, Value gate);                                // like x
  // Attention over latents; weight kv_b_proj [heads * (nope + v), L]. `positions`: see index_topk; none: all before.
  Value mla(Value q, Value latent, Value k_pe, const MlaShape& shape, std::optional<Value> positions = {});
  Value index_topk(Value q, Value k, Value weights, const IndexShape& shape);  // positions i32[T, top_k]
  // x times `<name>.weight` [experts, H], then the choice.
  Routed route(Value x, const std::string& name, const RouteShape& shape);
  // As route(), with ids from `<name>.tid2eid` [vocab, k] by token (hash routing).
  Routed route_by_token(Value x, const std::string& name, const RouteShape& shape, int64_t vocab);
  // down(glu(gate z, up z)) of every chosen expert, weighted and summed: [T, H] like z.
  Value experts(Value z, const Routed& routed, int64_t count, int64_t intermediate, const GluShape& glu,
                const ExpertNames& gate, const ExpertNames& up, const ExpertNames& down);
  Value moe(Value x, const MoeShape& shape);  // weights router, experts.gate_up_proj, experts.down_proj and biases
  // silu of a causal convolution over time, by channel; weight `name`.weight [C, 1, width], last tap the token itself.
  Value short_conv(Value x, const std::string& name, int64_t width, const FusedRows& fused = {});
  // Log decays from z [T, heads * D]; weights A_log [heads], which may come padded, and dt_bias [heads * D].
  Value kda_gate(Value z, int64_t heads, std::optional<double> lower_bound = {});                 // like z
  Value kda(Value q, Value k, Value v, Value decay, Value b, const KdaShape& shape);              // [T, heads * v_dim]
  Value gated_rms_norm(Value x, const std::string& name, Value gate, int64_t heads, double eps);  // like x, by head
  // Hyper-connections: n copies of x; the mix before a sublayer, weights <name>_fn, _base and _scale; the streams after
  // it; their final collapse.
  Value hc_expand(Value x, int64_t streams);
  StreamMix hc_pre(Value streams, const std::string& name, const StreamShape& shape);
  Value hc_post(Value y, Value streams, const StreamMix& mix);
  Value hc_head(Value streams, const std::string& name, const StreamShape& shape);
  // Pooled windows of `ratio` tokens [T, D], see the op table; weight `ape` [ratio, c * D].
  Value compress(Value kv, Value gate, int64_t ratio, bool overlap);
  // Weight `sinks_name` [heads]. `entries` none: the window alone; `positions` none: all entries.
  Value entry_attend(Value q, Value kv, const std::string& sinks_name, const EntryShape& shape,
                     std::optional<Value> entries = {}, std::optional<Value> positions = {});
  Value grouped_linear(Value x, const std::string& name, int64_t out, int64_t groups);  // [T, out]
  Value last_token(Value x);                                                            // [S, hidden]
  // x beside the normalised hidden state of each token, as wide as x: weight `name`.weight.
  Value join_hidden(Value x, const std::string& name, double eps);  // [T, 2 * hidden]
  // Vision towers: see the op table for all of these.
  Value patches(int64_t width);                                                                          // [T, width]
  Value grid_embed(const std::string& name, int64_t rows, int64_t columns, int64_t hidden, bool cubic);  // [T, hidden]
  Value grid_rope_table(double theta, int64_t head_dim);                         // [T, head_dim/2, 2]
  Value full_attention(Value q, Value k, Value v, int64_t heads, double scale);  // like q
  Value gelu(Value x, bool approximate);                                         // like x
  Value merge_patches(Value x, int64_t side);                                    // [S, side * side * H]
  int64_t width(Value x) const { return graph_.type(x).dim(-1).factor; }
  // Names a value for `moesaic diff`: "hidden.3".
  void name(Value value, const std::string& name) { graph_.info(value).name = name; }
  void output(const std::string& name, Value value) { graph_.outputs.emplace_back(name, value); }
  // lm_head: `name`.weight [vocab, K], or the embedding `tied` where that is what the checkpoint has (empty: never).
  Value head(Value x, const std::string& name, int64_t vocab, const std::string& tied);

  // Every name of every weight declared so far becomes what `spelled` makes of it: checkpoints that spell them
  // otherwise.
  void rename_weights(const std::function<std::string(const std::string&)>& spelled);

  const BuildOptions& options() const { return options_; }
  bool has_tensor(const std::string& name) const { return options_.has_tensor && options_.has_tensor(name); }
  // The same for a name in the current scope.
  bool has_here(const std::string& name) const { return has_tensor(label(name)); }

 private:
  std::string label(const std::string& name) const { return scope_.empty() ? name : scope_ + "." + name; }
  Value weight(const std::string& name, WeightKind kind, Shape shape, const std::string& fallback = {});
  Routed route_op(Value logits, std::vector<Value> more, const std::string& name, const RouteShape& shape);
  Value expert_weight(const ExpertNames& names, int64_t experts, int64_t rows, int64_t columns);
  Value op(Op op, std::vector<Value> inputs, Attrs attrs, const std::string& name) {
    return graph_.add(op, std::move(inputs), attrs, label(name))->outputs[0];
  }

  Graph& graph_;
  const BuildOptions& options_;
  std::string scope_;
};

}  // namespace moesaic
