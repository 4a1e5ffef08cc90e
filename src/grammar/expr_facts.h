// What the automaton's builder must know about expressions beforehand.
#pragma once

#include "grammar/expr.h"

namespace moesaic::grammar {

// [exprs]: whether the empty text matches.
std::vector<uint8_t> find_nullable(const Pool& pool);
// [rules]: whether calls of it are replaced by copies of its body: small rules, at least one of each cycle excepted.
std::vector<uint8_t> find_inlined(const Pool& pool);
// A repetition that becomes copies of its part rather than a counter.
bool is_unrolled(const Pool& pool, const Expr& repeat);

}  // namespace moesaic::grammar
