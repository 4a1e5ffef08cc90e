#include "ir/passes/passes.h"

namespace moesaic {
namespace {

Attrs pick(const Attrs& from, std::initializer_list<Attr> wanted) {
  Attrs attrs;
  for (Attr attr : wanted) attrs.set(attr, from.number(attr));
  return attrs;
}

void fold(Graph& graph, const Node& mla) {
  const auto add = [&](Op op, std::vector<Value> inputs, std::initializer_list<Attr> attrs, const char* name) {
    return graph.add(op, std::move(inputs), pick(mla.attrs, attrs), mla.label + "." + name, &mla)->outputs[0];
  };
  const Value kv_b = mla.inputs[3];
  const Value q =
      add(Op::mla_absorb, {mla.inputs[0], kv_b}, {Attr::heads, Attr::nope_dim, Attr::rope_dim, Attr::v_dim}, "absorb");
  std::vector<Value> inputs = {q, mla.inputs[1], mla.inputs[2]};
  if (mla.inputs.size() > 4) inputs.push_back(mla.inputs[4]);
  const Value latents = add(Op::mla_attend, inputs, {Attr::heads, Attr::rope_dim, Attr::scale, Attr::cache}, "attend");
  graph.replace_uses(mla.outputs[0],
                     add(Op::mla_up, {latents, kv_b}, {Attr::heads, Attr::nope_dim, Attr::v_dim}, "up"));
}

}  // namespace

void fold_mla(Graph& graph) {
  std::vector<const Node*> found;
  for (const auto& node : graph.nodes())
    if (node->op == Op::mla) found.push_back(node.get());
  for (const Node* node : found) {
    fold(graph, *node);
    graph.remove(*node);
  }
}

}  // namespace moesaic
