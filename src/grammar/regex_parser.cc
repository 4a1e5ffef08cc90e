#include "grammar/regex_parser.h"

#include <optional>

#include "base/error.h"
#include "text/unicode.h"

namespace moesaic::grammar {
namespace {

struct Parser {
  Pool& pool;
  std::string_view text;
  Spelling spelling;
  std::string_view what;
  size_t at = 0;
  int64_t depth = 0;
  Slice slice = Slice::none;  // of the atom read last

  bool end() const { return at >= text.size(); }
  char peek() const { return end() ? '\0' : text[at]; }
  bool take(std::string_view token) {
    if (!text.substr(at).starts_with(token)) return false;
    at += token.size();
    return true;
  }
  [[noreturn]] void fail(std::string_view problem) const {
    fail_argument("{} {}, at byte {}: {}", what, quote_beginning(text), at, problem);
  }

  ExprId alternatives();
  ExprId sequence();
  ExprId quantified();
  ExprId atom();
  ExprId group();
  ExprId quantify(ExprId part);
  ExprId characters(const CodePoints& set) {
    slice = slice_of(set);
    return one_of(pool, set, spelling);
  }
};

CodePoints single(char32_t code) {
  CodePoints set;
  set.add(code, code);
  return set;
}

// \d, \w and \s are ASCII, as in ECMAScript without the letters that only Unicode has.
std::optional<CodePoints> shorthand(char letter) {
  CodePoints set;
  switch (letter | 0x20) {
    case 'd': set.add('0', '9'); break;
    case 'w': set.ranges = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; break;
    case 's': set.ranges = {{'\t', '\r'}, {' ', ' '}}; break;
    default: return std::nullopt;
  }
  return (letter & 0x20) != 0 ? set : set.complement();
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

std::optional<char32_t> hex(std::string_view text, size_t& at, size_t digits) {
  char32_t value = 0;
  for (size_t i = 0; i < digits; ++i) {
    const int digit = at + i < text.size() ? hex_digit(text[at + i]) : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + static_cast<char32_t>(digit);
  }
  at += digits;
  return value;
}

std::optional<char32_t> braced_hex(std::string_view text, size_t& at) {
  const size_t close = text.find('}', at);
  if (close == std::string_view::npos || close - at < 2 || close - at > 7) return std::nullopt;
  size_t digits = at + 1;
  const std::optional<char32_t> code = hex(text, digits, close - at - 1);
  at = close + 1;
  return code && *code <= kLastCodePoint ? code : std::nullopt;
}

// \uD83D\uDE00 is one character.
std::optional<char32_t> utf16_escape(std::string_view text, size_t& at) {
  std::optional<char32_t> code = hex(text, at, 4);
  if (!code || *code < 0xD800 || *code > 0xDBFF || !text.substr(at).starts_with("\\u")) return code;
  size_t next = at + 2;
  const std::optional<char32_t> low = hex(text, next, 4);
  if (!low || *low < 0xDC00 || *low > 0xDFFF) return code;
  at = next;
  return 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
}

std::optional<int64_t> number(std::string_view text, size_t& at) {
  const size_t begin = at;
  int64_t value = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9' && at - begin < 12)
    value = value * 10 + (text[at++] - '0');
  return at == begin ? std::nullopt : std::optional(value);
}

ExprId Parser::alternatives() {
  if (++depth > pool.limits.depth)
    fail(fmt::format("groups are nested deeper than {}; make it flatter", pool.limits.depth));
  std::vector<ExprId> choices = {sequence()};
  while (take("|")) choices.push_back(sequence());
  --depth;
  return pool.choice(std::move(choices));
}

ExprId Parser::sequence() {
  std::vector<ExprId> parts;
  while (!end() && peek() != '|' && peek() != ')') parts.push_back(quantified());
  return pool.join(std::move(parts));
}

ExprId Parser::quantify(ExprId part) {
  if (take("*")) return pool.repeat(part, 0, kNoBound, slice);
  if (take("+")) return pool.repeat(part, 1, kNoBound, slice);
  if (take("?")) return pool.optional(part);
  const auto range = repetition_bounds(text, at);
  return range ? pool.repeat(part, range->first, range->second, slice) : part;
}

ExprId Parser::quantified() {
  slice = Slice::none;
  const ExprId part = atom();
  if (text[at - 1] == ')') slice = Slice::none;
  const size_t before = at;
  const ExprId repeated = quantify(part);
  if (at == before) return part;
  if (peek() == '+') fail("possessive quantifiers are not supported; leave the second + out");
  take("?");  // lazy: the same language
  if (peek() == '*' || peek() == '+' || peek() == '?') fail("nothing to repeat; put the repeated part in (?:...)");
  return repeated;
}

ExprId Parser::group() {
  if (take("?")) {
    if (peek() == 'P') ++at;
    if (take("<") && peek() != '=' && peek() != '!') {
      const size_t close = text.find('>', at);
      if (close == std::string_view::npos) fail("the group's name has no end; write (?<name>...)");
      at = close + 1;
    } else if (!take(":")) {
      fail("look-around, flags and back references are not supported; only (?:...) and named groups are");
    }
  }
  const ExprId inner = alternatives();
  if (!take(")")) fail("a group is not closed; add )");
  return inner;
}

ExprId Parser::atom() {
  const char c = peek();
  if (c == '(') return ++at, group();
  if (c == '[') return ++at, characters(parse_class(text, at, what));
  if (c == '.') return ++at, characters(single('\n').complement());
  if (c == '*' || c == '+' || c == '?') fail("nothing to repeat; escape the character with \\");
  if (c == '^' || c == '$')
    fail("^ and $ are supported at the beginning and the end of the expression or of its outermost alternatives only");
  if (c == '{') {
    size_t ahead = at;
    if (repetition_bounds(text, ahead)) fail("nothing to repeat; escape the brace with \\");
  }
  if (c != '\\') {
    const CodePoint code = code_point_at(text, at);
    at += code.size;
    return characters(single(code.value));
  }
  if (++at >= text.size()) fail("it ends in a backslash; write \\\\ for one");
  if (const auto set = shorthand(text[at])) return ++at, characters(*set);
  const size_t letter = at;
  const auto code = escaped_character(text, at, false);
  if (!code) {
    at = letter;
    fail(
        fmt::format("the escape \\{} is not supported (look-around, back references, \\b and \\p are not); "
                    "use a class [...]",
                    static_cast<unsigned char>(text[at]) < 0x80 ? text.substr(at, 1) : "..."));
  }
  return characters(single(*code));
}

// Where alternatives at the top level begin and end, so that each may have its own anchors.
std::vector<std::string_view> top_alternatives(std::string_view text) {
  std::vector<std::string_view> out;
  size_t begin = 0, at = 0;
  int depth = 0;
  bool in_class = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '\\') {
      ++at;
    } else if (in_class) {
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
      if (at + 1 < text.size() && text[at + 1] == '^') ++at;
      if (at + 1 < text.size() && text[at + 1] == ']') ++at;
    } else if (c == '(' || c == ')') {
      depth += c == '(' ? 1 : -1;
    } else if (c == '|' && depth == 0) {
      out.push_back(text.substr(begin, at - begin));
      begin = at + 1;
    }
  }
  out.push_back(text.substr(begin));
  return out;
}

bool ends_in_anchor(std::string_view text) {
  if (!text.ends_with('$')) return false;
  size_t slashes = 0;
  while (slashes + 1 < text.size() && text[text.size() - 2 - slashes] == '\\') ++slashes;
  return slashes % 2 == 0;
}

}  // namespace

