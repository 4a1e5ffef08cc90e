// What the ranks of a partition compute from their parts adds up to what the whole computes.
#include <gtest/gtest.h>

#include <cmath>

#include "base/fresh_rng.h"
#include "support/run_graph.h"
#include "weights/partition.h"

namespace moesaic {
namespace {

constexpr int64_t kHidden = 12, kHeadDim = 4, kRopeDim = 2, kLatent = 6;

// Sizes that differ between a rank and the whole.
struct Sizes {
  int64_t heads = 6, kv_heads = 3, inner = 10;
};

using Block = std::function<Value(Builder&, Value x, const Sizes&)>;

Value gqa_block(Builder& g, Value x, const Sizes& s) {
  const LinearOptions bias{.bias = true};
  const Value q = g.linear(x, "q", s.heads * kHeadDim, bias), k = g.linear(x, "k", s.kv_heads * kHeadDim);
  const Value o = g.gqa(g.head_norm(q, "q_norm", s.heads, 1e-6), k, g.linear(x, "v", s.kv_heads * kHeadDim, bias),
                        {.heads = s.heads, .kv_heads = s.kv_heads, .head_dim = kHeadDim, .scale = 0.5, .sinks = true});
  return g.linear(o, "o", kHidden, bias);
}

Value mla_block(Builder& g, Value x, const Sizes& s) {
  const Value low = g.rms_norm(g.linear(x, "q_a", kLatent), "q_a_norm", 1e-6);
  const Value q = g.linear(low, "q_b", s.heads * (kHeadDim + kRopeDim));
  const Value kv = g.linear(x, "kv_a", kLatent + kRopeDim);
  const Value latent = g.rms_norm(g.slice(kv, 0, kLatent), "kv_a_norm", 1e-6);
  const Value o =
      g.mla(q, latent, g.slice(kv, kLatent, kRopeDim),
            {.heads = s.heads, .nope_dim = kHeadDim, .rope_dim = kRopeDim, .v_dim = kHeadDim, .scale = 0.4});
  return g.linear(g.sigmoid_gate(o, g.linear(x, "gate", s.heads * kHeadDim)), "o", kHidden);
}

Value kda_block(Builder& g, Value x, const Sizes& s) {
  const int64_t width = s.heads * kHeadDim;
  const auto convolved = [&](const std::string& name) {
    return g.short_conv(g.linear(x, name, width), name + "_conv", 3);
  };
  const Value q = convolved("q"), k = convolved("k"), v = convolved("v");
  const Value decay = g.kda_gate(g.linear(g.linear(x, "f_a", kHeadDim), "f_b", width), s.heads);
  const Value o =
      g.kda(q, k, v, decay, g.linear(x, "b", s.heads), {.heads = s.heads, .head_dim = kHeadDim, .v_dim = kHeadDim});
  return g.linear(g.gated_rms_norm(o, "o_norm", g.linear(x, "gate", width), s.heads, 1e-6), "o", kHidden);
}

Value mlp_block(Builder& g, Value x, const Sizes& s) {
  return g.linear(g.glu(g.linear(x, "gate", s.inner), g.linear(x, "up", s.inner), {}), "down", kHidden);
}

// last_token keeps the block's last linear from being taken for the head.
std::function<void(Builder&)> model(const Block& block, const Sizes& sizes) {
  return [=](Builder& g) { g.output("logits", g.last_token(block(g, g.embed("embed", 1, kHidden), sizes))); };
}

Graph build(const Block& block) {
  Graph graph;
  const BuildOptions options;
  Builder builder(graph, options);
  model(block, {})(builder);
  return graph;
}

TensorMap random_tensors(const Graph& graph, Rng& rng) {
  TensorMap tensors;
  for (const WeightSpec& weight : graph.weights) {
    std::vector<float> values(static_cast<size_t>(weight.shape.elements()));
    for (float& v : values) v = static_cast<float>(rng.normal());
    tensors[weight.name] = f32_tensor(weight.shape, values);
  }
  return tensors;
}

// The elements [slice.begin, slice.end) of one dimension.
OwnedTensor cut(const OwnedTensor& whole, int dim, Slice slice) {
  int64_t outer = 1, inner = 4;
  std::vector<int64_t> dims(whole.shape.dims().begin(), whole.shape.dims().end());
  for (int i = 0; i < whole.shape.rank(); ++i) (i < dim ? outer : inner) *= i == dim ? 1 : dims[static_cast<size_t>(i)];
  OwnedTensor part{whole.dtype, {}, {}};
  for (int64_t o = 0; o < outer; ++o) {
    const auto* row = whole.bytes.data() + o * whole.shape[dim] * inner;
    part.bytes.insert(part.bytes.end(), row + slice.begin * inner, row + slice.end * inner);
  }
  dims[static_cast<size_t>(dim)] = slice.size();
  part.shape = Shape(dims);
  return part;
}

TensorMap rank_tensors(const TensorMap& whole, const Graph& graph, const Partition& parts, int rank) {
  TensorMap out = whole;
  for (size_t i = 0; i < graph.weights.size(); ++i) {
    const WeightSpec& weight = graph.weights[i];
    const WeightPart& part = parts.weights[i];
    if (weight.kind == WeightKind::embedding) continue;  // every rank sees the same input
    OwnedTensor& tensor = out.at(weight.name);
    if (part.split != Split::replicated) tensor = cut(tensor, part.dim(weight), part.slices[static_cast<size_t>(rank)]);
    if (weight.name == "o.bias" && rank > 0) std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{0});
  }
  return out;
}

int64_t rows_of(const TensorMap& tensors, const std::string& name) {
  const auto found = tensors.find(name + ".weight");
  return found == tensors.end() ? 0 : found->second.shape[0];
}

void expect_parts_add_up(const Block& block, const char* columns, int ranks, Rng& rng) {
  SCOPED_TRACE(ranks);
  const Graph graph = build(block);
  const TensorMap whole = random_tensors(graph, rng);
  const Partition parts = partition(graph, ranks);
  for (size_t i = 0; i < graph.weights.size(); ++i)
    EXPECT_EQ(parts.weights[i].split == Split::columns, graph.weights[i].name == columns) << graph.weights[i].name;
  const std::vector<double> want = logits_of(whole, model(block, {}), Backend::ref);
  std::vector<double> sum(want.size(), 0);
  for (int rank = 0; rank < ranks; ++rank) {
    const TensorMap own = rank_tensors(whole, graph, parts, rank);
    Sizes sizes;
    sizes.inner = rows_of(own, "up");
    sizes.kv_heads = rows_of(own, "k") / kHeadDim;
    sizes.heads = own.at(columns).shape[1] / kHeadDim;
    const std::vector<double> part = logits_of(own, model(block, sizes), Backend::ref);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], want[i], 1e-9 * (1 + std::abs(want[i])));
}

TEST(PartitionRun, GroupedQueryAttention) {
  Rng rng = fresh_rng();
  for (int ranks : {1, 2, 3, 6}) expect_parts_add_up(gqa_block, "o.weight", ranks, rng);  // 6: a key head for two ranks
}

TEST(PartitionRun, LatentAttention) {
  Rng rng = fresh_rng();
  for (int ranks : {1, 2, 4, 6}) expect_parts_add_up(mla_block, "o.weight", ranks, rng);
}

TEST(PartitionRun, DeltaAttention) {
  Rng rng = fresh_rng();
  for (int ranks : {1, 2, 5, 6}) expect_parts_add_up(kda_block, "o.weight", ranks, rng);
}

TEST(PartitionRun, DenseMlp) {
  Rng rng = fresh_rng();
  for (int ranks : {1, 2, 3, 7}) expect_parts_add_up(mlp_block, "down.weight", ranks, rng);
}

}  // namespace
}  // namespace moesaic
