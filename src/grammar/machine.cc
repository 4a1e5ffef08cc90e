#include "grammar/machine.h"

#include <algorithm>
#include <tuple>

#include "base/rng.h"

namespace moesaic::grammar {
namespace {

// Ways to read the same text that are followed at once. Beyond it those that began last are dropped, as the oldest are
// nearest to an end. Answers stay right, and only grammars of many readings (s ::= s s | "a") come here.
constexpr size_t kGroups = 32;

// Items that the rules which end at one byte may lead to; beyond it the rest of their readings is dropped too. It is
// some 5 ms, and thousands of rules that end together come here. It counts what does not depend on what is remembered,
// so that every machine of an automaton drops the same.
constexpr int64_t kReturned = 50'000;

constexpr int64_t kWorkPerItem = 4;  // in edges: an item is looked up in a set

size_t index_of(int32_t i) {
  return static_cast<size_t>(i);
}

void mix_in(Hash128& hash, uint64_t value) {
  hash.a = mix64(hash.a ^ value);
  hash.b = mix64(hash.b + value * 0x9E3779B97F4A7C15u + 1);
}

template <typename T>
void sort_unique(std::vector<T>& values) {
  std::ranges::sort(values);
  values.erase(std::ranges::unique(values).begin(), values.end());
}

}  // namespace

Machine::Machine(const Automaton& automaton) : automaton_(automaton) {
  intern_frame({});
  std::vector<Group> groups = {{0, intern_local({pack(automaton_.starts[0], 0)})}};
  call_from(groups);
  start_ = intern_config(std::move(groups));
}

// Follows an edge that takes no byte, from an item that the closure has.
void Machine::pass(uint64_t item, const Edge& edge, std::vector<uint64_t>& open) {
  if (edge.kind == Edge::Kind::step) open.push_back(pack(edge.target, item_count(item)));
  if (edge.kind != Edge::Kind::next) return;
  const Loop& loop = automaton_.loops[index_of(edge.arg)];
  const uint32_t count = item_count(item) + 1;
  if (count >= loop.min) open.push_back(pack(loop.exit, 0));
  if (loop.max == kEndless) open.push_back(pack(loop.body, std::min(count, loop.min)));
  if (loop.max != kEndless && count < loop.max) open.push_back(pack(loop.body, count));
}

// Adds to `open` what can be reached without a byte; whether anything else follows the item.
bool Machine::look(uint64_t item, std::vector<uint64_t>& open) {
  const std::span<const Edge> edges = automaton_.edges_of(item_state(item));
  work_ += kWorkPerItem + std::ssize(edges);
  bool kept = automaton_.ends[index_of(item_state(item))] >= 0;
  for (const Edge& edge : edges) {
    kept |= edge.kind != Edge::Kind::step && edge.kind != Edge::Kind::next;
    pass(item, edge, open);
  }
  return kept;
}

// Adds what can be reached without a byte, and leaves out items that nothing follows. With `begun`, rules that begin
// here and are not among them begin too.
void Machine::close(std::vector<uint64_t>& items, std::unordered_set<int32_t>* begun) {
  open_.assign(items.begin(), items.end());
  items.clear();
  std::unordered_set<uint64_t> seen;
  while (!open_.empty()) {
    const uint64_t item = open_.back();
    open_.pop_back();
    if (!seen.insert(item).second || !look(item, open_)) continue;
    items.push_back(item);
    if (begun == nullptr) continue;
    for (const Edge& edge : automaton_.edges_of(item_state(item)))
      if (edge.kind == Edge::Kind::call && begun->insert(edge.arg).second)
        open_.push_back(pack(automaton_.starts[index_of(edge.arg)], 0));
  }
}

void Machine::describe(Local& local) const {
  for (const uint64_t item : local.items) {
    mix_in(local.hash, item);
    const int32_t ended = automaton_.ends[index_of(item_state(item))];
    if (ended >= 0) local.ended.push_back(ended);
    for (const Edge& edge : automaton_.edges_of(item_state(item))) {
      if (edge.kind == Edge::Kind::call) local.called.emplace_back(edge.arg, pack(edge.target, item_count(item)));
      local.scans |= edge.kind == Edge::Kind::bytes || edge.kind == Edge::Kind::token;
    }
  }
  sort_unique(local.ended);
  sort_unique(local.called);
}

int32_t Machine::intern_local(std::vector<uint64_t> items) {
  close(items);
  return intern_closed(std::move(items));
}

int32_t Machine::intern_closed(std::vector<uint64_t> items) {
  if (items.empty()) return kDead;
  work_ += kWorkPerItem * std::ssize(items);  // sorted and described
  sort_unique(items);
  Local local;
  local.items = std::move(items);
  describe(local);
  const auto [known, fresh] = local_ids_.try_emplace(local.hash, static_cast<int32_t>(locals_.size()));
  if (!fresh) return known->second;
  spent_ += local.items.size() * 2 + local.ended.size() + local.called.size() * 4 + 32;
  locals_.push_back(std::move(local));
  return known->second;
}

int32_t Machine::step_local(int32_t id, uint8_t byte_class) {
  const Local& from = locals_[index_of(id)];
  if (!from.next.empty() && from.next[byte_class] != kUnknown) return from.next[byte_class];
  const uint8_t byte = automaton_.class_byte[byte_class];
  std::vector<uint64_t> items;
  for (const uint64_t item : from.items) {
    work_ += static_cast<int64_t>(automaton_.edges_of(item_state(item)).size());
    for (const Edge& edge : automaton_.edges_of(item_state(item)))
      if (edge.kind == Edge::Kind::bytes && automaton_.sets[index_of(edge.arg)].has(byte))
        items.push_back(pack(edge.target, item_count(item)));
  }
  const int32_t to = items.empty() ? kDead : intern_local(std::move(items));
  if (full()) return to;
  Local& again = locals_[index_of(id)];
  if (again.next.empty()) {
    again.next.assign(automaton_.class_byte.size(), kUnknown);
    spent_ += again.next.size();
  }
  return again.next[byte_class] = to;
}

// The beginnings of the rules, and of those that they begin with.
int32_t Machine::begin_rules(std::unordered_set<int32_t> rules) {
  std::vector<uint64_t> items;
  for (const int32_t rule : rules) items.push_back(pack(automaton_.starts[index_of(rule)], 0));
  close(items, &rules);
  return intern_closed(std::move(items));
}

// In an order, and with a hash, that every machine of this automaton agrees on.
Hash128 Machine::sort_and_hash(std::vector<Group>& groups, uint64_t salt) const {
  const auto key = [this](const Group& group) {
    const Hash128 frame = group.frame == kThisFrame ? Hash128{1, 1} : frames_[index_of(group.frame)].hash;
    const Hash128& local = locals_[index_of(group.local)].hash;
    return std::array{frame.a, frame.b, local.a, local.b};
  };
  std::ranges::sort(groups, {}, key);
  Hash128 hash;
  mix_in(hash, salt);
  for (const Group& group : groups)
    for (const uint64_t part : key(group)) mix_in(hash, part);
  return hash;
}

int32_t Machine::intern_frame(std::vector<Group> waiting) {
  const Hash128 hash = sort_and_hash(waiting, 2);
  const auto [known, fresh] = frame_ids_.try_emplace(hash, static_cast<int32_t>(frames_.size()));
  if (!fresh) return known->second;
  spent_ += waiting.size() * 2 + 24;
  frames_.push_back({std::move(waiting), hash});
  return known->second;
}

void Machine::add_group(std::vector<Group>& groups, Group group) {
  const auto same = std::ranges::find(groups, group.frame, &Group::frame);
  if (same == groups.end()) {
    if (groups.size() < kGroups) return groups.push_back(group);
    const auto youngest = std::ranges::max_element(groups, {}, &Group::frame);
    if (group.frame < youngest->frame) *youngest = group;
    return;
  }
  if (same->local == group.local) return;
  std::vector<uint64_t> items = locals_[index_of(same->local)].items;
  const std::vector<uint64_t>& more = locals_[index_of(group.local)].items;
  items.insert(items.end(), more.begin(), more.end());
  same->local = intern_closed(std::move(items));
}

// Rules that are complete return to those that wait for them, until nothing is new. Items are followed one by one, so
// that a chain of returns costs what it is long; what they come to is interned in the end.
struct Machine::Returns {
  struct Added {
    std::vector<uint64_t> items;
    std::unordered_set<uint64_t> seen;
  };
  static constexpr size_t kNowhere = static_cast<size_t>(-1);

