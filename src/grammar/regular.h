// Regular languages as deterministic automata, where a schema needs what two expressions have in common.
#pragma once

#include <functional>

#include "grammar/expr.h"

namespace moesaic::grammar {

enum class Keep : uint8_t {
  both,        // texts of the first that are texts of the second
  first_only,  // texts of the first that are none of the second
};

// The language of the expression that `make` builds in a pool of its own; without special tokens and recursion. All
// automata of one pool together have a bounded number of states; beyond it Error(invalid_argument).
Dfa make_dfa(Pool& pool, const std::function<ExprId(Pool&)>& make);
Dfa combine(Pool& pool, const Dfa& first, const Dfa& second, Keep keep);
bool accepts(const Dfa& dfa, std::string_view text);
bool is_empty(const Dfa& dfa);

}  // namespace moesaic::grammar
