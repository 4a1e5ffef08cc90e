// moesaic explain: passes, kernels and memory of a compiled model, without its weights.
#include "cli/explain.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/table.h"
#include "engine/load_options.h"

namespace moesaic {
namespace {

std::vector<Phase> wanted_phases(const std::string& name) {
  if (name == "prefill") return {Phase::prefill};
  if (name == "decode") return {Phase::decode};
  return {Phase::prefill, Phase::decode};
}

void check_dump(const ExplainOptions& options, const std::vector<Phase>& phases) {
  std::vector<std::string> names = {"build"};
  for (Phase phase : phases)
    for (const Pass& pass : passes(options.load.backend, phase, options.load.precision))
      if (std::find(names.begin(), names.end(), pass.name) == names.end()) names.emplace_back(pass.name);
  if (std::find(names.begin(), names.end(), options.dump_after) == names.end())
    fail_argument("there is no pass \"{}\" to dump the graph after; there are {}", options.dump_after,
                  fmt::join(names, ", "));
  if (options.load.skip_passes.contains(options.dump_after))
    fail_argument("--dump-after and --skip name the same pass, {}", options.dump_after);
}

// Compiles and records how many ops the graph has after each pass.
void compile_into(Explanation& e, const Graph& graph, CompileOptions compile_options) {
  std::map<Phase, std::vector<std::pair<std::string, int64_t>>> seen;
  compile_options.observe = [&](Phase phase, const std::string& pass, const Graph& now) {
    seen[phase].emplace_back(pass, static_cast<int64_t>(now.nodes().size()));
  };
  e.compiled = compile(graph, compile_options);
  for (Phase phase : e.phases) {
    const auto& counts = seen[phase];
    int64_t ops = counts.at(0).second;
    for (const Pass& pass : passes(compile_options.device.backend, phase, compile_options.precision)) {
      const auto found = std::find_if(counts.begin(), counts.end(), [&](auto& c) { return c.first == pass.name; });
      const int64_t after = found == counts.end() ? ops : found->second;
      e.passes[phase].push_back({pass.name, pass.what, ops, after, found == counts.end()});
      ops = after;
    }
  }
}

// Prints each graph as soon as it is there: a later stage that fails may be why somebody looks at it.
void dump_graph(const Explanation& e, const Graph& graph, CompileOptions compile_options, const std::string& after) {
  compile_options.observe = [&](Phase phase, const std::string& pass, const Graph& now) {
    if (pass != after || std::find(e.phases.begin(), e.phases.end(), phase) == e.phases.end()) return;
    if (e.phases.size() > 1) fmt::print("# {} after {}\n", phase_name(phase), pass);
    fmt::print("{}", print(now));
    std::fflush(stdout);
  };
  compile(graph, compile_options);
}

void print_passes(const std::vector<PassRecord>& passes) {
  Table table({"pass", "ops before", "after"});
  for (const PassRecord& pass : passes)
    table.add({pass.name + (pass.skipped ? " (skipped): " : ": ") + pass.what, std::to_string(pass.before),
               std::to_string(pass.after)});
  table.print();
}

void print_explanation(const Explanation& e) {
  fmt::print("{} on {}, precision {}, {}\n", e.model.family, e.device.name, precision_text(e),
             e.from_checkpoint ? "formats of the checkpoint" : "formats assumed from config.json");
  for (Phase phase : e.phases) {
    const Plan& plan = e.plan(phase);
    fmt::print("\n== {}: at most {} tokens, {} rows of logits, {} sequences in a step\n\n", phase_name(phase),
               plan.limits.tokens, plan.limits.rows, plan.limits.sequences);
    print_passes(e.passes.at(phase));
    fmt::print("\n");
    print_steps(plan, e.compiled.weights);
  }
  fmt::print("\n== memory\n\n");
  print_memory(e);
}

// What kernels are chosen for; for a GPU it need not be there.
DeviceInfo device_to_explain(const LoadOptions& load) {
  if (load.backend != Backend::cuda) return make_cpu_device(load.backend, load.threads)->info();
  if (registry_of(Backend::cuda).kernels().empty()) fail_argument("{}", cuda_unavailable());
  return {.backend = Backend::cuda, .name = "cuda (sm_90a)"};
}

struct Prepared {
  Explanation e;
  BoundGraph bound;
  CompileOptions to_compile;
};

Prepared prepare(const LoadOptions& load, const std::vector<Phase>& phases) {
  ModelSource source = find_model(load.model, !load.dummy_weights);
  BoundGraph bound = build_graph(source, load.backend, cache_dtype(load));
  check_binding(bound.binding, source.directory.string());
  const DeviceInfo device = device_to_explain(load);
  CompileOptions to_compile = compile_options(load, source.model, device);
  Explanation e{.model = source.model,
                .load = load,
                .device = device,
                .from_checkpoint = source.shards.has_value(),
                .context = load.max_model_len,
                .phases = phases,
                .passes = {},
                .compiled = {}};
  if (e.context == 0) e.context = std::min(source.model.max_positions, kDefaultContext);
  return {std::move(e), std::move(bound), std::move(to_compile)};
}

}  // namespace

const char* phase_name(Phase phase) {
  return phase == Phase::prefill ? "prefill" : "decode";
}

const char* precision_text(const Explanation& e) {
  if (e.load.backend == Backend::ref) return "float64";
  return precision_name(e.load.precision);
}

Explanation explain_model(const LoadOptions& load) {
  Prepared p = prepare(load, wanted_phases(""));
  compile_into(p.e, p.bound.graph, p.to_compile);
  return std::move(p.e);
}

int run_explain(const ExplainOptions& options) {
  const std::vector<Phase> phases = wanted_phases(options.phase);
  if (!options.dump_after.empty()) check_dump(options, phases);
  Prepared p = prepare(options.load, phases);
  if (!options.dump_after.empty()) {
    dump_graph(p.e, p.bound.graph, p.to_compile, options.dump_after);
    return 0;
  }
  compile_into(p.e, p.bound.graph, p.to_compile);
  if (options.json) fmt::print("{}\n", write_json(explanation_json(p.e), {.indent = 2}));
  else print_explanation(p.e);
  return 0;
}

}  // namespace moesaic
