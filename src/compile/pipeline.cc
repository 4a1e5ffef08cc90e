#include <fmt/ranges.h>

#include <algorithm>

#include "compile/compile.h"
#include "ir/passes/passes.h"

namespace moesaic {
namespace {

bool on_a_gpu(Backend backend, Phase, Precision) {
  return backend == Backend::cuda;
}
// Decoding is bound by the bytes of weights, which FP8 activations do not change.
bool prompts_in_fp8(Backend, Phase phase, Precision precision) {
  return phase == Phase::prefill && precision == Precision::fp8;
}

constexpr Pass kPasses[] = {
    {"infer_shapes", "types of all values from the op table", infer_shapes},
    {"fold_mla", "attention on latents: kv_b_proj into the query and output sides", fold_mla},
    {"expand_moe", "mixture of experts into routing, expert products and combine", expand_moe},
    {"fuse_expert_swiglu", "gate and up products with their activation", fuse_expert_swiglu},
    {"fuse_add_norm", "residual sum with the norm that follows", fuse_add_norm},
    {"fuse_rope", "rotations of queries and keys with attention", fuse_rope, on_a_gpu},
    {"quantize_experts", "inputs of MXFP4 experts to FP8", quantize_experts, prompts_in_fp8},
    {"gather_linears", "linears of one value side by side", gather_linears},
};

WeightMap weight_map(const Graph& graph) {
  WeightMap map;
  for (const WeightSpec& spec : graph.weights) {
    WeightSlot slot;
    slot.spec = spec;
    slot.stored = spec.kind == WeightKind::vector  ? graph.activation
                  : spec.kind == WeightKind::table ? DType::i32
                                                   : spec.dtype;
    map.slots.push_back(std::move(slot));
  }
  return map;
}

constexpr int64_t kAlign = 256;
int64_t align(int64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

void place_weights(WeightMap& map, const Layouts& layouts) {
  for (size_t i = 0; i < map.slots.size(); ++i) {
    WeightSlot& slot = map.slots[i];
    slot.layout = layouts[i].value_or(Layout::row_major);
    slot.bytes = slot.spec.kind == WeightKind::vector ? slot.spec.shape.elements() * dtype_bytes(slot.stored)
                                                      : weight_bytes(slot.spec);
    slot.offset = map.bytes;
    map.bytes += align(slot.bytes);
  }
}

CacheMap cache_map(const Graph& graph) {
  CacheMap map;
  for (const CacheDecl& decl : graph.caches) {
    map.layers.push_back({decl, map.block_stride, map.slot_stride});
    map.block_stride += align(decl.spec.block_bytes());
    map.slot_stride += align(decl.spec.bytes_per_sequence);
  }
  return map;
}

Graph run_passes(const Graph& source, const CompileOptions& options, Phase phase) {
  Graph graph = source.clone();
  if (options.observe) options.observe(phase, "build", graph);
  for (const Pass& pass : passes(options.device.backend, phase, options.precision)) {
    if (options.skip.contains(pass.name)) continue;
    pass.run(graph);
    graph.remove_dead();
    verify(graph);
    if (options.observe) options.observe(phase, pass.name, graph);
  }
  return graph;
}

void check_skip(const CompileOptions& options) {
  for (const std::string& name : options.skip) {
    const auto known = [&](const Pass& pass) { return pass.name == name; };
    if (std::any_of(std::begin(kPasses), std::end(kPasses), known)) continue;
    std::vector<std::string> names;
    for (const Pass& pass : kPasses) names.emplace_back(pass.name);
    fail_argument("there is no pass \"{}\"; passes are {}", name, fmt::join(names, ", "));
  }
}

}  // namespace

std::vector<Pass> passes(Backend backend, Phase phase, Precision precision) {
  std::vector<Pass> found;
  for (const Pass& pass : kPasses)
    if (pass.wanted == nullptr || pass.wanted(backend, phase, precision)) found.push_back(pass);
  return found;
}

Compiled compile(const Graph& source, const CompileOptions& options) {
  check_skip(options);
  verify(source);
  Compiled compiled;
  compiled.weights = weight_map(source);
  compiled.cache = cache_map(source);
  const Graph prefill = run_passes(source, options, Phase::prefill);
  const Graph decode = run_passes(source, options, Phase::decode);
  Layouts layouts(compiled.weights.slots.size());
  Lowered lowered_prefill = select_kernels(prefill, options, Phase::prefill, compiled.weights, layouts);
  Lowered lowered_decode = select_kernels(decode, options, Phase::decode, compiled.weights, layouts);
  place_weights(compiled.weights, layouts);
  plan_memory(prefill, lowered_prefill, compiled.weights);
  plan_memory(decode, lowered_decode, compiled.weights);
  compiled.prefill = std::move(lowered_prefill.plan);
  compiled.decode = std::move(lowered_decode.plan);
  return compiled;
}

}  // namespace moesaic
