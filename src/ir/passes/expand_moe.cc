#include "ir/passes/passes.h"

namespace moesaic {
namespace {

void expand(Graph& graph, const Node& moe) {
  const auto in = [&](int i) { return moe.inputs[static_cast<size_t>(i)]; };
  const Attrs activation{{Attr::limit, moe.attrs.number(Attr::limit)}, {Attr::alpha, moe.attrs.number(Attr::alpha)}};
  const auto add = [&](Op op, std::vector<Value> inputs, const Attrs& attrs, const char* name) {
    return graph.add(op, std::move(inputs), attrs, moe.label + "." + name, &moe);
  };
  const Value logits = add(Op::linear, {in(0), in(1), in(2)}, {}, "router")->outputs[0];
  const Node* route = add(Op::route, {logits}, {{Attr::top_k, moe.attrs.number(Attr::top_k)}}, "route");
  const Value weights = route->outputs[0], ids = route->outputs[1];
  const Node* table = add(Op::dispatch, {ids}, {{Attr::experts, moe.attrs.number(Attr::experts)}}, "dispatch");
  const Value rows = table->outputs[0], offsets = table->outputs[1], places = table->outputs[2];
  const Value up =
      add(Op::expert_linear, {in(0), rows, offsets, in(3), in(4)}, {{Attr::gather, 1}}, "gate_up_proj")->outputs[0];
  const Value h = add(Op::clamped_swiglu, {up}, activation, "activation")->outputs[0];
  const Value down =
      add(Op::expert_linear, {h, rows, offsets, in(5), in(6)}, {{Attr::gather, 0}}, "down_proj")->outputs[0];
  graph.replace_uses(moe.outputs[0], add(Op::combine, {down, places, weights}, {}, "combine")->outputs[0]);
}

}  // namespace

void expand_moe(Graph& graph) {
  std::vector<const Node*> found;
  for (const auto& node : graph.nodes())
    if (node->op == Op::moe) found.push_back(node.get());
  for (const Node* node : found) expand(graph, *node);
}

}  // namespace moesaic
