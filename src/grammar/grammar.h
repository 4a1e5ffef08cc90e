// Grammar: a constraint on the bytes (and special tokens) of an answer, and the tokens it allows next.
//
// A JSON schema, a regular expression or a grammar (docs/grammars.md) compiles to one immutable Grammar. A
// GrammarMatcher walks it along one answer: mask() says which tokens may come next, accept() takes one.
#pragma once

#include <memory>
#include <span>

#include "moesaic/engine.h"
#include "text/tokenizer.h"

namespace moesaic {

// Bounds on what a request may ask for; compiling stops with invalid_argument beyond them.
struct GrammarLimits {
  int64_t source_bytes = 256 << 10;
  int64_t states = 200'000;         // of the automaton
  int64_t depth = 64;               // of nesting in the source
  int64_t repetitions = 1'000'000;  // the largest bound of a counted repetition
};

// The tokens of a model as bytes, in the order of a trie. Immutable; built once per model.
class TokenVocabulary {
 public:
  // Ids from `vocab` on, special tokens and tokens without bytes are never allowed by bytes; `end` are the tokens that
  // end an answer: allowed exactly where the grammar is complete.
  TokenVocabulary(const Tokenizer& tokenizer, int64_t vocab, std::vector<int32_t> end);
  ~TokenVocabulary();
  int64_t vocab() const;

  struct Trie;
  const Trie& trie() const { return *trie_; }

 private:
  std::unique_ptr<const Trie> trie_;
};

// Names of special tokens in a grammar (<|call|>, say) are resolved by `tokenizer`.
Result<std::shared_ptr<const Grammar>> compile_grammar(const GrammarSource& source, const Tokenizer& tokenizer,
                                                       const GrammarLimits& limits = {});

// One answer's walk. One thread at a time; both arguments outlive it.
class GrammarMatcher {
 public:
  GrammarMatcher(std::shared_ptr<const Grammar> grammar, const TokenVocabulary& vocabulary);
  ~GrammarMatcher();
  GrammarMatcher(GrammarMatcher&&) noexcept;

  // Sets bit t % 32 of word t / 32 for each allowed token t and clears the others; `words` covers the vocabulary.
  // Never all clear: where nothing can follow, the end tokens are allowed.
  void mask(std::span<uint32_t> words) const;
  // False, and no change, when the token is not allowed.
  bool accept(int32_t token);
  bool complete() const;  // the answer may end here

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moesaic
