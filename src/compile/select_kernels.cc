#include <algorithm>

#include "compile/compile.h"

namespace moesaic {
namespace {

OperandDesc describe(const Graph& graph, Value value, const WeightMap& weights) {
  OperandDesc operand;
  operand.type = graph.type(value);
  if (graph.info(value).weight < 0) return operand;
  const WeightSlot& slot = weights.slots[static_cast<size_t>(graph.info(value).weight)];
  operand.is_weight = true;
  operand.kind = slot.spec.kind;
  operand.format = slot.spec.format;
  operand.stored = slot.stored;
  operand.scale_rows = slot.spec.scale_rows;
  operand.scale_cols = slot.spec.scale_cols;
  return operand;
}

[[noreturn]] void fail_no_kernel(const Graph& graph, const Node& node, const Step& step) {
  std::string reasons;
  for (const Refusal& refusal : step.refused) reasons += fmt::format("; {}: {}", refusal.kernel, refusal.reason);
  fail_argument("no kernel runs {} ({}){}", node.label, print(graph, node),
                reasons.empty() ? ": this backend has none for the op" : reasons);
}

void choose(const Graph& graph, const Node& node, const CompileOptions& options, Step& step) {
  for (const Kernel* kernel : registry_of(options.device.backend).kernels()) {
    if (kernel->op != node.op) continue;
    const char* reason = kernel->refuse != nullptr ? kernel->refuse(step.desc, options.device) : nullptr;
    if (reason == nullptr) {
      step.kernel = kernel;
      return;
    }
    step.refused.push_back({kernel->name, reason});
  }
  fail_no_kernel(graph, node, step);
}

// A weight has one layout: every kernel that reads it, in either plan, must want the same.
void fix_layouts(const Graph& graph, const Node& node, const Step& step, const WeightMap& weights, Layouts& layouts) {
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const int index = graph.info(node.inputs[i]).weight;
    if (index < 0) continue;
    const Layout layout =
        step.kernel->layout != nullptr ? step.kernel->layout(step.desc, static_cast<int>(i)) : Layout::row_major;
    std::optional<Layout>& fixed = layouts[static_cast<size_t>(index)];
    if (fixed.value_or(layout) != layout)
      fail_argument("{} is wanted in two layouts; the second by {} for {}",
                    weights.slots[static_cast<size_t>(index)].spec.name, step.kernel->name, node.label);
    fixed = layout;
  }
}

Step make_step(const Graph& graph, const Node& node, const CompileOptions& options, const Limits& limits,
               const WeightMap& weights) {
  Step step;
  step.label = node.label;
  step.desc.op = node.op;
  step.desc.attrs = node.attrs;
  step.desc.bounds = {limits.tokens, limits.rows};
  step.desc.precision = options.precision;
  step.desc.cache_dtype = options.cache_dtype;
  for (Value in : node.inputs) step.desc.inputs.push_back(describe(graph, in, weights));
  for (Value out : node.outputs) {
    step.desc.outputs.push_back(describe(graph, out, weights));
    step.output_names.push_back(graph.info(out).name);
  }
  if (op_info(node.op).has_cache) step.cache = static_cast<int>(node.attrs.integer(Attr::cache));
  choose(graph, node, options, step);
  if (step.kernel->workspace_bytes != nullptr)
    step.workspace_bytes = step.kernel->workspace_bytes(step.desc, options.device);
  return step;
}

// Linears of one value, rotations by one table.
bool belong_together(const Step& a, const Step& b, const std::vector<Value>& in_a, const std::vector<Value>& in_b) {
  if (a.kernel != b.kernel || a.kernel->launch_together == nullptr) return false;
  return a.desc.op == Op::linear ? in_a[0].id == in_b[0].id : a.desc.op == Op::rope && in_a[1].id == in_b[1].id;
}

bool reads(const std::vector<Value>& inputs, const std::vector<Value>& outputs) {
  const auto same = [](Value a, Value b) { return a.id == b.id; };
  return std::find_first_of(inputs.begin(), inputs.end(), outputs.begin(), outputs.end(), same) != inputs.end();
}

// A step and the one behind it, which reads what it wrote.
bool join_next(Lowered& lowered, size_t i) {
  std::vector<Step>& steps = lowered.plan.steps;
  if (!steps[i].kernel->then || i + 1 == steps.size() || steps[i + 1].desc.op != *steps[i].kernel->then) return false;
  if (!reads(lowered.inputs[i + 1], lowered.outputs[i])) return false;
  steps[i].together = 2;
  steps[i + 1].together = 0;
  return true;
}

void join_steps(Lowered& lowered) {
  std::vector<Step>& steps = lowered.plan.steps;
  for (size_t i = 0; i < steps.size(); i += static_cast<size_t>(steps[i].together)) {
    if (join_next(lowered, i)) continue;
    for (size_t j = i + 1; j < std::min(steps.size(), i + kMostTogether); ++j) {
      if (!belong_together(steps[i], steps[j], lowered.inputs[i], lowered.inputs[j])) break;
      const auto read_by_j = [&](const std::vector<Value>& outputs) { return reads(lowered.inputs[j], outputs); };
      if (std::any_of(lowered.outputs.begin() + static_cast<ptrdiff_t>(i),
                      lowered.outputs.begin() + static_cast<ptrdiff_t>(j), read_by_j))
        break;
      ++steps[i].together;
      steps[j].together = 0;
    }
  }
}

}  // namespace

Lowered select_kernels(const Graph& graph, const CompileOptions& options, Phase phase, const WeightMap& weights,
                       Layouts& layouts) {
  Lowered lowered;
  lowered.plan.phase = phase;
  lowered.plan.limits = phase == Phase::prefill ? options.prefill : options.decode;
  for (const auto& node : graph.nodes()) {
    Step step = make_step(graph, *node, options, lowered.plan.limits, weights);
    fix_layouts(graph, *node, step, weights, layouts);
    lowered.plan.workspace_bytes = std::max(lowered.plan.workspace_bytes, step.workspace_bytes);
    lowered.plan.steps.push_back(std::move(step));
    lowered.inputs.push_back(node->inputs);
    lowered.outputs.push_back(node->outputs);
  }
  join_steps(lowered);
  return lowered;
}

}  // namespace moesaic
