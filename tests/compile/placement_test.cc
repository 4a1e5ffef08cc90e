// Partitions of every family's graph, and the plan of a tiny model against bytes worked out by hand.
#include "compile/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/fresh_rng.h"
#include "models/model.h"
#include "weights/quantization.h"

namespace moesaic {
namespace {

Graph build(const JsonObject& config) {
  Graph graph;
  const BuildOptions options{.activation = DType::bf16, .cache = DType::bf16, .has_tensor = {}};
  Builder builder(graph, options);
  parse_model(config, "config").build(builder);
  assume_formats(graph, parse_quantization(config, "config"));
  return graph;
}

std::vector<std::string> all_configs() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(MOESAIC_SOURCE_DIR "/configs"))
    if (entry.path().extension() == ".json") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Slices that follow each other and cover [0, extent).
void expect_exact_cover(const std::vector<Slice>& slices, int64_t extent) {
  int64_t next = 0;
  for (Slice slice : slices) {
    EXPECT_EQ(slice.begin, next);
    EXPECT_GE(slice.size(), 0);
    next = slice.end;
  }
  EXPECT_EQ(next, extent);
}

// With more ranks than key-value heads some have the same heads: in order, without gaps, nothing else overlaps.
void expect_cover(const std::vector<Slice>& slices, int64_t extent) {
  int64_t end = 0;
  for (Slice slice : slices) {
    EXPECT_LE(slice.begin, end);
    end = std::max(end, slice.end);
  }
  EXPECT_EQ(end, extent);
}

bool is_key_or_value(const std::string& name) {
  return name.find(".k_proj.") != std::string::npos || name.find(".v_proj.") != std::string::npos;
}

TEST(Partition, EveryElementOfEveryFamilyHasOneOwner) {
  Rng rng = fresh_rng();
  for (const std::string& path : all_configs()) {
    const Graph graph = build(read_json_file(path).as_object());
    const int ranks = static_cast<int>(1 + rng.below(16));
    SCOPED_TRACE(fmt::format("{} on {} ranks", path, ranks));
    const bool few_key_heads = path.find("gpt-oss") != std::string::npos || path.find("qwen3") != std::string::npos;
    const Partition parts = partition(graph, ranks);
    int64_t split = 0;
    for (size_t i = 0; i < graph.weights.size(); ++i) {
      const WeightSpec& weight = graph.weights[i];
      const WeightPart& part = parts.weights[i];
      EXPECT_EQ(weight.kind == WeightKind::experts, part.split == Split::experts && weight.kind != WeightKind::vector)
          << weight.name;
      if (part.split == Split::replicated) continue;
      SCOPED_TRACE(weight.name);
      ASSERT_EQ(part.slices.size(), static_cast<size_t>(ranks));
      ++split;
      const int64_t extent = weight.shape[part.dim(weight)];
      if (few_key_heads && is_key_or_value(weight.name)) expect_cover(part.slices, extent);
      else expect_exact_cover(part.slices, extent);
    }
    EXPECT_GT(split, std::ssize(graph.caches)) << "attention and experts of every layer can be divided";
  }
}

TEST(Partition, BytesOfThePartsAddUp) {
  Rng rng = fresh_rng();
  for (const std::string& path : all_configs()) {
    const Graph graph = build(read_json_file(path).as_object());
    const int ranks = static_cast<int>(1 + rng.below(4));  // at most as many as key-value heads
    const Partition parts = partition(graph, ranks);
    for (size_t i = 0; i < graph.weights.size(); ++i) {
      const WeightSpec& weight = graph.weights[i];
      int64_t sum = 0;
      for (int rank = 0; rank < ranks; ++rank) sum += part_bytes(weight, parts.weights[i], rank);
      const int64_t whole = weight_bytes(weight) * (parts.weights[i].split == Split::replicated ? ranks : 1);
      // A block of FP8 scales that two ranks share is on both.
      const int64_t shared = weight.format == Format::fp8 ? 4 * ranks * (weight.shape[-1] / weight.scale_cols + 1) : 0;
      EXPECT_GE(sum, whole) << weight.name;
      EXPECT_LE(sum, whole + shared) << weight.name;
    }
  }
}

JsonObject tiny_gpt_oss(int64_t intermediate = 64) {
  return {{"architectures", {"GptOssForCausalLM"}},
          {"num_hidden_layers", 2},
          {"hidden_size", 96},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"vocab_size", 112},
          {"intermediate_size", intermediate},
          {"num_local_experts", 8},
          {"num_experts_per_tok", 2},
          {"sliding_window", 128},
          {"quantization_config", {{"quant_method", "mxfp4"}}}};
}

