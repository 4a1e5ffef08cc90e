// Any source is refused with a message or compiles; then masks are never empty and accept() takes what they allow. The
// first byte chooses the kind of source.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "grammar/grammar.h"

namespace moesaic {
namespace {

// All bytes, some longer tokens and two special ones.
std::unique_ptr<Tokenizer> small_tokenizer() {
  static constexpr std::string_view file = R"({"added_tokens": [
    {"id": 11, "content": "<|x|>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false},
    {"id": 12, "content": "<|end|>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "merges": [], "vocab": {"a": 0, "b": 1, "\"": 2, "{": 3, "}": 4, "ab": 5, "1": 6, "\":": 7,
    "\u00e9": 8, "-0.5e": 9, "]": 10}}})";
  return parse_tokenizer(file, "fuzz");
}

void check(GrammarSource::Kind kind, std::string_view text) {
  static const auto tokenizer = small_tokenizer();
  static const TokenVocabulary vocabulary(*tokenizer, 13, {12});
  const GrammarLimits limits{.source_bytes = 4096, .states = 5000, .depth = 32, .repetitions = 2000};
  const auto grammar = compile_grammar({kind, std::string(text)}, *tokenizer, limits);
  if (!grammar.ok()) {
    CHECK(*grammar.status().message() != '\0');
    return;
  }
  GrammarMatcher matcher(*grammar, vocabulary);
  for (uint32_t step = 0; step < 12; ++step) {
    uint32_t mask = 0;
    matcher.mask({&mask, 1});
    CHECK(mask != 0, "step {}", step);
    uint32_t token = (step * 5 + static_cast<uint32_t>(text.size())) % 13;
    while ((mask >> token & 1) == 0) token = (token + 1) % 13;
    CHECK(matcher.accept(static_cast<int32_t>(token)), "step {}, token {}", step, token);
    if (token == 12) return;
  }
}

}  // namespace
}  // namespace moesaic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Kind = moesaic::GrammarSource::Kind;
  if (size == 0) return 0;
  const Kind kind = data[0] == 's' ? Kind::json_schema : data[0] == 'r' ? Kind::regex : Kind::grammar;
  moesaic::check(kind, {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
