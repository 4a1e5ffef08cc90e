#include <algorithm>
#include <tuple>

#include "ir/passes/passes.h"

namespace moesaic {
namespace {

// How many ops a linear may be moved over: what it writes lives longer for it.
constexpr size_t kFar = 6;

bool movable(const Graph& graph, const Node& node, const Node& first) {
  if (node.op != Op::linear || node.inputs[0].id != first.inputs[0].id) return false;
  const auto& output = graph.info(node.outputs[0]);
  const auto is_weight = [&](Value in) { return graph.info(in).weight >= 0; };
  return output.name.empty() && std::all_of(node.inputs.begin() + 1, node.inputs.end(), is_weight);
}

// The first linear that could stand right behind the run of linears that begins at `begin`, and what stands there now.
std::pair<const Node*, const Node*> find_move(const Graph& graph, size_t begin) {
  const auto& nodes = graph.nodes();
  const Node& first = *nodes[begin];
  size_t end = begin + 1;
  while (end < nodes.size() && movable(graph, *nodes[end], first)) ++end;
  for (size_t i = end + 1; i < std::min(end + kFar, nodes.size()); ++i)
    if (movable(graph, *nodes[i], first)) return {nodes[i].get(), nodes[end].get()};
  return {nullptr, nullptr};
}

}  // namespace

void gather_linears(Graph& graph) {
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    if (graph.nodes()[i]->op != Op::linear) continue;
    for (auto [node, before] = find_move(graph, i); node != nullptr; std::tie(node, before) = find_move(graph, i)) {
      const Node* moved = graph.add(node->op, node->inputs, node->attrs, node->label, before);
      graph.replace_uses(node->outputs[0], moved->outputs[0]);
      graph.remove(*node);
    }
  }
}

}  // namespace moesaic
