// UTF-8 and the few Unicode questions that tokenization asks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moesaic {

struct CodePoint {
  char32_t value = 0;
  size_t size = 0;  // bytes
};

// The code point that starts at text[at]; text is valid UTF-8 and at < text.size().
CodePoint code_point_at(std::string_view text, size_t at);
// The offset of the code point that ends just before text[end]; text is valid UTF-8 and end > 0.
size_t previous_code_point(std::string_view text, size_t end);
void append_utf8(std::string& out, char32_t code);

// Appends `bytes` to `out` with one U+FFFD for each maximal ill-formed subpart (the Unicode recommendation, what
// Python's and Rust's lossy decoders do). Returns how many bytes were used: all of them, except that with
// at_end == false a tail that could still become a character is left for later (at most 3 bytes).
size_t append_valid_utf8(std::string& out, std::string_view bytes, bool at_end);
std::string replace_invalid_utf8(std::string_view bytes);
bool is_ascii(std::string_view text);
// The beginning of `text` in quotes on one line, for messages.
std::string quote_beginning(std::string_view text);

bool is_white_space(char32_t code);  // Unicode White_Space
bool is_word(char32_t code);         // \w: letters, marks, decimal digits, letter numbers, connectors, joiners
bool is_mark(char32_t code);         // general category M
char32_t to_lower(char32_t code);    // simple mapping

enum class NormalForm { nfc, nfd, nfkc, nfkd };
// text is valid UTF-8. ASCII, and for NFC the common scripts that NFC never changes, are returned as they are.
std::string normalize(std::string_view text, NormalForm form);

}  // namespace moesaic
