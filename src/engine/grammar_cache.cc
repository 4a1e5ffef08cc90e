#include "engine/grammar_cache.h"

#include <algorithm>

namespace moesaic {

constexpr size_t kMostGrammars = 32;

std::shared_ptr<const Grammar> GrammarCache::find(const GrammarSource& source) {
  const std::lock_guard lock(mutex_);
  const auto same = [&](const Entry& e) { return e.source.kind == source.kind && e.source.text == source.text; };
  const auto found = std::ranges::find_if(entries_, same);
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  return found->grammar;
}

// Compiled outside the lock: a large schema holds up nobody else's.
Result<std::shared_ptr<const Grammar>> GrammarCache::compile(const GrammarSource& source, const Tokenizer& tokenizer) {
  if (auto known = find(source)) return known;
  auto compiled = compile_grammar(source, tokenizer);
  if (!compiled.ok()) return compiled;
  const std::lock_guard lock(mutex_);
  entries_.push_front({source, *compiled});
  if (entries_.size() > kMostGrammars) entries_.pop_back();
  return compiled;
}

}  // namespace moesaic
