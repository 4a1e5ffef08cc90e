#include "text/jinja_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <vector>

namespace moesaic::jinja {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point(c)));
}

char32_t map_case(char32_t c, utf8proc_int32_t (*map)(utf8proc_int32_t)) {
  return static_cast<char32_t>(map(static_cast<utf8proc_int32_t>(code_point(c)))) | mark_of(c);
}

bool is_cased(char32_t c) {
  return is_upper(c) || is_lower(c) || category(c) == UTF8PROC_CATEGORY_LT;
}

// Characters whose upper case is several characters; the title case has the rest in lower case.
struct Expansion {
  char32_t from;
  const char32_t* upper;
};
constexpr Expansion kExpansions[] = {{0xDF, U"SS"},   {0x149, U"\u02BCN"}, {0x1F0, U"J\u030C"}, {0xFB00, U"FF"},
                                     {0xFB01, U"FI"}, {0xFB02, U"FL"},     {0xFB03, U"FFI"},    {0xFB04, U"FFL"},
                                     {0xFB05, U"ST"}, {0xFB06, U"ST"}};

void append_marked(Text& out, TextView text, char32_t mark) {
  for (const char32_t c : text) out += code_point(c) | mark;
}

void append_upper(Text& out, char32_t c) {
  for (const Expansion& e : kExpansions)
    if (e.from == code_point(c)) return append_marked(out, e.upper, mark_of(c));
  out += map_case(c, utf8proc_toupper);
}

void append_title(Text& out, char32_t c) {
  for (const Expansion& e : kExpansions) {
    if (e.from != code_point(c)) continue;
    const size_t first = code_point(c) == 0x149 ? 2 : 1;
    append_marked(out, TextView(e.upper).substr(0, first), mark_of(c));
    return append_marked(out, to_lower(TextView(e.upper).substr(first)), mark_of(c));
  }
  out += map_case(c, utf8proc_totitle);
}

// A capital sigma that ends a word has its own small form.
bool is_final_sigma(TextView text, size_t i) {
  const auto ignorable = [](char32_t c) {
    const utf8proc_category_t k = category(c);
    return code_point(c) == '\'' || k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_CF || code_point(c) == 0x2019;
  };
  size_t before = i;
  while (before > 0 && ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  size_t after = i + 1;
  while (after < text.size() && ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

void append_lower(Text& out, TextView text, size_t i) {
  const char32_t c = text[i];
  if (code_point(c) == 0x3A3 && is_final_sigma(text, i)) return out.push_back(0x3C2 | mark_of(c));
  if (code_point(c) == 0x130) return append_marked(out, U"i\u0307", mark_of(c));
  out += map_case(c, utf8proc_tolower);
}

// For each prefix of `part`, the length of its longest proper border (Knuth, Morris and Pratt).
std::vector<size_t> borders(TextView part) {
  std::vector<size_t> border(part.size(), 0);
  for (size_t i = 1, k = 0; i < part.size(); ++i) {
    while (k > 0 && code_point(part[i]) != code_point(part[k])) k = border[k - 1];
    if (code_point(part[i]) == code_point(part[k])) ++k;
    border[i] = k;
  }
  return border;
}

}  // namespace

Text decode_utf8(std::string_view bytes, bool input) {
  Text out;
  out.reserve(bytes.size());
  const char32_t mark = input ? kInputMark : 0;
  for (size_t i = 0; i < bytes.size();) {
    utf8proc_int32_t code = 0;
    const auto* data = reinterpret_cast<const utf8proc_uint8_t*>(bytes.data()) + i;
    const utf8proc_ssize_t length = utf8proc_iterate(data, static_cast<utf8proc_ssize_t>(bytes.size() - i), &code);
    out += (length > 0 ? static_cast<char32_t>(code) : U'\uFFFD') | mark;
    i += length > 0 ? static_cast<size_t>(length) : 1;
  }
  return out;
}

std::string encode_utf8(TextView text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : text) {
    utf8proc_uint8_t buffer[4];
    const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point(c)), buffer);
    out.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(length));
  }
  return out;
}

bool same(TextView a, TextView b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](char32_t x, char32_t y) { return code_point(x) == code_point(y); });
}

int compare(TextView a, TextView b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    if (code_point(a[i]) != code_point(b[i])) return code_point(a[i]) < code_point(b[i]) ? -1 : 1;
  return a.size() == b.size() ? 0 : a.size() < b.size() ? -1 : 1;
}

bool starts_with(TextView text, TextView prefix) {
  return text.size() >= prefix.size() && same(text.substr(0, prefix.size()), prefix);
}

bool ends_with(TextView text, TextView suffix) {
  return text.size() >= suffix.size() && same(text.substr(text.size() - suffix.size()), suffix);
}

