#include "grammar/expr_facts.h"

#include <algorithm>
#include <utility>

namespace moesaic::grammar {
namespace {

constexpr int64_t kInlinedSize = 256;   // states that a copy of a rule may have
constexpr int64_t kUnrolledSize = 256;  // states that the copies of a repetition may have

size_t index_of(int32_t i) {
  return static_cast<size_t>(i);
}

// Facts go from parts to wholes, each over every edge once.
struct NullableSearch {
  const Pool& pool;
  std::vector<std::vector<ExprId>> wholes;   // [exprs]
  std::vector<std::vector<ExprId>> calls;    // [rules]
  std::vector<std::vector<int32_t>> bodies;  // [exprs]: the rules with this body
  std::vector<int64_t> missing;              // [exprs]: parts that must still turn out nullable
  std::vector<uint8_t> nullable;
  std::vector<ExprId> found;

  void set(ExprId id) {
    if (nullable[index_of(id)]++ == 0) found.push_back(id);
    nullable[index_of(id)] = 1;
  }
  void prepare() {
    for (size_t i = 0; i < pool.exprs.size(); ++i) {
      const Expr& expr = pool.exprs[i];
      const auto id = static_cast<ExprId>(i);
      for (const ExprId part : expr.parts) wholes[index_of(part)].push_back(id);
      if (expr.kind == Expr::Kind::call) calls[index_of(expr.index)].push_back(id);
      missing[i] = expr.kind == Expr::Kind::join ? static_cast<int64_t>(expr.parts.size()) : 1;
      if (expr.kind == Expr::Kind::graph) missing[i] += static_cast<int64_t>(expr.parts.size());
      const bool at_once = expr.kind == Expr::Kind::empty || (expr.kind == Expr::Kind::repeat && expr.min == 0) ||
                           (expr.kind == Expr::Kind::dfa && pool.dfas[index_of(expr.index)].final[0] != 0);
      if (at_once) set(id);
    }
    for (size_t r = 0; r < pool.rules.size(); ++r)
      bodies[index_of(pool.rules[r].body)].push_back(static_cast<int32_t>(r));
  }
  void run() {
    while (!found.empty()) {
      const ExprId id = found.back();
      found.pop_back();
      for (const ExprId whole : wholes[index_of(id)])
        if (--missing[index_of(whole)] == 0) set(whole);
      for (const int32_t rule : bodies[index_of(id)])
        for (const ExprId call : calls[index_of(rule)]) set(call);
    }
  }
};

struct InlineSearch {
  const Pool& pool;
  std::vector<uint8_t> inlined;   // [rules]
  std::vector<uint8_t> seen;      // [rules]: 1 while its callees are visited, 2 afterwards
  std::vector<int64_t> expanded;  // [rules]
  std::vector<std::vector<int32_t>> callees;

  std::vector<int32_t> visited_for;  // [exprs]: the last rule whose search came here, plus one

  void collect(int32_t rule) {
    std::vector<ExprId> open = {pool.rules[index_of(rule)].body};
    while (!open.empty()) {
      const ExprId id = open.back();
      open.pop_back();
      if (std::exchange(visited_for[index_of(id)], rule + 1) == rule + 1) continue;
      const Expr& expr = pool.exprs[index_of(id)];
      if (expr.kind == Expr::Kind::call) callees[index_of(rule)].push_back(expr.index);
      open.insert(open.end(), expr.parts.begin(), expr.parts.end());
    }
  }
  int64_t size(ExprId id) const {
    const Expr& expr = pool.exprs[index_of(id)];
    if (expr.kind == Expr::Kind::call)
      return inlined[index_of(expr.index)] != 0 ? 1 + expanded[index_of(expr.index)] : 1;
    if (expr.parts.empty() || expr.size > kInlinedSize) return expr.size;
    int64_t sum = 2;
    for (const ExprId part : expr.parts) sum += size(part);
    if (expr.kind == Expr::Kind::repeat && is_unrolled(pool, expr)) sum *= std::max({expr.min, expr.max, 1});
    return sum;
  }
  void decide(int32_t rule) {
    const ExprId body = pool.rules[index_of(rule)].body;
    expanded[index_of(rule)] = size(body);
    if (expanded[index_of(rule)] > kInlinedSize) inlined[index_of(rule)] = 0;
    seen[index_of(rule)] = 2;
  }
  // Depth first; a rule met again below itself is never inlined, so that every cycle has one.
  void visit(int32_t root) {
    std::vector<std::pair<int32_t, size_t>> path = {{root, 0}};
    seen[index_of(root)] = 1;
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      if (next == callees[index_of(rule)].size()) {
        decide(rule);
        path.pop_back();
        continue;
      }
      const int32_t callee = callees[index_of(rule)][next++];
      if (seen[index_of(callee)] == 1) inlined[index_of(callee)] = 0;
      if (seen[index_of(callee)] != 0) continue;
      seen[index_of(callee)] = 1;
      path.emplace_back(callee, 0);
    }
  }
};

}  // namespace

bool is_unrolled(const Pool& pool, const Expr& repeat) {
  if (repeat.max == kNoBound && repeat.min <= 1) return false;  // a cycle needs no counter
  const int64_t part = pool.exprs[index_of(repeat.parts[0])].size;
  return repeat.slice == Slice::none && part * std::max(repeat.min, repeat.max) <= kUnrolledSize;
}

std::vector<uint8_t> find_nullable(const Pool& pool) {
  const size_t count = pool.exprs.size();
  NullableSearch search{pool, {}, {}, {}, {}, {}, {}};
  search.wholes.resize(count);
  search.calls.resize(pool.rules.size());
  search.bodies.resize(count);
  search.missing.resize(count);
  search.nullable.resize(count);
  search.prepare();
  search.run();
  return std::move(search.nullable);
}

std::vector<uint8_t> find_inlined(const Pool& pool) {
  const size_t count = pool.rules.size();
  InlineSearch search{pool,
                      std::vector<uint8_t>(count, 1),
                      std::vector<uint8_t>(count),
                      std::vector<int64_t>(count),
                      std::vector<std::vector<int32_t>>(count),
                      std::vector<int32_t>(pool.exprs.size())};
  for (size_t r = 0; r < count; ++r) search.collect(static_cast<int32_t>(r));
  for (size_t r = 0; r < count; ++r)
    if (search.seen[r] == 0) search.visit(static_cast<int32_t>(r));
  return std::move(search.inlined);
}

}  // namespace moesaic::grammar