  Machine& machine;
  std::vector<Group>& groups;
  std::vector<Added> added = std::vector<Added>(groups.size());  // to each group
  std::unordered_set<uint64_t> done = {};                        // frame and rule
  std::vector<std::pair<int32_t, int32_t>> open = {};            // frame and rule, still to be followed
  std::vector<uint64_t> open_items = {};
  int64_t left = kReturned;

  void end(int32_t frame, int32_t rule) {
    machine.work_ += kWorkPerItem;
    if (done.insert(pack(frame, static_cast<uint32_t>(rule))).second) open.emplace_back(frame, rule);
  }
  size_t place_of(int32_t frame);
  void arrive(int32_t frame, uint64_t item);
  void follow(int32_t frame, int32_t rule);
  void run();
};

size_t Machine::Returns::place_of(int32_t frame) {
  const auto same = std::ranges::find(groups, frame, &Group::frame);
  if (same != groups.end()) return static_cast<size_t>(same - groups.begin());
  if (groups.size() < kGroups) {
    groups.push_back({frame, kDead});
    added.emplace_back();
    return groups.size() - 1;
  }
  const auto youngest = std::ranges::max_element(groups, {}, &Group::frame);
  if (frame > youngest->frame) return kNowhere;
  const auto at = static_cast<size_t>(youngest - groups.begin());
  groups[at] = {frame, kDead};
  added[at] = {};
  return at;
}

void Machine::Returns::arrive(int32_t frame, uint64_t item) {
  const size_t at = place_of(frame);
  if (at == kNowhere) return;
  Added& to = added[at];
  for (open_items = {item}; !open_items.empty() && left > 0;) {
    const uint64_t next = open_items.back();
    open_items.pop_back();
    if (!to.seen.insert(next).second) continue;
    --left;
    if (machine.look(next, open_items)) to.items.push_back(next);
    const int32_t ended = machine.automaton_.ends[index_of(item_state(next))];
    if (ended >= 0) end(frame, ended);
  }
}

void Machine::Returns::follow(int32_t frame, int32_t rule) {
  for (const Group& caller : machine.frames_[index_of(frame)].waiting) {
    --left;
    machine.work_ += kWorkPerItem;
    const auto& called = machine.locals_[index_of(caller.local)].called;
    for (auto at = std::ranges::lower_bound(called, std::pair(rule, uint64_t{0}));
         at != called.end() && at->first == rule; ++at)
      arrive(caller.frame == kThisFrame ? frame : caller.frame, at->second);
  }
}

void Machine::Returns::run() {
  for (const Group& group : groups)
    for (const int32_t rule : machine.locals_[index_of(group.local)].ended) end(group.frame, rule);
  while (!open.empty() && left > 0) {
    const auto [frame, rule] = open.back();
    open.pop_back();
    follow(frame, rule);
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    std::vector<uint64_t>& items = added[i].items;
    if (items.empty()) continue;
    if (groups[i].local != kDead) {
      const std::vector<uint64_t>& before = machine.locals_[index_of(groups[i].local)].items;
      items.insert(items.end(), before.begin(), before.end());
    }
    groups[i].local = machine.intern_closed(std::move(items));
  }
  std::erase_if(groups, [](const Group& group) { return group.local == kDead; });
}

void Machine::call_from(std::vector<Group>& groups) {
  std::vector<Group> waiting;
  std::unordered_set<int32_t> called;
  for (const Group& group : groups) {
    const auto& calls = locals_[index_of(group.local)].called;
    if (calls.empty()) continue;
    waiting.push_back(group);
    work_ += std::ssize(calls);
    for (const auto& [rule, behind] : calls) called.insert(rule);
  }
  if (waiting.empty()) return;
  const int32_t first = begin_rules(std::move(called));
  if (!locals_[index_of(first)].called.empty()) waiting.push_back({kThisFrame, first});
  groups.push_back({intern_frame(std::move(waiting)), first});
}

int32_t Machine::intern_config(std::vector<Group> groups, bool complete) {
  Config config;
  config.complete = complete;
  for (const Group& group : groups) {
    const std::vector<int32_t>& ended = locals_[index_of(group.local)].ended;
    config.complete |= group.frame == 0 && std::ranges::find(ended, 0) != ended.end();
  }
  // What only waits is in a frame already.
  std::erase_if(groups, [&](const Group& group) { return !locals_[index_of(group.local)].scans; });
  if (groups.empty() && !config.complete) return kDead;
  config.hash = sort_and_hash(groups, config.complete ? 1 : 0);
  const auto [known, fresh] = config_ids_.try_emplace(config.hash, static_cast<int32_t>(configs_.size()));
  if (!fresh) return known->second;
  spent_ += groups.size() * 2 + 32;
  config.groups = std::move(groups);
  configs_.push_back(std::move(config));
  return known->second;
}

int32_t Machine::finish(std::vector<Group> groups) {
  if (groups.empty()) return kDead;
  Returns{*this, groups}.run();
  call_from(groups);
  return intern_config(std::move(groups));
}

int32_t Machine::step_anew(int32_t id, uint8_t byte_class) {
  const std::vector<Group> from = configs_[index_of(id)].groups;
  std::vector<Group> groups;
  for (const Group& group : from) {
    const int32_t to = step_local(group.local, byte_class);
    if (to != kDead) add_group(groups, {group.frame, to});
  }
  const int32_t to = finish(std::move(groups));
  if (full()) return to;
  Config& again = configs_[index_of(id)];
  if (again.next.empty()) {
    again.next.assign(automaton_.class_byte.size(), kUnknown);
    spent_ += again.next.size();
  }
  return again.next[byte_class] = to;
}

int32_t Machine::step_token(int32_t id, int32_t token) {
  if (!std::ranges::binary_search(automaton_.tokens, token)) return kDead;
  const std::vector<Group> from = configs_[index_of(id)].groups;
  std::vector<Group> groups;
  for (const Group& group : from) {
    std::vector<uint64_t> items;
    for (const uint64_t item : locals_[index_of(group.local)].items)
      for (const Edge& edge : automaton_.edges_of(item_state(item)))
        if (edge.kind == Edge::Kind::token && edge.arg == token) items.push_back(pack(edge.target, item_count(item)));
    const int32_t to = items.empty() ? kDead : intern_local(std::move(items));
    if (to != kDead) add_group(groups, {group.frame, to});
  }
  return finish(std::move(groups));
}

std::vector<int32_t> Machine::tokens_at(int32_t id) const {
  std::vector<int32_t> out;
  if (automaton_.tokens.empty()) return out;
  for (const Group& group : configs_[index_of(id)].groups)
    for (const uint64_t item : locals_[index_of(group.local)].items)
      for (const Edge& edge : automaton_.edges_of(item_state(item)))
        if (edge.kind == Edge::Kind::token) out.push_back(edge.arg);
  sort_unique(out);
  return out;
}

SliceBound Machine::slice_at(int32_t id) const {
  SliceBound best;
  for (const Group& group : configs_[index_of(id)].groups) {
    for (const uint64_t item : locals_[index_of(group.local)].items) {
      const size_t state = index_of(item_state(item));
      const Slice slice = automaton_.slice[state];
      if (slice == Slice::none) continue;
      const int32_t loop = automaton_.slice_loop[state];
      const uint32_t max = loop < 0 ? kEndless : automaton_.loops[index_of(loop)].max;
      const uint32_t left = max == kEndless ? kEndless : max - item_count(item);
      if (std::tuple(slice, left) > std::tuple(best.slice, best.characters)) best = {slice, left};
    }
  }
  return best;
}

template <typename Node>
void drop_from(std::vector<Node>& nodes, std::unordered_map<Hash128, int32_t, HashOfHash>& ids, size_t size) {
  while (nodes.size() > size) {
    ids.erase(nodes.back().hash);
    nodes.pop_back();
  }
}

void Machine::rewind(const Mark& to) {
  if (kept_.configs == 0) kept_ = mark();  // what was made before is remembered by others
  drop_from(configs_, config_ids_, std::max(to.configs, kept_.configs));
  drop_from(frames_, frame_ids_, std::max(to.frames, kept_.frames));
  drop_from(locals_, local_ids_, std::max(to.locals, kept_.locals));
}

int32_t Machine::keep_frame(int32_t id, Machine& fresh, std::unordered_map<int32_t, int32_t>& kept) const {
  // Frames below come first; without recursion, since answers nest as deep as they like.
  std::vector<int32_t> open = {id};
  while (!open.empty()) {
    const int32_t top = open.back();
    std::vector<Group> waiting = frames_[index_of(top)].waiting;
    bool ready = true;
    for (const Group& group : waiting) {
      if (group.frame == kThisFrame || kept.contains(group.frame)) continue;
      open.push_back(group.frame);
      ready = false;
    }
    if (!ready) continue;
    open.pop_back();
    if (kept.contains(top)) continue;
    for (Group& group : waiting) {
      if (group.frame != kThisFrame) group.frame = kept.at(group.frame);
      group.local = fresh.intern_closed(locals_[index_of(group.local)].items);
    }
    kept[top] = fresh.intern_frame(std::move(waiting));
  }
  return kept.at(id);
}

int32_t Machine::compact(int32_t id) {
  std::vector<Group> groups = configs_[index_of(id)].groups;
  if (groups.empty()) return id;  // the end of the answer
  Machine fresh(automaton_);
  std::unordered_map<int32_t, int32_t> kept = {{0, 0}};
  for (Group& group : groups) {
    group.frame = keep_frame(group.frame, fresh, kept);
    group.local = fresh.intern_closed(locals_[index_of(group.local)].items);
  }
  // A Local that only said that the answer may end here is not among the groups any more.
  const int32_t config = fresh.intern_config(std::move(groups), configs_[index_of(id)].complete);
  locals_ = std::move(fresh.locals_);
  frames_ = std::move(fresh.frames_);
  configs_ = std::move(fresh.configs_);
  local_ids_ = std::move(fresh.local_ids_);
  frame_ids_ = std::move(fresh.frame_ids_);
  config_ids_ = std::move(fresh.config_ids_);
  start_ = fresh.start_;
  spent_ = fresh.spent_;
  bound_ = std::max(kMemory, 2 * spent_);  // else a deep answer would be compacted at every token
  kept_ = {};
  return config;
}

}  // namespace moesaic::grammar
