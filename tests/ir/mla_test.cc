// fold_mla: what becomes of the op, its cache and its readers.
#include <gtest/gtest.h>

#include "ir/builder.h"
#include "ir/passes/passes.h"

namespace moesaic {
namespace {

// x[T, 64] through one layer of attention, with or without chosen positions.
Graph layer(bool sparse) {
  Graph graph;
  graph.family = "test";
  const BuildOptions options;
  Builder g(graph, options);
  const Value x = g.embed("embed", 50, 64);
  const auto in = g.scope("attn");
  const Value q = g.linear(x, "q", 3 * (32 + 16)), kv = g.linear(x, "kv", 48 + 16);
  std::optional<Value> positions;
  if (sparse)
    positions = g.index_topk(g.linear(x, "iq", 2 * 32), g.layer_norm(g.linear(x, "ik", 32), "norm", 1e-6),
                             g.linear(x, "w", 2), {.heads = 2, .head_dim = 32, .top_k = 8, .scale = 1});
  const Value o = g.mla(q, g.slice(kv, 0, 48), g.slice(kv, 48, 16),
                        {.heads = 3, .nope_dim = 32, .rope_dim = 16, .v_dim = 24, .scale = 0.25}, positions);
  g.name(o, "hidden.1");
  g.output("logits", g.last_token(o));
  return graph;
}

int count(const Graph& graph, Op op) {
  int n = 0;
  for (const auto& node : graph.nodes()) n += node->op == op;
  return n;
}

const Node& find(const Graph& graph, Op op) {
  for (const auto& node : graph.nodes())
    if (node->op == op) return *node;
  throw Error(StatusCode::internal, "no such op");
}

class FoldMla : public testing::TestWithParam<bool> {};

TEST_P(FoldMla, ReplacesTheOpByThree) {
  Graph graph = layer(GetParam());
  verify(graph);
  fold_mla(graph);
  graph.remove_dead();
  verify(graph);
  EXPECT_EQ(count(graph, Op::mla), 0);
  for (Op op : {Op::mla_absorb, Op::mla_attend, Op::mla_up}) EXPECT_EQ(count(graph, op), 1);
  const Node &absorb = find(graph, Op::mla_absorb), &attend = find(graph, Op::mla_attend),
             &up = find(graph, Op::mla_up);
  EXPECT_EQ(absorb.inputs[1], up.inputs[1]) << "one weight for both sides";
  EXPECT_EQ(attend.inputs[0], absorb.outputs[0]);
  EXPECT_EQ(up.inputs[0], attend.outputs[0]);
  EXPECT_EQ(attend.inputs.size(), GetParam() ? 4u : 3u);
  EXPECT_EQ(graph.type(absorb.outputs[0]).dim(1), Dim(3 * (48 + 16)));
  EXPECT_EQ(graph.type(up.outputs[0]).dim(1), Dim(3 * 24));
  EXPECT_EQ(graph.info(up.outputs[0]).name, "hidden.1");
  EXPECT_EQ(attend.attrs.integer(Attr::cache), GetParam() ? 1 : 0);
  EXPECT_EQ(up.label, "attn.mla.up");
}

TEST_P(FoldMla, IsIdempotentAndPrints) {
  Graph graph = layer(GetParam());
  const std::string before = print(graph);
  EXPECT_EQ(print(parse_graph(before)), before);
  fold_mla(graph);
  const std::string once = print(graph);
  EXPECT_EQ(print(parse_graph(once)), once);
  fold_mla(graph);
  EXPECT_EQ(print(graph), once);
}

// The rotations of q, in front of mla_absorb, and of k_pe go into mla_attend.
TEST_P(FoldMla, RotationsGoBehindTheFold) {
  Graph graph;
  graph.family = "test";
  const BuildOptions options;
  Builder g(graph, options);
  const Value x = g.embed("embed", 50, 64), table = g.rope_table({}, 16);
  const Value q = g.rope(g.linear(x, "q", 3 * (32 + 16)), table, 3, 48, {.begin = 32, .interleaved = true});
  const Value kv = g.linear(x, "kv", 48 + 16);
  const Value k_pe = g.rope(g.slice(kv, 48, 16), table, 1, 16, {.begin = 0, .interleaved = true});
  const MlaShape shape{.heads = 3, .nope_dim = 32, .rope_dim = 16, .v_dim = 24, .scale = 0.25};
  std::optional<Value> positions;
  if (GetParam())
    positions = g.index_topk(g.linear(x, "iq", 64), g.layer_norm(g.linear(x, "ik", 32), "norm", 1e-6),
                             g.linear(x, "w", 2), {.heads = 2, .head_dim = 32, .top_k = 8, .scale = 1});
  g.output("logits", g.last_token(g.mla(q, g.slice(kv, 0, 48), k_pe, shape, positions)));
  fold_mla(graph);
  fuse_rope(graph);
  graph.remove_dead();
  verify(graph);
  EXPECT_EQ(count(graph, Op::rope), 0);
  const Node& attend = find(graph, Op::mla_attend);
  EXPECT_EQ(attend.attrs.integer(Attr::rotate), static_cast<int64_t>(Rotate::neighbours));
  EXPECT_EQ(attend.inputs.size(), GetParam() ? 5u : 4u);
  EXPECT_EQ(graph.info(attend.inputs.back()).def->op, Op::rope_table);
}

INSTANTIATE_TEST_SUITE_P(Passes, FoldMla, testing::Bool());

TEST(Mla, CachesHoldLatentsAndIndexKeys) {
  const Graph graph = layer(true);
  ASSERT_EQ(graph.caches.size(), 2u);
  EXPECT_EQ(graph.caches[0].spec.bytes_per_entry, 32 * 4);
  EXPECT_EQ(graph.caches[1].spec.bytes_per_entry, (48 + 16) * 4);
  EXPECT_EQ(hash_cache(256).bytes_per_entry, 36);
  EXPECT_EQ(mla_cache(512, 64, 2).block_bytes(), 64 * 1152);
}

TEST(Mla, RulesNameTheMismatch) {
  Graph graph = layer(false);
  const Node& mla = find(graph, Op::mla);
  Attrs wrong = mla.attrs;
  wrong.set(Attr::v_dim, 25);
  EXPECT_THROW(graph.add(Op::mla, mla.inputs, wrong, "wrong"), Error);
}

}  // namespace
}  // namespace moesaic
