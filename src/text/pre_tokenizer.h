// PreTokenizer: cuts a section of text (between added tokens) into the pieces that BPE never merges across, as the
// "pre_tokenizer" of tokenizer.json says.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "text/regex.h"

namespace moesaic {

struct Piece {
  size_t begin = 0;
  size_t end = 0;
  bool at_origin = false;  // begins where the whole input began (Metaspace with prepend_scheme "first")
};

// Text and its pieces in order; bytes between pieces were removed. A step may rewrite the text (ByteLevel, Metaspace).
struct PreTokens {
  std::string text;
  std::vector<Piece> pieces;

  std::string_view operator[](size_t i) const {
    return std::string_view(text).substr(pieces[i].begin, pieces[i].end - pieces[i].begin);
  }
};

// How Split treats what its pattern matches.
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct SplitStep {
  std::variant<Regex, std::string> pattern;  // a string matches itself; the empty one matches nothing
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // the pattern describes the pieces rather than the delimiters
};

struct ByteLevelStep {
  bool add_prefix_space = false;
  std::optional<Regex> pattern;  // GPT-2's, with use_regex
};

enum class PrependScheme { always, first, never };

struct MetaspaceStep {
  std::string replacement;
  PrependScheme scheme = PrependScheme::always;
  bool split = true;
};

class PreTokenizer {
 public:
  // value: the "pre_tokenizer" of tokenizer.json, null for none. Throws Error(data_loss) naming an unknown type.
  PreTokenizer(const Json* value, const std::string& where);

  // Where the matcher gives up, the rest of the piece falls into single characters; nothing fails.
  void run(PreTokens& tokens, RegexScratch& scratch) const;

 private:
  void add(const Json& value, const std::string& where);

  std::vector<std::variant<SplitStep, ByteLevelStep, MetaspaceStep>> steps_;
  size_t growing_steps_ = 0;
};

// The fields that a Metaspace pre-tokenizer and a Metaspace decoder share.
MetaspaceStep parse_metaspace(const JsonObject& object, const std::string& where);

// GPT-2's byte alphabet: the character (below U+0180) that stands for each byte, and the way back (-1: none).
const std::array<char16_t, 256>& byte_alphabet();
int byte_of(char32_t character);

}  // namespace moesaic
