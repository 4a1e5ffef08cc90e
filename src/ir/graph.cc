#include "ir/graph.h"

#include <algorithm>
#include <map>

namespace moesaic {

int64_t weight_bytes(const WeightSpec& weight) {
  if (weight.shape.rank() < 2) return weight.shape.elements() * dtype_bytes(weight.dtype);
  return weight.shape.elements() / (weight.shape[-1] * weight.shape[-2]) * matrix_bytes(weight);
}

int64_t matrix_bytes(const WeightSpec& weight) {
  const int64_t n = weight.shape[-1] * weight.shape[-2];
  switch (weight.format) {
    case Format::mxfp4: return n / 2 + n / 32;
    case Format::fp8: return (n + 3) / 4 * 4 + 4 * fp8_scale_count(weight);
    case Format::int4: return n / 2 + 2 * (n / 32);
    case Format::plain: break;
  }
  return n * dtype_bytes(weight.dtype);
}

int64_t fp8_scale_count(const WeightSpec& weight) {
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  return ceil(weight.shape[-2], weight.scale_rows) * ceil(weight.shape[-1], weight.scale_cols);
}

std::string format_name(const WeightSpec& weight) {
  if (weight.format == Format::mxfp4) return "mxfp4";
  if (weight.format == Format::int4) return "int4";
  if (weight.format == Format::fp8) return fmt::format("fp8_{}x{}", weight.scale_rows, weight.scale_cols);
  return std::string(dtype_name(weight.dtype));
}

Graph Graph::clone() const {
  Graph copy;
  copy.family = family;
  copy.activation = activation;
  copy.weights = weights;
  copy.caches = caches;
  copy.outputs = outputs;
  copy.values_ = values_;
  for (const auto& node : nodes_) {
    copy.nodes_.push_back(std::make_unique<Node>(*node));
    for (Value out : node->outputs) copy.info(out).def = copy.nodes_.back().get();
  }
  return copy;
}

Value Graph::add_weight(WeightSpec spec) {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].weight < 0 || weights[static_cast<size_t>(values_[i].weight)].name != spec.name) continue;
    CHECK(weights[static_cast<size_t>(values_[i].weight)].shape == spec.shape, "{} has two shapes", spec.name);
    return Value{static_cast<int>(i)};
  }
  ValueInfo value;
  value.type.dtype = spec.dtype;
  for (int64_t d : spec.shape.dims()) value.type.dims.emplace_back(d);
  value.weight = static_cast<int>(weights.size());
  weights.push_back(std::move(spec));
  values_.push_back(std::move(value));
  return Value{static_cast<int>(values_.size()) - 1};
}

Node* Graph::add(Op op, std::vector<Value> inputs, Attrs attrs, std::string label, const Node* before) {
  std::vector<ValueType> types;
  for (Value in : inputs) types.push_back(type(in));
  std::vector<ValueType> out_types = op_info(op).types({types, attrs, activation});
  auto node = std::make_unique<Node>(Node{op, std::move(inputs), {}, attrs, std::move(label)});
  Node* raw = node.get();
  for (ValueType& t : out_types) {
    ValueInfo made;
    made.type = std::move(t);
    made.def = raw;
    values_.push_back(std::move(made));
    raw->outputs.push_back(Value{static_cast<int>(values_.size()) - 1});
  }
  auto at = nodes_.end();
  if (before != nullptr) at = std::find_if(nodes_.begin(), nodes_.end(), [&](auto& n) { return n.get() == before; });
  nodes_.insert(at, std::move(node));
  return raw;
}

void Graph::replace_uses(Value from, Value to) {
  for (auto& node : nodes_)
    for (Value& in : node->inputs)
      if (in == from) in = to;
  for (auto& output : outputs)
    if (output.second == from) output.second = to;
  if (info(to).name.empty()) info(to).name = std::move(info(from).name);
  info(from).name.clear();
}

