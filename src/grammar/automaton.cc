#include "grammar/automaton.h"

#include <algorithm>
#include <map>
#include <string>

#include "base/error.h"
#include "grammar/expr_facts.h"

namespace moesaic::grammar {
namespace {

constexpr int64_t kEdgesPerState = 10;  // on average, at most

size_t index_of(int32_t i) {
  return static_cast<size_t>(i);
}

// Rules' bodies become states and edges, as Thompson's construction does it.
struct Builder {
  const Pool& pool;
  std::vector<uint8_t> nullable, inlined;
  std::vector<std::vector<Edge>> out = {};  // [states]
  std::vector<int32_t> ends = {};
  std::vector<Slice> slice = {};
  std::vector<int32_t> slice_loop = {};
  std::vector<Loop> loops = {};
  std::vector<ExprId> bodies = {};          // [rules]: the pool's, then those of repetitions inside repetitions
  std::vector<int32_t> starts = {};         // [rules]
  std::map<ExprId, int32_t> outlined = {};  // expressions that became rules
  std::vector<ByteSet> sets = {};
  std::map<std::array<uint64_t, 4>, int32_t> known_sets = {};
  int32_t rule = 0, start = 0, end = 0;  // being built
  bool counting = false;                 // inside a counted repetition
  int64_t edges = 0;

  int32_t add_state() {
    if (static_cast<int64_t>(out.size()) >= pool.limits.states)
      fail_argument(
          "the grammar is too large: it needs more than {} states; use fewer or smaller repetitions, choices or rules",
          pool.limits.states);
    out.emplace_back();
    ends.push_back(-1);
    slice.push_back(Slice::none);
    slice_loop.push_back(-1);
    return static_cast<int32_t>(out.size() - 1);
  }
  void add_edge(int32_t from, Edge edge) {
    if (++edges > kEdgesPerState * pool.limits.states)
      fail_argument("the grammar is too large: it needs more than {} transitions; use fewer choices or rules",
                    kEdgesPerState * pool.limits.states);
    out[index_of(from)].push_back(edge);
  }
  void step(int32_t from, int32_t to) { add_edge(from, {Edge::Kind::step, 0, to}); }
  int32_t set_index(const ByteSet& set) {
    const auto [known, fresh] = known_sets.try_emplace(set.words, static_cast<int32_t>(sets.size()));
    if (fresh) sets.push_back(set);
    return known->second;
  }