std::optional<char32_t> escaped_character(std::string_view text, size_t& at, bool in_class) {
  const char letter = text[at++];
  switch (letter) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'f': return '\f';
    case 'v': return '\v';
    case 'a': return '\a';
    case '0':
      return at < text.size() && hex_digit(text[at]) >= 0 && text[at] <= '9' ? std::nullopt
                                                                             : std::optional<char32_t>(0);
    case 'x': return hex(text, at, 2);
    case 'u': return at < text.size() && text[at] == '{' ? braced_hex(text, at) : utf16_escape(text, at);
    case 'U': return hex(text, at, 8);
    case 'b': return in_class ? std::optional<char32_t>('\b') : std::nullopt;
    default: break;
  }
  const bool word = (letter >= '0' && letter <= '9') || ((letter | 0x20) >= 'a' && (letter | 0x20) <= 'z');
  if (word || static_cast<unsigned char>(letter) > 0x7F) return std::nullopt;
  return static_cast<char32_t>(letter);
}

std::optional<std::pair<int64_t, int64_t>> repetition_bounds(std::string_view text, size_t& at) {
  size_t next = at + 1;
  const std::optional<int64_t> min = number(text, next);
  std::optional<int64_t> max = min;
  if (next < text.size() && text[next] == ',') {
    ++next;
    max = number(text, next);
    if (!max && min) max = kNoBound;
  }
  if (!max || next >= text.size() || text[next] != '}') return std::nullopt;
  at = next + 1;
  return std::pair(min.value_or(0), *max);
}