// Inputs of a dense down projection in MXFP4 (no release has that): cut between groups of 32 only.
TEST(Partition, Mxfp4ColumnsAreCutOnGroupBorders) {
  Rng rng = fresh_rng();
  for (int trial = 0; trial < 50; ++trial) {
    const int64_t groups = 1 + rng.below(40), inner = 32 * groups;
    const int ranks = static_cast<int>(1 + rng.below(9));
    Graph graph;
    const BuildOptions options;
    Builder g(graph, options);
    const Value x = g.embed("embed", 8, 64);
    g.output("logits",
             g.last_token(g.linear(g.glu(g.linear(x, "gate", inner), g.linear(x, "up", inner), {}), "down", 64)));
    for (WeightSpec& weight : graph.weights)
      if (weight.name == "down.weight") weight.format = Format::mxfp4;
    const Partition parts = partition(graph, ranks);
    for (size_t i = 0; i < graph.weights.size(); ++i) {
      const WeightPart& part = parts.weights[i];
      if (graph.weights[i].kind != WeightKind::matrix) continue;
      ASSERT_NE(part.split, Split::replicated) << graph.weights[i].name;
      expect_exact_cover(part.slices, inner);
      for (Slice slice : part.slices) EXPECT_EQ(slice.begin % 32, 0) << inner << " over " << ranks;
    }
  }
}

PlacementOptions tiny_options(int ranks) {
  return {.device = find_device_model("h200"), .ranks = ranks, .context = 100, .batch = 3, .prefill_tokens = 16};
}

int64_t aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

int64_t group(const RankPlacement& rank, WeightGroup which) {
  return rank.weights[static_cast<size_t>(which)];
}

TEST(Placement, TinyModelOnOneDeviceByHand) {
  const RankPlacement rank = place(build(tiny_gpt_oss()), tiny_options(1)).ranks.at(0);
  const int64_t q = 64 * 96 * 2, kv = 32 * 96 * 2, o = 96 * 64 * 2;  // bf16
  EXPECT_EQ(group(rank, WeightGroup::attention), 2 * (aligned(q) + 2 * aligned(kv) + aligned(o) + aligned(64 * 4) +
                                                      2 * aligned(32 * 4) + aligned(96 * 4) + aligned(4 * 4)));
  EXPECT_EQ(group(rank, WeightGroup::dense_mlp), 2 * (aligned(8 * 96 * 2) + aligned(8 * 4)));  // routers
  const int64_t up = 8 * 128 * (96 / 32) * 17, down = 8 * 96 * (64 / 32) * 17;  // MXFP4: 17 bytes a group
  const int64_t biases = aligned(8 * 128 * 4) + aligned(8 * 96 * 4);
  EXPECT_EQ(group(rank, WeightGroup::experts), 2 * (aligned(up) + aligned(down) + biases));
  EXPECT_EQ(group(rank, WeightGroup::embeddings), 2 * aligned(112 * 96 * 2));
  EXPECT_EQ(group(rank, WeightGroup::norms), 5 * aligned(96 * 4));
  EXPECT_EQ(group(rank, WeightGroup::other), 0);
  // Layer 0 keeps 128 tokens of keys and values in its slot, layer 1 all of them in blocks of 64.
  const int64_t entry = 2 * 2 * 16 * 2;
  EXPECT_EQ(rank.slot_bytes, 128 * entry);
  EXPECT_EQ(rank.block_bytes, 64 * entry);
  EXPECT_EQ(rank.cache, 3 * (2 * 64 * entry + 128 * entry));
  EXPECT_EQ(rank.workspace, aligned(3 * 128 * 96));
  EXPECT_EQ(rank.total(), rank.weight_bytes() + rank.cache + rank.activations + rank.workspace);
  EXPECT_GE(rank.activations, 16 * 128 * 2 * 2);  // 16 tokens of 2 experts with 128 columns in bf16
}

