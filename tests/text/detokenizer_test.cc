#include "text/detokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/stop_strings.h"
#include "tokenizer_fixtures.h"

namespace moesaic {
namespace {

using ::testing::ElementsAre;

// A tokenizer whose token i stands for the i-th byte string: a ByteLevel vocabulary.
std::unique_ptr<Tokenizer> byte_tokenizer(const std::vector<std::string>& tokens) {
  JsonObject vocab;
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::string name;
    for (const char c : tokens[i]) {
      const auto b = static_cast<unsigned char>(c);
      int other = 0;
      for (int k = 0; k < b; ++k) other += !((k >= 0x21 && k <= 0x7E) || (k >= 0xA1 && k <= 0xAC) || k >= 0xAE);
      const bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      append_utf8(name, itself ? b : static_cast<char32_t>(0x100 + other));
    }
    vocab[name] = static_cast<int64_t>(i);
  }
  TokenizerParts parts;
  parts.vocab = write_json(vocab);
  parts.merges = "[]";
  parts.decoder = R"({"type":"ByteLevel"})";
  return make_tokenizer(parts);
}

std::vector<std::string> chunks(const std::vector<std::string>& tokens) {
  const auto tokenizer = byte_tokenizer(tokens);
  Detokenizer stream(*tokenizer, false);
  std::vector<std::string> out;
  for (size_t i = 0; i < tokens.size(); ++i) out.push_back(stream.push(static_cast<int32_t>(i)));
  out.push_back(stream.flush());
  return out;
}

TEST(Detokenizer, FC056_CharactersSplitOverTokens) {
  EXPECT_THAT(chunks({"\xF0\x9F\x98", "\xB8"}), ElementsAre("", "\U0001F638", ""));
  EXPECT_THAT(chunks({"\x41", "\xE2\x82", "\xAC\x42"}), ElementsAre("A", "", "\u20ACB", ""));
  EXPECT_THAT(chunks({"\xE2\x82", "\x41"}), ElementsAre("",
                                                        "\uFFFD"
                                                        "A",
                                                        ""));
  EXPECT_THAT(chunks({"a", "\xE2\x82"}), ElementsAre("a", "", "\uFFFD"));
  const auto tokenizer = byte_tokenizer({"\xF0\x9F\x98", "\xB8"});
  EXPECT_EQ(tokenizer->token_bytes(0), "\xF0\x9F\x98");  // logprobs show 240, 159, 152
  EXPECT_EQ(tokenizer->token_bytes(1), "\xB8");
}

TEST(Detokenizer, FC056_StopStringInsideACharacter) {
  const auto tokenizer = byte_tokenizer({"\xC3", "\xA9"});
  Detokenizer stream(*tokenizer, false);
  StopStrings stops({"e"});
  std::string text;
  for (const int32_t id : {0, 1}) text += stops.push(stream.push(id)).text;
  EXPECT_EQ(text + stops.flush(), "\u00E9");
  EXPECT_FALSE(stops.matched());
}

TEST(Detokenizer, MaximalSubparts) {
  // Table 3-8 of the Unicode standard and its neighbours.
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF"), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"
            "A\uFFFD\uFFFD"
            "B");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "\uFFFD\uFFFD\uFFFD\uFFFDA");
}

// Random bytes, cut at random: the chunks together are the whole decoded at once, and each chunk is valid UTF-8.
TEST(Detokenizer, EqualsDecodeForRandomBytes) {
  Rng rng = fresh_rng();
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string> tokens;
    for (int64_t n = rng.below(12); n >= 0; --n) {
      std::string token = random_bytes(rng, 1 + rng.below(4));
      if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
    }
    const auto tokenizer = byte_tokenizer(tokens);
    std::vector<int32_t> ids;
    std::string all, streamed;
    for (int64_t n = rng.below(30); n > 0; --n)
      ids.push_back(static_cast<int32_t>(rng.below(static_cast<int64_t>(tokens.size()))));
    Detokenizer stream(*tokenizer, false);
    for (const int32_t id : ids) {
      all += tokens[static_cast<size_t>(id)];
      const std::string chunk = stream.push(id);
      EXPECT_EQ(chunk, replace_invalid_utf8(chunk));
      streamed += chunk;
    }
    streamed += stream.flush();
    EXPECT_EQ(streamed, tokenizer->decode(ids, false));
    EXPECT_EQ(streamed, replace_invalid_utf8(all));
  }
}

TEST(Detokenizer, SkipsSpecialTokensAndStartsAnew) {
  const auto tokenizer = load_tokenizer(kGoldenDir + "qwen/tokenizer.json");
  const std::vector<int32_t> ids = tokenizer->encode("<|im_start|>hi<think>");
  for (const bool skip : {true, false}) {
    Detokenizer stream(*tokenizer, skip);
    for (int round = 0; round < 2; ++round) {
      std::string text;
      for (const int32_t id : ids) text += stream.push(id);
      EXPECT_EQ(text + stream.flush(), skip ? "hi<think>" : "<|im_start|>hi<think>");
    }
  }
}

// Decoders that treat the start of a text in their own way, streamed and whole.
TEST(Detokenizer, StartOfText) {
  TokenizerParts parts;
  parts.vocab = R"({"\u2581":0,"\u2581Hey":1,"\u2581you":2,"<0xC3>":3,"<0xA9>":4})";
  parts.merges = "[]";
  const std::string llama =
      R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},
      {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})";
  const std::string metaspace = R"({"type":"Metaspace","replacement":"\u2581","prepend_scheme":"always","split":true})";
  const std::string never = R"({"type":"Metaspace","replacement":"\u2581","prepend_scheme":"never","split":true})";
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  const std::vector<std::pair<std::string, std::string>> cases = {{llama, "Hey you\u00e9"},
                                                                  {metaspace, "Hey you<0xC3><0xA9>"},
                                                                  {never, " Hey you<0xC3><0xA9>"},
                                                                  {"null", "\u2581Hey \u2581you <0xC3> <0xA9>"}};
  for (const auto& [decoder, want] : cases) {
    parts.decoder = decoder;
    const auto tokenizer = make_tokenizer(parts);
    EXPECT_EQ(tokenizer->decode(ids, false), want);
    Detokenizer stream(*tokenizer, false);
    std::string text;
    for (const int32_t id : ids) text += stream.push(id);
    EXPECT_EQ(text + stream.flush(), want);
  }
}

// An added token is literal text even if all its characters are in the byte alphabet.
TEST(Detokenizer, AddedTokensAreLiteral) {
  TokenizerParts parts;
  parts.vocab = R"({"a":0,"\u00c3":1,"\u00a9":2})";
  parts.merges = "[]";
  parts.added = "[" + added_token(3, "\u00fc") + "]";
  parts.decoder = R"({"type":"ByteLevel"})";
  EXPECT_EQ(make_tokenizer(parts)->decode(std::vector<int32_t>{3, 1, 2}, false), "\u00fc\u00e9");
}

TEST(Detokenizer, RefusesDecodersThatNeedTheWholeText) {
  TokenizerParts parts;
  for (const char* decoder :
       {R"({"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Strip","content":" ","start":0,"stop":1}]})",
        R"({"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"ByteFallback"}]})", R"({"type":"CTC"})"}) {
    parts.decoder = decoder;
    EXPECT_THROW(make_tokenizer(parts), Error) << decoder;
  }
}

}  // namespace
}  // namespace moesaic