  void emit(ExprId id, int32_t from, int32_t to);
  void emit_join(const Expr& expr, int32_t from, int32_t to);
  void emit_call(int32_t callee, int32_t from, int32_t to);
  void emit_dfa(const Dfa& dfa, int32_t from, int32_t to);
  void emit_graph(const Graph& graph, int32_t from, int32_t to);
  void emit_repeat(ExprId id, int32_t from, int32_t to);
  void emit_cycle(const Expr& expr, int32_t from, int32_t to);
  void emit_copies(const Expr& expr, int32_t from, int32_t to);
  void emit_counted(const Expr& expr, int32_t from, int32_t to);
  void build_rules();
};

void Builder::emit(ExprId id, int32_t from, int32_t to) {
  const Expr& expr = pool.exprs[index_of(id)];
  switch (expr.kind) {
    case Expr::Kind::never: return;
    case Expr::Kind::empty: return step(from, to);
    case Expr::Kind::bytes: return add_edge(from, {Edge::Kind::bytes, set_index(pool.sets[index_of(expr.index)]), to});
    case Expr::Kind::token: return add_edge(from, {Edge::Kind::token, expr.index, to});
    case Expr::Kind::join: return emit_join(expr, from, to);
    case Expr::Kind::choice:
      for (const ExprId part : expr.parts) emit(part, from, to);
      return;
    case Expr::Kind::repeat: return emit_repeat(id, from, to);
    case Expr::Kind::call: return emit_call(expr.index, from, to);
    case Expr::Kind::dfa: return emit_dfa(pool.dfas[index_of(expr.index)], from, to);
    case Expr::Kind::graph: return emit_graph(pool.graphs[index_of(expr.index)], from, to);
  }
}

void Builder::emit_join(const Expr& expr, int32_t from, int32_t to) {
  for (size_t i = 0; i + 1 < expr.parts.size(); ++i) {
    const int32_t next = add_state();
    emit(expr.parts[i], from, next);
    from = next;
  }
  emit(expr.parts.back(), from, to);
}

void Builder::emit_call(int32_t callee, int32_t from, int32_t to) {
  if (inlined[index_of(callee)] != 0) return emit(bodies[index_of(callee)], from, to);
  // A rule that ends in itself is a cycle; calls would pile up.
  if (callee == rule && to == end && !counting) return step(from, start);
  add_edge(from, {Edge::Kind::call, callee, to});
}

void Builder::emit_dfa(const Dfa& dfa, int32_t from, int32_t to) {
  std::vector<int32_t> states;
  for (size_t i = 0; i < dfa.next.size(); ++i) states.push_back(add_state());
  step(from, states[0]);
  for (size_t i = 0; i < dfa.next.size(); ++i) {
    std::map<int32_t, ByteSet> by_target;
    for (int b = 0; b < 256; ++b)
      if (dfa.next[i][index_of(b)] >= 0) by_target[dfa.next[i][index_of(b)]].add(b, b);
    for (const auto& [target, set] : by_target)
      add_edge(states[i], {Edge::Kind::bytes, set_index(set), states[index_of(target)]});
    if (dfa.final[i] != 0) step(states[i], to);
  }
}

void Builder::emit_graph(const Graph& graph, int32_t from, int32_t to) {
  std::vector<int32_t> points = {from, to};
  while (points.size() < index_of(graph.points)) points.push_back(add_state());
  for (const Graph::Arc& arc : graph.arcs) emit(arc.expr, points[index_of(arc.from)], points[index_of(arc.to)]);
}

void Builder::emit_repeat(ExprId id, int32_t from, int32_t to) {
  const Expr& expr = pool.exprs[index_of(id)];
  if (expr.max == kNoBound && expr.min <= 1) return emit_cycle(expr, from, to);
  // Without text there is nothing to count; copies are finite.
  if (is_unrolled(pool, expr) || nullable[index_of(expr.parts[0])] != 0) return emit_copies(expr, from, to);
  if (!counting) return emit_counted(expr, from, to);
  const auto [known, fresh] = outlined.try_emplace(id, static_cast<int32_t>(bodies.size()));
  if (fresh) {
    bodies.push_back(id);
    inlined.push_back(0);
  }
  add_edge(from, {Edge::Kind::call, known->second, to});
}

void Builder::emit_cycle(const Expr& expr, int32_t from, int32_t to) {
  const int32_t body = add_state(), after = expr.min == 0 ? body : add_state();
  step(from, body);
  emit(expr.parts[0], body, after);
  if (after != body) step(after, body);
  step(after, to);
  slice[index_of(body)] = expr.slice;
}

void Builder::emit_copies(const Expr& expr, int32_t from, int32_t to) {
  for (int32_t i = 0; i < std::max(expr.min, expr.max); ++i) {
    if (i >= expr.min) step(from, to);
    const int32_t next = add_state();
    emit(expr.parts[0], from, next);
    from = next;
  }
  if (expr.max != kNoBound) return step(from, to);
  const int32_t hub = add_state();
  step(from, hub);
  emit(expr.parts[0], hub, hub);
  step(hub, to);
}

void Builder::emit_counted(const Expr& expr, int32_t from, int32_t to) {
  const int32_t body = add_state(), after = add_state(), exit = add_state();
  const auto loop = static_cast<int32_t>(loops.size());
  loops.push_back(
      {body, exit, static_cast<uint32_t>(expr.min), expr.max == kNoBound ? kEndless : static_cast<uint32_t>(expr.max)});
  if (expr.min == 0) step(from, exit);
  step(from, body);
  counting = true;
  emit(expr.parts[0], body, after);
  counting = false;
  add_edge(after, {Edge::Kind::next, loop, exit});
  step(exit, to);
  slice[index_of(body)] = expr.slice;
  slice_loop[index_of(body)] = loop;
}

void Builder::build_rules() {
  for (const Rule& each : pool.rules) bodies.push_back(each.body);
  for (rule = 0; index_of(rule) < bodies.size(); ++rule) {
    starts.push_back(start = add_state());
    end = add_state();
    ends[index_of(end)] = rule;
    if (rule == 0 || inlined[index_of(rule)] == 0) emit(bodies[index_of(rule)], start, end);
  }
}

// Marks what can end, from the ends backwards, each edge once.
struct LiveSearch {
  const Builder& built;
  std::vector<std::vector<std::pair<int32_t, const Edge*>>> in = {};     // [states]
  std::vector<std::vector<std::pair<int32_t, const Edge*>>> calls = {};  // [rules]
  std::vector<int32_t> rule_of_start = {};
  std::vector<uint8_t> live = {};
  std::vector<int32_t> open = {};

