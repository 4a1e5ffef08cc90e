// SequenceMemory: the cache blocks and state slots of sequences, and the prefixes that they share. It decides what a
// sequence may reuse, remembers what others may, and makes the copies that this takes. The engine thread owns it.
#pragma once

#include <unordered_map>

#include "cache/prefix_index.h"
#include "engine/sequence.h"
#include "runtime/loaded_model.h"

namespace moesaic {

struct ReuseOptions {
  bool prefixes = true;
  int64_t host_bytes = 0;  // of the host tier
};

class SequenceMemory {
 public:
  // The model outlives it.
  SequenceMemory(LoadedModel& model, const ReuseOptions& options);

  // Tokens that the cache could hold of one sequence if nothing else ran.
  int64_t longest_tokens() const { return pool_.longest_tokens(); }

  enum class Opened : uint8_t {
    yes,
    full,                // too little is free now
    waits_for_a_prefix,  // a running sequence is computing what this one begins with
  };
  // Gives the sequence a slot and blocks for `tokens` tokens, the first of them with what is known of its prompt:
  // cache.length tokens need not be computed. `spare` blocks are left for those that run.
  Opened open(Sequence& sequence, int64_t tokens, int64_t spare);
  // Room for `tokens` tokens in all; false, and no change, when there is none.
  [[nodiscard]] bool extend(Sequence& sequence, int64_t tokens);
  void close(Sequence& sequence);

  // How many of the sequence's next `most` tokens a step may compute: it stops where state should be kept.
  int64_t step_tokens(const Sequence& sequence, int64_t most) const;
  // cache.length has grown, and the step that computes those tokens is on the stream: keeps the state where wanted, and
  // lets others find the blocks that are complete, as far as their tokens are known.
  void computed(Sequence& sequence);

  Status clear();
  void count(EngineStats& stats) const;

 private:
  bool reuses() const { return options_.prefixes && (!limits_.needs_state || limits_.snapshots > 0); }
  void find_media(Sequence& sequence) const;
  void extend_keys(Sequence& sequence, int64_t blocks) const;
  bool being_computed(Sequence& sequence, int64_t matched);
  void plan_stops(Sequence& sequence, int64_t matched) const;
  void register_keys(Sequence& sequence, int64_t first);
  void unregister_keys(Sequence& sequence);
  void publish(Sequence& sequence);
  void keep_state(Sequence& sequence);
  void add_pending_snapshot(Sequence& sequence);
  void make_copies();

  LoadedModel& model_;
  const ReuseOptions options_;
  const PrefixHasher hasher_;
  CachePool pool_;
  const PrefixLimits limits_;
  PrefixIndex index_;
  Buffer host_blocks_, host_slots_;
  std::vector<CacheCopy> copies_;
  std::unordered_map<BlockKey, Sequence*, BlockKeyHash> computing_;  // blocks that running sequences will complete
  int64_t queries_ = 0, hits_ = 0;                                   // tokens
};

}  // namespace moesaic