TEST(Placement, TinyModelOnTwoDevicesByHand) {
  const Placement placement = place(build(tiny_gpt_oss()), tiny_options(2));
  ASSERT_EQ(placement.ranks.size(), 2u);
  for (const RankPlacement& rank : placement.ranks) {
    const int64_t q = 32 * 96 * 2, kv = 16 * 96 * 2, o = 96 * 32 * 2;
    EXPECT_EQ(group(rank, WeightGroup::attention), 2 * (aligned(q) + 2 * aligned(kv) + aligned(o) + aligned(32 * 4) +
                                                        2 * aligned(16 * 4) + aligned(96 * 4) + aligned(2 * 4)));
    EXPECT_EQ(group(rank, WeightGroup::dense_mlp), 2 * (aligned(8 * 96 * 2) + aligned(8 * 4)));
    EXPECT_EQ(group(rank, WeightGroup::embeddings), 2 * aligned(56 * 96 * 2));
    EXPECT_EQ(rank.block_bytes, 64 * 2 * 16 * 2);  // one key-value head
  }
}

TEST(Placement, ExpertsThatDoNotFitGoToTheHost) {
  const Graph graph = build(tiny_gpt_oss());
  PlacementOptions options = tiny_options(1);
  const RankPlacement all = place(graph, options).ranks.at(0);
  const int64_t expert = 128 * (96 / 32) * 17 + 96 * (64 / 32) * 17, staging = 2 * 2 * expert;
  options.device.memory_bytes = all.total() - 1;  // four make room for the staging, a fifth for that byte
  EXPECT_FALSE(place(graph, options).fits());
  options.host_memory = 5 * expert;
  const Placement placement = place(graph, options);
  EXPECT_EQ(placement.host_experts(), 5 * expert);
  EXPECT_EQ(placement.ranks[0].staging, staging);
  EXPECT_EQ(placement.ranks[0].total(), all.total() + staging - 5 * expert);
  EXPECT_TRUE(placement.fits());
  options.host_memory -= 1;
  EXPECT_FALSE(place(graph, options).fits());
}

TEST(Placement, SequencesFillTheMemoryAndNoMore) {
  const Graph graph = build(tiny_gpt_oss());
  PlacementOptions options = tiny_options(1);
  options.device.memory_bytes = place(graph, options).ranks.at(0).total();
  const Placement placement = place(graph, options);
  EXPECT_TRUE(placement.fits());
  EXPECT_EQ(placement.sequences(100), 3);
  EXPECT_EQ(placement.sequences(64), 3 * (2 * 64 + 128) / (64 + 128));
  EXPECT_EQ(placement.sequences(100'000), 0);
  options.device.memory_bytes -= 1;
  EXPECT_FALSE(place(graph, options).fits());
  EXPECT_EQ(place(graph, options).sequences(100), 2);
}

TEST(Placement, StepFloorByHand) {
  const Placement placement = place(build(tiny_gpt_oss()), tiny_options(1));
  const RankPlacement& rank = placement.ranks[0];
  const auto experts = static_cast<double>(group(rank, WeightGroup::experts));
  const double dense = static_cast<double>(rank.weight_bytes() - aligned(112 * 96 * 2)) - experts;  // no embedding
  const double cache = (100 + 128) * 2 * 2 * 16 * 2;
  const StepFloor one = step_floor(placement, 1), three = step_floor(placement, 3);
  EXPECT_EQ(one.weight_bytes, dense);
  EXPECT_NEAR(one.expert_bytes, experts / 4, 1);                          // 2 of 8
  EXPECT_NEAR(three.expert_bytes, experts * (1 - std::pow(0.75, 3)), 1);  // of which three tokens hit so many
  EXPECT_EQ(one.cache_bytes, cache);
  EXPECT_EQ(three.cache_bytes, 3 * cache);
  EXPECT_NEAR(one.seconds, (dense + experts / 4 + cache) / 4.8e12, 1e-15);
}

TEST(DeviceModels, UnknownNamesListTheKnown) {
  EXPECT_EQ(find_device_model("h20").memory_bytes, 96'000'000'000);
  try {
    find_device_model("h300");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("h300"), testing::HasSubstr("h20-141")));
  }
}

}  // namespace
}  // namespace moesaic
