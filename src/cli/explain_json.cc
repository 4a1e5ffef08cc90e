// The JSON form of `moesaic explain`: every step and every allocation, nothing grouped.
#include "cli/explain.h"

namespace moesaic {
namespace {

JsonArray passes_json(const std::vector<PassRecord>& passes) {
  JsonArray out;
  for (const PassRecord& pass : passes)
    out.push_back({{"pass", pass.name},
                   {"what", pass.what},
                   {"ops_before", pass.before},
                   {"ops_after", pass.after},
                   {"skipped", pass.skipped}});
  return out;
}

JsonObject step_json(const Step& step, const WeightMap& weights) {
  JsonArray outputs, refused;
  for (const OperandDesc& output : step.desc.outputs) outputs.push_back(Json(to_string(output.type)));
  for (const Refusal& refusal : step.refused)
    refused.push_back({{"kernel", refusal.kernel}, {"reason", refusal.reason}});
  return {{"step", step.label},
          {"op", op_text(step)},
          {"kernel", step.kernel->name},
          {"joins_step_before", step.together == 0},
          {"outputs", std::move(outputs)},
          {"weight_bytes", step_weight_bytes(step, weights)},
          {"workspace_bytes", step.workspace_bytes},
          {"refused", std::move(refused)}};
}

JsonObject activations_json(const Plan& plan) {
  JsonArray allocations;
  for (const Allocation& a : plan.allocations)
    allocations.push_back(
        {{"name", a.name}, {"offset", a.offset}, {"bytes", a.bytes}, {"first_step", a.first}, {"last_step", a.last}});
  return {{"bytes", plan.activation_bytes},
          {"bytes_without_reuse", activation_sum(plan)},
          {"allocations", std::move(allocations)}};
}

JsonObject plan_json(const Explanation& e, Phase phase) {
  const Plan& plan = e.plan(phase);
  JsonArray steps;
  for (const Step& step : plan.steps) steps.push_back(step_json(step, e.compiled.weights));
  return {
      {"phase", phase_name(phase)},
      {"limits", {{"tokens", plan.limits.tokens}, {"rows", plan.limits.rows}, {"sequences", plan.limits.sequences}}},
      {"passes", passes_json(e.passes.at(phase))},
      {"steps", std::move(steps)},
      {"activations", activations_json(plan)},
      {"workspace_bytes", plan.workspace_bytes}};
}

JsonObject memory_json(const Explanation& e) {
  const CacheSize cache = cache_size(e);
  return {{"weights_bytes", e.compiled.weights.bytes},
          {"cache",
           {{"block_tokens", kBlockTokens},
            {"bytes_per_block", e.compiled.cache.block_stride},
            {"bytes_per_sequence", e.compiled.cache.slot_stride},
            {"context", e.context},
            {"blocks", cache.blocks},
            {"slots", cache.slots},
            {"bytes", cache.bytes}}},
          {"activation_bytes", e.compiled.activation_bytes()},
          {"workspace_bytes", e.compiled.workspace_bytes()}};
}

}  // namespace

Json explanation_json(const Explanation& e) {
  JsonArray phases;
  for (Phase phase : e.phases) phases.push_back(plan_json(e, phase));
  return JsonObject{{"family", e.model.family},       {"device", e.device.name},
                    {"precision", precision_text(e)}, {"formats", e.from_checkpoint ? "checkpoint" : "assumed"},
                    {"phases", std::move(phases)},    {"memory", memory_json(e)}};
}

}  // namespace moesaic
