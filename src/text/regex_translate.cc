#include "text/regex_translate.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/unicode.h"

namespace moesaic {
namespace {

constexpr std::string_view kSpaceItems = "\\t-\\r\\x{85}\\p{Z}";
// \w within a class. Alone, Oniguruma also takes the superscripts and fractions of Latin-1 for word characters.
constexpr std::string_view kWordItems = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view kLoneWordItems = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
constexpr int kMaxDepth = 100;  // of groups and classes

constexpr std::array<std::string_view, 39> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",  "Nl",
    "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc",  "Sk",
    "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cs", "Co", "Cn", "Any", "Alphabetic"};
constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kLongNames = {{{"Letter", "L"},
                                                                                       {"Uppercase_Letter", "Lu"},
                                                                                       {"Lowercase_Letter", "Ll"},
                                                                                       {"Titlecase_Letter", "Lt"},
                                                                                       {"Modifier_Letter", "Lm"},
                                                                                       {"Other_Letter", "Lo"},
                                                                                       {"Mark", "M"},
                                                                                       {"Nonspacing_Mark", "Mn"},
                                                                                       {"Number", "N"},
                                                                                       {"Decimal_Number", "Nd"},
                                                                                       {"Punctuation", "P"},
                                                                                       {"Symbol", "S"},
                                                                                       {"Separator", "Z"},
                                                                                       {"Other", "C"},
                                                                                       {"White_Space", "White_Space"},
                                                                                       {"Ideographic", "Ideographic"}}};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// A character that means itself, in a class or outside.
std::string literal(char32_t code) {
  if (code < 0x80 && (is_letter(static_cast<char>(code)) || is_digit(static_cast<char>(code))))
    return std::string(1, static_cast<char>(code));
  return fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(code));
}

// One member of a class: a character (which may start a range), or a ready piece of class text such as \p{L}.
struct Item {
  std::optional<char32_t> character;
  std::string set;
};

struct CharClass {
  bool negated = false;
  std::string items;       // between [ and ]
  std::string expression;  // set instead of items when the class is an intersection

