#include "weights/partition.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"

namespace moesaic {
namespace {

// Columns of a weight that share a scale: slices along K end on their borders.
int64_t block_columns(const WeightSpec& weight) {
  switch (weight.format) {
    case Format::mxfp4:
    case Format::int4: return 32;
    case Format::fp8: return weight.scale_cols;
    case Format::plain: break;
  }
  return 1;
}

int split_dim(Split split, const WeightSpec& weight) {
  const int rank = weight.shape.rank();
  if (split == Split::rows) return weight.kind == WeightKind::vector ? 0 : rank - 2;
  if (split == Split::columns) return rank - 1;
  return split == Split::experts ? 0 : -1;
}

// Weights and values that are divided together, because an op works on each unit (a head, a column) by itself.
struct Group {
  struct Member {
    int index;      // of a weight, a value or a cache
    Split split;    // of a weight
    int64_t units;  // in the member: those of the group, or fewer, each shared by several of the group (kv heads)
  };
  explicit Group(int64_t count) : units(count) {}

  int64_t units;
  bool possible = true;  // false: an op in between has no rule, everything stays whole
  std::vector<Member> weights, values, caches;
  std::set<const Node*> nodes;  // that work on the units
};

class Partitioner {
 public:
  Partitioner(const Graph& graph, int ranks) : graph_(graph), users_(graph.value_count()) {
    partition_.ranks = ranks;
    partition_.weights.resize(graph.weights.size());
    partition_.values.resize(graph.value_count());
    partition_.caches.resize(graph.caches.size());
    for (const auto& node : graph.nodes())
      for (Value in : node->inputs) users_[static_cast<size_t>(in.id)].push_back(node.get());
  }

  Partition run() {
    for (const auto& node : graph_.nodes()) visit(*node);
    return std::move(partition_);
  }

 private:
  void visit(const Node& node) {
    switch (node.op) {
      case Op::embed: return split_alone(node.inputs[0], Split::rows);
      case Op::linear: return visit_linear(node);
      case Op::gqa: return visit_gqa(node);
      case Op::mla:
      case Op::mla_attend: return visit_heads(node, 1);
      case Op::kda: return visit_heads(node, 5);
      case Op::entry_attend: return visit_entries(node);
      case Op::glu: return visit_glu(node);
      case Op::moe:
      case Op::expert_linear:
      case Op::expert_swiglu:
        for (Value in : node.inputs) split_experts(in);
        return;
      default: return;
    }
  }

  // The head: logits of a slice of the vocabulary.
  void visit_linear(const Node& node) {
    if (partition_.weights[weight_index(node.inputs[1])].split != Split::replicated) return;  // by its inputs already
    for (const auto& output : graph_.outputs) {
      if (output.second != node.outputs[0]) continue;
      for (size_t i = 1; i < node.inputs.size(); ++i) split_alone(node.inputs[i], Split::rows);
    }
  }

  void split_alone(Value value, Split split) {
    const WeightSpec& weight = *graph_.weight(value);
    const int64_t extent = weight.shape[split_dim(split, weight)];
    partition_.weights[weight_index(value)] = {split, shard(extent, partition_.ranks)};
  }

  void split_experts(Value value) {
    const WeightSpec* weight = graph_.weight(value);
    if (weight == nullptr || weight->shape.rank() < 2 || weight->kind == WeightKind::matrix) return;
    split_alone(value, Split::experts);
  }

  void visit_gqa(const Node& node) {
    const int64_t heads = node.attrs.integer(Attr::heads), kv_heads = node.attrs.integer(Attr::kv_heads);
    Group group(partition_.ranks <= kv_heads ? kv_heads : heads);
    group.nodes.insert(&node);
    back(group, node.inputs[0], group.units);
    for (size_t i : {1, 2}) back(group, node.inputs[i], kv_heads);
    if (node.inputs.size() > 3) add_rows(group, node.inputs[3], group.units);
    group.caches.push_back({static_cast<int>(node.attrs.integer(Attr::cache)), {}, kv_heads});
    forward(group, node.outputs[0]);
    apply(group);
  }

  // Latent attention, whose cache every rank keeps whole; and delta attention, whose state is by head.
  void visit_heads(const Node& node, size_t inputs) {
    Group group(node.attrs.integer(Attr::heads));
    group.nodes.insert(&node);
    for (size_t i = 0; i < inputs; ++i) back(group, node.inputs[i], group.units);
    if (node.op == Op::mla) add_rows(group, node.inputs[3], group.units);
    if (node.op == Op::kda)
      group.caches.push_back({static_cast<int>(node.attrs.integer(Attr::cache)), {}, group.units});
    forward(group, node.outputs[0]);
    apply(group);
  }

