// Placement: what each of N equal devices would hold of a model, and the least time that reading it takes. On paper: no
// device is needed, and kernels are not chosen.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "compile/device_models.h"
#include "weights/partition.h"

namespace moesaic {

enum class WeightGroup : uint8_t { attention, dense_mlp, experts, embeddings, norms, other };
constexpr int kWeightGroupCount = static_cast<int>(WeightGroup::other) + 1;
std::string_view weight_group_name(WeightGroup group);

struct PlacementOptions {
  DeviceModel device;
  int ranks = 1;
  int64_t context = 0;         // tokens of each sequence
  int64_t batch = 1;           // sequences
  int64_t prefill_tokens = 1;  // of the largest step
  int64_t host_memory = 0;     // bytes for experts that do not fit, of all ranks together
};

// What a step reads of one cached layer in a device's memory, for one sequence.
struct CacheRead {
  int64_t bytes_per_entry = 0, bytes_per_sequence = 0;
  int tokens_per_entry = 1;
  int64_t most_tokens = INT64_MAX;  // sparse attention reads so many

  int64_t bytes(int64_t context) const;
};

struct RankPlacement {
  std::array<int64_t, kWeightGroupCount> weights{};  // bytes on the device
  int64_t host_experts = 0;                          // bytes of experts in host memory
  int64_t staging = 0;      // places on the device for experts on their way from the host: two tokens' choice
  int64_t activations = 0;  // of the largest step, with reuse
  int64_t workspace = 0;    // three experts' widest matrices in FP8, where experts are packed in 4 bits
  int64_t block_bytes = 0;  // cache of kBlockTokens tokens
  int64_t slot_bytes = 0;   // constant state of a sequence
  int64_t cache = 0;        // of all sequences
  int64_t read_always = 0;  // bytes of weights that every step reads: all but embeddings and routed experts
  std::vector<CacheRead> cache_reads;

  int64_t weight_bytes() const;
  int64_t total() const { return weight_bytes() + staging + activations + workspace + cache; }
  int64_t cache_bytes(int64_t sequences, int64_t context) const;
};

struct Placement {
  PlacementOptions options;
  double expert_share = 0;  // of its layer's experts that one token is sent to
  std::vector<RankPlacement> ranks;

  int64_t host_experts() const;
  int64_t largest() const;  // bytes of the fullest device
  bool fits() const;
  // Sequences of so many tokens that fit beside weights, activations and workspace, on every device.
  int64_t sequences(int64_t context) const;
};

// Places a graph whose weights have their formats. Activations are counted in the graph's activation type, vectors as
// float32, and everything in the regions is aligned as compile() aligns it. Experts are evicted to the host layer by
// layer in turn, no more than needed.
Placement place(const Graph& graph, const PlacementOptions& options);

// The bandwidth floor of one decode step, on the device that takes longest: bytes that must be read, over what the
// memory delivers. Routed experts count as often as `batch` tokens with independent choices hit them.
struct StepFloor {
  int64_t batch = 1;
  double weight_bytes = 0, expert_bytes = 0, cache_bytes = 0;  // from the device's memory
  double host_bytes = 0;                                       // over the host link, at the same time
  double seconds = 0;
};
StepFloor step_floor(const Placement& placement, int64_t batch);

}  // namespace moesaic
