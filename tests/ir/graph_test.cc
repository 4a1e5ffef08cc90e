// Graphs: construction, verification, text round trip, and what each pass does to them.
#include "ir/graph.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "ir/passes/passes.h"
#include "models/model.h"

namespace moesaic {
namespace {

constexpr const char* kConfig = R"({"architectures": ["GptOssForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96, "intermediate_size": 32,
  "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 8, "rope_scaling": {"rope_type": "yarn",
  "factor": 4.0, "original_max_position_embeddings": 64, "truncate": false}, "rope_theta": 10000})";

Graph tiny_gpt_oss() {
  Graph graph;
  const BuildOptions options;
  Builder builder(graph, options);
  parse_model(json_object(parse_json(kConfig, "config"), "config"), "config").build(builder);
  graph.family = "gpt_oss";
  return graph;
}

int count(const Graph& graph, Op op) {
  int n = 0;
  for (const auto& node : graph.nodes()) n += node->op == op;
  return n;
}

void run_pass(Graph& graph, void (*pass)(Graph&)) {
  pass(graph);
  graph.remove_dead();
  verify(graph);
}

TEST(Graph, PrintAndParseRoundTrip) {
  Graph graph = tiny_gpt_oss();
  for (auto pass : {infer_shapes, expand_moe, fuse_expert_swiglu, fuse_add_norm}) {
    const std::string text = print(graph);
    Graph again = parse_graph(text);
    verify(again);
    EXPECT_EQ(print(again), text);
    EXPECT_EQ(print(graph.clone()), text);
    run_pass(graph, pass);
  }
}

TEST(Graph, EveryPublishedModelRoundTrips) {
  int configs = 0;
  for (const auto& file : std::filesystem::directory_iterator(MOESAIC_SOURCE_DIR "/configs")) {
    if (file.path().extension() != ".json") continue;
    const std::string where = file.path().string();
    Graph graph;
    const BuildOptions options;
    Builder builder(graph, options);
    const Json config = read_json_file(where);
    const Model model = parse_model(json_object(config, where), where);
    model.build(builder);
    graph.family = model.family;
    verify(graph);
    const std::string text = print(graph);
    EXPECT_EQ(print(parse_graph(text)), text) << where;
    ++configs;
  }
  EXPECT_GE(configs, 14);
}

TEST(Graph, ParseErrorsNameTheLine) {
  const std::string good = print(tiny_gpt_oss());
  for (auto [from, to] : std::vector<std::pair<std::string, std::string>>{{"= rms_norm", "= rms_morn"},
                                                                          {"eps=", "epsilon="},
                                                                          {"f32[T,64]", "f32[T,63]"},
                                                                          {" = embed @", " = embed %"}}) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    try {
      parse_graph(bad);
      ADD_FAILURE() << "accepted " << to;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("graph text, line"), std::string::npos) << error.what();
    }
  }
}

TEST(Graph, VerifyFindsBrokenGraphs) {
  Graph dangling = tiny_gpt_oss();
  dangling.nodes()[3]->inputs[0] = dangling.nodes().back()->outputs[0];  // read before it is made
  EXPECT_THROW(verify(dangling), Error);
  Graph mistyped = tiny_gpt_oss();
  mistyped.info(mistyped.nodes()[2]->outputs[0]).type.dims.back() = 63;
  EXPECT_THROW(verify(mistyped), Error);
  Graph unknown_cache = tiny_gpt_oss();
  unknown_cache.caches.clear();
  EXPECT_THROW(verify(unknown_cache), Error);
  EXPECT_NO_THROW(verify(tiny_gpt_oss()));
}

TEST(Graph, DeclaresWhatTheCheckpointHolds) {
  const Graph graph = tiny_gpt_oss();
  EXPECT_EQ(graph.weights.size(), 3u + 2 * 17u);  // 19 tensors a layer when MXFP4: blocks and scales count twice
  ASSERT_EQ(graph.caches.size(), 2u);
  EXPECT_EQ(graph.caches[0].spec, window_cache(gqa_cache(2, 16, 4), 8));
  EXPECT_EQ(graph.caches[1].spec, gqa_cache(2, 16, 4));
  EXPECT_EQ(graph.caches[1].spec.block_bytes(), 64 * 2 * 2 * 16 * 4);
}

