// Patterns in tokenizer.json are written for Oniguruma (Ruby syntax) or Rust; PCRE2 reads some of the same text with
// another meaning. translate_regex() rewrites what differs and refuses what it does not know:
//   [X&&[^Y]]            -> (?:(?![Y])[X])       class intersection, which PCRE2 10.42 reads as plain characters
//   \p{Han}              -> \p{sc:Han}           PCRE2 would take script extensions
//   \s \w \b             -> Unicode White_Space, Alphabetic|M|Nd|Pc, and look-arounds over the latter
//   \v \uHHHH {,n} {n,m}+ -> U+000B, \x{HHHH}, {0,n}, (?:...{n,m})+
#pragma once

#include <string>
#include <string_view>

namespace moesaic {

// pattern is valid UTF-8. Throws Error(data_loss) naming `where`, the construct and its offset.
std::string translate_regex(std::string_view pattern, const std::string& where);

}  // namespace moesaic
