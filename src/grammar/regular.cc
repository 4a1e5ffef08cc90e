#include "grammar/regular.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "grammar/machine.h"

namespace moesaic::grammar {
namespace {

constexpr int64_t kMostStates = 50'000;    // of 1 KiB each
constexpr int64_t kMostWork = 20'000'000;  // items looked at, some 0.3 s

size_t index_of(int32_t i) {
  return static_cast<size_t>(i);
}

int32_t add_state(Pool& pool, Dfa& dfa, bool final) {
  if (++pool.dfa_states > kMostStates)
    fail_argument(
        "the grammar is too large: its patterns, lengths and names need more than {} states where they are combined; "
        "make them simpler or fewer",
        kMostStates);
  dfa.next.emplace_back().fill(-1);
  dfa.final.push_back(final ? 1 : 0);
  return static_cast<int32_t>(dfa.next.size() - 1);
}

}  // namespace

Dfa make_dfa(Pool& pool, const std::function<ExprId(Pool&)>& make) {
  Pool own(pool.limits);
  own.add_rule("root");
  own.rules[0].body = make(own);
  if (own.rules[0].body == own.never()) return {};
  const Automaton automaton = build_automaton(own);
  Machine machine(automaton);
  Dfa dfa;
  std::map<int32_t, int32_t> known;  // the machine's positions
  std::vector<int32_t> open;
  const auto state_of = [&](int32_t config) {
    const auto [place, fresh] = known.try_emplace(config, 0);
    if (fresh) {
      place->second = add_state(pool, dfa, machine.config(config).complete);
      open.push_back(config);
    }
    return place->second;
  };
  state_of(machine.start());
  const int64_t left = kMostWork - pool.dfa_work;
  for (size_t i = 0; i < open.size(); ++i) {
    if (machine.work() > left)
      fail_argument(
          "the grammar is too large: its patterns take too much work where they are combined with lengths or "
          "names; make them simpler, or their repetitions smaller");
    std::vector<int32_t> by_class;
    for (const uint8_t byte : automaton.class_byte) {
      const int32_t to = machine.step(open[i], byte);
      by_class.push_back(to == kDead ? -1 : state_of(to));
    }
    for (size_t byte = 0; byte < 256; ++byte) dfa.next[i][byte] = by_class[automaton.byte_class[byte]];
  }
  pool.dfa_work += machine.work();
  return dfa;
}

Dfa combine(Pool& pool, const Dfa& first, const Dfa& second, Keep keep) {
  Dfa out;
  if (first.next.empty()) return out;
  std::map<std::pair<int32_t, int32_t>, int32_t> known;  // states of the two; -1: the second has refused
  std::vector<std::pair<int32_t, int32_t>> open;
  const auto state_of = [&](int32_t a, int32_t b) {
    const auto [place, fresh] = known.try_emplace({a, b}, 0);
    if (fresh) {
      const bool in_second = b >= 0 && second.final[index_of(b)] != 0;
      place->second = add_state(pool, out, first.final[index_of(a)] != 0 && in_second == (keep == Keep::both));
      open.emplace_back(a, b);
    }
    return place->second;
  };
  state_of(0, second.next.empty() ? -1 : 0);
  for (size_t i = 0; i < open.size(); ++i) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const auto [a, b] = open[i];
      const int32_t to_a = first.next[index_of(a)][byte], to_b = b < 0 ? -1 : second.next[index_of(b)][byte];
      if (to_a < 0 || (keep == Keep::both && to_b < 0)) continue;
      const int32_t target = state_of(to_a, to_b);
      out.next[i][byte] = target;
    }
  }
  return is_empty(out) ? Dfa{} : out;
}

bool accepts(const Dfa& dfa, std::string_view text) {
  int32_t state = dfa.next.empty() ? -1 : 0;
  for (const char c : text)
    if (state >= 0) state = dfa.next[index_of(state)][static_cast<uint8_t>(c)];
  return state >= 0 && dfa.final[index_of(state)] != 0;
}

bool is_empty(const Dfa& dfa) {
  return std::ranges::count(dfa.final, 1) == 0;
}

}  // namespace moesaic::grammar
