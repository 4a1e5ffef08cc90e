#include "compile/placement.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "compile/compile.h"

namespace moesaic {
namespace {

constexpr int64_t kAlign = 256;  // as compile() aligns
constexpr int64_t kWideExperts = 3;
constexpr int64_t kStagedTokens = 2;

int64_t align(int64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

size_t index(WeightGroup group) {
  return static_cast<size_t>(group);
}

Graph lowered(const Graph& source) {
  Graph graph = source.clone();
  for (const Pass& pass : passes(Backend::cpu, Phase::prefill, Precision::float32)) {
    pass.run(graph);
    graph.remove_dead();
  }
  return graph;
}

// Bytes of activations of one phase, in one rank's shapes.
int64_t activation_bytes(const Graph& graph, Phase phase, const Limits& limits) {
  Lowered lowered;
  lowered.plan.phase = phase;
  lowered.plan.limits = limits;
  for (const auto& node : graph.nodes()) {
    Step step;
    step.label = node->label;
    lowered.plan.steps.push_back(std::move(step));
    lowered.inputs.push_back(node->inputs);
    lowered.outputs.push_back(node->outputs);
  }
  WeightMap nowhere;
  nowhere.slots.resize(graph.weights.size());
  plan_memory(graph, lowered, nowhere);
  return lowered.plan.activation_bytes;
}

bool has_part(std::string_view name, std::initializer_list<std::string_view> parts) {
  const std::string dotted = "." + std::string(name) + ".";
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
    return dotted.find("." + std::string(part) + ".") != std::string::npos;
  });
}

bool is_norm(Op op) {
  return op == Op::rms_norm || op == Op::add_rms_norm || op == Op::layer_norm || op == Op::gated_rms_norm ||
         op == Op::attn_res;
}

// What each weight belongs to, from the ops that read it and the names of its scopes.
std::vector<WeightGroup> weight_groups(const Graph& graph) {
  std::vector<WeightGroup> groups(graph.weights.size(), WeightGroup::other);
  std::set<int> norms, heads;
  for (const auto& node : graph.nodes())
    for (Value in : node->inputs) {
      const int weight = graph.info(in).weight;
      if (is_norm(node->op)) norms.insert(weight);
      for (const auto& output : graph.outputs)
        if (output.second == node->outputs[0]) heads.insert(weight);
    }
  for (size_t i = 0; i < groups.size(); ++i) {
    const WeightSpec& weight = graph.weights[i];
    const int id = static_cast<int>(i);
    if (weight.kind == WeightKind::experts || (weight.kind == WeightKind::vector && has_part(weight.name, {"experts"})))
      groups[i] = WeightGroup::experts;
    else if (weight.kind == WeightKind::embedding || heads.contains(id)) groups[i] = WeightGroup::embeddings;
    else if (weight.kind == WeightKind::vector && norms.contains(id)) groups[i] = WeightGroup::norms;
    else if (has_part(weight.name, {"self_attn", "attn"})) groups[i] = WeightGroup::attention;
    else if (has_part(weight.name, {"mlp", "ffn", "block_sparse_moe"})) groups[i] = WeightGroup::dense_mlp;
  }
  return groups;
}

class Placer {
 public:
  Placer(const Graph& source, const PlacementOptions& options)
      : options_(options),
        graph_(lowered(source)),
        partition_(partition(graph_, options.ranks)),
        groups_(weight_groups(graph_)) {}

  Placement place() {
    Placement placement{.options = options_, .expert_share = expert_share(), .ranks = {}};
    const int64_t activations = largest_activations();
    for (int rank = 0; rank < options_.ranks; ++rank) {
      RankPlacement on = place_weights(rank);
      on.activations = activations;
      on.workspace = workspace_bytes();
      place_caches(on, rank);
      if (options_.host_memory > 0) evict(on, rank);
      placement.ranks.push_back(std::move(on));
    }
    return placement;
  }

