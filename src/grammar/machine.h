// Machine: an automaton made deterministic while it is walked (docs/grammars.md, How it works).
//
// A `Local` is a set of items of one rule call. Where a rule is called a `Frame` remembers who waits for it, as the
// sets of Earley's parser do (Earley 1970), so that ambiguity and left recursion need no search. A `Config` is a whole
// position: Locals with the frames they return to. All three are interned: positions with the same future are the same
// number, and a byte seen once before costs one look-up.
#pragma once

#include <unordered_map>
#include <unordered_set>

#include "grammar/automaton.h"

namespace moesaic::grammar {

struct Hash128 {
  uint64_t a = 0, b = 0;
  bool operator==(const Hash128&) const = default;
};
struct HashOfHash {
  size_t operator()(const Hash128& h) const { return static_cast<size_t>(h.a); }
};

// State and count of an item.
constexpr uint64_t pack(int32_t state, uint32_t count) {
  return static_cast<uint64_t>(state) << 32 | count;
}
constexpr int32_t item_state(uint64_t item) {
  return static_cast<int32_t>(item >> 32);
}
constexpr uint32_t item_count(uint64_t item) {
  return static_cast<uint32_t>(item);
}

inline constexpr int32_t kDead = -1;       // refused
inline constexpr int32_t kUnknown = -2;    // not computed yet
inline constexpr int32_t kThisFrame = -1;  // of a Group: the frame that holds it

struct Group {
  int32_t frame = 0, local = 0;
  auto operator<=>(const Group&) const = default;
};

struct Local {
  std::vector<uint64_t> items;                       // sorted
  std::vector<int32_t> ended;                        // rules that are complete here; sorted
  std::vector<std::pair<int32_t, uint64_t>> called;  // rules that begin here, and the items behind them; sorted
  bool scans = false;                                // bytes or tokens can follow without a return
  Hash128 hash;
  std::vector<int32_t> next = {};  // [byte classes], or empty
};

struct Frame {
  std::vector<Group> waiting;
  Hash128 hash;
};

struct Config {
  std::vector<Group> groups;
  bool complete = false;
  Hash128 hash;
  std::vector<int32_t> next = {};  // [byte classes], or empty
};

// How many of the slice's characters a token may have to be allowed, whatever they are.
struct SliceBound {
  Slice slice = Slice::none;
  uint32_t characters = 0;
};

class Machine {
 public:
  explicit Machine(const Automaton& automaton);

  int32_t start() const { return start_; }
  // The position after a byte, or kDead.
  int32_t step(int32_t config, uint8_t byte) {
    const uint8_t c = automaton_.byte_class[byte];
    const Config& from = configs_[static_cast<size_t>(config)];
    if (!from.next.empty() && from.next[c] != kUnknown) [[likely]]
      return from.next[c];
    return step_anew(config, c);
  }
  // The position after a special token that the grammar names, or kDead.
  int32_t step_token(int32_t config, int32_t token);
  // Either of two positions; kDead stands for none.
  int32_t unite(int32_t a, int32_t b);
  const Config& config(int32_t id) const { return configs_[static_cast<size_t>(id)]; }
  const Local& local(int32_t id) const { return locals_[static_cast<size_t>(id)]; }
  const Frame& frame(int32_t id) const { return frames_[static_cast<size_t>(id)]; }
  std::vector<int32_t> tokens_at(int32_t config) const;  // special tokens that may follow
  SliceBound slice_at(int32_t config) const;
  const Automaton& automaton() const { return automaton_; }

  // Memory. Beyond its bound nothing is remembered: what a walk made is dropped with rewind(), in the order of a
  // stack, and compact() keeps one position alone and starts to remember again.
  struct Mark {
    size_t locals = 0, frames = 0, configs = 0;
  };
  bool full() const { return spent_ > bound_; }
  bool overflows() const { return spent_ > kMost; }  // after compact(): one position takes this much
  Mark mark() const { return {locals_.size(), frames_.size(), configs_.size()}; }
  void rewind(const Mark& to);      // only while full()
  int32_t compact(int32_t config);  // returns its new number

  int64_t work() const { return work_; }  // edges looked at so far, and items where that costs more

 private:
  struct Returns;
  static constexpr size_t kMemory = size_t{1} << 20;  // numbers held, of 4 to 8 bytes
  static constexpr size_t kMost = size_t{1} << 22;    // of one position: some 0.1 s for each compact()

  int32_t step_anew(int32_t config, uint8_t byte_class);
  int32_t step_local(int32_t local, uint8_t byte_class);
  bool look(uint64_t item, std::vector<uint64_t>& open);
  void pass(uint64_t item, const Edge& edge, std::vector<uint64_t>& open);
  void close(std::vector<uint64_t>& items, std::unordered_set<int32_t>* begun = nullptr);
  int32_t intern_local(std::vector<uint64_t> items);
  int32_t intern_closed(std::vector<uint64_t> items);
  void describe(Local& local) const;
  int32_t begin_rules(std::unordered_set<int32_t> rules);
  int32_t intern_frame(std::vector<Group> waiting);
  int32_t finish(std::vector<Group> groups);
  void add_group(std::vector<Group>& groups, Group group);
  void call_from(std::vector<Group>& groups);
  int32_t intern_config(std::vector<Group> groups, bool complete = false);
  Hash128 sort_and_hash(std::vector<Group>& groups, uint64_t salt) const;
  int32_t keep_frame(int32_t frame, Machine& fresh, std::unordered_map<int32_t, int32_t>& kept) const;

  const Automaton& automaton_;
  std::vector<Local> locals_;
  std::vector<Frame> frames_;
  std::vector<Config> configs_;
  std::unordered_map<Hash128, int32_t, HashOfHash> local_ids_, frame_ids_, config_ids_;
  std::vector<uint64_t> open_;  // memory of close()
  int32_t start_ = kDead;
  size_t spent_ = 0, bound_ = kMemory;
  Mark kept_;  // sizes when the memory became full
  int64_t work_ = 0;
};

}  // namespace moesaic::grammar
