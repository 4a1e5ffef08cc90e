// Plan: a flat list of steps with kernel, descriptor and operand addresses. What compile() makes and run() executes.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "weights/weight_map.h"

namespace moesaic {

enum class Phase : uint8_t {
  prefill,  // many tokens of few sequences
  decode,   // one token of each of many sequences
};

// The largest step of a plan.
struct Limits {
  int64_t tokens = 0;     // T
  int64_t rows = 0;       // S
  int64_t sequences = 0;  // in one step
};

enum class Region : uint8_t { weights, activations };

struct Place {
  Region region = Region::activations;
  int64_t offset = 0;
};

struct Refusal {
  const char* kernel;
  const char* reason;
};

struct Step {
  const Kernel* kernel = nullptr;
  OpDesc desc;
  std::vector<Place> inputs, outputs;
  std::vector<std::string> output_names;  // of named values, else empty: "hidden.3"
  int cache = -1;                         // index into CacheMap::layers
  int64_t workspace_bytes = 0;
  int together = 1;  // so many steps, this one first, may run in one launch; 0: an earlier one's launch does it
  std::string label;
  std::vector<Refusal> refused;  // kernels that would have been preferred
};

// One activation in the arena: occupied from the step that writes it to the last that reads it, both included.
struct Allocation {
  std::string name;
  int64_t offset = 0, bytes = 0;
  int first = 0, last = 0;
};

struct Plan {
  Phase phase = Phase::prefill;
  Limits limits;
  std::vector<Step> steps;
  std::vector<Allocation> allocations;
  int64_t activation_bytes = 0;
  int64_t workspace_bytes = 0;  // the maximum over steps: one region that all steps share
  Place logits;
  int64_t vocab = 0;
  Place hidden;  // of a graph that has this output
};

// Where each layer's cache lies: within a block (shared by all layers) and within a sequence's slot.
struct CacheMap {
  struct Layer {
    CacheDecl decl;
    int64_t block_offset = 0, slot_offset = 0;
  };
  std::vector<Layer> layers;
  int64_t block_stride = 0;  // bytes of one block of kBlockTokens tokens
  int64_t slot_stride = 0;   // bytes of one sequence's constant state
};

struct Compiled {
  Plan prefill, decode;
  WeightMap weights;
  CacheMap cache;

  int64_t activation_bytes() const { return std::max(prefill.activation_bytes, decode.activation_bytes); }
  int64_t workspace_bytes() const { return std::max(prefill.workspace_bytes, decode.workspace_bytes); }
};

}  // namespace moesaic
