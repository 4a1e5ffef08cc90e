// The memory map of a compiled model: weights, cache, activations and the one workspace.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/progress.h"
#include "cli/explain.h"
#include "cli/table.h"

namespace moesaic {
namespace {

std::string human(int64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

void print_regions(const Explanation& e) {
  const Compiled& c = e.compiled;
  const CacheSize cache = cache_size(e);
  Table table({"region", "bytes"});
  table.add({"weights", human(c.weights.bytes)});
  table.add({"cache", human(cache.bytes)});
  table.add({"activations", human(c.activation_bytes())});
  table.add({"workspace", human(c.workspace_bytes())});
  table.add({"total", human(c.weights.bytes + cache.bytes + c.activation_bytes() + c.workspace_bytes())});
  table.print();
  if (e.device.memory_bytes > 0) fmt::print("the device has {}\n", human(e.device.memory_bytes));
}

void print_weights(const WeightMap& weights) {
  std::map<std::string, std::pair<int64_t, int64_t>> formats;  // count and bytes
  for (const WeightSlot& slot : weights.slots) {
    const std::string format = slot.spec.format == Format::mxfp4 ? "mxfp4" : std::string(dtype_name(slot.stored));
    auto& [count, bytes] = formats[slot.layout == Layout::rows16 ? format + " in rows16" : format];
    ++count;
    bytes += slot.bytes;
  }
  fmt::print("\nweights");
  const char* separator = ": ";
  for (const auto& [format, total] : formats) {
    fmt::print("{}{} {} ({})", separator, total.first, format, human(total.second));
    separator = ", ";
  }
  fmt::print("\n");
}

void print_cache(const Explanation& e) {
  const CacheMap& map = e.compiled.cache;
  const CacheSize size = cache_size(e);
  int64_t paged = 0, constant = 0;
  for (const CacheMap::Layer& layer : map.layers) {
    paged += layer.decl.spec.bytes_per_entry > 0;
    constant += layer.decl.spec.bytes_per_sequence > 0;
  }
  fmt::print("\ncache: {} a block of {} tokens ({} layers), {} a sequence ({} layers with constant state)\n",
             human(map.block_stride), kBlockTokens, paged, human(map.slot_stride), constant);
  fmt::print("  {} sequences of {} tokens: {} blocks and {} slots, {}\n", size.slots, e.context, size.blocks,
             size.slots, human(size.bytes));
}

struct User {
  std::string name;
  int64_t bytes = 0;
  std::vector<int64_t> layers;
};

// The largest activations; those of several layers that are equal count as one user.
std::vector<User> top_users(const Plan& plan, size_t count) {
  std::vector<User> users;
  std::map<std::pair<std::string, int64_t>, size_t> index;
  for (const Allocation& allocation : plan.allocations) {
    const LayerLabel label = split_layer(allocation.name);
    const auto [it, added] = index.try_emplace({label.pattern, allocation.bytes}, users.size());
    if (added) users.push_back({label.name, allocation.bytes, {}});
    std::vector<int64_t>& layers = users[it->second].layers;
    if (label.layer >= 0 && (layers.empty() || layers.back() != label.layer)) layers.push_back(label.layer);
  }
  std::sort(users.begin(), users.end(),
            [](const User& a, const User& b) { return std::tie(b.bytes, a.name) < std::tie(a.bytes, b.name); });
  users.resize(std::min(users.size(), count));
  return users;
}

void print_activations(const Plan& plan) {
  const int64_t sum = activation_sum(plan);
  fmt::print("\nactivations of {}: {} with reuse, {} without ({:.1f} times); the largest:\n", phase_name(plan.phase),
             human(plan.activation_bytes), human(sum),
             static_cast<double>(sum) / static_cast<double>(std::max<int64_t>(plan.activation_bytes, 1)));
  for (const User& user : top_users(plan, 5))
    fmt::print("  {:>8}  {}{}\n", human(user.bytes), user.name,
               user.layers.empty() ? "" : " of layers " + layer_list(user.layers));
}

struct StepRange {
  int first = 0, last = 0;
};

// The steps of the layer in which most bytes are alive; without layers, the first steps.
StepRange busiest_layer(const Plan& plan) {
  const int steps = static_cast<int>(plan.steps.size());
  std::vector<int64_t> alive(plan.steps.size() + 1, 0), layers;
  for (const Allocation& a : plan.allocations)
    for (int i = a.first; i <= a.last; ++i) alive[static_cast<size_t>(i)] += a.bytes;
  for (const Step& step : plan.steps) layers.push_back(split_layer(step.label).layer);
  int peak = -1;
  for (int i = 0; i < steps; ++i)
    if (layers[static_cast<size_t>(i)] >= 0 &&
        (peak < 0 || alive[static_cast<size_t>(i)] > alive[static_cast<size_t>(peak)]))
      peak = i;
  if (peak < 0) return {0, std::min(20, steps - 1)};
  const int64_t layer = layers[static_cast<size_t>(peak)];
  StepRange range{peak, peak};
  while (range.first > 0 && layers[static_cast<size_t>(range.first - 1)] == layer) --range.first;
  while (range.last + 1 < steps && layers[static_cast<size_t>(range.last + 1)] == layer) ++range.last;
  return range;
}

std::string lifetime_bar(const Allocation& a, StepRange range) {
  std::string bar;
  for (int i = range.first; i <= range.last; ++i) bar += i >= a.first && i <= a.last ? '#' : '.';
  return (a.first < range.first ? "<" : " ") + bar + (a.last > range.last ? ">" : " ");
}

// Who holds which part of the arena during one layer: a column is a step, # is alive.
void print_reuse(const Plan& plan) {
  const StepRange range = busiest_layer(plan);
  std::vector<const Allocation*> shown;
  for (const Allocation& a : plan.allocations)
    if (a.first <= range.last && a.last >= range.first) shown.push_back(&a);
  std::sort(shown.begin(), shown.end(),
            [](auto* a, auto* b) { return std::tie(a->offset, a->first) < std::tie(b->offset, b->first); });
  fmt::print("\nreuse of that memory over steps {} to {} of {} (# alive, < before, > after):\n", range.first,
             range.last, phase_name(plan.phase));
  Table table({"activation", "offset", "bytes", "lifetime"});
  for (const Allocation* a : shown) table.add({a->name, human(a->offset), human(a->bytes), lifetime_bar(*a, range)});
  table.print();
}

void print_workspace(const Explanation& e) {
  std::set<int64_t> layers;
  int64_t sum = 0, users = 0;
  Table table({"step", "layers", "phase", "kernel", "asks for"});
  for (Phase phase : {Phase::prefill, Phase::decode})  // both share it, whichever was asked for
    for (const StepGroup& group : group_steps(e.plan(phase), e.compiled.weights)) {
      const int64_t bytes = group.step->workspace_bytes;
      if (bytes == 0) continue;
      layers.insert(group.layers.begin(), group.layers.end());
      sum += bytes * group.count;
      users += group.count;
      table.add({group.label.name, layers_text(group), phase_name(phase), group.step->kernel->name, human(bytes)});
    }
  if (users == 0) return fmt::print("\nworkspace: no step asks for any\n");
  const std::string of = layers.empty() ? "" : " of layers " + layer_list({layers.begin(), layers.end()});
  fmt::print("\nworkspace: ONE region of {}, shared by {} steps{} ({} if each had its own)\n",
             human(e.compiled.workspace_bytes()), users, of, human(sum));
  table.print();
}

}  // namespace

CacheSize cache_size(const Explanation& e) {
  const int64_t per_sequence = (e.context + kBlockTokens - 1) / kBlockTokens;
  CacheSize size{.blocks = e.load.max_sequences * per_sequence, .slots = e.load.max_sequences};
  if (e.load.cache_tokens > 0) size.blocks = (e.load.cache_tokens + kBlockTokens - 1) / kBlockTokens;
  size.bytes = size.blocks * e.compiled.cache.block_stride + size.slots * e.compiled.cache.slot_stride;
  return size;
}

int64_t activation_sum(const Plan& plan) {
  int64_t sum = 0;
  for (const Allocation& allocation : plan.allocations) sum += allocation.bytes;
  return sum;
}

void print_memory(const Explanation& e) {
  print_regions(e);
  print_weights(e.compiled.weights);
  print_cache(e);
  for (Phase phase : e.phases) print_activations(e.plan(phase));
  print_reuse(e.plan(e.phases.front()));
  print_workspace(e);
}

}  // namespace moesaic