int Graph::use_count(Value value) const {
  int64_t uses = std::count_if(outputs.begin(), outputs.end(), [&](auto& o) { return o.second == value; });
  for (const auto& node : nodes_) uses += std::count(node->inputs.begin(), node->inputs.end(), value);
  return static_cast<int>(uses);
}

void Graph::remove(const Node& node) {
  for (Value out : node.outputs) CHECK(use_count(out) == 0, "{} is still read", node.label);
  std::erase_if(nodes_, [&](const auto& n) { return n.get() == &node; });
}

void Graph::remove_dead() {
  std::vector<bool> live(values_.size(), false);
  for (const auto& output : outputs) live[static_cast<size_t>(output.second.id)] = true;
  std::vector<std::unique_ptr<Node>> kept;
  for (auto it = nodes_.rbegin(); it != nodes_.rend(); ++it) {
    const auto is_live = [&](Value v) { return live[static_cast<size_t>(v.id)] || !info(v).name.empty(); };
    Node& node = **it;
    if (!op_info(node.op).has_cache && std::none_of(node.outputs.begin(), node.outputs.end(), is_live)) continue;
    for (Value in : node.inputs) live[static_cast<size_t>(in.id)] = true;
    kept.push_back(std::move(*it));
  }
  std::reverse(kept.begin(), kept.end());
  nodes_ = std::move(kept);
}

void Graph::infer_types() {
  for (auto& node : nodes_) {
    std::vector<ValueType> types;
    for (Value in : node->inputs) types.push_back(type(in));
    const std::vector<ValueType> out = op_info(node->op).types({types, node->attrs, activation});
    for (size_t i = 0; i < out.size(); ++i) info(node->outputs[i]).type = out[i];
  }
}

namespace {

void verify_node(const Graph& graph, const Node& node, std::vector<bool>& made) {
  const OpInfo& row = op_info(node.op);
  const auto fail = [&](const std::string& what) {
    throw Error(StatusCode::internal, what, fmt::format("graph {}: {}", graph.family, print(graph, node)));
  };
  const int inputs = static_cast<int>(node.inputs.size());
  if (inputs < row.min_inputs || inputs > row.max_inputs) fail("wrong number of inputs");
  if (static_cast<int>(node.outputs.size()) != row.outputs) fail("wrong number of outputs");
  for (Attr attr : row.attrs)
    if (!node.attrs.has(attr)) fail(fmt::format("attribute {} is missing", attr_name(attr)));
  if (row.has_cache && static_cast<size_t>(node.attrs.integer(Attr::cache)) >= graph.caches.size())
    fail("unknown cache");
  std::vector<ValueType> types;
  for (Value in : node.inputs) {
    if (in.id < 0 || !made[static_cast<size_t>(in.id)]) fail(fmt::format("%{} is read before it is made", in.id));
    types.push_back(graph.type(in));
  }
  std::vector<ValueType> expected;
  try {
    expected = row.types({types, node.attrs, graph.activation});
  } catch (const Error& error) {
    fail(error.what());
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const Value out = node.outputs[i];
    if (made[static_cast<size_t>(out.id)]) fail(fmt::format("%{} is made twice", out.id));
    if (graph.type(out) != expected[i])
      fail("output type " + to_string(graph.type(out)) + " is not " + to_string(expected[i]));
    made[static_cast<size_t>(out.id)] = true;
  }
}

}  // namespace

void verify(const Graph& graph) {
  std::vector<bool> made(graph.value_count(), false);
  for (size_t i = 0; i < made.size(); ++i) made[i] = graph.info(Value{static_cast<int>(i)}).weight >= 0;
  for (const auto& node : graph.nodes()) verify_node(graph, *node, made);
  for (const auto& [name, value] : graph.outputs)
    if (!made[static_cast<size_t>(value.id)])
      throw Error(StatusCode::internal, fmt::format("output {} is never made", name), "graph " + graph.family);
}

}  // namespace moesaic
