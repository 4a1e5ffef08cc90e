#include "text/tokenizer_added_tokens.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "text/bpe_tables.h"
#include "text/unicode.h"

namespace moesaic {
namespace {

constexpr size_t kMaxContentBytes = 1024;  // keeps matching linear in practice

AddedToken parse_token(const Json& value, const std::string& where) {
  const JsonObject& object = json_object(value, where);
  AddedToken token;
  token.content = json_string(object, "content", where);
  const int64_t id = json_int(object, "id", where);
  if (token.content.empty() || token.content.size() > kMaxContentBytes)
    fail_data(where, "token {} is {} bytes long; expected 1 to {}", id, token.content.size(), kMaxContentBytes);
  if (id < 0 || id > kMaxTokenId)
    fail_data(where, "{} has id {}; expected 0 to {}", quote_beginning(token.content), id, kMaxTokenId);
  token.id = static_cast<int32_t>(id);
  token.single_word = json_bool(object, "single_word", where, false);
  token.lstrip = json_bool(object, "lstrip", where, false);
  token.rstrip = json_bool(object, "rstrip", where, false);
  token.special = json_bool(object, "special", where, false);
  token.normalized = json_bool(object, "normalized", where, !token.special);
  return token;
}

bool is_single_word(std::string_view text, size_t begin, size_t end) {
  const bool word_before = begin > 0 && is_word(code_point_at(text, previous_code_point(text, begin)).value);
  return !word_before && !(end < text.size() && is_word(code_point_at(text, end).value));
}

size_t white_space_before(std::string_view text, size_t begin, size_t limit) {
  while (begin > limit) {
    const size_t previous = previous_code_point(text, begin);
    if (!is_white_space(code_point_at(text, previous).value)) break;
    begin = previous;
  }
  return begin;
}

size_t white_space_after(std::string_view text, size_t end) {
  while (end < text.size()) {
    const CodePoint code = code_point_at(text, end);
    if (!is_white_space(code.value)) break;
    end += code.size;
  }
  return end;
}

}  // namespace

std::vector<AddedToken> parse_added_tokens(const Json* value, const std::string& where) {
  std::vector<AddedToken> tokens;
  if (value == nullptr) return tokens;
  if (!value->is_array()) fail_data(where, "is not a list");
  for (const Json& item : value->get_array()) tokens.push_back(parse_token(item, where));
  return tokens;
}

AddedTokenFinder::AddedTokenFinder(std::vector<Form> forms) : forms_(std::move(forms)) {
  std::erase_if(forms_, [](const Form& form) { return form.text.empty(); });
  std::sort(forms_.begin(), forms_.end(),
            [](const Form& a, const Form& b) { return std::tie(a.text, a.token->id) < std::tie(b.text, b.token->id); });
  for (const Form& form : forms_) first_bytes_[static_cast<unsigned char>(form.text[0])] = true;
}

// The longest form that `text` starts with: narrows the sorted forms byte by byte.
const AddedTokenFinder::Form* AddedTokenFinder::longest_at(std::string_view text) const {
  const Form* longest = nullptr;
  const Form *low = forms_.data(), *high = low + forms_.size();
  for (size_t depth = 0; low != high; ++depth) {
    if (low->text.size() == depth) {
      longest = low;
      while (low != high && low->text.size() == depth) ++low;
    }
    if (depth == text.size()) break;
    const unsigned char byte = static_cast<unsigned char>(text[depth]);
    const auto byte_at = [depth](const Form& form) { return static_cast<unsigned char>(form.text[depth]); };
    low = std::partition_point(low, high, [&](const Form& form) { return byte_at(form) < byte; });
    high = std::partition_point(low, high, [&](const Form& form) { return byte_at(form) == byte; });
  }
  return longest;
}

std::vector<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text,
                                                            const std::vector<Span>& ranges) const {
  std::vector<Match> matches;
  size_t taken = 0;  // up to where text belongs to earlier matches
  for (const Span& range : ranges) {
    for (size_t at = std::max(range.begin, taken); at < range.end;) {
      const bool possible = first_bytes_[static_cast<unsigned char>(text[at])];
      const Form* form = possible ? longest_at(text.substr(at, range.end - at)) : nullptr;
      if (form == nullptr) {
        ++at;
        continue;
      }
      Match match{at, at + form->text.size(), form->token->id};
      at = match.end;
      if (form->token->single_word && !is_single_word(text, match.begin, match.end)) continue;
      if (form->token->lstrip) match.begin = white_space_before(text, match.begin, taken);
      if (form->token->rstrip) match.end = white_space_after(text, match.end);
      taken = match.end;
      at = std::max(at, taken);
      matches.push_back(match);
    }
  }
  return matches;
}

}  // namespace moesaic
