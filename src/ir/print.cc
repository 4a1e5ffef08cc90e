// Text form of a graph. One line each: the head, caches, weights, ops in order, outputs.
//
//   graph gpt_oss {activation=f32}
//   cache 0 model.layers.0.self_attn {bytes_per_entry=0, tokens_per_entry=1, bytes_per_sequence=65536}
//   weight @model.norm.weight : vector bf16[256]
//   %7:"hidden.1", %8 = add_rms_norm %3, %6, @model.layers.1.input_layernorm.weight {eps=1e-05} : f32[T,256],
//   f32[T,256] # label output logits = %90
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>

#include "ir/graph.h"

namespace moesaic {
namespace {

constexpr std::string_view kKindNames[] = {"vector", "matrix", "embedding", "experts", "table"};

std::string print_number(double value) {
  return value == static_cast<double>(static_cast<int64_t>(value)) ? fmt::format("{}", static_cast<int64_t>(value))
                                                                   : fmt::format("{}", value);
}

std::string print_attrs(const Attrs& attrs) {
  std::string out;
  for (int i = 0; i < kAttrCount; ++i) {
    const Attr attr = static_cast<Attr>(i);
    if (!attrs.has(attr)) continue;
    out += fmt::format("{}{}={}", out.empty() ? "" : ", ", attr_name(attr), print_number(attrs.number(attr)));
  }
  return out.empty() ? "" : " {" + out + "}";
}

// Values are numbered in the order in which they are made, so that equal graphs print alike.
using Numbers = std::map<int, int>;

std::string value_name(const Graph& graph, const Numbers& numbers, Value value) {
  if (const WeightSpec* weight = graph.weight(value)) return "@" + weight->name;
  return fmt::format("%{}", numbers.at(value.id));
}

std::string print_node(const Graph& graph, const Node& node, const Numbers& numbers) {
  std::string made, types, inputs;
  for (Value out : node.outputs) {
    const std::string& name = graph.info(out).name;
    made +=
        fmt::format("{}%{}{}", made.empty() ? "" : ", ", numbers.at(out.id), name.empty() ? "" : ":\"" + name + "\"");
    types += (types.empty() ? "" : ", ") + to_string(graph.type(out));
  }
  for (Value in : node.inputs) inputs += (inputs.empty() ? " " : ", ") + value_name(graph, numbers, in);
  return fmt::format("{} = {}{}{} : {} # {}", made, op_info(node.op).name, inputs, print_attrs(node.attrs), types,
                     node.label);
}

Numbers number_values(const Graph& graph) {
  Numbers numbers;
  for (const auto& node : graph.nodes())
    for (Value out : node->outputs) numbers.emplace(out.id, static_cast<int>(numbers.size()));
  return numbers;
}

std::string print_weight(const WeightSpec& w) {
  std::string dims;
  for (int64_t d : w.shape.dims()) dims += fmt::format("{}{}", dims.empty() ? "" : ",", d);
  std::string more = w.fallback.empty() ? "" : " or @" + w.fallback;
  if (!w.fused.empty()) more += fmt::format(" part {} of {} of @{}", w.fused_part, w.fused_parts, w.fused);
  if (w.padded) more += " padded";
  return fmt::format("weight @{} : {} {}[{}]{}\n", w.name, kKindNames[static_cast<size_t>(w.kind)], format_name(w),
                     dims, more);
}

// A cursor over one line; every mistake is an Error that quotes the line.
class Line {
 public:
  Line(std::string_view text, int number) : text_(text), rest_(text), number_(number) {}

  [[noreturn]] void fail(std::string_view expected) const {
    fail_data(fmt::format("graph text, line {}", number_), "expected {} at \"{}\" in \"{}\"", expected, rest_, text_);
  }
  void skip_spaces() { rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size())); }
  bool at(std::string_view token) { return skip_spaces(), rest_.starts_with(token); }
  bool accept(std::string_view token) {
    if (!at(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) fail(token);
  }
  std::string word(std::string_view end) {
    skip_spaces();
    std::string out(rest_.substr(0, rest_.find_first_of(end)));
    if (out.empty()) fail("a word");
    rest_.remove_prefix(out.size());
    return out;
  }
  double number() {
    skip_spaces();
    double value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) fail("a number");
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return value;
  }
  bool done() {
    skip_spaces();
    return rest_.empty();
  }
  std::string rest() { return skip_spaces(), std::string(rest_); }

 private:
  std::string_view text_, rest_;
  int number_;
};