CodePoints parse_class(std::string_view text, size_t& at, std::string_view what) {
  const auto fail = [&](std::string_view problem) {
    fail_argument("{} {}, at byte {}: {}", what, quote_beginning(text), at, problem);
  };
  // A character of the class, or a set such as \d, which cannot be the end of a range.
  CodePoints set, part;
  const auto next = [&]() -> std::optional<char32_t> {
    if (text[at] != '\\') {
      const CodePoint code = code_point_at(text, at);
      at += code.size;
      return code.value;
    }
    if (++at >= text.size()) fail("a class is not closed; add ]");
    if (const auto known = shorthand(text[at])) return part = *known, ++at, std::nullopt;
    const auto code = escaped_character(text, at, true);
    if (!code) fail("an escape of this class is not supported; write the characters themselves or \\u{...}");
    return code;
  };
  const bool negated = at < text.size() && text[at] == '^';
  at += negated ? 1 : 0;
  for (bool first = true;; first = false) {
    if (at >= text.size()) fail("a class is not closed; add ]");
    if (text[at] == ']' && !first) break;
    if (text.substr(at).starts_with("[:")) fail("classes such as [:alpha:] are not supported; write a-zA-Z");
    const auto low = next();
    if (!low) {
      set.add(part);
      continue;
    }
    char32_t high = *low;
    if (at + 1 < text.size() && text[at] == '-' && text[at + 1] != ']') {
      ++at;
      const auto last = next();
      if (!last || *last < *low) fail("a range of this class has no order; write the smaller character first");
      high = *last;
    }
    set.add(*low, high);
  }
  ++at;
  set.normalize();
  return negated ? set.complement() : set;
}

ExprId parse_regex(Pool& pool, std::string_view pattern, Spelling spelling, Anchoring anchoring,
                   std::string_view what) {
  CodePoints all;
  all.add(0, kLastCodePoint);
  const ExprId anything =
      anchoring == Anchoring::full ? pool.empty() : pool.repeat(one_of(pool, all, spelling), 0, kNoBound, Slice::json);
  std::vector<ExprId> choices;
  for (std::string_view part : top_alternatives(pattern)) {
    const bool begins = part.starts_with('^');
    if (begins) part.remove_prefix(1);
    const bool ends = ends_in_anchor(part);
    if (ends) part.remove_suffix(1);
    Parser parser{pool, part, spelling, what};
    const ExprId body = parser.alternatives();
    if (!parser.end()) parser.fail("a ) closes nothing; escape it with \\ or remove it");
    choices.push_back(pool.join({begins ? pool.empty() : anything, body, ends ? pool.empty() : anything}));
  }
  return pool.choice(std::move(choices));
}

}  // namespace moesaic::grammar
