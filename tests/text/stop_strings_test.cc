#include "text/stop_strings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tokenizer_fixtures.h"

namespace moesaic {
namespace {

struct Outcome {
  std::string text;
  std::optional<size_t> match;
  bool operator==(const Outcome&) const = default;
};

Outcome run(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopStrings matcher(stops);
  Outcome outcome;
  for (const std::string& piece : pieces) {
    const StopStrings::Release release = matcher.push(piece);
    outcome.text += release.text;
    if (release.match) outcome.match = release.match;
  }
  outcome.text += matcher.flush();
  return outcome;
}

TEST(StopStrings, FC055_AcrossPieces) {
  EXPECT_EQ(run({"own fox"}, {"The quick br", "own", " f", "ox jumps"}), (Outcome{"The quick br", 0}));
  EXPECT_EQ(run({"\nUser:"}, {"\nUser", "name"}), (Outcome{"\nUsername", std::nullopt}));
  EXPECT_EQ(run({"ab", "abc"}, {"xabc"}), (Outcome{"x", 0}));
}

TEST(StopStrings, FC055_HoldsBackExactlyWhatMayMatch) {
  StopStrings matcher({"aab", "bc"});
  EXPECT_EQ(matcher.push("xa").text, "x");
  EXPECT_EQ(matcher.push("a").text, "");
  EXPECT_EQ(matcher.push("a").text, "a");  // "aa" may still become "aab"
  EXPECT_EQ(matcher.push("c").text, "aac");
  EXPECT_EQ(matcher.push("b").text, "");
  EXPECT_EQ(matcher.flush(), "b");
}

TEST(StopStrings, NothingAfterAMatch) {
  StopStrings matcher({"stop"});
  EXPECT_EQ(matcher.push("a stop b").text, "a ");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.push("more").text, "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopStrings, EmptyStringsAndNoStrings) {
  EXPECT_EQ(run({}, {"abc"}), (Outcome{"abc", std::nullopt}));
  EXPECT_EQ(run({"", "c"}, {"abc"}), (Outcome{"ab", 1}));
}

// The definition: the shortest beginning of the text that ends with a stop string; the longest of those that do.
Outcome by_definition(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i)
      if (text.substr(0, end).ends_with(stops[i]) && (!best || stops[i].size() > stops[*best].size())) best = i;
    if (best) return {text.substr(0, end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

bool begins_a_stop(const std::vector<std::string>& stops, const std::string& suffix) {
  return std::any_of(stops.begin(), stops.end(),
                     [&](const std::string& s) { return s.size() > suffix.size() && s.starts_with(suffix); });
}

TEST(StopStrings, FC055_AnyCutGivesTheSame) {
  Rng rng = fresh_rng();
  const auto word = [&](int64_t length) {
    std::string out;
    for (int64_t i = 0; i < length; ++i) out += static_cast<char>('a' + rng.below(2));
    return out;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops, pieces;
    for (int64_t n = 1 + rng.below(4); n > 0; --n) stops.push_back(word(1 + rng.below(6)));
    const std::string text = word(rng.below(40));
    for (size_t at = 0; at < text.size();) {
      const size_t size = static_cast<size_t>(rng.below(5));  // empty pieces too
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    const Outcome want = by_definition(stops, text);
    EXPECT_EQ(run(stops, pieces), want);
    EXPECT_EQ(run(stops, {text}), want);
    // What is held back after each piece is the longest suffix that begins a stop string.
    StopStrings matcher(stops);
    std::string seen, shown;
    for (const std::string& piece : pieces) {
      shown += matcher.push(piece).text;
      seen += piece;
      if (matcher.matched()) break;
      size_t keep = seen.size();
      while (keep > 0 && !begins_a_stop(stops, seen.substr(seen.size() - keep))) --keep;
      EXPECT_EQ(shown, seen.substr(0, seen.size() - keep));
    }
  }
}

}  // namespace
}  // namespace moesaic