  std::string text() const { return !expression.empty() ? expression : (negated ? "[^" : "[") + items + "]"; }
};

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : in_(pattern), where_(where) {}

  std::string run() {
    if (rest().starts_with("(?i)")) out_ += take(4);
    while (at_ < in_.size()) step();
    if (!groups_.empty()) fail("a group that is not closed");
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(std::string_view construct) const {
    fail_data(where_,
              "the pattern {} has {} at byte {}, which is not supported; expected the subset that published "
              "pre-tokenizers use (classes, groups, look-arounds, quantifiers)",
              quote_beginning(in_), construct, at_);
  }
  std::string_view rest() const { return in_.substr(at_); }
  std::string_view take(size_t n) { return in_.substr(std::exchange(at_, at_ + n), n); }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  char32_t take_character() {
    const CodePoint code = code_point_at(in_, at_);
    at_ += code.size;
    return code.value;
  }

  void emit_atom(std::string_view text) {
    atom_ = out_.size();
    out_ += text;
  }
  void emit_bare(std::string_view text) {
    atom_.reset();
    out_ += text;
  }

  void step() {
    switch (peek()) {
      case '[': return emit_atom(char_class(0).text());
      case '(': return open_group();
      case ')': return close_group();
      case '\\': return escape();
      case '*':
      case '+':
      case '?': return quantifier(std::string(take(1)), false);
      case '{': return brace();
      case '.': return emit_atom(take(1));
      case '|':
      case '^':
      case '$': return emit_bare(take(1));
      default: return emit_atom(literal(take_character()));
    }
  }

  void open_group() {
    if (groups_.size() >= static_cast<size_t>(kMaxDepth)) fail("groups nested deeper than 100");
    groups_.push_back(out_.size());
    for (const std::string_view opening : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"})
      if (rest().starts_with(opening)) return emit_bare(take(opening.size()));
    if (peek(1) == '?' || peek(1) == '*') fail(fmt::format("the group {}", rest().substr(0, 4)));
    emit_bare(take(1));
  }

  void close_group() {
    if (groups_.empty()) fail("an unmatched )");
    out_ += take(1);
    atom_ = groups_.back();
    groups_.pop_back();
  }

  // `repeat` follows the last atom. In Ruby syntax a + after *, + or ? is possessive, after {n,m} it repeats.
  void quantifier(std::string repeat, bool braces) {
    if (!atom_) fail("a quantifier that follows nothing");
    const size_t atom = *atom_;
    if (braces && peek() == '+') {
      out_.insert(atom, "(?:");
      repeat += ")";
    }
    if (braces && peek() == '?' && repeat.find(',') == std::string::npos) fail("the quantifier {n}?");
    if (peek() == '?' || peek() == '+') repeat += take(1);
    emit_bare(repeat);
  }

  void brace() {  // {n}, {n,}, {n,m}, {,m}, or a plain {
    const size_t close = rest().find('}');
    const std::string_view inside = close == std::string_view::npos ? "" : rest().substr(1, close - 1);
    const bool counts = !inside.empty() && inside != "," && inside.size() <= 11 &&
                        std::count(inside.begin(), inside.end(), ',') <= 1 &&
                        std::all_of(inside.begin(), inside.end(), [](char c) { return is_digit(c) || c == ','; });
    if (!counts) return emit_atom(literal(take_character()));
    at_ += close + 1;
    quantifier(fmt::format("{{{}{}}}", inside[0] == ',' ? "0" : "", inside), true);
  }

  void escape() {
    const char c = peek(1);
    const std::string word = fmt::format("[{}]", kLoneWordItems);
    if (c == 's' || c == 'S') return at_ += 2, emit_atom(fmt::format("[{}{}]", c == 'S' ? "^" : "", kSpaceItems));
    if (c == 'w' || c == 'W') return at_ += 2, emit_atom(fmt::format("[{}{}]", c == 'W' ? "^" : "", kLoneWordItems));
    if (c == 'b') return at_ += 2, emit_bare(fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word));
    if (c == 'B') return at_ += 2, emit_bare(fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word));
    if (c == 'A' || c == 'z') return emit_bare(take(2));
    const Item item = escaped_item();
    emit_atom(item.character ? literal(*item.character) : item.set);
  }

  // An escape that means the same in a class and outside.
  Item escaped_item() {
    const char c = peek(1);
    if (c == '\0') fail("a lone backslash");
    if (c == 'p' || c == 'P') return {{}, property()};
    if (c == 'd' || c == 'D') return at_ += 2, Item{{}, c == 'd' ? "\\p{Nd}" : "\\P{Nd}"};
    if (c == 'x' || c == 'u') return {code_escape(), {}};
    constexpr std::string_view names = "rntfv", values = "\r\n\t\f\v";
    if (const size_t name = names.find(c); name != std::string_view::npos)
      return at_ += 2, Item{static_cast<char32_t>(values[name]), {}};
    if (is_letter(c) || is_digit(c)) fail(fmt::format("the escape \\{}", c));
    ++at_;
    return {take_character(), {}};
  }

  char32_t code_escape() {  // \xHH, \x{H...}, \uHHHH
    const bool braces = peek(1) == 'x' && peek(2) == '{';
    const size_t digits = braces ? 6 : peek(1) == 'x' ? 2 : 4;
    const size_t start = at_;
    at_ += braces ? 3 : 2;
    char32_t code = 0;
    size_t n = 0;
    for (; n < digits && hex_value(peek()) >= 0; ++n) code = code * 16 + static_cast<char32_t>(hex_value(in_[at_++]));
    const bool closed = !braces || peek() == '}';
    at_ += braces && closed;
    if (n == 0 || (!braces && n != digits) || !closed || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      at_ = start;
      fail("a malformed character code");
    }
    return code;
  }

  std::string property() {  // \p{Name}, \p{^Name}, \pL
    const char kind = peek(1);
    const size_t close = peek(2) == '{' ? rest().find('}') : 2;
    if (close == std::string_view::npos || at_ + close >= in_.size()) fail("a malformed \\p");
    std::string_view name = peek(2) == '{' ? rest().substr(3, close - 3) : rest().substr(2, 1);
    const bool inverted = name.starts_with('^');
    if (inverted) name.remove_prefix(1);
    bool script = false;
    for (const std::string_view prefix : {"Script=", "sc="})
      if (name.starts_with(prefix)) name.remove_prefix(prefix.size()), script = true;
    if (name.empty() || !std::all_of(name.begin(), name.end(), [](char c) { return is_letter(c) || c == '_'; }))
      fail("a malformed \\p");
    at_ += close + 1;
    return fmt::format("\\{}{{{}}}", inverted ? (kind == 'p' ? 'P' : 'p') : kind, property_name(name, script));
  }

  static std::string property_name(std::string_view name, bool script) {
    if (!script && std::find(kCategories.begin(), kCategories.end(), name) != kCategories.end())
      return std::string(name);
    for (const auto& [longer, category] : kLongNames)
      if (!script && name == longer) return std::string(category);
    return "sc:" + std::string(name);
  }

  Item class_item() {
    if (peek() != '\\') return {take_character(), {}};
    const char c = peek(1);
    if (c == 's') return at_ += 2, Item{{}, std::string(kSpaceItems)};
    if (c == 'S') return at_ += 2, Item{{}, "\\P{White_Space}"};
    if (c == 'w') return at_ += 2, Item{{}, std::string(kWordItems)};
    return escaped_item();
  }

  // Appends one member or range to `items`.
  void class_member(std::string& items) {
    const Item low = class_item();
    items += low.character ? literal(*low.character) : low.set;
    const bool range = low.character && peek() == '-' && peek(1) != ']' && peek(1) != '[' && at_ + 1 < in_.size();
    if (!range) return;
    ++at_;
    const Item high = class_item();
    if (!high.character) fail("a range that ends in a class");
    items += "-" + literal(*high.character);
  }

  // at_ is at the [. Members of a nested class join the outer one; && separates operands of an intersection.
  CharClass char_class(int depth) {
    if (depth > kMaxDepth) fail("classes nested deeper than 100");
    ++at_;
    const bool negated = peek() == '^';
    at_ += negated;
    std::vector<CharClass> operands(1);
    if (peek() == ']') fail("an empty class");
    while (peek() != ']') {
      if (at_ >= in_.size()) fail("a class that is not closed");
      if (rest().starts_with("&&")) {
        at_ += 2;
        operands.emplace_back();
      } else if (peek() == '[') {
        join(operands.back(), depth);
      } else {
        if (operands.back().negated) fail("members next to a negated class");
        class_member(operands.back().items);
      }
    }
    ++at_;
    return intersection(operands, negated);
  }

  void join(CharClass& outer, int depth) {
    if (peek(1) == ':') fail("a POSIX class");
    const CharClass inner = char_class(depth + 1);
    if (!inner.expression.empty()) fail("an intersection inside a class");
    if (outer.negated || (inner.negated && !outer.items.empty())) fail("a union with a negated class");
    outer.items += inner.items;
    outer.negated = inner.negated;
  }

  CharClass intersection(const std::vector<CharClass>& operands, bool negated) const {
    for (const CharClass& operand : operands)
      if (operand.items.empty()) fail("an empty class");
    CharClass result;
    if (operands.size() == 1) return {operands[0].negated != negated, operands[0].items, {}};
    result.expression = "(?:";
    for (size_t i = 1; i < operands.size(); ++i)
      result.expression += fmt::format("(?{}[{}])", operands[i].negated ? '!' : '=', operands[i].items);
    result.expression += operands[0].text() + ")";
    if (negated) result.expression = "(?:(?!" + result.expression + ")\\p{Any})";
    return result;
  }

  const std::string_view in_;
  const std::string& where_;
  size_t at_ = 0;
  std::string out_;
  std::optional<size_t> atom_;  // where in out_ the last quantifiable item starts
  std::vector<size_t> groups_;  // where in out_ each open group starts
};

}  // namespace

std::string translate_regex(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

}  // namespace moesaic
