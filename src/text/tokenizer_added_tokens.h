// AddedTokens: the "added_tokens" of tokenizer.json (control tokens and the like), found in text before anything else.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/regex.h"

namespace moesaic {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // matches only where no word character is next to it
  bool lstrip = false;       // swallows the white space before
  bool rstrip = false;       // and after
  bool normalized = false;   // is looked for in the normalized text rather than the raw text
  bool special = false;      // is left out by skip_special_tokens
};

// The list in the file's order. Throws Error(data_loss) naming `where`.
std::vector<AddedToken> parse_added_tokens(const Json* value, const std::string& where);

// Finds tokens of one kind (raw or normalized) in a text: leftmost first, longest at each position.
class AddedTokenFinder {
 public:
  struct Match {
    size_t begin = 0;  // with the white space that the token swallows
    size_t end = 0;
    int32_t id = 0;
  };

  // Forms: what to look for, with the token it stands for. `tokens` must outlive the finder.
  struct Form {
    std::string text;
    const AddedToken* token = nullptr;
  };
  explicit AddedTokenFinder(std::vector<Form> forms);

  bool empty() const { return forms_.empty(); }
  // Matches that lie within one of the ranges (ascending, disjoint); the white space they swallow and the neighbours
  // that single_word looks at may be outside. text is valid UTF-8.
  std::vector<Match> find(std::string_view text, const std::vector<Span>& ranges) const;

 private:
  const Form* longest_at(std::string_view text) const;

  std::vector<Form> forms_;  // sorted by text
  std::array<bool, 256> first_bytes_{};
};

}  // namespace moesaic