  bool productive(int32_t rule) const { return live[index_of(built.starts[index_of(rule)])] != 0; }
  void mark(int32_t state) {
    if (std::exchange(live[index_of(state)], uint8_t{1}) == 0) open.push_back(state);
  }
  bool usable(const Edge& edge) const {
    return live[index_of(edge.target)] != 0 && (edge.kind != Edge::Kind::call || productive(edge.arg));
  }
  void run() {
    const size_t count = built.out.size();
    in.resize(count);
    live.resize(count);
    calls.resize(built.starts.size());
    rule_of_start.assign(count, -1);
    for (size_t r = 0; r < built.starts.size(); ++r) rule_of_start[index_of(built.starts[r])] = static_cast<int32_t>(r);
    for (size_t s = 0; s < count; ++s) {
      for (const Edge& edge : built.out[s]) {
        in[index_of(edge.target)].emplace_back(static_cast<int32_t>(s), &edge);
        if (edge.kind == Edge::Kind::call) calls[index_of(edge.arg)].emplace_back(static_cast<int32_t>(s), &edge);
      }
      if (built.ends[s] >= 0) mark(static_cast<int32_t>(s));
    }
    while (!open.empty()) {
      const int32_t state = open.back();
      open.pop_back();
      for (const auto& [from, edge] : in[index_of(state)])
        if (usable(*edge)) mark(from);
      if (rule_of_start[index_of(state)] < 0) continue;
      for (const auto& [from, edge] : calls[index_of(rule_of_start[index_of(state)])])
        if (usable(*edge)) mark(from);
    }
  }
};

// Rules that can match the empty text: a call of one may also be passed by.
std::vector<uint8_t> passable_rules(const Builder& built, const LiveSearch& live) {
  std::vector<uint8_t> passable(built.starts.size()), reached(built.out.size());
  std::vector<int32_t> open;
  const auto mark = [&](int32_t state) {
    if (std::exchange(reached[index_of(state)], uint8_t{1}) == 0) open.push_back(state);
  };
  for (size_t s = 0; s < built.ends.size(); ++s)
    if (built.ends[s] >= 0) mark(static_cast<int32_t>(s));
  while (!open.empty()) {
    const int32_t state = open.back();
    open.pop_back();
    for (const auto& [from, edge] : live.in[index_of(state)])
      if (edge->kind == Edge::Kind::step || (edge->kind == Edge::Kind::call && passable[index_of(edge->arg)] != 0))
        mark(from);
    const int32_t rule = live.rule_of_start[index_of(state)];
    if (rule < 0) continue;
    passable[index_of(rule)] = 1;
    for (const auto& [from, edge] : live.calls[index_of(rule)])
      if (reached[index_of(edge->target)] != 0) mark(from);
  }
  return passable;
}

void find_byte_classes(Automaton& automaton) {
  std::array<std::string, 256> signature;
  for (const ByteSet& set : automaton.sets)
    for (int b = 0; b < 256; ++b) signature[index_of(b)] += set.has(b) ? '1' : '0';
  std::map<std::string, uint8_t> known;
  for (int b = 0; b < 256; ++b) {
    const auto [place, fresh] = known.try_emplace(signature[index_of(b)], static_cast<uint8_t>(known.size()));
    if (fresh) automaton.class_byte.push_back(static_cast<uint8_t>(b));
    automaton.byte_class[index_of(b)] = place->second;
  }
}

Automaton flatten(Builder& built, const LiveSearch& live) {
  const std::vector<uint8_t> passable = passable_rules(built, live);
  Automaton out;
  for (size_t s = 0; s < built.out.size(); ++s) {
    out.first_edge.push_back(static_cast<uint32_t>(out.edges.size()));
    for (const Edge& edge : built.out[s]) {
      if (!live.usable(edge)) continue;
      out.edges.push_back(edge);
      if (edge.kind == Edge::Kind::call && passable[index_of(edge.arg)] != 0)
        out.edges.push_back({Edge::Kind::step, 0, edge.target});
      if (edge.kind == Edge::Kind::token) out.tokens.push_back(edge.arg);
    }
  }
  out.first_edge.push_back(static_cast<uint32_t>(out.edges.size()));
  std::ranges::sort(out.tokens);
  out.tokens.erase(std::ranges::unique(out.tokens).begin(), out.tokens.end());
  out.ends = std::move(built.ends);
  out.slice = std::move(built.slice);
  out.slice_loop = std::move(built.slice_loop);
  out.loops = std::move(built.loops);
  out.starts = std::move(built.starts);
  out.sets = std::move(built.sets);
  find_byte_classes(out);
  return out;
}

}  // namespace

Automaton build_automaton(const Pool& pool) {
  Builder builder{pool, find_nullable(pool), find_inlined(pool)};
  builder.build_rules();
  LiveSearch live{builder};
  live.run();
  if (!live.productive(0))
    fail_argument(
        "no finite text can match: some part excludes every value, or a rule needs itself without end; "
        "loosen it or give the recursion a way out");
  return flatten(builder, live);
}

}  // namespace moesaic::grammar
