#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include "base/error.h"
#include "text/regex_translate.h"
#include "text/unicode.h"

namespace moesaic {
namespace {

// Steps of one match call. A run of n white-space characters may take n steps (\s*[\r\n]+ backtracks over it), so
// this covers runs of a megabyte and still ends a hostile pattern in some ten milliseconds.
constexpr uint32_t kMatchLimit = 2'000'000;
constexpr uint32_t kHeapLimitKiB = 64 * 1024;
constexpr size_t kJitStackBytes = 1 << 20;
constexpr size_t kMaxPatternBytes = 16 * 1024;

std::string message_of(int error) {
  PCRE2_UCHAR text[128] = {};
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

pcre2_code* compile(const std::string& pattern, const std::string& where, std::string_view original) {
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> settings(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(settings.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at, settings.get());
  if (code == nullptr)
    fail_data(where, "the pattern {} does not compile: {}", quote_beginning(original), message_of(error));
  return code;
}

}  // namespace

RegexScratch::RegexScratch() {
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* limits = pcre2_match_context_create(nullptr);
  CHECK(match != nullptr && limits != nullptr, "out of memory");
  pcre2_set_match_limit(limits, kMatchLimit);
  pcre2_set_heap_limit(limits, kHeapLimitKiB);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr);
  if (stack != nullptr) pcre2_jit_stack_assign(limits, nullptr, stack);
  match_ = match, limits_ = limits, jit_stack_ = stack;
}

RegexScratch::~RegexScratch() {
  pcre2_match_data_free(static_cast<pcre2_match_data*>(match_));
  pcre2_match_context_free(static_cast<pcre2_match_context*>(limits_));
  pcre2_jit_stack_free(static_cast<pcre2_jit_stack*>(jit_stack_));
}

void Regex::Free::operator()(void* code) const {
  pcre2_code_free(static_cast<pcre2_code*>(code));
}

Regex::Regex(std::string_view pattern, const std::string& where) {
  if (pattern.size() > kMaxPatternBytes)
    fail_data(where, "a pattern is {} bytes long; expected at most {}", pattern.size(), kMaxPatternBytes);
  pcre2_code* code = compile(translate_regex(pattern, where), where, pattern);
  code_.reset(code);
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without executable memory PCRE2 interprets: slower, same matches
}

bool Regex::find_all(std::string_view text, RegexScratch& scratch, std::vector<Span>& out) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  auto* match = static_cast<pcre2_match_data*>(scratch.match_);
  auto* limits = static_cast<pcre2_match_context*>(scratch.limits_);
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match);
  size_t from = 0, last_end = std::string_view::npos;
  while (from <= text.size()) {
    const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                  PCRE2_NO_UTF_CHECK, match, limits);
    if (found == PCRE2_ERROR_NOMATCH) return true;
    if (found < 0) return false;
    const Span span{ends[0], ends[1]};
    if (span.begin == span.end) {  // an empty match cuts, but not where the last match ended
      if (span.begin != last_end) out.push_back(span);
      from = span.end < text.size() ? span.end + code_point_at(text, span.end).size : text.size() + 1;
    } else {
      out.push_back(span);
      from = span.end;
    }
    last_end = span.end;
  }
  return true;
}

}  // namespace moesaic