  // One head of keys, which are the values too, whole on every rank. Heads stay together that one group of the output's
  // projection reads.
  void visit_entries(const Node& node) {
    const Node* next = &node;
    while (next->op == Op::entry_attend || next->op == Op::rope) {
      const auto& users = users_[static_cast<size_t>(next->outputs[0].id)];
      if (users.size() != 1) break;
      next = users[0];
    }
    const bool grouped = next->op == Op::grouped_linear;
    Group group(grouped ? next->attrs.integer(Attr::groups) : node.attrs.integer(Attr::heads));
    group.nodes.insert(&node);
    back(group, node.inputs[0], group.units);
    add_rows(group, node.inputs[2], group.units);
    forward(group, node.outputs[0]);
    apply(group);
  }

  void visit_glu(const Node& node) {
    if (partition_.values[static_cast<size_t>(node.outputs[0].id)].units > 0) return;
    Group group(graph_.type(node.outputs[0]).dim(-1).factor);
    group.nodes.insert(&node);
    for (Value in : node.inputs) back(group, in, group.units);
    forward(group, node.outputs[0]);
    apply(group);
  }

  // From a value back to the linears that make it, whose rows are divided.
  void back(Group& group, Value value, int64_t units) {
    const Node* node = graph_.info(value).def;
    if (node == nullptr || graph_.type(value).dim(-1).factor % units != 0) return fail(group);
    for (const Group::Member& member : group.values)
      if (member.index == value.id) return;
    group.values.push_back({value.id, {}, units});
    group.nodes.insert(node);
    switch (node->op) {
      case Op::linear:
        for (size_t i = 1; i < node->inputs.size(); ++i) add_rows(group, node->inputs[i], units);
        return;
      case Op::rope:
      case Op::rms_norm:  // the weight is one head's
      case Op::slice:
        if (node->attrs.integer(Attr::heads, 1) % units != 0) return fail(group);
        return back(group, node->inputs[0], units);
      case Op::gated_rms_norm: back(group, node->inputs[2], units); return back(group, node->inputs[0], units);
      case Op::sigmoid_gate:
      case Op::add:
      case Op::glu: back(group, node->inputs[1], units); return back(group, node->inputs[0], units);
      case Op::mla_absorb:
      case Op::mla_up: add_rows(group, node->inputs[1], units); return back(group, node->inputs[0], units);
      case Op::kda_gate:
        for (size_t i : {1, 2}) add_rows(group, node->inputs[i], units);
        return back(group, node->inputs[0], units);
      case Op::short_conv:
        add_rows(group, node->inputs[1], units);
        group.caches.push_back({static_cast<int>(node->attrs.integer(Attr::cache)), {}, units});
        return back(group, node->inputs[0], units);
      case Op::gqa:
      case Op::mla:
      case Op::mla_attend:
      case Op::kda:
      case Op::entry_attend: return;  // where the walk forward came from
      default: return fail(group);
    }
  }

  // From a value on to the linears that read it, whose columns are divided.
  void forward(Group& group, Value value) {
    group.values.push_back({value.id, {}, group.units});
    for (const Node* user : users_[static_cast<size_t>(value.id)]) {
      group.nodes.insert(user);
      switch (user->op) {
        case Op::linear:
          group.weights.push_back({graph_.info(user->inputs[1]).weight, Split::columns, group.units});
          break;
        case Op::mla_up:
          add_rows(group, user->inputs[1], group.units);
          forward(group, user->outputs[0]);
          break;
        case Op::grouped_linear:
          add_rows(group, user->inputs[1], group.units);
          forward(group, user->outputs[0]);
          break;
        case Op::rope:
          if (user->attrs.integer(Attr::heads) % group.units != 0) return fail(group);
          forward(group, user->outputs[0]);
          break;
        case Op::gated_rms_norm: forward_past(group, value, user, user->inputs[2]); break;
        case Op::sigmoid_gate: forward_past(group, value, user, user->inputs[user->inputs[0] == value ? 1 : 0]); break;
        default: fail(group);
      }
    }
  }

  void forward_past(Group& group, Value value, const Node* user, Value other) {
    if (other != value) back(group, other, group.units);
    forward(group, user->outputs[0]);
  }

  // A vector that is not made of units (one head's) stays whole.
  void add_rows(Group& group, Value value, int64_t units) {
    const WeightSpec* weight = graph_.weight(value);
    if (weight == nullptr) return fail(group);
    const bool is_vector = weight->kind == WeightKind::vector;
    const int64_t extent = is_vector ? weight->shape[0] : weight->shape[-2];
    if (extent % units == 0) group.weights.push_back({graph_.info(value).weight, Split::rows, units});
    else if (!is_vector) fail(group);
  }

