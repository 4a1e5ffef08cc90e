#include <algorithm>
#include <map>

#include "ir/passes/passes.h"

namespace moesaic {
namespace {

bool of_mxfp4(const Graph& graph, const Node& node) {
  if (node.op != Op::expert_linear && node.op != Op::expert_swiglu) return false;
  const WeightSpec* weight = graph.weight(node.inputs[3]);
  return weight != nullptr && weight->format == Format::mxfp4 && graph.type(node.inputs[0]).dtype != DType::e4m3;
}

// `value` as FP8, right behind the op that makes it; invalid where a graph input does.
Value quantized(Graph& graph, Value value) {
  const auto& nodes = graph.nodes();
  const auto def =
      std::find_if(nodes.begin(), nodes.end(), [&](const auto& node) { return node.get() == graph.info(value).def; });
  if (def == nodes.end() || def + 1 == nodes.end()) return {};
  return graph.add(Op::quantize, {value}, {}, (*def)->label + ".quantize", (def + 1)->get())->outputs[0];
}

}  // namespace

void quantize_experts(Graph& graph) {
  std::vector<const Node*> found;
  for (const auto& node : graph.nodes())
    if (of_mxfp4(graph, *node)) found.push_back(node.get());
  std::map<int, Value> made;
  for (const Node* node : found) {
    const Value x = node->inputs[0];
    if (!made.contains(x.id)) made[x.id] = quantized(graph, x);
    if (made[x.id].id < 0) continue;
    std::vector<Value> inputs = node->inputs;
    inputs[0] = made[x.id];
    const Node* fused = graph.add(node->op, std::move(inputs), node->attrs, node->label, node);
    graph.replace_uses(node->outputs[0], fused->outputs[0]);
    graph.remove(*node);
  }
}

}  // namespace moesaic
