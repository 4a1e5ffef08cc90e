// Builder: how a model file declares its graph. Weight names are the Hugging Face names under the current scope.
#pragma once

#include <functional>
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
};

struct LinearOptions {
  bool bias = false;
};

struct GqaShape {
  int64_t heads, kv_heads, head_dim;
  double scale;
  int64_t window = 0;   // keys visible to a query, itself included; 0 means all
  bool sinks = false;   // weight `sinks` [heads]: one more logit per head that carries no value
};

struct MoeShape {
  int64_t experts, top_k, hidden, intermediate;
  double limit, alpha;  // clamped SwiGLU; limit 0 means no clamp
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

  Value embed(const std::string& name, int64_t vocab, int64_t hidden);            // [T, hidden]
  Value rms_norm(Value x, const std::string& name, double eps);                   // like x
  Value linear(Value x, const std::string& name, int64_t out, LinearOptions options = {});
  Value add(Value x, Value y);
  Value rope_table(const RopeConfig& rope, int64_t head_dim);                     // [T, head_dim/2, 2]
  Value rope(Value x, Value table, int64_t heads, int64_t head_dim);              // half-split pairs (i, i + D/2)
  Value gqa(Value q, Value k, Value v, const GqaShape& shape);
  Value moe(Value x, const MoeShape& shape);  // weights router, experts.gate_up_proj, experts.down_proj and biases
  Value last_token(Value x);                                                      // [S, hidden]
  // Names a value for `moesaic diff`: "hidden.3".
  void name(Value value, const std::string& name) { graph_.info(value).name = name; }
  void output(const std::string& name, Value value) { graph_.outputs.emplace_back(name, value); }
  // lm_head: `name`.weight [vocab, K], or the embedding `tied` where that is what the checkpoint has (empty: never).
  Value head(Value x, const std::string& name, int64_t vocab, const std::string& tied);

  const BuildOptions& options() const { return options_; }
  bool has_tensor(const std::string& name) const { return options_.has_tensor && options_.has_tensor(name); }

 private:
  std::string label(const std::string& name) const { return scope_.empty() ? name : scope_ + "." + name; }
  Value weight(const std::string& name, WeightKind kind, Shape shape, const std::string& fallback = {});
  Value op(Op op, std::vector<Value> inputs, Attrs attrs, const std::string& name) {
    return graph_.add(op, std::move(inputs), attrs, label(name))->outputs[0];
  }

  Graph& graph_;
  const BuildOptions& options_;
  std::string scope_;
};

}  // namespace moesaic
