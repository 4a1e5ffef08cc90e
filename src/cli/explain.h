// What `moesaic explain` found out about a model, and its printed forms. Internal to the command.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/model_source.h"

namespace moesaic {

struct PassRecord {
  std::string name, what;
  int64_t before = 0, after = 0;  // ops
  bool skipped = false;
};

struct Explanation {
  Model model;
  LoadOptions load;
  DeviceInfo device;
  bool from_checkpoint = false;  // formats were read, not assumed
  int64_t context = 0;           // longest sequence in tokens
  std::vector<Phase> phases;     // those asked for
  std::map<Phase, std::vector<PassRecord>> passes;
  Compiled compiled;

  const Plan& plan(Phase phase) const { return phase == Phase::prefill ? compiled.prefill : compiled.decode; }
};

// Compiles the model, without its weights.
Explanation explain_model(const LoadOptions& load);

const char* phase_name(Phase phase);
// "fast", "float32", or "float64" on the reference backend.
const char* precision_text(const Explanation& explanation);

// Steps of several layers that differ in nothing but the layer.
struct StepGroup {
  LayerLabel label;  // of the first
  const Step* step = nullptr;
  int64_t weight_bytes = 0;     // of one step
  std::vector<int64_t> layers;  // ascending, each once
  int64_t count = 0;            // of steps
};
std::vector<StepGroup> group_steps(const Plan& plan, const WeightMap& weights);
// "0-23", or "0-23 x2" with two steps in each.
std::string layers_text(const StepGroup& group);
// Bytes of the weights that a step has as operands.
int64_t step_weight_bytes(const Step& step, const WeightMap& weights);
// "f32[T,64] i32[T*4]"
std::string output_types(const Step& step);
// "gqa", and its window where it has one.
std::string op_text(const Step& step);

// The table of steps, and the kernels that would have been preferred.
void print_steps(const Plan& plan, const WeightMap& weights);
// Regions of memory and who uses them, for all phases together.
void print_memory(const Explanation& explanation);
Json explanation_json(const Explanation& explanation);

// Sizes of the cache pools for the configured sequences.
struct CacheSize {
  int64_t blocks = 0, slots = 0, bytes = 0;
};
CacheSize cache_size(const Explanation& explanation);
// What the activations would take if each had its own memory.
int64_t activation_sum(const Plan& plan);

}  // namespace moesaic
