// Graph: ops on values, in execution order. A model file builds one (ir/builder.h), passes rewrite it, compile() lowers
// it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ir/cache_spec.h"
#include "ir/op.h"
#include "ir/weight_spec.h"

namespace moesaic {

// A handle to a value of one Graph.
struct Value {
  int id = -1;
  bool operator==(const Value&) const = default;
};

struct Node {
  Op op;
  std::vector<Value> inputs;
  std::vector<Value> outputs;
  Attrs attrs;
  std::string label;  // scope in the model, for tables and messages: "model.layers.3.self_attn.q_proj"
};

class Graph {
 public:
  struct ValueInfo {
    ValueType type;
    std::string name;     // "hidden.3": compared by `moesaic diff`; empty for most
    Node* def = nullptr;  // null for a weight
    int weight = -1;      // index into weights
  };

  Graph() = default;
  Graph(Graph&&) = default;
  Graph& operator=(Graph&&) = default;
  Graph clone() const;

  std::string family;             // "gpt_oss"
  DType activation = DType::f32;  // type of activations: f64 on the reference backend
  std::vector<WeightSpec> weights;
  std::vector<CacheDecl> caches;
  std::vector<std::pair<std::string, Value>> outputs;  // "logits"

  const std::vector<std::unique_ptr<Node>>& nodes() const { return nodes_; }
  ValueInfo& info(Value value) { return values_[static_cast<size_t>(value.id)]; }
  const ValueInfo& info(Value value) const { return values_[static_cast<size_t>(value.id)]; }
  const ValueType& type(Value value) const { return info(value).type; }
  size_t value_count() const { return values_.size(); }
  const WeightSpec* weight(Value value) const {
    return info(value).weight < 0 ? nullptr : &weights[static_cast<size_t>(info(value).weight)];
  }

  // Declares a weight once; a second call with the same name returns the same value (and checks that the spec agrees).
  Value add_weight(WeightSpec spec);
  // Appends an op, or inserts it before `before`; output types follow from the op table.
  Node* add(Op op, std::vector<Value> inputs, Attrs attrs, std::string label, const Node* before = nullptr);

  // Every use of `from` (inputs and outputs of the graph) becomes `to`; `to` takes over `from`'s name.
  void replace_uses(Value from, Value to);
  int use_count(Value value) const;
  // Removes one op, whose results nobody may read any more.
  void remove(const Node& node);
  // Removes ops whose results nobody reads (ops that write a cache stay).
  void remove_dead();
  // Recomputes every output type from the op table, for example after `activation` changed.
  void infer_types();

 private:
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<ValueInfo> values_;
};

// Throws Error(internal), naming the op, when the graph breaks a rule of the op table, reads a value before it is made,
// or an output or weight dangles.
void verify(const Graph& graph);

// Text that parse_graph reads back: print(parse(print(g))) == print(g).
std::string print(const Graph& graph);
Graph parse_graph(std::string_view text);
// One op as it stands in print().
std::string print(const Graph& graph, const Node& node);

}  // namespace moesaic
