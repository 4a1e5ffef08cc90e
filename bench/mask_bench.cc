// mask_bench TOKENIZER_JSON: microseconds of a core per token mask along typical answers, with cold and with warm
// grammars, as CSV.
#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "base/error.h"
#include "grammar/compiled.h"
#include "grammar/vocabulary.h"

namespace moesaic {
namespace {

using Clock = std::chrono::steady_clock;

// Time that this thread had a core, so that neighbours on a shared machine do not count.
double thread_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

struct Case {
  const char* name;
  GrammarSource source;
  std::string answer;
};

std::vector<Case> cases() {
  const auto schema = GrammarSource::Kind::json_schema;
  std::string words;
  for (int i = 0; i < 60; ++i) words += "The quick brown fox jumps over the lazy dog, again. ";
  std::string rows;
  for (int i = 0; i < 20; ++i)
    rows +=
        (i == 0 ? "" : ", ") +
        fmt::format(R"({{"id": {}, "title": "Item number {}", "price": {}.5, "tags": ["new", "sale \u00e9t\u00e9"]}})",
                    i * 37, i, i);
  return {
      {"person",
       {schema, R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,
         "maximum":150},"email":{"type":"string","format":"email"},"role":{"enum":["admin","editor","viewer"]}},
         "required":["name","age","email","role"],"additionalProperties":false})"},
       R"({"name": "Ada Lovelace", "age": 36, "email": "ada.lovelace@example.org", "role": "editor"})"},
      {"rows",
       {schema,
        R"({"type":"array","items":{"type":"object","properties":{"id":{"type":"integer"},"title":{"type":"string"},
         "price":{"type":"number"},"tags":{"type":"array","items":{"type":"string","maxLength":40}}},
         "required":["id","title","price","tags"]}})"},
       "[" + rows + "]"},
      {"long text, maxLength 5000", {schema, R"({"type":"string","maxLength":5000})"}, '"' + words + '"'},
      {"short text, maxLength 60",
       {schema,
        R"({"type":"object","properties":{"a":{"type":"string","maxLength":60},"b":{"type":"string","maxLength":60}},
         "required":["a","b"]})"},
       R"({"a": "The quick brown fox jumps over the lazy dog.", "b": "Five dozen liquor jugs, packed in my box."})"},
      {"recursive",
       {schema, R"({"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{"v":{"type":"string"},
         "c":{"type":"array","items":{"$ref":"#/$defs/t"}}},"required":["v","c"]}}})"},
       R"({"v": "root", "c": [{"v": "left", "c": [{"v": "deep", "c": []}]}, {"v": "right", "c": []}]})"},
      {"json_object",
       {GrammarSource::Kind::json_object, ""},
       R"({"weather": {"city": "Paris", "temperature": 21.5, "wind": [3, 5, null]}, "ok": true, "note": "mild \"day\""})"},
      {"regex",
       {GrammarSource::Kind::regex, R"(The .* (dog|cat)\. [A-Za-z ,]{10,200}!)"},
       "The quick brown fox jumps over the lazy dog. Five dozen liquor jugs, packed in my box!"},
  };
}

// The answer as the longest tokens that the vocabulary has.
std::vector<int32_t> longest_tokens(const TokenVocabulary::Trie& trie, std::string_view text) {
  static std::unordered_map<std::string_view, int32_t> ids;
  if (ids.empty())
    for (int32_t t = 0; t < trie.vocab; ++t) ids.emplace(trie.bytes(t), t);
  std::vector<int32_t> out;
  while (!text.empty()) {
    size_t size = std::min<size_t>(text.size(), 32);
    while (size > 1 && !ids.contains(text.substr(0, size))) --size;
    out.push_back(ids.at(text.substr(0, size)));
    text.remove_prefix(size);
  }
  return out;
}

std::vector<double> mask_times(const std::shared_ptr<const Grammar>& grammar, const TokenVocabulary& vocabulary,
                               const std::vector<int32_t>& tokens) {
  GrammarMatcher matcher(grammar, vocabulary);
  std::vector<uint32_t> words(vocabulary.trie().words());
  std::vector<double> out;
  for (const int32_t token : tokens) {
    const double begin = thread_us();
    matcher.mask(words);
    out.push_back(thread_us() - begin);
    CHECK(matcher.accept(token), "token {} refused", token);
  }
  CHECK(matcher.complete());
  std::ranges::sort(out);
  return out;
}

void measure(const Case& each, const Tokenizer& tokenizer, const TokenVocabulary& vocabulary) {
  const auto begin = Clock::now();
  const auto grammar = compile_grammar(each.source, tokenizer);
  const double compile_ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  CHECK(grammar.ok(), "{}", grammar.status().message());
  const std::vector<int32_t> tokens = longest_tokens(vocabulary.trie(), each.answer);
  for (const char* state : {"cold", "warm"}) {
    const std::vector<double> us = mask_times(*grammar, vocabulary, tokens);
    fmt::print("\"{}\",{},{},{:.2f},{},{:.1f},{:.1f},{:.1f}\n", each.name, state, vocabulary.vocab(), compile_ms,
               us.size(), us[us.size() / 2], us[us.size() * 99 / 100], us.back());
  }
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  if (argc != 2) return fmt::print(stderr, "usage: mask_bench TOKENIZER_JSON\n"), 2;
  const auto tokenizer = moesaic::load_tokenizer(argv[1]);
  const auto begin = moesaic::Clock::now();
  const moesaic::TokenVocabulary vocabulary(*tokenizer, tokenizer->vocab_size(), {tokenizer->vocab_size() - 1});
  const double ms = std::chrono::duration<double, std::milli>(moesaic::Clock::now() - begin).count();
  fmt::print(stderr, "vocabulary of {} tokens: {:.0f} ms\n", vocabulary.vocab(), ms);
  fmt::print("grammar,state,vocab,compile_ms,masks,median_us,p99_us,max_us\n");
  for (const auto& each : moesaic::cases()) moesaic::measure(each, *tokenizer, vocabulary);
}
