#include "ir/passes/passes.h"

namespace moesaic {

void fuse_expert_swiglu(Graph& graph) {
  std::vector<const Node*> activations;
  for (const auto& node : graph.nodes())
    if (node->op == Op::clamped_swiglu) activations.push_back(node.get());
  for (const Node* activation : activations) {
    const Node* linear = graph.info(activation->inputs[0]).def;
    if (linear == nullptr || linear->op != Op::expert_linear || graph.use_count(linear->outputs[0]) != 1) continue;
    Attrs attrs = activation->attrs;
    attrs.set(Attr::gather, linear->attrs.number(Attr::gather));
    const Node* fused = graph.add(Op::expert_swiglu, linear->inputs, attrs, linear->label, activation);
    graph.replace_uses(activation->outputs[0], fused->outputs[0]);
  }
}

}  // namespace moesaic
