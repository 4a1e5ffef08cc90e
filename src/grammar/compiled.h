// Grammar: an automaton, and the masks that answers have needed so far.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "grammar/machine.h"

namespace moesaic {

// The tokens allowed at one position: their ids while they are few, else bits.
struct TokenMask {
  std::vector<int32_t> ids;
  std::vector<uint32_t> words;

  size_t bytes() const { return (ids.size() + words.size()) * 4 + 64; }
};

// Any number of threads.
class Grammar {
 public:
  explicit Grammar(grammar::Automaton states) : automaton(std::move(states)) {}

  const grammar::Automaton automaton;

  // Masks by vocabulary and position, shared by all answers in this grammar.
  std::shared_ptr<const TokenMask> find_mask(uint64_t vocabulary, const grammar::Hash128& position) const;
  void keep_mask(uint64_t vocabulary, const grammar::Hash128& position, std::shared_ptr<const TokenMask> mask) const;

 private:
  static constexpr size_t kMaskBytes = size_t{32} << 20;  // all are dropped beyond it

  mutable std::mutex mutex_;
  mutable std::unordered_map<grammar::Hash128, std::shared_ptr<const TokenMask>, grammar::HashOfHash> masks_;
  mutable size_t mask_bytes_ = 0;
};

}  // namespace moesaic
