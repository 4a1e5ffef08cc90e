#include "ir/passes/passes.h"

namespace moesaic {
namespace {

// The rotation that makes `value`, for nobody else, of channels [begin, end of the head); null: there is none.
const Node* rotation_of(const Graph& graph, Value value, int64_t begin) {
  const Node* rope = graph.info(value).def;
  if (rope == nullptr || rope->op != Op::rope || graph.use_count(value) != 1 || !graph.info(value).name.empty())
    return nullptr;
  const Attrs& attrs = rope->attrs;
  const bool to_the_end = begin + 2 * graph.type(rope->inputs[1]).dim(1).factor == attrs.integer(Attr::head_dim);
  return to_the_end && attrs.integer(Attr::begin, 0) == begin && attrs.integer(Attr::inverse, 0) == 0 ? rope : nullptr;
}

bool turn_alike(const Node& a, const Node& b) {
  return a.inputs[1].id == b.inputs[1].id &&
         a.attrs.integer(Attr::interleaved, 0) == b.attrs.integer(Attr::interleaved, 0);
}

// `attention` on inputs as they were before q_rope and k_rope.
void replace(Graph& graph, const Node& attention, const Node& q_rope, std::vector<Value> inputs) {
  inputs.push_back(q_rope.inputs[1]);
  Attrs attrs = attention.attrs;
  const Rotate how = q_rope.attrs.integer(Attr::interleaved, 0) != 0 ? Rotate::neighbours : Rotate::halves;
  attrs.set(Attr::rotate, static_cast<double>(how));
  const Node* fused = graph.add(attention.op, std::move(inputs), attrs, attention.label, &attention);
  graph.replace_uses(attention.outputs[0], fused->outputs[0]);
  graph.remove(attention);
}

void fuse_gqa(Graph& graph, const Node& gqa) {
  const Node *q = rotation_of(graph, gqa.inputs[0], 0), *k = rotation_of(graph, gqa.inputs[1], 0);
  if (q == nullptr || k == nullptr || !turn_alike(*q, *k)) return;
  std::vector<Value> inputs = gqa.inputs;
  inputs[0] = q->inputs[0], inputs[1] = k->inputs[0];
  replace(graph, gqa, *q, std::move(inputs));
}

// mla_absorb passes the rotated channels on, so that they may as well be turned behind it.
void fuse_mla(Graph& graph, const Node& attend) {
  const Node* absorb = graph.info(attend.inputs[0]).def;
  if (absorb == nullptr || absorb->op != Op::mla_absorb || graph.use_count(attend.inputs[0]) != 1) return;
  const Node* q = rotation_of(graph, absorb->inputs[0], absorb->attrs.integer(Attr::nope_dim));
  const Node* k = rotation_of(graph, attend.inputs[2], 0);
  if (q == nullptr || k == nullptr || !turn_alike(*q, *k)) return;
  const Node* early = graph.add(absorb->op, {q->inputs[0], absorb->inputs[1]}, absorb->attrs, absorb->label, absorb);
  std::vector<Value> inputs = attend.inputs;
  inputs[0] = early->outputs[0], inputs[2] = k->inputs[0];
  replace(graph, attend, *q, std::move(inputs));
}

}  // namespace

void fuse_rope(Graph& graph) {
  std::vector<const Node*> found;
  for (const auto& node : graph.nodes())
    if (node->op == Op::gqa || node->op == Op::mla_attend) found.push_back(node.get());
  for (const Node* node : found) {
    if (node->attrs.has(Attr::rotate)) continue;
    node->op == Op::gqa ? fuse_gqa(graph, *node) : fuse_mla(graph, *node);
  }
}

}  // namespace moesaic
