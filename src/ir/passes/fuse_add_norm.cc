#include "ir/passes/passes.h"

namespace moesaic {

void fuse_add_norm(Graph& graph) {
  std::vector<const Node*> norms;
  for (const auto& node : graph.nodes())
    if (node->op == Op::rms_norm) norms.push_back(node.get());
  for (const Node* norm : norms) {
    const Node* add = graph.info(norm->inputs[0]).def;
    const bool whole_row = norm->inputs.size() == 2 && !norm->attrs.has(Attr::heads);
    if (add == nullptr || add->op != Op::add || !whole_row) continue;
    // The fused op stands where the add stood, so it serves every later reader of the sum.
    const Node* fused = graph.add(Op::add_rms_norm, {add->inputs[0], add->inputs[1], norm->inputs[1]},
                                  {{Attr::eps, norm->attrs.number(Attr::eps)}}, norm->label, add);
    graph.replace_uses(add->outputs[0], fused->outputs[0]);
    graph.replace_uses(norm->outputs[0], fused->outputs[1]);
  }
}

}  // namespace moesaic
