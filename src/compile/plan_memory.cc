// Activation addresses from liveness. Largest first, each value goes into the smallest gap that the values alive at the
// same time leave (best fit); a step's outputs never share memory with its inputs.
#include <algorithm>

#include "compile/compile.h"

namespace moesaic {
namespace {

constexpr int64_t kAlign = 256;

std::vector<Allocation> lifetimes(const Graph& graph, const Lowered& lowered, std::vector<int>& allocation_of) {
  std::vector<Allocation> all;
  const Bounds bounds = {lowered.plan.limits.tokens, lowered.plan.limits.rows};
  int begin = 0, end = 0;  // of the steps that run together with this one: what one reads, no other may write over
  for (size_t i = 0; i < lowered.plan.steps.size(); ++i) {
    const int together = lowered.plan.steps[i].together, now = static_cast<int>(i);
    if (together > 0) begin = now, end = now + together - 1;
    for (Value in : lowered.inputs[i])
      if (graph.info(in).weight < 0) all[static_cast<size_t>(allocation_of[static_cast<size_t>(in.id)])].last = end;
    for (size_t k = 0; k < lowered.outputs[i].size(); ++k) {
      const Value out = lowered.outputs[i][k];
      allocation_of[static_cast<size_t>(out.id)] = static_cast<int>(all.size());
      std::string name = lowered.plan.steps[i].label;
      if (lowered.outputs[i].size() > 1) name += fmt::format(":{}", k);
      const int64_t bytes = (graph.type(out).bytes(bounds) + kAlign - 1) / kAlign * kAlign;
      all.push_back({std::move(name), 0, bytes, begin, end});
    }
  }
  for (const auto& output : graph.outputs)
    all[static_cast<size_t>(allocation_of[static_cast<size_t>(output.second.id)])].last =
        static_cast<int>(lowered.plan.steps.size());
  return all;
}

bool alive_together(const Allocation& a, const Allocation& b) {
  return a.first <= b.last && b.first <= a.last;
}

// The offset of the smallest gap between `taken` (sorted by offset) that holds `bytes`, else the end.
int64_t best_fit(const std::vector<const Allocation*>& taken, int64_t bytes) {
  int64_t best = -1, best_gap = 0, end = 0;
  for (const Allocation* a : taken) {
    const int64_t gap = a->offset - end;
    if (gap >= bytes && (best < 0 || gap < best_gap)) best = end, best_gap = gap;
    end = std::max(end, a->offset + a->bytes);
  }
  return best >= 0 ? best : end;
}

int64_t place(std::vector<Allocation>& all) {
  std::vector<size_t> order(all.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return all[a].bytes != all[b].bytes ? all[a].bytes > all[b].bytes : a < b; });
  int64_t total = 0;
  for (size_t done = 0; done < order.size(); ++done) {
    Allocation& now = all[order[done]];
    std::vector<const Allocation*> taken;
    for (size_t k = 0; k < done; ++k)
      if (alive_together(all[order[k]], now)) taken.push_back(&all[order[k]]);
    std::sort(taken.begin(), taken.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
    now.offset = best_fit(taken, now.bytes);
    total = std::max(total, now.offset + now.bytes);
  }
  return total;
}

}  // namespace

void plan_memory(const Graph& graph, Lowered& lowered, const WeightMap& weights) {
  Plan& plan = lowered.plan;
  std::vector<int> allocation_of(graph.value_count(), -1);
  plan.allocations = lifetimes(graph, lowered, allocation_of);
  plan.activation_bytes = place(plan.allocations);
  const auto place_of = [&](Value value) -> Place {
    const int weight = graph.info(value).weight;
    if (weight >= 0) return {Region::weights, weights.slots[static_cast<size_t>(weight)].offset};
    return {Region::activations,
            plan.allocations[static_cast<size_t>(allocation_of[static_cast<size_t>(value.id)])].offset};
  };
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    for (Value in : lowered.inputs[i]) plan.steps[i].inputs.push_back(place_of(in));
    for (Value out : lowered.outputs[i]) plan.steps[i].outputs.push_back(place_of(out));
  }
  for (const auto& [name, value] : graph.outputs) {
    if (name == "hidden") plan.hidden = place_of(value);
    if (name != "logits" && name != "image_rows") continue;
    plan.logits = place_of(value);
    plan.vocab = graph.type(value).dim(-1).factor;
  }
}

}  // namespace moesaic
