// Automaton: a grammar as states over bytes and special tokens, with calls for recursion and counters for repetitions.
//
// Each rule has its own states. A position in a rule is an item: a state and the count of the one counted repetition
// around it (0 elsewhere); a counted repetition inside another one is a rule of its own. Only states from which the
// rule can end are left, so whatever can be reached can be completed.
#pragma once

#include "grammar/expr.h"

namespace moesaic::grammar {

struct Edge {
  enum class Kind : uint8_t {
    step,   // to target
    bytes,  // one byte of sets[arg]
    token,  // the special token arg
    call,   // a text of rule arg
    next,   // one more time around loop arg: to its body or its exit, as the count says
  };
  Kind kind = Kind::step;
  int32_t arg = 0;
  int32_t target = 0;
};

// Between min and max times through body; max is kEndless for no bound.
struct Loop {
  int32_t body = 0, exit = 0;
  uint32_t min = 0, max = 0;
};
inline constexpr uint32_t kEndless = 0xFFFFFFFF;

struct Automaton {
  std::vector<uint32_t> first_edge;  // [states + 1]
  std::vector<Edge> edges;
  std::vector<int32_t> ends;        // [states]: the rule that ends here, or -1
  std::vector<Slice> slice;         // [states]: a repetition over at least these characters goes on here
  std::vector<int32_t> slice_loop;  // [states]: whose count bounds it, or -1
  std::vector<Loop> loops;
  std::vector<int32_t> starts;  // [rules]; rule 0 is the root
  std::vector<ByteSet> sets;
  std::array<uint8_t, 256> byte_class = {};  // bytes of one class are in the same sets
  std::vector<uint8_t> class_byte;           // one byte of each class
  std::vector<int32_t> tokens;               // that edges name, sorted

  std::span<const Edge> edges_of(int32_t state) const {
    const auto s = static_cast<size_t>(state);
    return {edges.data() + first_edge[s], edges.data() + first_edge[s + 1]};
  }
};

// Rule 0 of the pool is the root. Throws Error(invalid_argument) when there are too many states, or no text matches.
Automaton build_automaton(const Pool& pool);

}  // namespace moesaic::grammar
