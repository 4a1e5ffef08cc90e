#include "grammar/vocabulary.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "text/unicode.h"

namespace moesaic {
namespace {

struct Token {
  std::string_view bytes;
  int32_t id = 0;
};

// 0: whole characters that stand for themselves in a JSON string; 1: other whole characters; 2: torn ones.
size_t tree_of(std::string_view bytes) {
  std::string valid;
  if (append_valid_utf8(valid, bytes, false) != bytes.size() || valid != bytes) return 2;
  const bool plain =
      std::ranges::all_of(bytes, [](char c) { return static_cast<uint8_t>(c) >= 0x20 && c != '"' && c != '\\'; });
  return plain ? 0 : 1;
}

uint8_t characters(std::string_view bytes) {
  const auto count = std::ranges::count_if(bytes, [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
  return static_cast<uint8_t>(std::min<int64_t>(count, 255));
}

void set_bit(std::vector<uint32_t>& words, int32_t token) {
  words[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
}

void close_nodes(TokenTree& tree, std::vector<int32_t>& path, size_t depth) {
  while (path.size() > depth) {
    const auto node = static_cast<size_t>(path.back());
    path.pop_back();
    tree.end[node] = static_cast<int32_t>(tree.byte.size());
    if (!path.empty()) {
      uint8_t& longest = tree.longest[static_cast<size_t>(path.back())];
      longest = std::max(longest, tree.longest[node]);
    }
  }
}

// Tokens sorted by their bytes.
TokenTree make_tree(const std::vector<Token>& tokens, std::vector<int32_t>& same) {
  TokenTree tree;
  std::vector<int32_t> path;  // nodes of the last token's bytes
  std::string_view last;
  for (const Token& token : tokens) {
    size_t shared = 0;
    while (shared < std::min(last.size(), token.bytes.size()) && last[shared] == token.bytes[shared]) ++shared;
    close_nodes(tree, path, shared);
    for (size_t i = shared; i < token.bytes.size(); ++i) {
      path.push_back(static_cast<int32_t>(tree.byte.size()));
      tree.byte.push_back(static_cast<uint8_t>(token.bytes[i]));
      tree.depth.push_back(static_cast<uint16_t>(i));
      tree.longest.push_back(0);
      tree.end.push_back(0);
      tree.token.push_back(-1);
    }
    const auto node = static_cast<size_t>(path.back());
    same[static_cast<size_t>(token.id)] = tree.token[node];
    tree.token[node] = token.id;
    tree.longest[node] = std::max(tree.longest[node], characters(token.bytes));
    last = token.bytes;
  }
  close_nodes(tree, path, 0);
  return tree;
}

// Bytes that a grammar can match: not of special tokens, of those that end an answer, or of absurd length.
std::string_view matchable(const Tokenizer& tokenizer, const TokenVocabulary::Trie& trie, int32_t id) {
  constexpr size_t kLongestToken = 4096;
  if (id >= tokenizer.vocab_size() || tokenizer.is_special(id)) return {};
  if (std::ranges::binary_search(trie.end_tokens, id)) return {};
  const std::string_view bytes = tokenizer.token_bytes(id).value_or(std::string_view());
  return bytes.size() > kLongestToken ? std::string_view() : bytes;
}

void fill_sets(TokenVocabulary::Trie& trie, const std::vector<Token>& json, const std::vector<Token>& whole) {
  trie.json.assign(trie.words(), 0);
  trie.whole.assign(trie.words(), 0);
  trie.upto.assign(trie.kLongest + 1, std::vector<uint32_t>(trie.words()));
  for (const Token& token : whole) set_bit(trie.whole, token.id);
  for (const Token& token : json) {
    set_bit(trie.json, token.id);
    for (uint32_t n = characters(token.bytes); n <= trie.kLongest; ++n) set_bit(trie.upto[n], token.id);
  }
}

}  // namespace

TokenVocabulary::TokenVocabulary(const Tokenizer& tokenizer, int64_t vocab, std::vector<int32_t> end) {
  static std::atomic<uint64_t> vocabularies = 0;
  auto trie = std::make_unique<Trie>();
  trie->id = ++vocabularies;
  trie->vocab = vocab;
  std::erase_if(end, [vocab](int32_t id) { return id < 0 || id >= vocab; });
  std::ranges::sort(end);
  trie->end_tokens = std::move(end);
  trie->same.assign(static_cast<size_t>(vocab), -1);
  std::array<std::vector<Token>, 3> tokens;
  for (int32_t id = 0; id < vocab; ++id) {
    trie->first_byte.push_back(static_cast<uint32_t>(trie->text.size()));
    const std::string_view bytes = matchable(tokenizer, *trie, id);
    if (!bytes.empty()) tokens[tree_of(bytes)].push_back({bytes, id});
    trie->text += bytes;
  }
  trie->first_byte.push_back(static_cast<uint32_t>(trie->text.size()));
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::ranges::sort(tokens[i], {}, [](const Token& token) { return std::pair(token.bytes, token.id); });
    trie->trees[i] = make_tree(tokens[i], trie->same);
  }
  fill_sets(*trie, tokens[0], tokens[1]);
  trie_ = std::move(trie);
}

TokenVocabulary::~TokenVocabulary() = default;

int64_t TokenVocabulary::vocab() const {
  return trie_->vocab;
}

}  // namespace moesaic
