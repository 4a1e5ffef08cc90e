// Small tokenizer.json files for tests, and random text.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/fresh_rng.h"
#include "base/json.h"
#include "base/rng.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace moesaic {

inline const std::string kGoldenDir = std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/tokenizer/";
inline constexpr std::array<const char*, 6> kFamilies = {"deepseek", "glm", "gpt2", "o200k", "qwen", "qwen35"};

// The parts of a tokenizer.json as JSON text.
struct TokenizerParts {
  std::string vocab = R"({"a":0,"b":1,"ab":2})";
  std::string merges = R"(["a b"])";
  std::string model_extra;  // for example R"(,"unk_token":"a")"
  std::string added = "[]";
  std::string normalizer = "null";
  std::string pre_tokenizer = "null";
  std::string post_processor = "null";
  std::string decoder = R"({"type":"Fuse"})";

  std::string json() const {
    return R"({"added_tokens":)" + added + R"(,"normalizer":)" + normalizer + R"(,"pre_tokenizer":)" + pre_tokenizer +
           R"(,"post_processor":)" + post_processor + R"(,"decoder":)" + decoder +
           R"(,"model":{"type":"BPE","vocab":)" + vocab + R"(,"merges":)" + merges + model_extra + "}}";
  }
};

inline std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerParts& parts) {
  return parse_tokenizer(parts.json(), "test");
}

inline std::string added_token(int id, const std::string& content, const std::string& extra = "") {
  return R"({"id":)" + std::to_string(id) + R"(,"content":)" + json_quote(content) +
         R"(,"special":true,"normalized":false)" + extra + "}";
}

// Valid UTF-8 of `count` characters: words, spaces, marks, scripts and emoji in a mix that makes merges likely.
inline std::string random_text(Rng& rng, int64_t count) {
  static const std::vector<std::string> pool = {
      "the",     " the",   "ing",    "a",      "e",      "t",          " ",      "  ",     "\n",    "\t",
      "1",       "23",     "'s",     ".",      ",",      "word",       "<",      "|",      ">",     "\u00e9",
      "e\u0301", "\u4f60", "\u597d", "\u30ab", "\ud55c", "\U0001F600", "\u3000", "\u0301", "\u00a0"};
  std::string out;
  for (int64_t i = 0; i < count; ++i) {
    if (rng.below(8) != 0) {
      out += pool[static_cast<size_t>(rng.below(static_cast<int64_t>(pool.size())))];
    } else {
      const int64_t code = rng.below(0x20000);
      append_utf8(out, code >= 0xD800 && code < 0xE000 ? U' ' : static_cast<char32_t>(code));
    }
  }
  return out;
}

inline std::string random_bytes(Rng& rng, int64_t count) {
  static constexpr std::string_view kLikely = "\xF0\x9F\x98\x80\xE2\x82\xAC\xC3\xA9\xED\xA0\xF4\x90\xC0\x61\x42\xFF";
  std::string out;
  for (int64_t i = 0; i < count; ++i)
    out += kLikely[static_cast<size_t>(rng.below(static_cast<int64_t>(kLikely.size())))];
  return out;
}

}  // namespace moesaic