  static void fail(Group& group) { group.possible = false; }

  // Units that every slice must be a multiple of.
  int64_t granule(const Group& group) const {
    int64_t units = 1;
    for (const Group::Member& member : group.weights) {
      if (member.split != Split::columns) continue;
      const WeightSpec& weight = graph_.weights[static_cast<size_t>(member.index)];
      const int64_t block = block_columns(weight), width = weight.shape[-1] / group.units;
      units = std::lcm(units, block / std::gcd(block, width));
    }
    return units;
  }

  // Whether somebody else needs the whole of a value.
  bool read_whole(const Group& group) const {
    const auto outside = [&](const Node* user) { return !group.nodes.contains(user); };
    for (const Group::Member& member : group.values) {
      const auto& users = users_[static_cast<size_t>(member.index)];
      if (std::any_of(users.begin(), users.end(), outside)) return true;
    }
    return false;
  }

  void apply(const Group& group) {
    if (!group.possible || read_whole(group)) return;
    const std::vector<Slice> slices = shard(group.units, partition_.ranks, granule(group));
    // A member with fewer units than the group has those that a rank's units touch.
    const auto own = [&](int64_t units, int64_t width) {
      std::vector<Slice> scaled;
      for (Slice s : slices) {
        const int64_t each = group.units / units;
        scaled.push_back(
            {s.begin / each * width, s.size() == 0 ? s.begin / each * width : (s.end + each - 1) / each * width});
      }
      return scaled;
    };
    for (const Group::Member& m : group.weights) {
      const WeightSpec& weight = graph_.weights[static_cast<size_t>(m.index)];
      const int64_t extent = weight.shape[split_dim(m.split, weight)];
      partition_.weights[static_cast<size_t>(m.index)] = {m.split, own(m.units, extent / m.units)};
    }
    for (const Group::Member& m : group.values)
      partition_.values[static_cast<size_t>(m.index)] = {m.units, own(m.units, 1)};
    for (const Group::Member& m : group.caches)
      partition_.caches[static_cast<size_t>(m.index)] = {m.units, own(m.units, 1)};
  }

  size_t weight_index(Value value) const { return static_cast<size_t>(graph_.info(value).weight); }

  const Graph& graph_;
  std::vector<std::vector<const Node*>> users_;
  Partition partition_;
};

}  // namespace

int WeightPart::dim(const WeightSpec& weight) const {
  return split_dim(split, weight);
}

Shape WeightPart::shape(const WeightSpec& weight, int rank) const {
  std::vector<int64_t> dims(weight.shape.dims().begin(), weight.shape.dims().end());
  if (split != Split::replicated) dims[static_cast<size_t>(dim(weight))] = slices[static_cast<size_t>(rank)].size();
  return Shape(dims);
}

Partition partition(const Graph& graph, int ranks) {
  CHECK(ranks > 0, "{} ranks", ranks);
  return Partitioner(graph, ranks).run();
}

int64_t part_bytes(const WeightSpec& weight, const WeightPart& part, int rank) {
  WeightSpec own = weight;
  own.shape = part.shape(weight, rank);
  if (own.shape.elements() == 0) return 0;
  int64_t bytes = weight_bytes(own);
  if (weight.format == Format::fp8 && part.split == Split::rows) {  // a slice may begin inside a block of scales
    const int64_t scale_columns = (own.shape[-1] + own.scale_cols - 1) / own.scale_cols;
    const Slice grid = scale_rows_of(part.slices[static_cast<size_t>(rank)], own.scale_rows).grid;
    bytes += 4 * (grid.size() * scale_columns - fp8_scale_count(own));
  }
  return bytes;
}

Graph rank_shapes(const Graph& graph, const Partition& partition, int rank) {
  Graph own = graph.clone();
  int64_t experts = INT64_MAX;  // of a layer that the rank owns, in the layer where it owns most
  for (size_t i = 0; i < own.weights.size(); ++i) {
    const WeightPart& part = partition.weights[i];
    own.weights[i].shape = part.shape(graph.weights[i], rank);
    if (part.split != Split::experts) continue;
    experts = std::max(experts == INT64_MAX ? 0 : experts, own.weights[i].shape[0]);
  }
  for (size_t i = 0; i < own.value_count(); ++i) {
    ValueType& type = own.info(Value{static_cast<int>(i)}).type;
    if (own.info(Value{static_cast<int>(i)}).weight >= 0) continue;
    type.dims.back().factor = partition.values[i].of(type.dims.back().factor, rank);
    if (type.dims[0].symbol == Symbol::T) type.dims[0].factor = std::min(type.dims[0].factor, experts);
  }
  return own;
}

}  // namespace moesaic
