#include "text/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "tokenizer_fixtures.h"

namespace moesaic {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> encode(const Bpe& bpe, std::string_view piece) {
  Bpe::Scratch scratch;
  std::vector<int32_t> ids;
  bpe.encode(piece, scratch, ids);
  return ids;
}

Bpe make_bpe(const std::string& json) {
  return Bpe(parse_json(json, "test").as_object(), "test");
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  const Bpe bpe = make_bpe(R"({"vocab":{"a":0,"b":1,"c":2,"bc":3,"ab":4,"aa":5},"merges":["b c","a b",["a","a"]]})");
  EXPECT_THAT(encode(bpe, "abc"), ElementsAre(0, 3));
  EXPECT_THAT(encode(bpe, "aaa"), ElementsAre(5, 0));
  EXPECT_THAT(encode(bpe, "aab"), ElementsAre(0, 4));
  EXPECT_THAT(encode(bpe, "xay"), ElementsAre(0));  // no unknown token: left out
  EXPECT_THAT(encode(bpe, ""), ElementsAre());
}

TEST(Bpe, BothSpellingsOfMerges) {
  const Bpe pairs = make_bpe(R"({"vocab":{" ":0,"a":1," a":2,"a ":3},"merges":[[" ","a"]]})");
  EXPECT_THAT(encode(pairs, " a"), ElementsAre(2));
  EXPECT_THROW(make_bpe(R"({"vocab":{" ":0,"a":1," a":2},"merges":["  a"]})"), Error);  // ambiguous
}

TEST(Bpe, IgnoreMergesTakesTheWholePiece) {
  const std::string vocab = R"({"vocab":{"a":0,"b":1,"c":2,"ab":3,"abc":4},"merges":["a b"])";
  EXPECT_THAT(encode(make_bpe(vocab + "}"), "abc"), ElementsAre(3, 2));
  EXPECT_THAT(encode(make_bpe(vocab + R"(,"ignore_merges":true})"), "abc"), ElementsAre(4));
}

TEST(Bpe, UnknownAndByteFallback) {
  const std::string vocab = R"({"vocab":{"a":0,"<unk>":1,"<0xC3>":2,"<0xA9>":3},"merges":[],"unk_token":"<unk>")";
  EXPECT_THAT(encode(make_bpe(vocab + "}"), "axya"), ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(encode(make_bpe(vocab + R"(,"fuse_unk":true})"), "axyaz"), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(encode(make_bpe(vocab + R"(,"byte_fallback":true})"), "\u00e9x"), ElementsAre(2, 3, 1));
}

// The textbook loop: find the best pair in the whole word, merge it, start over.
std::vector<std::string> merge_slowly(std::vector<std::string> word,
                                      const std::vector<std::pair<std::string, std::string>>& merges) {
  for (;;) {
    size_t best = merges.size(), at = 0;
    for (size_t i = 0; i + 1 < word.size(); ++i) {
      const auto rank = static_cast<size_t>(std::find(merges.begin(), merges.end(), std::pair(word[i], word[i + 1])) -
                                            merges.begin());
      if (rank < best) best = rank, at = i;
    }
    if (best == merges.size()) return word;
    word[at] += word[at + 1];
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(Bpe, EqualsTheTextbookLoop) {
  Rng rng = fresh_rng();
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> tokens = {"a", "b", "c"};
    std::vector<std::pair<std::string, std::string>> merges;
    JsonObject vocab;
    JsonArray list;
    for (int i = 0; i < 30; ++i) {
      const auto& left = tokens[static_cast<size_t>(rng.below(static_cast<int64_t>(tokens.size())))];
      const auto& right = tokens[static_cast<size_t>(rng.below(static_cast<int64_t>(tokens.size())))];
      const std::pair pair(left, right);
      if (left.size() + right.size() > 8 || std::find(merges.begin(), merges.end(), pair) != merges.end()) continue;
      merges.push_back(pair);
      list.push_back(JsonArray{Json(pair.first), Json(pair.second)});
      if (std::find(tokens.begin(), tokens.end(), pair.first + pair.second) == tokens.end())
        tokens.push_back(pair.first + pair.second);
    }
    for (size_t i = 0; i < tokens.size(); ++i) vocab[tokens[i]] = static_cast<int64_t>(i);
    const Bpe bpe(JsonObject{{"vocab", vocab}, {"merges", list}}, "test");
    std::vector<std::string> word;
    for (int64_t n = 1 + rng.below(60); n > 0; --n) word.emplace_back(1, static_cast<char>('a' + rng.below(3)));
    std::string text, spelt;
    for (const std::string& c : word) text += c;
    std::vector<std::string> got;
    for (const int32_t id : encode(bpe, text)) got.push_back(tokens[static_cast<size_t>(id)]);
    EXPECT_EQ(got, merge_slowly(word, merges)) << text;
  }
}

TEST(Bpe, LongPieceIsNotQuadratic) {
  const Bpe bpe = make_bpe(R"({"vocab":{"a":0,"aa":1,"aaaa":2},"merges":["a a","aa aa"]})");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(encode(bpe, std::string(4'000'000, 'a')).size(), 1'000'000u);
  // Quadratic work would be 10^13 steps; this takes about a second without optimisation.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(BpeTables, StringsHaveHolesAndMergesKeepTheLast) {
  TokenStrings strings;
  strings.set(5, "five");
  strings.set(2, "");
  EXPECT_EQ(strings.size(), 6);
  EXPECT_EQ(strings.get(5), "five");
  EXPECT_EQ(strings.get(2), "");
  EXPECT_EQ(strings.get(3), std::nullopt);
  EXPECT_EQ(strings.get(-1), std::nullopt);
  MergeTable merges(2);
  merges.set(1, 2, {7, 9});
  merges.set(1, 2, {8, 9});
  EXPECT_EQ(merges.find(1, 2).rank, 8u);
  EXPECT_EQ(merges.find(2, 1).rank, MergeTable::kNone);
}

}  // namespace
}  // namespace moesaic