size_t find_text(TextView text, TextView part, size_t from) {
  if (from > text.size()) return TextView::npos;
  if (part.empty()) return from;
  const std::vector<size_t> border = borders(part);
  for (size_t i = from, k = 0; i < text.size(); ++i) {
    while (k > 0 && code_point(text[i]) != code_point(part[k])) k = border[k - 1];
    if (code_point(text[i]) == code_point(part[k])) ++k;
    if (k == part.size()) return i + 1 - k;
  }
  return TextView::npos;
}

size_t rfind_text(TextView text, TextView part) {
  const Text backwards(text.rbegin(), text.rend()), mirrored(part.rbegin(), part.rend());
  const size_t at = find_text(backwards, mirrored);
  return at == TextView::npos ? at : text.size() - part.size() - at;
}

bool is_space(char32_t c) {
  c = code_point(c);
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_alpha(char32_t c) {
  const utf8proc_category_t k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_ND;
}

bool is_digit(char32_t c) {
  const char32_t p = code_point(c);
  const bool script = p == 0xB2 || p == 0xB3 || p == 0xB9 || p == 0x2070 || (p >= 0x2074 && p <= 0x2079) ||
                      (p >= 0x2080 && p <= 0x2089) || (p >= 0x2460 && p <= 0x2468);
  return is_decimal(c) || script;
}

bool is_numeric(char32_t c) {
  const utf8proc_category_t k = category(c);
  return is_digit(c) || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool is_upper(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LU;
}
bool is_lower(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL;
}

bool is_printable(char32_t c) {
  if (code_point(c) == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    default: return true;
  }
}

bool is_identifier_start(char32_t c) {
  return c == '_' || is_alpha(c) || category(c) == UTF8PROC_CATEGORY_NL;
}

bool is_identifier_part(char32_t c) {
  const utf8proc_category_t k = category(c);
  return is_identifier_start(c) || k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_MN ||
         k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_PC;
}

Text to_lower(TextView text) {
  Text out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) append_lower(out, text, i);
  return out;
}

Text to_upper(TextView text) {
  Text out;
  out.reserve(text.size());
  for (const char32_t c : text) append_upper(out, c);
  return out;
}

Text capitalize(TextView text) {
  Text out;
  if (!text.empty()) append_title(out, text[0]);
  for (size_t i = 1; i < text.size(); ++i) append_lower(out, text, i);
  return out;
}

Text title_case(TextView text) {
  Text out;
  bool inside = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (inside) append_lower(out, text, i);
    else append_title(out, text[i]);
    inside = is_cased(text[i]);
  }
  return out;
}

Text swap_case(TextView text) {
  Text out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_upper(text[i])) append_lower(out, text, i);
    else if (is_lower(text[i])) append_upper(out, text[i]);
    else out += text[i];
  }
  return out;
}

TextView strip(TextView text, Side side, const TextView* chars) {
  std::vector<char32_t> set;
  if (chars != nullptr) {
    for (const char32_t c : *chars) set.push_back(code_point(c));
    std::sort(set.begin(), set.end());
  }
  const auto drop = [&](char32_t c) {
    return chars == nullptr ? is_space(c) : std::binary_search(set.begin(), set.end(), code_point(c));
  };
  size_t begin = 0, end = text.size();
  if (side != Side::right)
    while (begin < end && drop(text[begin])) ++begin;
  if (side != Side::left)
    while (end > begin && drop(text[end - 1])) --end;
  return text.substr(begin, end - begin);
}

Text quote_python(TextView text) {
  const auto has = [&](char32_t q) { return find_text(text, TextView(&q, 1)) != TextView::npos; };
  const char32_t quote = has('\'') && !has('"') ? '"' : '\'';
  Text out(1, quote);
  for (const char32_t c : text) {
    const char32_t p = code_point(c);
    const auto escape = [&](const std::string& s) { append_marked(out, decode_utf8(s), mark_of(c)); };
    if (p == '\n') escape("\\n");
    else if (p == '\r') escape("\\r");
    else if (p == '\t') escape("\\t");
    else if (p == '\\' || p == quote) append_marked(out, Text{U'\\', p}, mark_of(c));
    else if (is_printable(c)) out += c;
    else if (p < 0x100) escape(fmt::format("\\x{:02x}", static_cast<uint32_t>(p)));
    else if (p < 0x10000) escape(fmt::format("\\u{:04x}", static_cast<uint32_t>(p)));
    else escape(fmt::format("\\U{:08x}", static_cast<uint32_t>(p)));
  }
  return out += quote;
}

Text escape_html(TextView text) {
  Text out;
  for (const char32_t c : text) {
    switch (code_point(c)) {
      case '&': append_marked(out, U"&amp;", mark_of(c)); break;
      case '<': append_marked(out, U"&lt;", mark_of(c)); break;
      case '>': append_marked(out, U"&gt;", mark_of(c)); break;
      case '\'': append_marked(out, U"&#39;", mark_of(c)); break;
      case '"': append_marked(out, U"&#34;", mark_of(c)); break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace moesaic::jinja
