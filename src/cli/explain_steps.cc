// The steps of a plan as tables and as JSON.
#include <algorithm>

#include "base/progress.h"
#include "cli/explain.h"
#include "cli/table.h"

namespace moesaic {
namespace {

bool same_refusals(const Step& a, const Step& b) {
  const auto same = [](const Refusal& x, const Refusal& y) {
    return std::string_view(x.kernel) == y.kernel && std::string_view(x.reason) == y.reason;
  };
  return std::equal(a.refused.begin(), a.refused.end(), b.refused.begin(), b.refused.end(), same);
}

bool alike(const StepGroup& group, const LayerLabel& label, const Step& step, int64_t weight_bytes) {
  return group.label.pattern == label.pattern && group.step->kernel == step.kernel &&
         (group.step->together == 0) == (step.together == 0) && op_text(*group.step) == op_text(step) &&
         output_types(*group.step) == output_types(step) && group.weight_bytes == weight_bytes &&
         group.step->workspace_bytes == step.workspace_bytes && same_refusals(*group.step, step);
}

std::string bytes_text(int64_t bytes) {
  return bytes == 0 ? "-" : human_bytes(static_cast<double>(bytes));
}

struct RefusalGroup {
  std::string kernel, reason;
  std::vector<std::string> ops;  // names, each once
  int64_t steps = 0;
};

std::vector<RefusalGroup> group_refusals(const std::vector<StepGroup>& groups) {
  std::vector<RefusalGroup> out;
  for (const StepGroup& group : groups)
    for (const Refusal& refusal : group.step->refused) {
      const auto same = [&](const RefusalGroup& r) { return r.kernel == refusal.kernel && r.reason == refusal.reason; };
      auto found = std::find_if(out.begin(), out.end(), same);
      if (found == out.end()) found = out.insert(out.end(), {refusal.kernel, refusal.reason, {}, 0});
      found->steps += group.count;
      auto& ops = found->ops;
      if (std::find(ops.begin(), ops.end(), group.label.name) == ops.end()) ops.push_back(group.label.name);
    }
  return out;
}

void print_refusals(const std::vector<StepGroup>& groups) {
  const std::vector<RefusalGroup> refusals = group_refusals(groups);
  if (refusals.empty()) return fmt::print("\nevery op got its preferred kernel\n");
  fmt::print("\npreferred kernels that refused\n");
  for (const RefusalGroup& refusal : refusals) {
    fmt::print("  {}: {}\n    in {} step{}:", refusal.kernel, refusal.reason, refusal.steps,
               refusal.steps == 1 ? "" : "s");
    for (size_t i = 0; i < refusal.ops.size(); ++i) fmt::print("{} {}", i > 0 ? "," : "", refusal.ops[i]);
    fmt::print("\n");
  }
}

}  // namespace

std::string output_types(const Step& step) {
  std::string out;
  for (const OperandDesc& output : step.desc.outputs) out += (out.empty() ? "" : " ") + to_string(output.type);
  return out;
}

std::string op_text(const Step& step) {
  std::string out(op_info(step.desc.op).name);
  const Attrs& attrs = step.desc.attrs;
  if (attrs.has(Attr::window) && attrs.integer(Attr::window) > 0)
    out += fmt::format(" window {}", attrs.integer(Attr::window));
  return out;
}

std::string layers_text(const StepGroup& group) {
  const auto layers = static_cast<int64_t>(group.layers.size());
  return layer_list(group.layers) +
         (layers > 0 && group.count > layers ? fmt::format(" x{}", group.count / layers) : "");
}

int64_t step_weight_bytes(const Step& step, const WeightMap& weights) {
  int64_t bytes = 0;
  for (const Place& place : step.inputs) {
    if (place.region != Region::weights) continue;
    // Slots are in the order of their offsets.
    const auto slot = std::lower_bound(weights.slots.begin(), weights.slots.end(), place.offset,
                                       [](const WeightSlot& s, int64_t offset) { return s.offset < offset; });
    bytes += slot->bytes;
  }
  return bytes;
}

std::vector<StepGroup> group_steps(const Plan& plan, const WeightMap& weights) {
  std::vector<StepGroup> groups;
  auto previous = groups.end();
  for (const Step& step : plan.steps) {
    LayerLabel label = split_layer(step.label);
    const int64_t bytes = step_weight_bytes(step, weights), layer = label.layer;
    auto found = std::find_if(groups.begin(), groups.end(), [&](auto& g) { return alike(g, label, step, bytes); });
    if (found == groups.end()) {
      // Beside the step before it and after its like, so that the kinds of one op stand together.
      auto place = previous == groups.end() || layer < 0 ? groups.end() : previous + 1;
      while (place != groups.end() && place->label.pattern == label.pattern) ++place;
      found = groups.insert(place, {.label = std::move(label), .step = &step, .weight_bytes = bytes, .layers = {}});
    }
    if (layer >= 0 && (found->layers.empty() || found->layers.back() != layer)) found->layers.push_back(layer);
    ++found->count;
    previous = found;
  }
  return groups;
}

std::string kernel_text(const Step& step) {
  return fmt::format("{}{}", step.together == 0 ? "^ " : "", step.kernel->name);
}

void print_steps(const Plan& plan, const WeightMap& weights) {
  const std::vector<StepGroup> groups = group_steps(plan, weights);
  Table table({"step", "layers", "op", "kernel", "output", "weights", "workspace"});
  for (const StepGroup& group : groups)
    table.add({group.label.name, layers_text(group), op_text(*group.step), kernel_text(*group.step),
               output_types(*group.step), bytes_text(group.weight_bytes), bytes_text(group.step->workspace_bytes)});
  table.print();
  fmt::print("{} steps; weights and workspace are those of one step\n", plan.steps.size());
  const auto joined = [](const Step& step) { return step.together == 0; };
  if (std::any_of(plan.steps.begin(), plan.steps.end(), joined))
    fmt::print("^ in the launch of the step before it, where shapes allow\n");
  print_refusals(groups);
}

}  // namespace moesaic
