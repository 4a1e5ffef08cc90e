// Channels of gpt-oss's answers: which text is content, which is reasoning, whatever the model does with its markers.
#include "text/harmony.h"

#include <gtest/gtest.h>

#include "text/tokenizer_fixtures.h"

namespace moesaic {
namespace {

using Ids = std::vector<int32_t>;

// Ids as in o200k_harmony where a case cites them.
enum : int32_t {
  kHeart0 = 0,
  kHeart1,
  kHeart2,  // the bytes of U+2764
  kAssistant,
  kAnalysis,
  kCommentary,
  kTo,
  kJson,
  kHello,
  kWorld,
  kLess,
  kBar,
  kEndWord,
  kGreater,
  kAnswer = 17045,
  kFinal = 17196,
  kEndOfText = 199999,
  kReturn = 200002,
  kConstrain = 200003,
  kChannel = 200005,
  kStart = 200006,
  kEnd = 200007,
  kMessage = 200008,
  kCall = 200012,
};

TokenizerParts parts() {
  TokenizerParts p;
  p.vocab = R"({"\u00e2":0,"\u013f":1,"\u00a4":2,"assistant":3,"analysis":4,"commentary":5,"\u0120to=functions.f":6,
    "json":7,"Hello":8,"\u0120world":9,"<":10,"|":11,"end":12,">":13,"Answer":17045,"final":17196})";
  p.merges = "[]";
  p.decoder = R"({"type":"ByteLevel"})";
  p.added = "[";
  for (const auto& [id, name] : std::initializer_list<std::pair<int32_t, const char*>>{{kEndOfText, "<|endoftext|>"},
                                                                                       {kReturn, "<|return|>"},
                                                                                       {kConstrain, "<|constrain|>"},
                                                                                       {kChannel, "<|channel|>"},
                                                                                       {kStart, "<|start|>"},
                                                                                       {kEnd, "<|end|>"},
                                                                                       {kMessage, "<|message|>"},
                                                                                       {kCall, "<|call|>"}})
    p.added += (p.added.size() > 1 ? "," : "") + added_token(id, name);
  p.added += "]";
  return p;
}

const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> made = make_tokenizer(parts());
  return *made;
}

struct Answer {
  std::string content, reasoning;
  bool operator==(const Answer&) const = default;
};

void PrintTo(const Answer& a, std::ostream* out) {
  *out << "content " << testing::PrintToString(a.content) << ", reasoning " << testing::PrintToString(a.reasoning);
}

// What a reader has after the ids and, at the end of the stream, what waited.
Answer parse(const Ids& ids) {
  HarmonyParser parser(tokenizer());
  Answer answer;
  const auto take = [&](const HarmonyParser::Delta& delta) {
    answer.content += delta.content;
    answer.reasoning += delta.reasoning;
  };
  for (int32_t id : ids) take(parser.push(id));
  take(parser.flush());
  return answer;
}

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Ids kFinalAnswer = {kChannel, kFinal, kMessage, kAnswer};
const Ids kThought = {kChannel, kAnalysis, kMessage, kHello, kWorld};
const Ids kNext = {kEnd, kStart, kAssistant};

TEST(Harmony, FC062_ReturnAfterEnd) {
  const Answer want{"Answer", ""};
  EXPECT_EQ(parse({200005, 17196, 200008, 17045, 200007, 200002}), want);
  for (const Ids& ending :
       {Ids{}, Ids{kEnd}, Ids{kReturn}, Ids{kReturn, kReturn}, Ids{kEnd, kEnd}, Ids{kCall}, Ids{kEnd, kStart}})
    EXPECT_EQ(parse(kFinalAnswer + ending), want) << testing::PrintToString(ending);
}

TEST(Harmony, FC062_OneIdPerStep) {
  const std::vector<std::string> want = {"", "", "", "Answer", "", ""};
  HarmonyParser parser(tokenizer());
  size_t i = 0;
  for (int32_t id : kFinalAnswer + Ids{kEnd, kReturn}) {
    const HarmonyParser::Delta delta = parser.push(id);
    EXPECT_EQ(delta.content, want[i++]);
    EXPECT_EQ(delta.reasoning, "");
  }
  EXPECT_EQ(parser.flush().content, "");
}

TEST(Harmony, AnalysisIsReasoning) {
  EXPECT_EQ(parse(kThought + kNext + kFinalAnswer + Ids{kReturn}), (Answer{"Answer", "Hello world"}));
  EXPECT_EQ(parse(kFinalAnswer + kNext + kThought + Ids{kReturn}), (Answer{"Answer", "Hello world"}));
  EXPECT_EQ(parse(kThought), (Answer{"", "Hello world"}));
  EXPECT_EQ(parse({kChannel, kAnalysis, kTo, kMessage, kHello}), (Answer{"", "Hello"}));
  EXPECT_EQ(parse({kChannel, kAnalysis, kConstrain, kJson, kMessage, kHello}), (Answer{"", "Hello"}));
}

