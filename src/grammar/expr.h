// Expr: the common form of JSON schemas, regular expressions and grammars before they become an automaton.
//
// A pool holds expressions over bytes and special tokens as a directed graph without cycles; recursion goes through
// rules. Everything here throws Error(invalid_argument) beyond the limits; compile_grammar() turns that into a Status.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"

namespace moesaic::grammar {

using ExprId = int32_t;
inline constexpr int32_t kNoBound = -1;

struct ByteSet {
  std::array<uint64_t, 4> words = {};

  bool has(int byte) const { return (words[static_cast<size_t>(byte) / 64] >> (byte % 64) & 1) != 0; }
  void add(int first, int last) {
    for (int b = first; b <= last; ++b) words[static_cast<size_t>(b) / 64] |= uint64_t{1} << (b % 64);
  }
  bool operator==(const ByteSet&) const = default;
};

// Characters whose repetition tokens can be looked up for instead of walked (TokenVocabulary's slices).
enum class Slice : uint8_t {
  none,
  json,  // those that stand for themselves in a JSON string
  text,  // all
};

struct Expr {
  enum class Kind : uint8_t { never, empty, bytes, token, join, choice, repeat, call, dfa, graph };
  Kind kind = Kind::never;
  Slice slice = Slice::none;       // of a repetition whose part matches at least these characters
  int32_t index = 0;               // set, token, rule, automaton or graph
  int32_t min = 0, max = 0;        // of a repetition
  int64_t size = 0;                // states of its automaton, roughly
  std::vector<ExprId> parts = {};  // of join, choice and graph; one for repeat
};

struct Rule {
  std::string name;
  ExprId body = -1;
};

// A deterministic automaton over bytes; state 0 is the first.
struct Dfa {
  std::vector<std::array<int32_t, 256>> next;  // -1: refused
  std::vector<uint8_t> final;
};

// Expressions between numbered points, from point 0 to point 1: what join and choice would have to repeat. Never empty
// text: a graph stands between texts of its own (the braces of an object).
struct Graph {
  struct Arc {
    int32_t from = 0, to = 0;
    ExprId expr = 0;
  };
  int32_t points = 2;
  std::vector<Arc> arcs;

  int32_t add_point() { return points++; }
  void add(int32_t from, ExprId expr, int32_t to) { arcs.push_back({from, to, expr}); }
};

struct Pool {
  explicit Pool(const GrammarLimits& bounds);

  ExprId never() const { return 0; }
  ExprId empty() const { return 1; }
  ExprId bytes(const ByteSet& set);
  ExprId byte(int first, int last);
  ExprId literal(std::string_view text);
  ExprId token(int32_t id);
  ExprId call(int32_t rule);
  ExprId dfa(Dfa automaton);
  ExprId graph(Graph points);
  ExprId join(std::vector<ExprId> parts);
  ExprId choice(std::vector<ExprId> parts);
  // From min to max times, without end for kNoBound.
  ExprId repeat(ExprId part, int64_t min, int64_t max, Slice slice = Slice::none);
  ExprId optional(ExprId part) { return choice({empty(), part}); }
  // Any of the texts; common beginnings are shared, so that thousands of them make small sets of states.
  ExprId one_of(std::vector<std::string> texts);
  int32_t add_rule(std::string name);

  GrammarLimits limits;
  std::vector<Expr> exprs;
  std::vector<ByteSet> sets;
  std::vector<Rule> rules;
  std::vector<Dfa> dfas;
  std::vector<Graph> graphs;
  // Spent while compiling, each with a bound: states of dfas, items looked at to make them, values of schemas copied.
  int64_t dfa_states = 0, dfa_work = 0, schema_work = 0;

 private:
  ExprId add(Expr expr);
  ExprId one_of_sorted(std::span<const std::string> texts, size_t from);

  std::map<std::array<uint64_t, 4>, ExprId> known_sets_;
  std::map<int32_t, ExprId> known_calls_;
};

}  // namespace moesaic::grammar