 private:
  // The first rank owns as much as any other; all plan for it.
  int64_t largest_activations() const {
    const int64_t tokens = std::max(options_.prefill_tokens, options_.batch), batch = options_.batch;
    const Graph shapes = rank_shapes(graph_, partition_, 0);
    return std::max(activation_bytes(shapes, Phase::prefill, {tokens, std::min(tokens, batch), batch}),
                    activation_bytes(shapes, Phase::decode, {batch, batch, batch}));
  }

  RankPlacement place_weights(int rank) const {
    RankPlacement on;
    for (size_t i = 0; i < groups_.size(); ++i) {
      const WeightSpec& weight = graph_.weights[i];
      const WeightPart& part = partition_.weights[i];
      const int64_t bytes = align(weight.kind == WeightKind::vector ? 4 * part.shape(weight, rank).elements()
                                                                    : part_bytes(weight, part, rank));
      on.weights[index(groups_[i])] += bytes;
      const bool looked_up = weight.kind == WeightKind::embedding || weight.kind == WeightKind::table;
      if (groups_[i] != WeightGroup::experts && !looked_up) on.read_always += bytes;
    }
    return on;
  }

  void place_caches(RankPlacement& on, int rank) const {
    for (size_t i = 0; i < graph_.caches.size(); ++i) {
      const CacheSpec& whole = graph_.caches[i].spec;
      const Share& share = partition_.caches[i];
      CacheSpec own = whole;
      own.bytes_per_entry = share.of(whole.bytes_per_entry, rank);
      own.bytes_per_sequence = share.of(whole.bytes_per_sequence, rank);
      on.block_bytes += align(own.block_bytes());
      on.slot_bytes += align(own.bytes_per_sequence);
      on.cache_reads.push_back({own.bytes_per_entry, own.bytes_per_sequence, own.tokens_per_entry, most_tokens(i)});
    }
    on.cache = on.cache_bytes(options_.batch, options_.context);
  }

  // Positions of a sequence that the op of a cache reads at most.
  int64_t most_tokens(size_t cache) const {
    for (const auto& node : graph_.nodes()) {
      const bool is_attention = node->op == Op::mla || node->op == Op::mla_attend || node->op == Op::entry_attend;
      const size_t positions = node->op == Op::mla_attend ? 3 : 4;
      if (!is_attention || node->inputs.size() <= positions) continue;
      if (node->attrs.integer(Attr::cache) == static_cast<int64_t>(cache))
        return graph_.type(node->inputs[positions]).dim(1).factor * graph_.caches[cache].spec.tokens_per_entry;
    }
    return INT64_MAX;
  }

  double expert_share() const {
    for (const auto& node : graph_.nodes())
      if (node->op == Op::expert_linear || node->op == Op::expert_swiglu)
        return static_cast<double>(chosen(*node)) / static_cast<double>(graph_.type(node->inputs[3]).dim(0).factor);
    return 0;
  }

  int64_t chosen(const Node& node) const { return graph_.type(node.inputs[1]).dim(0).factor; }

  int64_t most_chosen() const {
    int64_t most = 0;
    for (const auto& node : graph_.nodes())
      if (node->op == Op::expert_linear || node->op == Op::expert_swiglu) most = std::max(most, chosen(*node));
    return most;
  }

  int64_t workspace_bytes() const {
    int64_t widest = 0;
    for (const WeightSpec& weight : graph_.weights)
      if (weight.kind == WeightKind::experts && (weight.format == Format::mxfp4 || weight.format == Format::int4))
        widest = std::max(widest, weight.shape[-1] * weight.shape[-2]);
    return align(kWideExperts * widest);
  }

  // Bytes and number of the rank's experts, by layer.
  struct Layer {
    int64_t expert_bytes = 0, experts = 0;
  };
  std::vector<Layer> expert_layers(int rank) const {
    std::map<std::string, Layer> layers;
    for (size_t i = 0; i < groups_.size(); ++i) {
      const WeightSpec& weight = graph_.weights[i];
      if (weight.kind != WeightKind::experts) continue;
      Layer& layer = layers[weight.name.substr(0, weight.name.find("experts"))];
      layer.expert_bytes += matrix_bytes(weight);
      layer.experts = partition_.weights[i].shape(weight, rank)[0];
    }
    std::vector<Layer> all;
    for (const auto& item : layers) all.push_back(item.second);
    return all;
  }