TEST(Passes, ExpandMoe) {
  Graph graph = tiny_gpt_oss();
  run_pass(graph, expand_moe);
  EXPECT_EQ(count(graph, Op::moe), 0);
  for (Op op : {Op::route, Op::dispatch, Op::clamped_swiglu, Op::combine}) EXPECT_EQ(count(graph, op), 2);
  EXPECT_EQ(count(graph, Op::expert_linear), 4);
  const std::string text = print(graph);
  EXPECT_NE(text.find("i32[T*2], i32[9], i32[T*2] # model.layers.0.mlp.experts.dispatch"), std::string::npos) << text;
}

TEST(Passes, FuseExpertSwiglu) {
  Graph graph = tiny_gpt_oss();
  run_pass(graph, expand_moe);
  run_pass(graph, fuse_expert_swiglu);
  EXPECT_EQ(count(graph, Op::clamped_swiglu), 0);
  EXPECT_EQ(count(graph, Op::expert_swiglu), 2);
  EXPECT_EQ(count(graph, Op::expert_linear), 2);
}

TEST(Passes, FuseAddNormKeepsNamedSums) {
  Graph graph = tiny_gpt_oss();
  run_pass(graph, fuse_add_norm);
  EXPECT_EQ(count(graph, Op::add_rms_norm), 3);  // the last add is read through last_token
  EXPECT_EQ(count(graph, Op::add), 1);
  const std::string text = print(graph);
  EXPECT_NE(text.find(":\"hidden.1\", "), std::string::npos) << text;
}

TEST(Passes, AreIdempotent) {
  for (auto pass : {expand_moe, fuse_expert_swiglu, fuse_add_norm}) {
    Graph graph = tiny_gpt_oss();
    run_pass(graph, expand_moe);
    run_pass(graph, pass);
    const std::string once = print(graph);
    run_pass(graph, pass);
    EXPECT_EQ(print(graph), once);
  }
}

TEST(Passes, FuseRopeTurnsInsideAttention) {
  Graph graph = tiny_gpt_oss();
  run_pass(graph, fuse_rope);
  EXPECT_EQ(count(graph, Op::rope), 0);
  EXPECT_EQ(count(graph, Op::gqa), 2);
  for (const auto& node : graph.nodes()) {
    if (node->op != Op::gqa) continue;
    EXPECT_EQ(node->attrs.integer(Attr::rotate), static_cast<int64_t>(Rotate::halves));
    ASSERT_EQ(node->inputs.size(), 5u) << "q, k, v, sinks, table";
    EXPECT_EQ(graph.info(node->inputs[4]).def->op, Op::rope_table);
  }
  const std::string once = print(graph);
  EXPECT_EQ(print(parse_graph(once)), once);
  run_pass(graph, fuse_rope);
  EXPECT_EQ(print(graph), once);
}

// A rotation that somebody else reads, or that turns back, stays.
TEST(Passes, FuseRopeLeavesSharedRotations) {
  Graph graph;
  const BuildOptions options;
  Builder g(graph, options);
  const Value x = g.embed("embed", 50, 64), table = g.rope_table({}, 16);
  const Value q = g.rope(x, table, 4, 16), k = g.rope(g.linear(x, "k", 32), table, 2, 16);
  const Value o = g.gqa(q, k, g.linear(x, "v", 32), {.heads = 4, .kv_heads = 2, .head_dim = 16, .scale = 1});
  g.output("logits", g.last_token(g.add(o, q)));
  run_pass(graph, fuse_rope);
  EXPECT_EQ(count(graph, Op::rope), 2);
}

TEST(Passes, QuantizeExpertsOncePerValue) {
  Graph graph = tiny_gpt_oss();
  for (auto pass : {expand_moe, fuse_expert_swiglu, fuse_add_norm, quantize_experts}) run_pass(graph, pass);
  EXPECT_EQ(count(graph, Op::quantize), 0) << "experts are not MXFP4";
  for (WeightSpec& weight : graph.weights)
    if (weight.kind == WeightKind::experts) weight.format = Format::mxfp4;
  run_pass(graph, quantize_experts);
  EXPECT_EQ(count(graph, Op::quantize), 4) << "the norm's and the activation's, of two layers";
  const auto& nodes = graph.nodes();
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i]->op == Op::quantize) {
      EXPECT_EQ(nodes[i - 1].get(), graph.info(nodes[i]->inputs[0]).def);
    } else if (nodes[i]->op == Op::expert_linear || nodes[i]->op == Op::expert_swiglu) {
      EXPECT_EQ(graph.type(nodes[i]->inputs[0]).dtype, DType::e4m3);
    }
  }
  const std::string once = print(graph);
  EXPECT_EQ(print(parse_graph(once)), once);
  run_pass(graph, quantize_experts);
  EXPECT_EQ(print(graph), once);
}

}  // namespace
}  // namespace moesaic
