#include "grammar/code_points.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/unicode.h"

namespace moesaic::grammar {
namespace {

// The last code points that UTF-8 writes in one to four bytes.
constexpr std::array<char32_t, 4> kLengthEnds = {0x7F, 0x7FF, 0xFFFF, kLastCodePoint};

// Both ends have the same number of bytes, and the range covers whole blocks below the byte where the ends differ:
// then the range is one sequence of byte ranges.
void add_sequence(Pool& pool, char32_t first, char32_t last, std::vector<ExprId>& out) {
  std::string low, high;
  append_utf8(low, first);
  append_utf8(high, last);
  std::vector<ExprId> parts;
  for (size_t i = 0; i < low.size(); ++i)
    parts.push_back(pool.byte(static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i])));
  out.push_back(pool.join(std::move(parts)));
}

void add_utf8(Pool& pool, char32_t first, char32_t last, std::vector<ExprId>& out) {
  if (first > last) return;
  if (first <= 0xDFFF && last >= 0xD800) {
    if (first < 0xD800) add_utf8(pool, first, 0xD7FF, out);
    add_utf8(pool, 0xE000, last, out);
    return;
  }
  for (const char32_t end : kLengthEnds) {
    if (first <= end && last > end) {
      add_utf8(pool, first, end, out);
      add_utf8(pool, end + 1, last, out);
      return;
    }
  }
  for (int i = 1; i < 4 && last > 0x7F; ++i) {  // whole blocks of 64, 4,096, 262,144
    const char32_t mask = (char32_t{1} << (6 * i)) - 1;
    if ((first & ~mask) == (last & ~mask)) break;
    if ((first & mask) != 0) {
      add_utf8(pool, first, first | mask, out);
      add_utf8(pool, (first | mask) + 1, last, out);
      return;
    }
    if ((last & mask) != mask) {
      add_utf8(pool, first, (last & ~mask) - 1, out);
      add_utf8(pool, last & ~mask, last, out);
      return;
    }
  }
  add_sequence(pool, first, last, out);
}

bool needs_escape(char32_t code) {
  return code < 0x20 || code == '"' || code == '\\';
}

}  // namespace

void CodePoints::normalize() {
  std::ranges::sort(ranges);
  std::vector<std::pair<char32_t, char32_t>> merged;
  for (const auto& [first, last] : ranges) {
    if (!merged.empty() && first <= merged.back().second + 1)
      merged.back().second = std::max(merged.back().second, last);
    else merged.emplace_back(first, last);
  }
  ranges = std::move(merged);
}

CodePoints CodePoints::complement() const {
  CodePoints sorted = *this, out;
  sorted.normalize();
  char32_t next = 0;
  for (const auto& [first, last] : sorted.ranges) {
    if (first > next) out.add(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastCodePoint) out.add(next, kLastCodePoint);
  return out;
}

bool CodePoints::has(char32_t code) const {
  return std::ranges::any_of(ranges, [code](const auto& r) { return r.first <= code && code <= r.second; });
}

std::string json_spelling(char32_t code) {
  switch (code) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\b': return "\\b";
    case '\f': return "\\f";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: break;
  }
  if (code < 0x20) return fmt::format("\\u{:04x}", static_cast<uint32_t>(code));
  std::string out;
  append_utf8(out, code);
  return out;
}

Slice slice_of(const CodePoints& set) {
  CodePoints missing = set.complement();
  missing.normalize();
  bool text = missing.ranges.empty(), json = true;
  for (const auto& [first, last] : missing.ranges) {
    const bool quote = first == last && (first == '"' || first == '\\');
    json = json && (last < 0x20 || quote);
  }
  return text ? Slice::text : json ? Slice::json : Slice::none;
}

ExprId one_of(Pool& pool, const CodePoints& set, Spelling spelling) {
  CodePoints plain = set;
  std::vector<std::string> escaped;
  if (spelling == Spelling::json) {
    CodePoints outside = set.complement();
    for (char32_t code = 0; code <= '\\'; ++code) {
      if (!needs_escape(code) || !set.has(code)) continue;
      escaped.push_back(json_spelling(code));
      outside.add(code, code);
    }
    plain = outside.complement();
  }
  plain.normalize();
  std::vector<ExprId> choices;
  ByteSet ascii;  // as one set: most classes are nothing else
  for (const auto& [first, last] : plain.ranges) {
    if (first <= 0x7F) ascii.add(static_cast<int>(first), static_cast<int>(std::min<char32_t>(last, 0x7F)));
    if (last > 0x7F) add_utf8(pool, std::max<char32_t>(first, 0x80), last, choices);
  }
  choices.push_back(pool.bytes(ascii));
  choices.push_back(pool.one_of(std::move(escaped)));
  return pool.choice(std::move(choices));
}

}  // namespace moesaic::grammar