  void evict(RankPlacement& on, int rank) const {
    if (on.total() <= options_.device.memory_bytes) return;
    std::vector<Layer> layers = expert_layers(rank);
    int64_t largest = 0, left = 0;
    for (const Layer& layer : layers) largest = std::max(largest, layer.expert_bytes), left += layer.experts;
    on.staging = kStagedTokens * most_chosen() * largest;
    for (size_t next = 0; left > 0 && on.total() > options_.device.memory_bytes; next = (next + 1) % layers.size()) {
      if (layers[next].experts == 0) continue;
      --layers[next].experts, --left;
      on.weights[index(WeightGroup::experts)] -= layers[next].expert_bytes;
      on.host_experts += layers[next].expert_bytes;
    }
  }

  const PlacementOptions options_;
  const Graph graph_;
  const Partition partition_;
  const std::vector<WeightGroup> groups_;
};

}  // namespace

std::string_view weight_group_name(WeightGroup group) {
  constexpr std::string_view kNames[] = {"attention", "dense_mlp", "experts", "embeddings", "norms", "other"};
  static_assert(std::size(kNames) == kWeightGroupCount);
  return kNames[index(group)];
}

int64_t CacheRead::bytes(int64_t context) const {
  return std::min(context, most_tokens) / tokens_per_entry * bytes_per_entry + bytes_per_sequence;
}

int64_t RankPlacement::weight_bytes() const {
  int64_t bytes = 0;
  for (int64_t group : weights) bytes += group;
  return bytes;
}

int64_t RankPlacement::cache_bytes(int64_t sequences, int64_t context) const {
  return sequences * ((context + kBlockTokens - 1) / kBlockTokens * block_bytes + slot_bytes);
}

int64_t Placement::host_experts() const {
  int64_t bytes = 0;
  for (const RankPlacement& rank : ranks) bytes += rank.host_experts;
  return bytes;
}

int64_t Placement::largest() const {
  int64_t bytes = 0;
  for (const RankPlacement& rank : ranks) bytes = std::max(bytes, rank.total());
  return bytes;
}

bool Placement::fits() const {
  return largest() <= options.device.memory_bytes && host_experts() <= options.host_memory;
}

int64_t Placement::sequences(int64_t context) const {
  int64_t count = INT64_MAX;
  for (const RankPlacement& rank : ranks) {
    const int64_t one = rank.cache_bytes(1, context), free = options.device.memory_bytes - rank.total() + rank.cache;
    count = std::min(count, one > 0 ? std::max<int64_t>(free, 0) / one : INT64_MAX);
  }
  return count;
}

Placement place(const Graph& graph, const PlacementOptions& options) {
  CHECK(options.ranks > 0 && options.batch > 0 && options.context > 0, "{} ranks, batch {}, context {}", options.ranks,
        options.batch, options.context);
  return Placer(graph, options).place();
}

StepFloor step_floor(const Placement& placement, int64_t batch) {
  const double hit = 1 - std::pow(1 - placement.expert_share, static_cast<double>(batch));
  StepFloor slowest;
  for (const RankPlacement& rank : placement.ranks) {
    StepFloor floor{.batch = batch};
    floor.weight_bytes = static_cast<double>(rank.read_always);
    floor.expert_bytes = hit * static_cast<double>(rank.weights[index(WeightGroup::experts)]);
    for (const CacheRead& read : rank.cache_reads)
      floor.cache_bytes += static_cast<double>(batch * read.bytes(placement.options.context));
    floor.host_bytes = hit * static_cast<double>(rank.host_experts);
    floor.seconds = std::max(
        (floor.weight_bytes + floor.expert_bytes + floor.cache_bytes) / placement.options.device.read_bandwidth,
        floor.host_bytes / placement.options.device.host_bandwidth);
    if (floor.seconds > slowest.seconds) slowest = floor;
  }
  return slowest;
}

}  // namespace moesaic