class Parser {
 public:
  Graph parse(std::string_view text) {
    int number = 0;
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      Line line(text.substr(0, end), ++number);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (!line.done()) parse_line(line);
    }
    return std::move(graph_);
  }

 private:
  void parse_line(Line& line) {
    if (line.accept("graph ")) parse_head(line);
    else if (line.accept("cache ")) parse_cache(line);
    else if (line.accept("weight ")) parse_weight(line);
    else if (line.accept("output ")) parse_output(line);
    else parse_node(line);
  }

  void parse_head(Line& line) {
    graph_.family = line.word(" {");
    line.expect("{activation=");
    const auto dtype = parse_dtype(line.word("}"));
    if (!dtype) line.fail("a type");
    graph_.activation = *dtype;
  }

  void parse_cache(Line& line) {
    line.number();
    CacheDecl decl;
    decl.layer = line.word(" ");
    line.expect("{bytes_per_entry=");
    decl.spec.bytes_per_entry = static_cast<int64_t>(line.number());
    line.expect(", tokens_per_entry=");
    decl.spec.tokens_per_entry = static_cast<int>(line.number());
    line.expect(", bytes_per_sequence=");
    decl.spec.bytes_per_sequence = static_cast<int64_t>(line.number());
    graph_.caches.push_back(decl);
  }

  void parse_weight(Line& line) {
    WeightSpec spec;
    line.expect("@");
    spec.name = line.word(" ");
    line.expect(":");
    const std::string kind = line.word(" ");
    const auto* found = std::find(std::begin(kKindNames), std::end(kKindNames), kind);
    if (found == std::end(kKindNames)) line.fail("a weight kind");
    spec.kind = static_cast<WeightKind>(found - std::begin(kKindNames));
    const std::string format = line.word("[");
    if (format == "mxfp4") spec.format = Format::mxfp4;
    else if (format == "int4") spec.format = Format::int4;
    else if (std::sscanf(format.c_str(), "fp8_%ldx%ld", &spec.scale_rows, &spec.scale_cols) == 2)
      spec.format = Format::fp8;
    else if (const auto dtype = parse_dtype(format)) spec.dtype = *dtype;
    else if (format != "none") line.fail("a format");
    line.expect("[");
    std::vector<int64_t> dims;
    do dims.push_back(static_cast<int64_t>(line.number()));
    while (line.accept(","));
    if (dims.size() > Shape::kMaxRank) line.fail("at most 8 dimensions");
    spec.shape = Shape(dims);
    line.expect("]");
    if (line.accept("or @")) spec.fallback = line.word(" ");
    if (line.accept("part ")) {
      spec.fused_part = static_cast<int>(line.number());
      line.expect("of ");
      spec.fused_parts = static_cast<int>(line.number());
      line.expect("of @");
      spec.fused = line.word(" ");
    }
    spec.padded = line.accept("padded");
    values_["@" + spec.name] = graph_.add_weight(spec);
  }

  void parse_output(Line& line) {
    const std::string name = line.word(" =");
    line.expect("=");
    graph_.outputs.emplace_back(name, value(line, line.word(" ")));
  }

  void parse_node(Line& line) {
    std::vector<std::pair<std::string, std::string>> made;  // number and name
    do {
      std::string id = line.word(":, =");
      std::string name;
      if (line.accept(":\"")) {
        name = line.word("\"");
        line.expect("\"");
      }
      made.emplace_back(std::move(id), std::move(name));
    } while (line.accept(","));
    line.expect("=");
    const auto op = parse_op(line.word(" "));
    if (!op) line.fail("a known op before this");
    std::vector<Value> inputs;
    while (line.at("%") || line.at("@")) {
      inputs.push_back(value(line, line.word(" ,")));
      if (!line.accept(",")) break;
    }
    const Attrs attrs = parse_attrs(line);
    line.expect(":");
    add_node(line, *op, std::move(inputs), attrs, made);
  }

  void add_node(Line& line, Op op, std::vector<Value> inputs, const Attrs& attrs,
                const std::vector<std::pair<std::string, std::string>>& made) {
    const OpInfo& row = op_info(op);
    if (static_cast<int>(inputs.size()) < row.min_inputs || static_cast<int>(inputs.size()) > row.max_inputs ||
        row.outputs != static_cast<int>(made.size()))
      line.fail("as many inputs and outputs as the op has");
    for (Attr attr : row.attrs)
      if (!attrs.has(attr)) line.fail(fmt::format("attribute {}", attr_name(attr)));
    const std::string rest = line.rest();
    const size_t hash = rest.find(" # ");
    Node* node = graph_.add(op, std::move(inputs), attrs, hash == std::string::npos ? "" : rest.substr(hash + 3));
    std::string types;
    for (size_t i = 0; i < made.size(); ++i) {
      values_[made[i].first] = node->outputs[i];
      graph_.info(node->outputs[i]).name = made[i].second;
      types += (i > 0 ? ", " : "") + to_string(graph_.type(node->outputs[i]));
    }
    if (rest.substr(0, hash) != types) line.fail("the types " + types);
  }

  Attrs parse_attrs(Line& line) {
    Attrs attrs;
    if (!line.accept("{")) return attrs;
    do {
      const auto attr = parse_attr(line.word("="));
      if (!attr) line.fail("a known attribute before this");
      line.expect("=");
      attrs.set(*attr, line.number());
    } while (line.accept(","));
    line.expect("}");
    return attrs;
  }

  Value value(Line& line, const std::string& name) {
    const auto it = values_.find(name);
    if (it == values_.end()) line.fail("a value that is already made instead of " + name);
    return it->second;
  }

  Graph graph_;
  std::map<std::string, Value> values_;
};

}  // namespace

std::string print(const Graph& graph, const Node& node) {
  return print_node(graph, node, number_values(graph));
}

std::string print(const Graph& graph) {
  std::string out = fmt::format("graph {} {{activation={}}}\n", graph.family, dtype_name(graph.activation));
  for (size_t i = 0; i < graph.caches.size(); ++i) {
    const CacheSpec& spec = graph.caches[i].spec;
    out += fmt::format("cache {} {} {{bytes_per_entry={}, tokens_per_entry={}, bytes_per_sequence={}}}\n", i,
                       graph.caches[i].layer, spec.bytes_per_entry, spec.tokens_per_entry, spec.bytes_per_sequence);
  }
  for (const WeightSpec& weight : graph.weights) out += print_weight(weight);
  const Numbers numbers = number_values(graph);
  for (const auto& node : graph.nodes()) out += print_node(graph, *node, numbers) + "\n";
  for (const auto& [name, value] : graph.outputs)
    out += fmt::format("output {} = {}\n", name, value_name(graph, numbers, value));
  return out;
}

Graph parse_graph(std::string_view text) {
  return Parser().parse(text);
}

}  // namespace moesaic
