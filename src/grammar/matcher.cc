#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/rng.h"
#include "grammar/compiled.h"
#include "grammar/vocabulary.h"

namespace moesaic {
namespace {

using grammar::kDead;
using grammar::Machine;
using grammar::Slice;
using grammar::SliceBound;
using Trie = TokenVocabulary::Trie;

// Items that one mask may look at, some 0.02 s: hostile grammars get fewer tokens, all of them right, but no more time.
constexpr int64_t kWorkPerMask = 4'000'000;

void set_bit(std::span<uint32_t> words, int32_t token) {
  words[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
}
void clear_bit(std::span<uint32_t> words, int32_t token) {
  words[static_cast<size_t>(token) / 32] &= ~(uint32_t{1} << (token % 32));
}
bool has_bit(std::span<const uint32_t> words, int32_t token) {
  return (words[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

// Sets the bits of a tree's tokens that the machine takes from `config` on; subtrees whose tokens have at most
// `covered` characters are left out.
struct Walk {
  Machine& machine;
  const Trie& trie;
  std::span<uint32_t> words;
  int64_t work_limit = 0;
  bool any = false;

  void set_tokens(int32_t token) {
    any |= token >= 0;
    for (; token >= 0; token = trie.same[static_cast<size_t>(token)]) set_bit(words, token);
  }
  void run(const TokenTree& tree, int32_t config, uint32_t covered) {
    struct Place {
      int32_t config;
      Machine::Mark mark;
    };
    std::vector<Place> path = {{config, machine.mark()}};  // [depth]: the position before the byte there
    const size_t count = tree.byte.size();
    for (size_t node = 0; node < count;) {
      const size_t depth = tree.depth[node];
      if (tree.longest[node] <= covered && covered > 0) {
        node = static_cast<size_t>(tree.end[node]);
        continue;
      }
      path.resize(depth + 1);
      if (any && machine.work() > work_limit) return;
      if (machine.full()) [[unlikely]]
        machine.rewind(path[depth].mark);
      const int32_t next = machine.step(path[depth].config, tree.byte[node]);
      if (next == kDead) {
        node = static_cast<size_t>(tree.end[node]);
        continue;
      }
      if (tree.token[node] >= 0) set_tokens(tree.token[node]);
      path.push_back({next, machine.mark()});
      ++node;
    }
  }
};

void add_words(std::span<uint32_t> words, const std::vector<uint32_t>& more) {
  for (size_t i = 0; i < more.size(); ++i) words[i] |= more[i];
}

TokenMask pack_mask(std::span<const uint32_t> words) {
  size_t count = 0;
  for (const uint32_t word : words) count += static_cast<size_t>(std::popcount(word));
  TokenMask mask;
  if (count >= words.size()) {
    mask.words.assign(words.begin(), words.end());
    return mask;
  }
  for (size_t i = 0; i < words.size(); ++i)
    for (uint32_t word = words[i]; word != 0; word &= word - 1)
      mask.ids.push_back(static_cast<int32_t>(i * 32) + std::countr_zero(word));
  return mask;
}

}  // namespace

std::shared_ptr<const TokenMask> Grammar::find_mask(uint64_t vocabulary, const grammar::Hash128& position) const {
  const std::lock_guard lock(mutex_);
  const auto found = masks_.find({position.a ^ mix64(vocabulary), position.b});
  return found == masks_.end() ? nullptr : found->second;
}

void Grammar::keep_mask(uint64_t vocabulary, const grammar::Hash128& position,
                        std::shared_ptr<const TokenMask> mask) const {
  const std::lock_guard lock(mutex_);
  if (mask_bytes_ + mask->bytes() > kMaskBytes) {
    masks_.clear();
    mask_bytes_ = 0;
  }
  mask_bytes_ += mask->bytes();
  masks_[{position.a ^ mix64(vocabulary), position.b}] = std::move(mask);
}

struct GrammarMatcher::State {
  std::shared_ptr<const Grammar> grammar;
  const Trie& trie;
  Machine machine;
  int32_t config;
  bool ended = false;  // by an end token

  State(std::shared_ptr<const Grammar> g, const Trie& t)
      : grammar(std::move(g)), trie(t), machine(grammar->automaton), config(machine.start()) {}

  bool is_end(int32_t token) const { return std::ranges::binary_search(trie.end_tokens, token); }
  void allow_end(std::span<uint32_t> words) const {
    for (const int32_t token : trie.end_tokens) set_bit(words, token);
  }
  void make_mask(std::span<uint32_t> words);
  void walk_bytes(std::span<uint32_t> words);
  int32_t step_bytes(std::string_view bytes);
};

void GrammarMatcher::State::walk_bytes(std::span<uint32_t> words) {
  const SliceBound slice = machine.slice_at(config);
  const bool endless = slice.characters == grammar::kEndless;
  const bool text = slice.slice == Slice::text && endless, json = slice.slice != Slice::none;
  const uint32_t covered = json ? std::min(slice.characters, Trie::kLongest) : 0;
  if (json) add_words(words, endless ? trie.json : trie.upto[covered]);
  if (text) add_words(words, trie.whole);
  Walk walk{machine, trie, words, machine.work() + kWorkPerMask, json};
  if (!json || !endless) walk.run(trie.trees[0], config, covered);
  if (!text) walk.run(trie.trees[1], config, 0);
  walk.run(trie.trees[2], config, 0);
}

void GrammarMatcher::State::make_mask(std::span<uint32_t> words) {
  walk_bytes(words);
  // A special token that the grammar names is never taken for its text.
  for (const int32_t token : grammar->automaton.tokens)
    if (token < trie.vocab) clear_bit(words, token);
  for (const int32_t token : machine.tokens_at(config))
    if (token < trie.vocab) set_bit(words, token);
  if (machine.config(config).complete) allow_end(words);
  if (std::ranges::all_of(words, [](uint32_t word) { return word == 0; })) allow_end(words);
}

int32_t GrammarMatcher::State::step_bytes(std::string_view bytes) {
  int32_t at = bytes.empty() ? kDead : config;
  for (size_t i = 0; i < bytes.size() && at != kDead; ++i) at = machine.step(at, static_cast<uint8_t>(bytes[i]));
  return at;
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar, const TokenVocabulary& vocabulary)
    : state_(std::make_unique<State>(std::move(grammar), vocabulary.trie())) {}
GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;

void GrammarMatcher::mask(std::span<uint32_t> words) const {
  State& state = *state_;
  CHECK(words.size() >= state.trie.words(), "{} words for a vocabulary of {}", words.size(), state.trie.vocab);
  std::ranges::fill(words, 0);
  if (state.ended) return state.allow_end(words);
  const grammar::Hash128 position = state.machine.config(state.config).hash;
  if (const auto known = state.grammar->find_mask(state.trie.id, position)) {
    if (!known->words.empty()) std::ranges::copy(known->words, words.begin());
    for (const int32_t token : known->ids) set_bit(words, token);
    return;
  }
  state.make_mask(words);
  state.grammar->keep_mask(state.trie.id, position,
                           std::make_shared<TokenMask>(pack_mask(words.first(state.trie.words()))));
}

bool GrammarMatcher::accept(int32_t token) {
  State& state = *state_;
  if (state.ended || token < 0 || token >= state.trie.vocab) return false;
  const bool named = std::ranges::binary_search(state.grammar->automaton.tokens, token);
  const int32_t next =
      named ? state.machine.step_token(state.config, token) : state.step_bytes(state.trie.bytes(token));
  if (next != kDead) {
    state.config = next;
    if (!state.machine.full()) return true;
    state.config = state.machine.compact(next);
    state.ended = state.machine.overflows();  // a deep answer in rules of which thousands begin at one place
    return true;
  }
  if (!state.is_end(token)) return false;
  if (!complete()) {  // allowed only where nothing else is
    std::vector<uint32_t> words(state.trie.words());
    mask(words);
    if (!has_bit(words, token)) return false;
  }
  return state.ended = true;
}

bool GrammarMatcher::complete() const {
  return state_->machine.config(state_->config).complete;
}

}  // namespace moesaic
