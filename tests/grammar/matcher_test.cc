// Tokens and masks: borders, split characters, special and end tokens, sharing among threads, memory.
#include <thread>

#include "base/json.h"
#include "walk.h"

namespace moesaic {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A tokenizer of the given ordinary tokens, ids in order, byte for byte (ASCII); then <|x|> and <|end|>, special.
std::unique_ptr<Tokenizer> tokens_of(const std::vector<std::string>& tokens) {
  JsonObject vocab;
  for (const std::string& token : tokens) vocab[token] = vocab.size();
  const int64_t x = static_cast<int64_t>(tokens.size());
  JsonArray added;
  for (const char* name : {"<|x|>", "<|end|>"})
    added.push_back({{"id", x + static_cast<int64_t>(added.size())},
                     {"content", name},
                     {"special", true},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false}});
  const JsonObject file = {
      {"added_tokens", added},         {"normalizer", nullptr},
      {"pre_tokenizer", nullptr},      {"post_processor", nullptr},
      {"decoder", {{"type", "Fuse"}}}, {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", JsonArray{}}}}};
  return parse_tokenizer(write_json(file), "test");
}

struct Small {
  explicit Small(const std::vector<std::string>& list)
      : tokenizer(tokens_of(list)),
        x(static_cast<int32_t>(list.size())),
        end(x + 1),
        vocabulary(*tokenizer, end + 3, {end}) {}

  std::shared_ptr<const Grammar> grammar(const std::string& text) const {
    const auto out = compile_grammar({Kind::grammar, text}, *tokenizer);
    EXPECT_TRUE(out.ok()) << out.status().message();
    return *out;
  }
  std::unique_ptr<Tokenizer> tokenizer;
  int32_t x, end;
  TokenVocabulary vocabulary;
};

TEST(GrammarMatcher, TokensCrossBordersOfRules) {
  const Small small({"a", "b", "ab", "bc", "abc", "c", "cc"});
  GrammarMatcher matcher(small.grammar("root ::= x y \"c\"\nx ::= \"a\"\ny ::= \"b\"?"), small.vocabulary);
  EXPECT_THAT(allowed(matcher, small.vocabulary), ElementsAre(0, 2, 4));
  EXPECT_FALSE(matcher.accept(1));
  ASSERT_TRUE(matcher.accept(0));
  EXPECT_THAT(allowed(matcher, small.vocabulary), ElementsAre(1, 3, 5));
  ASSERT_TRUE(matcher.accept(3));
  EXPECT_TRUE(matcher.complete());
  EXPECT_THAT(allowed(matcher, small.vocabulary), ElementsAre(small.end));
}

TEST(GrammarMatcher, EndTokensExactlyWhereTheAnswerIsComplete) {
  const Small small({"a", "b"});
  GrammarMatcher matcher(small.grammar("root ::= \"a\" \"b\"*"), small.vocabulary);
  EXPECT_FALSE(matcher.complete());
  EXPECT_FALSE(matcher.accept(small.end));
  EXPECT_THAT(allowed(matcher, small.vocabulary), ElementsAre(0));
  ASSERT_TRUE(matcher.accept(0));
  EXPECT_THAT(allowed(matcher, small.vocabulary), ElementsAre(1, small.end));
  ASSERT_TRUE(matcher.accept(small.end));
  EXPECT_THAT(allowed(matcher, small.vocabulary), ElementsAre(small.end));
  EXPECT_FALSE(matcher.accept(1)) << "nothing follows the end";
}

TEST(GrammarMatcher, SpecialTokensByNameAndById) {
  const Small small({"a", "b", "<", "|", "x", ">"});
  for (const std::string name : {"<|x|>", "6"}) {
    GrammarMatcher matcher(small.grammar("root ::= %text <[" + name + "]> \"b\""), small.vocabulary);
    EXPECT_THAT(allowed(matcher, small.vocabulary), ElementsAre(0, 1, 2, 3, 4, 5, 6));
    for (const int32_t t : {2, 3, 4, 3, 5}) ASSERT_TRUE(matcher.accept(t)) << "its text is not the token";
    EXPECT_FALSE(matcher.complete());
    ASSERT_TRUE(matcher.accept(small.x));
    EXPECT_THAT(allowed(matcher, small.vocabulary), ElementsAre(1));
  }
}

TEST(GrammarMatcher, NamedOrdinaryTokensAreNeverTakenForTheirText) {
  const Small small({"a", "b", "ab"});
  GrammarMatcher matcher(small.grammar("root ::= %text <[ab]> \"b\""), small.vocabulary);
  ASSERT_TRUE(matcher.accept(2));
  EXPECT_THAT(allowed(matcher, small.vocabulary), ElementsAre(1));
}

TEST(GrammarMatcher, AnEndTokenMayBePartOfTheGrammar) {
  const Small small({"a"});
  GrammarMatcher matcher(small.grammar("root ::= \"a\" <[<|end|>]>"), small.vocabulary);
  EXPECT_THAT(allowed(matcher, small.vocabulary), ElementsAre(0));
  ASSERT_TRUE(matcher.accept(0));
  EXPECT_FALSE(matcher.complete());
  EXPECT_THAT(allowed(matcher, small.vocabulary), ElementsAre(small.end));
  ASSERT_TRUE(matcher.accept(small.end));
  EXPECT_TRUE(matcher.complete());
}

TEST(GrammarMatcher, EndsWhereTheVocabularyCannotGoOn) {
  const Small small({"a"});
  GrammarMatcher matcher(small.grammar("root ::= \"a\" \"z\""), small.vocabulary);
  ASSERT_TRUE(matcher.accept(0));
  EXPECT_FALSE(matcher.complete());
  EXPECT_THAT(allowed(matcher, small.vocabulary), ElementsAre(small.end));
  EXPECT_TRUE(matcher.accept(small.end));
}

// Ids of another model's vocabulary are refused or left out, never an index.
TEST(GrammarMatcher, FC048_TokenIdsOutsideTheVocabulary) {
  const Small small({"a", "b"});
  const TokenVocabulary vocabulary(*small.tokenizer, 7, {small.end, 7, -1, 2'000'000'000});
  GrammarMatcher matcher(small.grammar("root ::= [ab]*"), vocabulary);
  EXPECT_THAT(allowed(matcher, vocabulary), ElementsAre(0, 1, small.end));
  for (const int32_t id : {7, -1, 2'000'000'000, 5}) EXPECT_FALSE(matcher.accept(id)) << id;
  std::vector<uint32_t> words(3, 0xFFFFFFFF);  // more than the vocabulary needs
  matcher.mask(words);
  EXPECT_THAT(words, ElementsAre(0b1011U, 0U, 0U));
  EXPECT_THAT(refusal(Kind::grammar, "root ::= <[999999]>"), HasSubstr("no token"));
}

TEST(GrammarMatcher, CharactersSplitOverTokens) {
  const auto grammar = compiled(Kind::json_schema, R"({"type":"string","minLength":2,"maxLength":2})");
  const TokenVocabulary& vocabulary = demo_vocabulary();
  const auto byte_token = [&](uint8_t byte) {
    for (int32_t t = 0; t < vocabulary.vocab(); ++t)
      if (vocabulary.trie().bytes(t) == std::string(1, static_cast<char>(byte))) return t;
    return -1;
  };
  GrammarMatcher matcher(grammar, vocabulary);
  for (const char c : std::string("\"\u00e9\U0001F600")) {
    const int32_t token = byte_token(static_cast<uint8_t>(c));
    ASSERT_GE(token, 0);
    EXPECT_THAT(allowed(matcher, vocabulary), ::testing::Contains(token));
    ASSERT_TRUE(matcher.accept(token)) << static_cast<int>(static_cast<uint8_t>(c));
  }
  EXPECT_THAT(allowed(matcher, vocabulary), ElementsAre(byte_token('"')));
  GrammarMatcher half(grammar, vocabulary);
  ASSERT_TRUE(half.accept(byte_token('"')));
  ASSERT_TRUE(half.accept(byte_token(0xF0)));
  for (const int32_t t : allowed(half, vocabulary)) {
    const auto next = static_cast<uint8_t>(vocabulary.trie().bytes(t)[0]);
    EXPECT_TRUE(next >= 0x90 && next <= 0xBF) << "F0 goes on with 90 to BF, not with " << int{next};
  }
}

// What a mask says is what accept() does, for every token, by definition and with all its shortcuts.
TEST(GrammarMatcher, MasksAgreeWithAccept) {
  Rng rng = fresh_rng();
  const std::vector<GrammarSource> sources = {
      {Kind::json_schema,
       R"({"type":"object","properties":{"a":{"type":"string","maxLength":9},"b":{"type":"number"}}})"},
      {Kind::json_object, ""},
      {Kind::regex, R"(("[^"]*"|.{1,9}|\w+ )*)"},
      {Kind::grammar, "root ::= %text <[<|channel|>]> ([a-z ]{2,40} | %json_object)"}};
  const TokenVocabulary& vocabulary = demo_vocabulary();
  for (const GrammarSource& source : sources) {
    const auto grammar = compiled(source.kind, source.text);
    std::vector<int32_t> path;
    for (int step = 0; step < 12; ++step) {
      const auto replay = [&] {
        GrammarMatcher matcher(grammar, vocabulary);
        for (const int32_t t : path) EXPECT_TRUE(matcher.accept(t));
        return matcher;
      };
      const std::vector<int32_t> mask = allowed(replay(), vocabulary);
      std::vector<int32_t> accepted;
      auto probe = std::make_unique<GrammarMatcher>(replay());
      for (int32_t t = 0; t < vocabulary.vocab(); ++t) {
        if (!probe->accept(t)) continue;
        accepted.push_back(t);
        probe = std::make_unique<GrammarMatcher>(replay());
      }
      ASSERT_EQ(mask, accepted) << source.text << " after " << path.size() << " tokens";
      std::vector<int32_t> next = mask;
      std::erase(next, kDemoEnd);
      if (next.empty()) break;
      path.push_back(next[static_cast<size_t>(rng.below(static_cast<int64_t>(next.size())))]);
    }
  }
}

TEST(GrammarMatcher, ThreadsShareAGrammar) {
  const auto grammar = compiled(Kind::json_schema, R"({"type":"array","items":{"type":"string","maxLength":20}})");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&grammar, i] {
      Rng rng(7, static_cast<uint64_t>(i % 2));  // two and two make the same answers
      for (int n = 0; n < 20; ++n) parse_json(random_answer(grammar, demo_vocabulary(), rng, 30), "answer");
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(GrammarMatcher, LeftRecursionAndAmbiguity) {
  const std::string sum = "root ::= root \"+\" n | n\nn ::= [0-9]+";
  EXPECT_TRUE(matches(Kind::grammar, sum, "1+22+3"));
  EXPECT_FALSE(matches(Kind::grammar, sum, "1++3"));
  const auto many = compiled(Kind::grammar, "root ::= root root | \"a\" | \"(\" root \")\"");
  EXPECT_TRUE(matches(many, std::string(20, 'a') + "(a)"));
  EXPECT_FALSE(matches(many, std::string(20, 'a') + "("));
  // Readings beyond a bound are dropped: fewer texts are possible, none of them wrong.
  EXPECT_TRUE(matches(many, std::string(300, 'a')));
  EXPECT_FALSE(matches(many, std::string(300, 'a') + ")"));
  EXPECT_TRUE(matches(Kind::grammar, "root ::= a b \"z\"\na ::= b?\nb ::= (\"x\" | a)*", "xxz"));
  const std::string hidden = "root ::= e root \"x\" | \"y\"\ne ::= \"\"";
  EXPECT_TRUE(matches(Kind::grammar, hidden, "yxx"));
  EXPECT_FALSE(matches(Kind::grammar, hidden, "xy"));
}

// a^n b^n, (), palindromes: each against its definition, all texts up to length 8.
TEST(GrammarMatcher, ContextFreeLanguagesByBruteForce) {
  const auto equal = compiled(Kind::grammar, "root ::= \"\" | \"a\" root \"b\"");
  const auto nested = compiled(Kind::grammar, "root ::= (\"a\" root \"b\")*");
  const auto palindrome = compiled(Kind::grammar, "root ::= \"a\" root \"a\" | \"b\" root \"b\" | [ab]?");
  for (int length = 0; length <= 8; ++length)
    for (int bits = 0; bits < 1 << length; ++bits) {
      std::string text;
      int depth = 0, lowest = 0;
      for (int i = 0; i < length; ++i) {
        text += (bits >> i & 1) != 0 ? 'b' : 'a';
        depth += text.back() == 'a' ? 1 : -1;
        lowest = std::min(lowest, depth);
      }
      const auto half = static_cast<size_t>(length / 2);
      EXPECT_EQ(matches(equal, text), text == std::string(half, 'a') + std::string(half, 'b')) << text;
      EXPECT_EQ(matches(nested, text), depth == 0 && lowest == 0) << text;
      EXPECT_EQ(matches(palindrome, text), text == std::string(text.rbegin(), text.rend())) << text;
    }
}

// Depth without end: what a matcher remembers is bounded, and it forgets nothing that it needs.
TEST(GrammarMatcher, DeepAnswersKeepTheirStack) {
  const Small small({"[", "]", "x"});
  const auto grammar = small.grammar("root ::= \"x\" | \"[\" root \"]\"");
  GrammarMatcher matcher(grammar, small.vocabulary);
  const int depth = 60'000;  // several times what the bound holds
  for (int i = 0; i < depth; ++i) ASSERT_TRUE(matcher.accept(0));
  ASSERT_TRUE(matcher.accept(2));
  for (int i = 0; i < depth; ++i) {
    ASSERT_FALSE(matcher.complete());
    ASSERT_TRUE(matcher.accept(1));
  }
  EXPECT_TRUE(matcher.complete());
  EXPECT_FALSE(matcher.accept(1));
}

}  // namespace
}  // namespace moesaic
