// moesaic inspect: what a checkpoint, or a config.json alone, holds and needs.
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/model_source.h"
#include "cli/table.h"

namespace moesaic {
namespace {

struct WeightRow {
  std::string name, format;
  Shape shape;
  int64_t parameters = 0, bytes = 0;  // 0 where another tensor serves (tied embeddings)
  double read_share = 1;              // of the weight, for one token
};

struct LayerKind {
  std::string kind;   // "full attention"
  JsonObject detail;  // window, experts, ...
  std::vector<int64_t> layers;
};

struct CacheCost {
  const char* dtype;  // of keys and values, as --kv-cache-dtype names it
  double bytes_per_token = 0;
  int64_t bytes_per_sequence = 0;
};

struct Report {
  std::vector<WeightRow> weights;
  std::vector<LayerKind> kinds;
  std::vector<CacheCost> caches;
  std::map<std::string, int64_t> bytes_by_format;
  int64_t parameters = 0, bytes = 0, tensors = 0;
  double active = 0;
};

// Biases of stacked experts have their leading dimension, [E, N].
bool is_stacked(const WeightSpec& weight, int64_t experts) {
  return weight.kind == WeightKind::experts ||
         (weight.kind == WeightKind::vector && weight.shape.rank() == 2 && weight.shape[0] == experts);
}

double share_read_by(const Graph& graph, const Node& node, const WeightSpec& weight) {
  if (node.op == Op::embed) return 1 / static_cast<double>(weight.shape[0]);
  if (weight.kind == WeightKind::table) return 1 / static_cast<double>(weight.shape[0]);
  if (node.op != Op::moe && node.op != Op::expert_linear) return 1;
  const bool whole = node.op == Op::moe;
  const int64_t experts = whole ? node.attrs.integer(Attr::experts) : graph.type(node.inputs[3]).dim(0).factor;
  const int64_t chosen = whole ? node.attrs.integer(Attr::top_k) : graph.type(node.inputs[1]).dim(0).factor;
  return is_stacked(weight, experts) ? static_cast<double>(chosen) / static_cast<double>(experts) : 1;
}

// Of each weight, the largest share that an op reads for one token.
std::vector<double> read_shares(const Graph& graph) {
  std::vector<double> shares(graph.weights.size(), 0);
  for (const auto& node : graph.nodes())
    for (Value in : node->inputs) {
      const int index = graph.info(in).weight;
      if (index < 0) continue;
      double& share = shares[static_cast<size_t>(index)];
      share = std::max(share, share_read_by(graph, *node, graph.weights[static_cast<size_t>(index)]));
    }
  return shares;
}

// Whether the weight's numbers are another's: what the checkpoint says, else what the config allows.
bool is_tied(const BoundGraph& bound, size_t i) {
  const WeightSpec& spec = bound.graph.weights[i];
  if (bound.binding.sources.empty() || !may_be_tied(bound.graph, spec)) return may_be_tied(bound.graph, spec);
  const std::vector<StoredTensor>& tensors = bound.binding.sources[i].tensors;
  return !tensors.empty() && tensors[0].name() == spec.fallback;
}

std::vector<WeightRow> weight_rows(const BoundGraph& bound) {
  const std::vector<double> shares = read_shares(bound.graph);
  std::vector<WeightRow> rows;
  for (size_t i = 0; i < bound.graph.weights.size(); ++i) {
    const WeightSpec& spec = bound.graph.weights[i];
    WeightRow row{spec.name, format_name(spec), spec.shape, spec.shape.elements(), weight_bytes(spec), shares[i]};
    const bool absent = !bound.binding.sources.empty() && bound.binding.sources[i].tensors.empty();
    if (absent) row.format = "missing", row.bytes = 0;
    if (is_tied(bound, i)) row.format = "tied", row.bytes = 0;
    rows.push_back(std::move(row));
  }
  return rows;
}

JsonObject details(const Node& node, std::initializer_list<Attr> attrs) {
  JsonObject detail;
  for (Attr attr : attrs) detail[attr_name(attr)] = node.attrs.integer(attr);
  return detail;
}

LayerKind kind_of(const Graph& graph, const Node& node) {
  switch (node.op) {
    case Op::gqa: {
      JsonObject detail = details(node, {Attr::heads, Attr::kv_heads, Attr::head_dim});
      const int64_t window = node.attrs.integer(Attr::window);
      if (window > 0) detail["window"] = window;
      return {window > 0 ? "sliding attention" : "full attention", std::move(detail), {}};
    }
    case Op::mla: {
      JsonObject detail = details(node, {Attr::heads, Attr::nope_dim, Attr::rope_dim, Attr::v_dim});
      detail["latent"] = graph.type(node.inputs[1]).dim(1).factor;
      return {node.inputs.size() > 4 ? "sparse latent attention" : "latent attention", std::move(detail), {}};
    }
    case Op::index_topk: return {"indexer", details(node, {Attr::heads, Attr::head_dim, Attr::top_k}), {}};
    case Op::kda: return {"delta attention", details(node, {Attr::heads, Attr::head_dim, Attr::v_dim}), {}};
    case Op::moe: return {"mixture of experts", details(node, {Attr::experts, Attr::top_k}), {}};
    case Op::route: {
      const int64_t experts = graph.type(node.inputs[0]).dim(1).factor;
      return {"mixture of experts", {{"experts", experts}, {"top_k", node.attrs.integer(Attr::top_k)}}, {}};
    }
    default: return {};
  }
}

std::vector<LayerKind> layer_kinds(const Graph& graph) {
  std::vector<LayerKind> kinds;
  for (const auto& node : graph.nodes()) {
    LayerKind kind = kind_of(graph, *node);
    if (kind.kind.empty()) continue;
    const auto alike = [&](const LayerKind& k) { return k.kind == kind.kind && k.detail == kind.detail; };
    auto found = std::find_if(kinds.begin(), kinds.end(), alike);
    if (found == kinds.end()) found = kinds.insert(kinds.end(), std::move(kind));
    found->layers.push_back(split_layer(node->label).layer);
  }
  return kinds;
}

CacheCost cache_cost(const Graph& graph, const char* dtype) {
  CacheCost cost{.dtype = dtype};
  for (const CacheDecl& decl : graph.caches) {
    cost.bytes_per_token += static_cast<double>(decl.spec.bytes_per_entry) / decl.spec.tokens_per_entry;
    cost.bytes_per_sequence += decl.spec.bytes_per_sequence;
  }
  return cost;
}

Report make_report(const ModelSource& source, const BoundGraph& bound) {
  Report report;
  report.weights = weight_rows(bound);
  report.kinds = layer_kinds(bound.graph);
  const BoundGraph exact = build_graph(source, Backend::cpu, DType::f32);
  report.caches = {cache_cost(exact.graph, "f32"), cache_cost(bound.graph, "bf16")};
  for (const WeightSpec& spec : bound.graph.weights) report.tensors += checkpoint_tensors(bound.graph, spec);
  for (const WeightRow& row : report.weights) {
    report.active += row.read_share * static_cast<double>(row.parameters);
    report.bytes += row.bytes;
    if (row.bytes > 0) report.bytes_by_format[row.format] += row.bytes;
    if (row.format != "tied") report.parameters += row.parameters;
  }
  return report;
}

// Why the tensors were not compared with the config; empty where they were.
std::string unchecked_reason(const ModelSource& source, const std::string& model) {
  if (source.shards) return "";
  std::error_code ignored;
  return std::filesystem::is_regular_file(model, ignored)
             ? "not checked: config.json only"
             : "not checked: no .safetensors file in " + source.directory.string();
}

void print_summary(const ModelSource& source, const Report& report) {
  const Model& model = source.model;
  const double per_parameter = static_cast<double>(report.bytes) * 8 / static_cast<double>(report.parameters);
  fmt::print("model       {}\n", source.config_path);
  fmt::print("family      {}: {} layers, hidden {}, vocabulary {}, context {} tokens\n", model.family, model.layers,
             model.hidden, model.vocab, model.max_positions);
  fmt::print("parameters  {} in all, {} read per token\n", human_count(static_cast<double>(report.parameters)),
             human_count(report.active));
  fmt::print("weights     {} ({:.2f} bits per parameter):", human_bytes(static_cast<double>(report.bytes)),
             per_parameter);
  const char* separator = " ";
  for (const auto& [format, bytes] : report.bytes_by_format) {
    fmt::print("{}{} {}", separator, human_bytes(static_cast<double>(bytes)), format);
    separator = ", ";
  }
  fmt::print("\ntensors     {} in a checkpoint of these formats, without the parts that are not used\n\n",
             report.tensors);
}

std::string describe(const JsonObject& detail) {
  std::string out;
  for (const auto& [key, value] : detail)
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", std::string(key), write_json(value));
  return out;
}

void print_layers(const Report& report) {
  Table kinds({"layers of a kind", "count", "which", "shape"});
  for (const LayerKind& kind : report.kinds)
    kinds.add({kind.kind, std::to_string(kind.layers.size()), layer_list(kind.layers), describe(kind.detail)});
  kinds.print();
  fmt::print("\n");
  Table caches({"cache", "per token", "per sequence"});
  for (const CacheCost& cost : report.caches)
    caches.add({std::string("--kv-cache-dtype ") + cost.dtype, human_bytes(cost.bytes_per_token),
                human_bytes(static_cast<double>(cost.bytes_per_sequence))});
  caches.print();
  fmt::print("\n");
}

void print_weights(const Report& report) {
  Table table({"weight", "shape", "format", "bytes", "parameters"});
  for (const WeightRow& row : report.weights)
    table.add({row.name, to_string(row.shape), row.format, std::to_string(row.bytes), std::to_string(row.parameters)});
  table.print();
  fmt::print("\n");
}

void print_problems(const char* title, const std::vector<std::string>& names) {
  if (names.empty()) return;
  fmt::print("{} {}:\n", names.size(), title);
  for (const std::string& name : names) fmt::print("  {}\n", name);
}

void print_binding(const ModelSource& source, const Binding& binding, const std::string& unchecked) {
  if (!unchecked.empty()) return fmt::print("checkpoint  {}\n", unchecked);
  fmt::print("checkpoint  {}: {} tensors in {} file{}, {}\n", binding.complete() ? "complete" : "INCOMPLETE",
             source.shards->names().size(), source.shards->files().size(),
             source.shards->files().size() == 1 ? "" : "s",
             human_bytes(static_cast<double>(source.shards->total_bytes())));
  print_problems("missing", binding.missing);
  print_problems("unexpected", binding.unexpected);
  print_problems("mismatched", binding.mismatched);
}

JsonArray weights_json(const Report& report) {
  JsonArray out;
  for (const WeightRow& row : report.weights)
    out.push_back(
        {{"name", row.name},
         {"shape", boost::json::value_from(std::vector<int64_t>(row.shape.dims().begin(), row.shape.dims().end()))},
         {"format", row.format},
         {"bytes", row.bytes},
         {"parameters", row.parameters}});
  return out;
}

JsonObject checkpoint_json(const ModelSource& source, const Binding& binding, const std::string& unchecked) {
  if (!unchecked.empty()) return {{"checked", false}, {"reason", unchecked}};
  return {{"checked", true},
          {"complete", binding.complete()},
          {"tensors", source.shards->names().size()},
          {"files", source.shards->files().size()},
          {"missing", boost::json::value_from(binding.missing)},
          {"unexpected", boost::json::value_from(binding.unexpected)},
          {"mismatched", boost::json::value_from(binding.mismatched)}};
}

JsonObject report_json(const ModelSource& source, const Report& report) {
  JsonObject formats, caches;
  for (const auto& [format, bytes] : report.bytes_by_format) formats[format] = bytes;
  for (const CacheCost& cost : report.caches)
    caches[cost.dtype] = {{"bytes_per_token", cost.bytes_per_token}, {"bytes_per_sequence", cost.bytes_per_sequence}};
  JsonArray kinds;
  for (const LayerKind& kind : report.kinds) {
    JsonObject object{{"kind", kind.kind}, {"layers", boost::json::value_from(kind.layers)}};
    for (const auto& [key, value] : kind.detail) object[key] = value;
    kinds.push_back(std::move(object));
  }
  const Model& model = source.model;
  return {{"config", source.config_path},
          {"family", model.family},
          {"layers", model.layers},
          {"hidden", model.hidden},
          {"vocab", model.vocab},
          {"context", model.max_positions},
          {"parameters", report.parameters},
          {"active_parameters", std::llround(report.active)},
          {"bytes", report.bytes},
          {"bytes_by_format", std::move(formats)},
          {"checkpoint_tensors", report.tensors},
          {"layer_kinds", std::move(kinds)},
          {"cache", std::move(caches)}};
}

}  // namespace

int run_inspect(const InspectOptions& options) {
  const ModelSource source = find_model(options.model, true);
  const BoundGraph bound = build_graph(source, Backend::cpu, DType::bf16);
  const Report report = make_report(source, bound);
  const std::string unchecked = unchecked_reason(source, options.model);
  if (options.json) {
    JsonObject out = report_json(source, report);
    out["checkpoint"] = checkpoint_json(source, bound.binding, unchecked);
    if (options.tensors) out["weights"] = weights_json(report);
    fmt::print("{}\n", write_json(out, {.indent = 2}));
  } else {
    print_summary(source, report);
    print_layers(report);
    if (options.tensors) print_weights(report);
    print_binding(source, bound.binding, unchecked);
  }
  return bound.binding.complete() ? 0 : 1;
}

}  // namespace moesaic