TEST(Harmony, OtherChannelsAreContent) {
  EXPECT_EQ(parse({kChannel, kCommentary, kMessage, kHello}), (Answer{"Hello", ""}));
  EXPECT_EQ(parse({kChannel, kCommentary, kTo, kConstrain, kJson, kMessage, kHello, kCall}), (Answer{"Hello", ""}));
  EXPECT_EQ(parse({kMessage, kHello}), (Answer{"Hello", ""}));
  EXPECT_EQ(parse({kStart, kAssistant, kMessage, kHello}), (Answer{"Hello", ""}));
  // The channel of a message is not that of the one before it.
  EXPECT_EQ(parse(kThought + kNext + Ids{kMessage, kAnswer}), (Answer{"Answer", "Hello world"}));
}

TEST(Harmony, TextWithoutHeaderIsContent) {
  EXPECT_EQ(parse({}), (Answer{"", ""}));
  EXPECT_EQ(parse({kHello, kWorld}), (Answer{"Hello world", ""}));
  EXPECT_EQ(parse({kHello, kWorld, kReturn}), (Answer{"Hello world", ""}));
}

TEST(Harmony, TextThatLooksLikeAMarkerIsText) {
  const Ids fake = {kLess, kBar, kEndWord, kBar, kGreater};
  EXPECT_EQ(parse(kFinalAnswer + fake + Ids{kHello}), (Answer{"Answer<|end|>Hello", ""}));
  EXPECT_EQ(parse(kThought + fake), (Answer{"", "Hello world<|end|>"}));
}

TEST(Harmony, OtherSpecialTokensAreLeftOut) {
  EXPECT_EQ(parse(kFinalAnswer + Ids{kEndOfText}), (Answer{"Answer", ""}));
  EXPECT_EQ(parse({kHello, kEndOfText, kWorld}), (Answer{"Hello world", ""}));
}

TEST(Harmony, CharactersComeWhole) {
  const Ids heart = {kHeart0, kHeart1, kHeart2};
  HarmonyParser parser(tokenizer());
  for (int32_t id : Ids{kChannel, kFinal, kMessage, kHeart0, kHeart1}) EXPECT_EQ(parser.push(id).content, "");
  EXPECT_EQ(parser.push(kHeart2).content, "\u2764");
  EXPECT_EQ(parse(Ids{kChannel, kAnalysis, kMessage} + heart + kNext + kFinalAnswer), (Answer{"Answer", "\u2764"}));
  // Half a character belongs to the message that ended with it.
  EXPECT_EQ(parse(Ids{kChannel, kAnalysis, kMessage, kHeart0, kHeart1} + kNext + kFinalAnswer),
            (Answer{"Answer", "\uFFFD"}));
  EXPECT_EQ(parse(kFinalAnswer + Ids{kHeart0}), (Answer{"Answer\uFFFD", ""}));
  EXPECT_EQ(parse(Ids{kChannel, kFinal, kHeart0, kMessage, kAnswer}), (Answer{"Answer", ""}));
}

// An answer may be cut after any id: what was said before stays.
TEST(Harmony, EveryPrefixIsAPrefix) {
  const Ids whole =
      kThought + kNext + Ids{kChannel, kCommentary, kMessage, kHello} + kNext + kFinalAnswer + Ids{kWorld, kReturn};
  const Answer all = parse(whole);
  EXPECT_EQ(all, (Answer{"HelloAnswer world", "Hello world"}));
  for (size_t length = 0; length <= whole.size(); ++length) {
    const Answer part = parse({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)});
    EXPECT_TRUE(all.content.starts_with(part.content)) << length;
    EXPECT_TRUE(all.reasoning.starts_with(part.reasoning)) << length;
  }
}

// Whatever comes, the bodies come out in order, and no marker does.
TEST(Harmony, AnyOrderOfTokens) {
  Rng rng = fresh_rng();
  const Ids pool = {kAssistant, kAnalysis, kFinal,     kCommentary, kHello,   kWorld, kAnswer,
                    kHeart0,    kHeart1,   kHeart2,    kChannel,    kMessage, kStart, kEnd,
                    kReturn,    kCall,     kConstrain, kEndOfText,  123456,   -1};
  for (int round = 0; round < 2000; ++round) {
    Ids ids;
    for (int64_t i = rng.below(20); i >= 0; --i)
      ids.push_back(pool[static_cast<size_t>(rng.below(static_cast<int64_t>(pool.size())))]);
    const Answer answer = parse(ids);
    EXPECT_EQ((answer.content + answer.reasoning).find("<|"), std::string::npos) << testing::PrintToString(ids);
    // A complete message after it is delivered in its place.
    const Answer more = parse(ids + kNext + kThought + kNext + kFinalAnswer);
    EXPECT_EQ(more, (Answer{answer.content + "Answer", answer.reasoning + "Hello world"}))
        << testing::PrintToString(ids);
  }
}

TEST(Harmony, SpeaksWhereTheMarkersAre) {
  EXPECT_TRUE(HarmonyParser::speaks(tokenizer()));
  TokenizerParts other = parts();
  other.added = "[" + added_token(kEnd, "<|end|>") + "," + added_token(kStart, "<|start|>") + "]";
  EXPECT_FALSE(HarmonyParser::speaks(*make_tokenizer(other)));
}

}  // namespace
}  // namespace moesaic
