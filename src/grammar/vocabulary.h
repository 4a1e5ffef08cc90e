// TokenVocabulary's inside: tokens in trees of their bytes, apart by what they hold.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/expr.h"

namespace moesaic {

// Nodes in depth-first order: the subtree of node i is [i, end[i]).
struct TokenTree {
  std::vector<uint8_t> byte;
  std::vector<uint16_t> depth;   // bytes before this one
  std::vector<uint8_t> longest;  // characters of the longest token in the subtree, at most 255
  std::vector<int32_t> end;
  std::vector<int32_t> token;  // that ends here, or -1
};

struct TokenVocabulary::Trie {
  // Tokens of more characters are in no bit set of `upto`.
  static constexpr uint32_t kLongest = 32;

  uint64_t id = 0;  // different for each vocabulary of the process
  int64_t vocab = 0;
  std::vector<int32_t> end_tokens;   // sorted
  std::array<TokenTree, 3> trees;    // json: plain inside a JSON string; other whole text; torn characters
  std::vector<int32_t> same;         // [vocab]: another token of the same bytes, or -1
  std::vector<uint32_t> first_byte;  // [vocab + 1], into text: a token's bytes
  std::string text;
  std::vector<std::vector<uint32_t>> upto;  // [kLongest + 1]: tokens of trees[0] of at most so many characters
  std::vector<uint32_t> json, whole;        // all tokens of trees[0]; of trees[1]

  std::string_view bytes(int32_t token) const {  // empty: none that a grammar could match
    const auto t = static_cast<size_t>(token);
    return std::string_view(text).substr(first_byte[t], first_byte[t + 1] - first_byte[t]);
  }
  size_t words() const { return (static_cast<size_t>(vocab) + 31) / 32; }
};

}  // namespace moesaic
