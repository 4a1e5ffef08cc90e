// Grammars in tests: compiling, matching whole texts, and random answers through masks.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/fresh_rng.h"
#include "grammar/compiled.h"
#include "grammar/vocabulary.h"
#include "text/unicode.h"

namespace moesaic {

using Kind = GrammarSource::Kind;

inline const Tokenizer& demo_tokenizer() {
  static const auto tokenizer = load_tokenizer(std::string(MOESAIC_SOURCE_DIR) + "/models/demo/tokenizer.json");
  return *tokenizer;
}
inline constexpr int32_t kDemoEnd = 6130;  // <|return|>

inline const TokenVocabulary& demo_vocabulary() {
  static const TokenVocabulary vocabulary(demo_tokenizer(), 6144, {kDemoEnd});
  return vocabulary;
}

inline Result<std::shared_ptr<const Grammar>> compile(Kind kind, const std::string& text) {
  return compile_grammar({kind, text}, demo_tokenizer());
}

inline std::shared_ptr<const Grammar> compiled(Kind kind, const std::string& text) {
  const auto grammar = compile(kind, text);
  EXPECT_TRUE(grammar.ok()) << text << "\n" << grammar.status().message();
  return grammar.ok() ? *grammar : nullptr;
}

// The message of what must not compile.
inline std::string refusal(Kind kind, const std::string& text) {
  const auto grammar = compile(kind, text);
  return grammar.ok() ? "compiled" : grammar.status().message();
}

inline bool matches(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  grammar::Machine machine(grammar->automaton);
  int32_t at = machine.start();
  for (const char c : text)
    if (at >= 0) at = machine.step(at, static_cast<uint8_t>(c));
  return at >= 0 && machine.config(at).complete;
}

inline bool matches(Kind kind, const std::string& source, std::string_view text) {
  const auto grammar = compiled(kind, source);
  return grammar != nullptr && matches(grammar, text);
}

inline std::vector<int32_t> allowed(const GrammarMatcher& matcher, const TokenVocabulary& vocabulary) {
  std::vector<uint32_t> words((static_cast<size_t>(vocabulary.vocab()) + 31) / 32);
  matcher.mask(words);
  std::vector<int32_t> out;
  for (int32_t t = 0; t < vocabulary.vocab(); ++t)
    if ((words[static_cast<size_t>(t) / 32] >> (t % 32) & 1) != 0) out.push_back(t);
  return out;
}

// How many bytes a position is from its end, roughly: counted repetitions count once.
class Distance {
 public:
  explicit Distance(const grammar::Automaton& automaton) : automaton_(automaton) {
    using grammar::Edge;
    const size_t states = automaton.ends.size();
    to_end_.assign(states, kFar);
    rule_.assign(states, -1);
    for (size_t s = 0; s < states; ++s)
      if (automaton.ends[s] >= 0) to_end_[s] = 0, rule_[s] = automaton.ends[s];
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t s = states; s-- > 0;)
        for (const Edge& edge : automaton.edges_of(static_cast<int32_t>(s))) {
          const auto target = static_cast<size_t>(edge.target);
          int64_t cost = to_end_[target];
          if (edge.kind == Edge::Kind::bytes || edge.kind == Edge::Kind::token) cost += 1;
          if (edge.kind == Edge::Kind::call)
            cost += to_end_[static_cast<size_t>(automaton.starts[static_cast<size_t>(edge.arg)])];
          if (cost < to_end_[s]) to_end_[s] = cost, changed = true;
          if (rule_[s] < 0 && rule_[target] >= 0) rule_[s] = rule_[target], changed = true;
        }
    }
  }

  int64_t of(const grammar::Machine& machine, int32_t config) {
    if (machine.config(config).complete) return 0;
    int64_t best = kFar;
    for (const grammar::Group& group : machine.config(config).groups)
      for (const uint64_t item : machine.local(group.local).items) {
        const auto state = static_cast<size_t>(grammar::item_state(item));
        best = std::min(best, to_end_[state] + after(machine, group.frame, rule_[state], 0));
      }
    return best;
  }

 private:
  static constexpr int64_t kFar = int64_t{1} << 40;

  int64_t after(const grammar::Machine& machine, int32_t frame, int32_t rule, int depth) {
    if (frame == 0 && rule == 0) return 0;
    if (depth > 200) return kFar;
    int64_t best = kFar;
    for (const grammar::Group& caller : machine.frame(frame).waiting)
      for (const uint64_t item : machine.local(caller.local).items)
        for (const grammar::Edge& edge : automaton_.edges_of(grammar::item_state(item))) {
          if (edge.kind != grammar::Edge::Kind::call || edge.arg != rule) continue;
          const int64_t rest = to_end_[static_cast<size_t>(edge.target)];
          const int32_t below = caller.frame == grammar::kThisFrame ? frame : caller.frame;
          if (rest < best)
            best = std::min(best, rest + after(machine, below, rule_[static_cast<size_t>(edge.target)], depth + 1));
        }
    return best;
  }

  const grammar::Automaton& automaton_;
  std::vector<int64_t> to_end_;
  std::vector<int32_t> rule_;
};

// One answer: tokens drawn uniformly from the masks, then, after `tokens` of them, bytes that lead to an end. Fails the
// test when a mask is empty, a token of a mask is refused, or there is no end.
inline std::string random_answer(const std::shared_ptr<const Grammar>& grammar, const TokenVocabulary& vocabulary,
                                 Rng& rng, int tokens) {
  GrammarMatcher matcher(grammar, vocabulary);
  grammar::Machine machine(grammar->automaton);
  Distance distance(grammar->automaton);
  std::string out;
  int32_t at = machine.start();
  for (int step = 0; step < tokens + 5000; ++step) {
    if (matcher.complete() && (step >= tokens || rng.below(6) == 0)) return out;
    std::vector<int32_t> choices = allowed(matcher, vocabulary);
    std::erase_if(choices, [&](int32_t t) { return vocabulary.trie().bytes(t).empty(); });
    if (choices.empty()) {
      EXPECT_TRUE(matcher.complete()) << "nothing can follow " << out;
      return out;
    }
    int32_t token = choices[static_cast<size_t>(rng.below(static_cast<int64_t>(choices.size())))];
    if (step >= tokens) {
      int64_t best = int64_t{1} << 50;
      for (const int32_t t : choices) {
        const std::string_view bytes = vocabulary.trie().bytes(t);
        if (bytes.size() != 1) continue;
        const int64_t left = distance.of(machine, machine.step(at, static_cast<uint8_t>(bytes[0])));
        if (left < best) best = left, token = t;
      }
    }
    EXPECT_TRUE(matcher.accept(token)) << out << " then " << vocabulary.trie().bytes(token);
    for (const char c : vocabulary.trie().bytes(token)) at = machine.step(at, static_cast<uint8_t>(c));
    out += vocabulary.trie().bytes(token);
    if (at < 0) {
      ADD_FAILURE() << "the mask allowed what the machine refuses: " << out;
      return out;
    }
  }
  ADD_FAILURE() << "no end after " << out;
  return out;
}

}  // namespace moesaic
