// docs/adding_a_model.md done once in full, for a family that does not exist: Config, parse() and build() as a model
// file has them, a tiny random checkpoint, and the tests that every family gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/fresh_rng.h"
#include "models/blocks.h"
#include "support/run_graph.h"

namespace moesaic {

// Acorn: grouped-query attention with a sliding window in every other layer and normalised heads; the first layers
// dense, the others with routed experts, chosen by sigmoid scores with a correction bias, beside a shared one. The
// definition is this file: there is no reference implementation.
namespace acorn {
namespace {

// 2. Config
struct Config {
  int64_t layers, hidden, heads, kv_heads, head_dim, vocab, max_positions, window, intermediate, dense_layers;
  MoeConfig moe;
  double eps;
  bool tied;
  RopeConfig rope;
};

void check(const Config& c, const std::string& where) {
  check_eps(where, "rms_norm_eps", c.eps);
  check_sizes(where, {{"num_hidden_layers", c.layers},
                      {"hidden_size", c.hidden},
                      {"vocab_size", c.vocab},
                      {"max_position_embeddings", c.max_positions},
                      {"num_attention_heads", c.heads},
                      {"num_key_value_heads", c.kv_heads},
                      {"head_dim", c.head_dim},
                      {"sliding_window", c.window},
                      {"intermediate_size", c.intermediate}});
  if (c.heads % c.kv_heads != 0)
    fail_data(where, "num_attention_heads is {}; expected a multiple of num_key_value_heads = {}", c.heads, c.kv_heads);
  if (c.head_dim % 2 != 0) fail_data(where, "head_dim is {}; expected an even number", c.head_dim);
}

Config parse_config(const JsonObject& json, const std::string& where) {
  Config c{};
  c.layers = json_int(json, "num_hidden_layers", where);
  c.hidden = json_int(json, "hidden_size", where);
  c.heads = json_int(json, "num_attention_heads", where);
  c.kv_heads = json_int(json, "num_key_value_heads", where, c.heads);
  c.head_dim = json_int(json, "head_dim", where);
  c.vocab = json_int(json, "vocab_size", where);
  c.max_positions = json_int(json, "max_position_embeddings", where, 4096);
  c.window = json_int(json, "sliding_window", where, 128);
  c.intermediate = json_int(json, "intermediate_size", where);
  c.dense_layers = json_int(json, "first_k_dense_replace", where, 0);
  c.moe = parse_moe(json, where);
  c.eps = json_number(json, "rms_norm_eps", where, 1e-6);
  c.tied = json_bool(json, "tie_word_embeddings", where, false);
  c.rope = parse_rope(json, where);
  check(c, where);
  return c;
}

// 3. Graph
Value attention(Builder& g, const Config& c, Value x, Value table, bool sliding) {
  const auto in = g.scope("self_attn");
  const auto heads = [&](const char* projection, const char* norm, int64_t count) {
    const Value normed = g.head_norm(g.linear(x, projection, count * c.head_dim), norm, count, c.eps);
    return g.rope(normed, table, count, c.head_dim);
  };
  const Value o = g.gqa(heads("q_proj", "q_norm", c.heads), heads("k_proj", "k_norm", c.kv_heads),
                        g.linear(x, "v_proj", c.kv_heads * c.head_dim),
                        {.heads = c.heads,
                         .kv_heads = c.kv_heads,
                         .head_dim = c.head_dim,
                         .scale = 1 / std::sqrt(static_cast<double>(c.head_dim)),
                         .window = sliding ? c.window : 0});
  return g.linear(o, "o_proj", c.hidden);
}

Value feed_forward(Builder& g, const Config& c, Value x, int64_t layer) {
  const auto in = g.scope("mlp");
  return layer < c.dense_layers ? mlp(g, x, c.intermediate) : moe_block(g, x, c.moe);
}

void build(Builder& g, const Config& c) {
  Value x = g.embed("model.embed_tokens", c.vocab, c.hidden);
  const Value table = g.rope_table(c.rope, c.head_dim);
  g.name(x, "hidden.0");
  for (int64_t i = 0; i < c.layers; ++i) {
    const auto in = g.scope("model.layers", i);
    x = g.add(x, attention(g, c, g.rms_norm(x, "input_layernorm", c.eps), table, i % 2 == 0));
    x = g.add(x, feed_forward(g, c, g.rms_norm(x, "post_attention_layernorm", c.eps), i));
    if (i + 1 < c.layers) g.name(x, fmt::format("hidden.{}", i + 1));
  }
  build_end(g, x, {c.layers, c.hidden, c.vocab, c.eps, c.tied});
}

}  // namespace

// 4. Registration: what families() in src/models/all.cc would name.
Model parse(const JsonObject& json, const std::string& where) {
  const Config c = parse_config(json, where);
  Model model;
  model.layers = c.layers;
  model.hidden = c.hidden;
  model.vocab = c.vocab;
  model.max_positions = c.max_positions;
  model.experts = c.moe.route.experts;
  model.experts_per_token = c.moe.route.top_k;
  model.stop_tokens = parse_token_ids(json, "eos_token_id", where);
  model.build = [c](Builder& g) { build(g, c); };
  return model;
}

}  // namespace acorn

namespace {

using testing::AllOf;
using testing::HasSubstr;

// 5. A checkpoint in which every size differs and no weight is left at its initial value.
JsonObject config() {
  return parse_json(R"({"num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2,
      "head_dim": 16, "vocab_size": 70, "sliding_window": 5, "intermediate_size": 56, "first_k_dense_replace": 1,
      "n_routed_experts": 7, "num_experts_per_tok": 3, "n_shared_experts": 1, "moe_intermediate_size": 24,
      "routed_scaling_factor": 1.7, "rope_theta": 1000, "eos_token_id": 2})",
                    "config")
      .as_object();
}

