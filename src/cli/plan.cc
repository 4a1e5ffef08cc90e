// moesaic plan: what would live where on accelerators that nobody has to have, and how fast reading it could be.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/model_source.h"
#include "cli/table.h"
#include "compile/placement.h"

namespace moesaic {
namespace {

constexpr int64_t kMostDevices = 1024, kMostTokens = 1 << 20;
constexpr double kMostHostGiga = 1e6;
constexpr double kGiga = 1e9;

// Devices that hold the same.
struct Column {
  std::vector<int64_t> devices;
  const RankPlacement* placement = nullptr;
};

struct Row {
  std::string name;
  int64_t (*bytes)(const RankPlacement&);
};

template <WeightGroup group>
int64_t group_bytes(const RankPlacement& rank) {
  return rank.weights[static_cast<size_t>(group)];
}

constexpr int64_t (*kGroupBytes[])(const RankPlacement&) = {
    group_bytes<WeightGroup::attention>,  group_bytes<WeightGroup::dense_mlp>, group_bytes<WeightGroup::experts>,
    group_bytes<WeightGroup::embeddings>, group_bytes<WeightGroup::norms>,     group_bytes<WeightGroup::other>};
static_assert(std::size(kGroupBytes) == kWeightGroupCount);

// What lies on a device, which adds up to its total.
std::vector<Row> device_rows() {
  std::vector<Row> rows;
  for (int i = 0; i < kWeightGroupCount; ++i)
    rows.push_back({"weights: " + std::string(weight_group_name(static_cast<WeightGroup>(i))), kGroupBytes[i]});
  rows.push_back({"places for experts from the host", [](const RankPlacement& r) { return r.staging; }});
  rows.push_back({"cache", [](const RankPlacement& r) { return r.cache; }});
  rows.push_back({"activations", [](const RankPlacement& r) { return r.activations; }});
  rows.push_back({"workspace", [](const RankPlacement& r) { return r.workspace; }});
  return rows;
}

std::vector<Column> columns(const Placement& placement) {
  std::vector<Column> all;
  const std::vector<Row> rows = device_rows();
  const auto alike = [&](const RankPlacement& a, const RankPlacement& b) {
    return a.host_experts == b.host_experts &&
           std::all_of(rows.begin(), rows.end(), [&](const Row& row) { return row.bytes(a) == row.bytes(b); });
  };
  for (size_t i = 0; i < placement.ranks.size(); ++i) {
    const RankPlacement& rank = placement.ranks[i];
    auto found = std::find_if(all.begin(), all.end(), [&](const Column& c) { return alike(*c.placement, rank); });
    if (found == all.end()) found = all.insert(all.end(), {{}, &rank});
    found->devices.push_back(static_cast<int64_t>(i));
  }
  return all;
}

std::string exact(int64_t bytes) {
  return fmt::format("{} ({})", bytes, human_bytes(static_cast<double>(bytes)));
}

void print_regions(const Placement& placement) {
  const std::vector<Column> shown = columns(placement);
  std::vector<std::string> header = {"bytes on"};
  for (const Column& c : shown)
    header.push_back((c.devices.size() == 1 ? "device " : "each of devices ") + layer_list(c.devices));
  Table table(header);
  const auto add = [&](const std::string& name, auto bytes) {
    std::vector<std::string> cells = {name};
    for (const Column& c : shown) cells.push_back(exact(bytes(*c.placement)));
    table.add(std::move(cells));
  };
  for (const Row& row : device_rows()) add(row.name, row.bytes);
  add("total", [](const RankPlacement& r) { return r.total(); });
  if (placement.host_experts() > 0)
    add("experts in host memory", [](const RankPlacement& r) { return r.host_experts; });
  table.print();
}

// Host memory with which the plan would fit; 0 where it would not.
int64_t enough_host_memory(const Graph& graph, PlacementOptions options) {
  options.host_memory = INT64_MAX;
  const Placement placement = place(graph, options);
  return placement.fits() ? placement.host_experts() : 0;
}

std::string verdict(const Placement& placement, const Graph& graph) {
  const int64_t memory = placement.options.device.memory_bytes, largest = placement.largest();
  if (placement.fits())
    return fmt::format("fits: the fullest device has {} of {} left", human_bytes(static_cast<double>(memory - largest)),
                       human_bytes(static_cast<double>(memory)));
  const int64_t host = enough_host_memory(graph, placement.options);
  const std::string advice =
      host > 0 ? fmt::format("more devices, or --host-memory {:.0f}", std::ceil(static_cast<double>(host) / kGiga))
               : "more devices, or fewer or shorter sequences";
  if (largest > memory)
    return fmt::format("does not fit: the fullest device needs {}, it has {}; use {}",
                       human_bytes(static_cast<double>(largest)), human_bytes(static_cast<double>(memory)), advice);
  return fmt::format("does not fit: experts in host memory need {}, --host-memory allows {}; use {}",
                     human_bytes(static_cast<double>(placement.host_experts())),
                     human_bytes(static_cast<double>(placement.options.host_memory)), advice);
}

std::vector<int64_t> lengths(const Model& model, int64_t context) {
  std::vector<int64_t> all = {context, model.max_positions};
  for (int64_t length : {4096, 32768, 131072, 1048576})
    if (length < model.max_positions) all.push_back(length);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

void print_sequences(const Placement& placement, const Model& model) {
  fmt::print("\n");
  Table table({"tokens of a sequence", "cache of one, per device", "sequences that fit"});
  for (int64_t length : lengths(model, placement.options.context)) {
    int64_t one = 0;
    for (const RankPlacement& rank : placement.ranks) one = std::max(one, rank.cache_bytes(1, length));
    table.add({std::to_string(length), exact(one), std::to_string(placement.sequences(length))});
  }
  table.print();
}

std::vector<StepFloor> floors(const Placement& placement) {
  std::vector<StepFloor> all = {step_floor(placement, 1)};
  if (placement.options.batch > 1) all.push_back(step_floor(placement, placement.options.batch));
  return all;
}

void print_floors(const Placement& placement) {
  fmt::print("\nleast time of a decode step, from bytes over bandwidth on the slowest device:\n");
  Table table({"sequences", "dense weights", "experts", "cache", "from host", "ms per step", "tokens/s"});
  for (const StepFloor& f : floors(placement))
    table.add({std::to_string(f.batch), human_bytes(f.weight_bytes), human_bytes(f.expert_bytes),
               human_bytes(f.cache_bytes), human_bytes(f.host_bytes), fmt::format("{:.3f}", f.seconds * 1e3),
               fmt::format("{:.0f}", static_cast<double>(f.batch) / f.seconds)});
  table.print();
}

void print_plan(const ModelSource& source, const Placement& placement, const Graph& graph, const PlanOptions& options) {
  const PlacementOptions& on = placement.options;
  fmt::print("{} ({}) on {} {} of {} and {:.2f} TB/s\n", source.config_path, source.model.family, on.ranks,
             on.device.name, human_bytes(static_cast<double>(on.device.memory_bytes)), on.device.read_bandwidth / 1e12);
  fmt::print("{} sequences of {} tokens with keys and values in {}; at most {} prompt tokens in a step; formats {}\n\n",
             on.batch, on.context, options.kv_cache_dtype, on.prefill_tokens,
             source.shards ? "of the checkpoint" : "assumed from config.json");
  print_regions(placement);
  fmt::print("\n{}\n", verdict(placement, graph));
  print_sequences(placement, source.model);
  print_floors(placement);
}

JsonArray devices_json(const Placement& placement) {
  JsonArray devices;
  for (const RankPlacement& rank : placement.ranks) {
    JsonObject weights;
    for (int i = 0; i < kWeightGroupCount; ++i)
      weights[weight_group_name(static_cast<WeightGroup>(i))] = rank.weights[static_cast<size_t>(i)];
    devices.push_back({{"weights", std::move(weights)},
                       {"weight_bytes", rank.weight_bytes()},
                       {"staging_bytes", rank.staging},
                       {"cache_bytes", rank.cache},
                       {"activation_bytes", rank.activations},
                       {"workspace_bytes", rank.workspace},
                       {"total_bytes", rank.total()},
                       {"host_expert_bytes", rank.host_experts},
                       {"cache_block_bytes", rank.block_bytes},
                       {"cache_slot_bytes", rank.slot_bytes}});
  }
  return devices;
}

JsonObject plan_json(const ModelSource& source, const Placement& placement) {
  const PlacementOptions& on = placement.options;
  JsonArray sequences, steps;
  for (int64_t length : lengths(source.model, on.context))
    sequences.push_back({{"tokens", length}, {"fit", placement.sequences(length)}});
  for (const StepFloor& f : floors(placement))
    steps.push_back({{"sequences", f.batch},
                     {"dense_weight_bytes", f.weight_bytes},
                     {"expert_bytes", f.expert_bytes},
                     {"cache_bytes", f.cache_bytes},
                     {"host_bytes", f.host_bytes},
                     {"seconds", f.seconds}});
  return {{"config", source.config_path},
          {"family", source.model.family},
          {"device", on.device.name},
          {"memory_bytes", on.device.memory_bytes},
          {"read_bandwidth", on.device.read_bandwidth},
          {"context", on.context},
          {"batch", on.batch},
          {"fits", placement.fits()},
          {"host_memory_bytes", on.host_memory},
          {"devices", devices_json(placement)},
          {"sequences", std::move(sequences)},
          {"steps", std::move(steps)}};
}

void check_range(const char* flag, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) fail_argument("{} is {}; expected {} to {}", flag, value, low, high);
}

void check(const PlanOptions& options, const Model& model) {
  check_range("--devices", options.devices, 1, kMostDevices);
  check_range("--batch", options.batch, 1, kMostTokens);
  check_range("--max-num-batched-tokens", options.prefill_tokens, 1, kMostTokens);
  if (options.context < 0 || options.context > model.max_positions)
    fail_argument("--context is {}; this model's config.json allows 1 to {} tokens", options.context,
                  model.max_positions);
  if (!(options.host_memory_gb >= 0 && options.host_memory_gb <= kMostHostGiga))
    fail_argument("--host-memory is {} GB; expected 0 to {}", options.host_memory_gb, kMostHostGiga);
}

// On one device, what the engine would compile and allocate, in place of what follows from the graph alone; false where
// this build has no kernels of such devices.
bool use_compiled(const ModelSource& source, const PlanOptions& options, Placement& placement) {
  if (options.devices != 1 || registry_of(Backend::cuda).kernels().empty()) return false;
  LoadOptions load;
  load.backend = Backend::cuda;
  load.cache_dtype = *parse_dtype(options.kv_cache_dtype);
  load.max_model_len = placement.options.context;
  load.max_sequences = options.batch;
  load.prefill_tokens = options.prefill_tokens;
  DeviceInfo device;
  device.backend = Backend::cuda;
  const BoundGraph bound = build_graph(source, Backend::cuda, load.cache_dtype);
  const Compiled compiled = compile(bound.graph, compile_options(load, source.model, device));
  RankPlacement& rank = placement.ranks[0];
  rank.activations = compiled.activation_bytes();
  rank.workspace = compiled.workspace_bytes();
  const int64_t blocks = options.batch * ((placement.options.context + kBlockTokens - 1) / kBlockTokens);
  rank.cache = (blocks + 1) * compiled.cache.block_stride + (options.batch + 1) * compiled.cache.slot_stride;
  return true;
}

}  // namespace

int run_plan(const PlanOptions& options) {
  const ModelSource source = find_model(options.model, true);
  check(options, source.model);
  BoundGraph bound = build_graph(source, Backend::cpu, *parse_dtype(options.kv_cache_dtype));
  check_binding(bound.binding, source.directory.string());
  bound.graph.activation = DType::bf16;
  bound.graph.infer_types();
  const PlacementOptions place_options{
      .device = find_device_model(options.device),
      .ranks = options.devices,
      .context = options.context > 0 ? options.context : std::min(source.model.max_positions, kDefaultContext),
      .batch = options.batch,
      .prefill_tokens = options.prefill_tokens,
      .host_memory = static_cast<int64_t>(options.host_memory_gb * kGiga)};
  Placement placement = place(bound.graph, place_options);
  const bool compiled = options.host_memory_gb == 0 && use_compiled(source, options, placement);
  if (options.json) fmt::print("{}\n", write_json(plan_json(source, placement), {.indent = 2}));
  else print_plan(source, placement, bound.graph, options);
  if (!options.json)
    fmt::print("activations and workspace are {}\n",
               compiled ? "what the engine compiles and allocates on this device"
                        : "estimated from the graph: this build cannot compile for these devices");
  return placement.fits() ? 0 : 1;
}

}  // namespace moesaic
