// Regex: a pre-tokenizer pattern of tokenizer.json, matched by PCRE2 with Oniguruma's meaning (text/regex_translate.h).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

struct Span {
  size_t begin = 0;
  size_t end = 0;  // bytes, half-open
};

// Matching workspace; one per call of encode, so that a Regex itself stays immutable and shareable among threads.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  void* match_ = nullptr;      // pcre2_match_data
  void* limits_ = nullptr;     // pcre2_match_context
  void* jit_stack_ = nullptr;  // pcre2_jit_stack
};

class Regex {
 public:
  // Throws Error(data_loss) naming `where` for a pattern that is malformed or uses a construct we do not translate.
  Regex(std::string_view pattern, const std::string& where);

  // Appends the matches in text (valid UTF-8), left to right, not overlapping, to `out`. Returns false when the
  // matcher gave up (its step or stack limit); `out` then holds the matches found before that.
  bool find_all(std::string_view text, RegexScratch& scratch, std::vector<Span>& out) const;

 private:
  struct Free {
    void operator()(void* code) const;
  };
  std::unique_ptr<void, Free> code_;
};

}  // namespace moesaic
