#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "base/json.h"

namespace moesaic {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// What starts at bytes[0]: `size` bytes that are a character, or a maximal ill-formed subpart, or the beginning of
// a character that the end of the text cuts off (Unicode standard, table 3-7).
struct Scan {
  enum Kind { character, ill_formed, cut_off } kind;
  size_t size;
};

Scan scan(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {Scan::character, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Scan::ill_formed, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Scan::cut_off, i};
    if (byte(i) < (i == 1 ? low : 0x80u) || byte(i) > (i == 1 ? high : 0xBFu)) return {Scan::ill_formed, i};
  }
  return {Scan::character, length};
}

// Starters that neither decompose nor combine with anything of this list, so text made of them is in NFC.
bool never_changes_in_nfc(char32_t c) {
  return c < 0x300 || (c >= 0x400 && c <= 0x482) || (c >= 0x2010 && c <= 0x2027) || (c >= 0x2030 && c <= 0x205E) ||
         (c >= 0x3000 && c <= 0x3020) || (c >= 0x3041 && c <= 0x3096) || (c >= 0x30A1 && c <= 0x30FA) ||
         (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7A3) ||
         (c >= 0xFF01 && c <= 0xFF60) || (c >= 0x1F300 && c <= 0x1FAFF);
}

bool is_surely_nfc(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const CodePoint code = code_point_at(text, i);
    if (!never_changes_in_nfc(code.value)) return false;
    i += code.size;
  }
  return true;
}

utf8proc_option_t options_of(NormalForm form) {
  const bool compose = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                        (compatible ? UTF8PROC_COMPAT : 0));
}

}  // namespace

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

size_t previous_code_point(std::string_view text, size_t end) {
  do --end;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

void append_utf8(std::string& out, char32_t code) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6), tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12), tail(6), tail(0);
  } else {
    out += static_cast<char>(0xF0 | code >> 18), tail(12), tail(6), tail(0);
  }
}

size_t append_valid_utf8(std::string& out, std::string_view bytes, bool at_end) {
  size_t done = 0, i = 0;  // bytes[done, i) is well-formed and not appended yet
  while (i < bytes.size()) {
    const Scan next = scan(bytes.substr(i));
    if (next.kind == Scan::character) {
      i += next.size;
      continue;
    }
    if (next.kind == Scan::cut_off && !at_end) break;
    out.append(bytes.substr(done, i - done)).append(kReplacement);
    done = i += next.size;
  }
  out.append(bytes.substr(done, i - done));
  return i;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  append_valid_utf8(out, bytes, true);
  return out;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::string quote_beginning(std::string_view text) {
  constexpr size_t kShown = 80;
  std::string beginning;
  append_valid_utf8(beginning, text.substr(0, kShown), text.size() <= kShown);  // a cut character is left out
  return json_quote(beginning) + (text.size() > kShown ? "..." : "");
}

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_mark(char32_t c) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}

bool is_word(char32_t c) {
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
      (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C || c == 0x200D)
    return true;  // circled and squared letters are Alphabetic though their category is So; joiners are Join_Control
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return is_mark(c);
  }
}

char32_t to_lower(char32_t code) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
}

std::string normalize(std::string_view text, NormalForm form) {
  if (is_ascii(text) || (form == NormalForm::nfc && is_surely_nfc(text))) return std::string(text);
  utf8proc_uint8_t* buffer = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &buffer, options_of(form));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(buffer, &std::free);
  CHECK(size >= 0, "utf8proc refuses valid UTF-8: {}", utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(buffer), static_cast<size_t>(size)};
}

}  // namespace moesaic