Graph graph_of(const Model& model) {
  Graph graph;
  graph.family = "acorn";
  const BuildOptions options;
  Builder builder(graph, options);
  model.build(builder);
  return graph;
}

OwnedTensor random_tensor(Rng& rng, const Shape& shape, float middle, float spread) {
  std::vector<float> values;
  for (int64_t i = 0; i < shape.elements(); ++i)
    values.push_back(middle + spread * static_cast<float>(rng.uniform(-1, 1)));
  return f32_tensor(shape, values);
}

// Every tensor that the graph declares, one per expert.
TensorMap random_checkpoint(const Graph& graph) {
  Rng rng = fresh_rng();
  TensorMap tensors;
  for (const WeightSpec& spec : graph.weights) {
    const bool norm = spec.name.find("norm") != std::string::npos;
    if (spec.kind != WeightKind::experts) {
      tensors[spec.name] = random_tensor(rng, spec.shape, norm ? 1 : 0, 0.3f);
      continue;
    }
    const size_t at = spec.name.find("{}");
    for (int64_t e = 0; e < spec.shape[0]; ++e)
      tensors[spec.name.substr(0, at) + std::to_string(e) + spec.name.substr(at + 2)] =
          random_tensor(rng, {spec.shape[1], spec.shape[2]}, 0, 0.3f);
  }
  return tensors;
}

std::vector<int32_t> prompt() {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 30; ++i) ids.push_back(i * 11 % 70);
  return ids;
}

std::string error_with(const std::string& key, Json value) {
  JsonObject json = config();
  json[key] = std::move(value);
  try {
    acorn::parse(json, "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(MadeUpFamily, ReadsItsConfig) {
  const Model model = acorn::parse(config(), "config.json");
  EXPECT_EQ(model.layers, 3);
  EXPECT_EQ(model.experts, 7);
  EXPECT_EQ(model.experts_per_token, 3);
  EXPECT_EQ(model.max_positions, 4096);
  EXPECT_EQ(model.stop_tokens, std::vector<int32_t>{2});
}

TEST(MadeUpFamily, RefusesImpossibleConfigs) {
  EXPECT_EQ(error_with("sliding_window", 7), "accepted");
  EXPECT_THAT(error_with("hidden_size", nullptr), HasSubstr("hidden_size"));
  EXPECT_THAT(error_with("head_dim", 11), HasSubstr("head_dim is 11; expected an even number"));
  EXPECT_THAT(error_with("num_key_value_heads", 4), HasSubstr("is 6; expected a multiple of num_key_value_heads = 4"));
  EXPECT_THAT(error_with("num_experts_per_tok", 8), HasSubstr("8 of 7 experts"));
  EXPECT_THAT(error_with("rms_norm_eps", 0), HasSubstr("rms_norm_eps"));
}

TEST(MadeUpFamily, DeclaresItsWeightsAndCaches) {
  const Graph graph = graph_of(acorn::parse(config(), "config.json"));
  int64_t parameters = 0;
  for (const WeightSpec& spec : graph.weights) parameters += spec.shape.elements();
  const int64_t attention = 48 * 96 * 2 + 48 * 32 * 2 + 16 * 2, norms = 2 * 48;
  const int64_t dense = 3 * 48 * 56, sparse = 7 * 48 + 7 + 8 * 3 * 48 * 24;
  EXPECT_EQ(parameters, 2 * 70 * 48 + 48 + 3 * (attention + norms) + dense + 2 * sparse);
  EXPECT_EQ(graph.caches.size(), 3u);
  EXPECT_EQ(print(parse_graph(print(graph))), print(graph));
}

TEST(MadeUpFamily, BothBackendsGiveTheSame) {
  const Model model = acorn::parse(config(), "config.json");
  const TensorMap tensors = random_checkpoint(graph_of(model));
  const std::vector<double> want = logits_of(tensors, model.build, Backend::ref, prompt());
  const std::vector<double> got = logits_of(tensors, model.build, Backend::cpu, prompt());
  ASSERT_EQ(want.size(), 30u * 70u);
  ASSERT_EQ(got.size(), want.size());
  double difference = 0, square = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    square += want[i] * want[i];
  }
  EXPECT_GT(square, 0);
  EXPECT_LE(std::sqrt(difference / square), 1e-5);
}

TEST(MadeUpFamily, ACheckpointThatDoesNotFitIsRefusedByName) {
  const Model model = acorn::parse(config(), "config.json");
  const auto error_after = [&](const std::function<void(TensorMap&)>& edit) -> std::string {
    TensorMap tensors = random_checkpoint(graph_of(model));
    edit(tensors);
    try {
      logits_of(tensors, model.build, Backend::cpu, prompt());
    } catch (const Error& error) {
      return error.what();
    }
    return "loaded";
  };
  EXPECT_EQ(error_after([](TensorMap&) {}), "loaded");
  EXPECT_THAT(error_after([](TensorMap& t) { t.erase("model.layers.1.mlp.experts.4.up_proj.weight"); }),
              HasSubstr("1 missing: model.layers.1.mlp.experts.4.up_proj.weight"));
  EXPECT_THAT(error_after([](TensorMap& t) { t["model.layers.9.extra"] = t.at("model.norm.weight"); }),
              HasSubstr("1 unexpected: model.layers.9.extra"));
  EXPECT_THAT(error_after([](TensorMap& t) {
                t.at("lm_head.weight").shape = {48, 70};
              }),
              AllOf(HasSubstr("lm_head.weight is F32 [48, 70]"), HasSubstr("[70, 48]")));
}

}  // namespace
}  // namespace moesaic
