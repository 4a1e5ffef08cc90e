// Grammar text: rules `name ::= ...` in the manner of GBNF (docs/grammars.md has the whole syntax).
#pragma once

#include "grammar/expr.h"
#include "text/tokenizer.h"

namespace moesaic::grammar {

// Fills the pool's rules; rule 0 is `root`, or the first one where there is none of that name. Throws
// Error(invalid_argument) that names line and column.
void read_grammar_text(Pool& pool, std::string_view text, const Tokenizer& tokenizer);

}  // namespace moesaic::grammar
