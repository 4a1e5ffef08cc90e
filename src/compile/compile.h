// compile(): one graph becomes two plans, for prefill and for decode, that share weights, caches and memory.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "compile/plan.h"

namespace moesaic {

struct CompileOptions {
  DeviceInfo device;
  Precision precision = Precision::float32;
  DType cache_dtype = DType::f32;
  Limits prefill, decode;
  std::set<std::string> skip;  // passes to leave out, to find the one that breaks a result
  // Called with the graph as built ("build") and after each pass.
  std::function<void(Phase, const std::string& pass, const Graph&)> observe;
};

// A graph pass in the pipeline; the table is the documentation.
struct Pass {
  const char* name;
  const char* what;
  void (*run)(Graph&);
  bool (*wanted)(Backend, Phase, Precision) = nullptr;  // null: always
};
std::vector<Pass> passes(Backend backend, Phase phase, Precision precision);

// Throws Error(invalid_argument) when no kernel accepts an op, with every kernel's reason.
Compiled compile(const Graph& graph, const CompileOptions& options);

// The stages of lowering, for tests: kernels and operand types, then addresses.
struct Lowered {
  Plan plan;
  std::vector<std::vector<Value>> inputs, outputs;  // of each step, as values of the graph
};
// The layout of each weight, once a kernel has fixed it; shared by both phases.
using Layouts = std::vector<std::optional<Layout>>;
Lowered select_kernels(const Graph& graph, const CompileOptions& options, Phase phase, const WeightMap& weights,
                       Layouts& layouts);
void plan_memory(const Graph& graph, Lowered& lowered, const WeightMap& weights);

}  // namespace moesaic
