#include "grammar/expr.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic::grammar {
namespace {

// Sizes only steer choices and refusals; beyond this they are all "too large".
constexpr int64_t kHuge = int64_t{1} << 40;

int64_t times(int64_t a, int64_t b) {
  return a != 0 && b > kHuge / a ? kHuge : std::min(a * b, kHuge);
}

size_t common_prefix(const std::string& a, const std::string& b, size_t from) {
  size_t end = from;
  while (end < a.size() && end < b.size() && a[end] == b[end]) ++end;
  return end;
}

}  // namespace

Pool::Pool(const GrammarLimits& bounds) : limits(bounds) {
  exprs.push_back({});
  exprs.push_back({.kind = Expr::Kind::empty});
}

ExprId Pool::add(Expr expr) {
  // Each expression costs memory before there is an automaton: the same bound holds for both.
  if (static_cast<int64_t>(exprs.size()) > 4 * limits.states)
    fail_argument("the grammar is too large: it has more than {} parts; make it smaller", 4 * limits.states);
  exprs.push_back(std::move(expr));
  return static_cast<ExprId>(exprs.size() - 1);
}

ExprId Pool::bytes(const ByteSet& set) {
  if (set == ByteSet{}) return never();
  const auto [known, fresh] = known_sets_.try_emplace(set.words, never());
  if (!fresh) return known->second;
  sets.push_back(set);
  known->second = add({.kind = Expr::Kind::bytes, .index = static_cast<int32_t>(sets.size() - 1), .size = 1});
  return known->second;
}

ExprId Pool::byte(int first, int last) {
  ByteSet set;
  set.add(first, last);
  return bytes(set);
}

ExprId Pool::literal(std::string_view text) {
  std::vector<ExprId> parts;
  for (const char c : text) parts.push_back(byte(static_cast<uint8_t>(c), static_cast<uint8_t>(c)));
  return join(std::move(parts));
}

ExprId Pool::token(int32_t id) {
  return add({.kind = Expr::Kind::token, .index = id, .size = 1});
}

ExprId Pool::call(int32_t rule) {
  const auto [known, fresh] = known_calls_.try_emplace(rule, never());
  if (fresh) known->second = add({.kind = Expr::Kind::call, .index = rule, .size = 1});
  return known->second;
}

ExprId Pool::dfa(Dfa automaton) {
  if (automaton.next.empty()) return never();
  const auto size = static_cast<int64_t>(automaton.next.size());
  dfas.push_back(std::move(automaton));
  return add({.kind = Expr::Kind::dfa, .index = static_cast<int32_t>(dfas.size() - 1), .size = size});
}

ExprId Pool::graph(Graph points) {
  Expr expr{.kind = Expr::Kind::graph, .size = points.points};
  for (const Graph::Arc& arc : points.arcs) {
    expr.parts.push_back(arc.expr);
    expr.size = std::min(expr.size + exprs[static_cast<size_t>(arc.expr)].size, kHuge);
  }
  graphs.push_back(std::move(points));
  expr.index = static_cast<int32_t>(graphs.size() - 1);
  return add(std::move(expr));
}

ExprId Pool::join(std::vector<ExprId> parts) {
  std::erase(parts, empty());
  if (std::ranges::count(parts, never()) > 0) return never();
  if (parts.empty()) return empty();
  if (parts.size() == 1) return parts[0];
  int64_t size = 0;
  for (const ExprId part : parts) size = std::min(size + exprs[static_cast<size_t>(part)].size, kHuge);
  return add({.kind = Expr::Kind::join, .size = size, .parts = std::move(parts)});
}

ExprId Pool::choice(std::vector<ExprId> parts) {
  std::erase(parts, never());
  std::ranges::sort(parts);
  parts.erase(std::ranges::unique(parts).begin(), parts.end());
  if (parts.empty()) return never();
  if (parts.size() == 1) return parts[0];
  int64_t size = 2;
  for (const ExprId part : parts) size = std::min(size + exprs[static_cast<size_t>(part)].size, kHuge);
  return add({.kind = Expr::Kind::choice, .size = size, .parts = std::move(parts)});
}

ExprId Pool::repeat(ExprId part, int64_t min, int64_t max, Slice slice) {
  if (max != kNoBound && min > max)
    fail_argument("a repetition has the bounds {{{},{}}}, and the first is the larger one; swap them", min, max);
  if (std::max(min, max) > limits.repetitions)
    fail_argument("a repetition of {} is beyond the limit of {}; use a smaller bound, or * without one",
                  std::max(min, max), limits.repetitions);
  if (part == empty() || max == 0) return empty();
  if (part == never()) return min == 0 ? empty() : never();
  if (min == 1 && max == 1) return part;
  if (min == 0 && max == 1) return optional(part);
  const Expr& inner = exprs[static_cast<size_t>(part)];
  // Where the part may be empty, fewer are as good: x{0,k} m to n times is x{0,k n}, and x? so often x{0,n}.
  if (inner.kind == Expr::Kind::repeat && inner.min == 0) {
    const bool endless = max == kNoBound || inner.max == kNoBound;
    return repeat(inner.parts[0], 0, endless ? kNoBound : inner.max * max, inner.slice);
  }
  if (inner.kind == Expr::Kind::choice && std::ranges::count(inner.parts, empty()) > 0) {
    std::vector<ExprId> others = inner.parts;
    std::erase(others, empty());
    return repeat(choice(std::move(others)), 0, max, slice);
  }
  const int64_t size = times(exprs[static_cast<size_t>(part)].size, std::max<int64_t>({min, max, 1}));
  return add({.kind = Expr::Kind::repeat,
              .slice = slice,
              .min = static_cast<int32_t>(min),
              .max = static_cast<int32_t>(max),
              .size = size,
              .parts = {part}});
}

ExprId Pool::one_of_sorted(std::span<const std::string> texts, size_t from) {
  std::vector<ExprId> choices;
  for (size_t begin = 0; begin < texts.size();) {
    if (texts[begin].size() == from) {  // sorted: only the first of them can end here
      choices.push_back(empty());
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < texts.size() && texts[end][from] == texts[begin][from]) ++end;
    const size_t shared = common_prefix(texts[begin], texts[end - 1], from);
    const ExprId head = literal(std::string_view(texts[begin]).substr(from, shared - from));
    choices.push_back(join({head, one_of_sorted(texts.subspan(begin, end - begin), shared)}));
    begin = end;
  }
  return choice(std::move(choices));
}

ExprId Pool::one_of(std::vector<std::string> texts) {
  std::ranges::sort(texts);
  texts.erase(std::ranges::unique(texts).begin(), texts.end());
  return one_of_sorted(texts, 0);
}

int32_t Pool::add_rule(std::string name) {
  rules.push_back({std::move(name)});
  return static_cast<int32_t>(rules.size() - 1);
}

}  // namespace moesaic::grammar
