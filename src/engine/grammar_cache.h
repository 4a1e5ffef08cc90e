// GrammarCache: the grammars compiled last. Clients send the same schema with every request. From any thread.
#pragma once

#include <list>
#include <mutex>

#include "grammar/grammar.h"

namespace moesaic {

class GrammarCache {
 public:
  Result<std::shared_ptr<const Grammar>> compile(const GrammarSource& source, const Tokenizer& tokenizer);

 private:
  struct Entry {
    GrammarSource source;
    std::shared_ptr<const Grammar> grammar;
  };
  std::shared_ptr<const Grammar> find(const GrammarSource& source);

  std::mutex mutex_;
  std::list<Entry> entries_;  // guarded by mutex_; used last first
};

}  // namespace moesaic
