#include "text/jinja_lexer.h"

#include <algorithm>
#include <charconv>

namespace moesaic::jinja {
namespace {

// One kind of newline, and no newline at the very end.
Text normalise(std::string_view source) {
  Text out;
  const Text text = decode_utf8(source);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    out += text[i] == '\r' ? U'\n' : text[i];
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

int digit_value(char32_t c) {
  if (c >= '0' && c <= '9') return static_cast<int>(c - '0');
  const char32_t lower = c | 0x20;
  return lower >= 'a' && lower <= 'z' ? static_cast<int>(lower - 'a') + 10 : 99;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalise(source)) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) lex_root();
    emit(TokenKind::end);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw SyntaxFailure(line_, message); }
  char32_t at(size_t i) const { return i < source_.size() ? source_[i] : 0; }
  bool looking_at(size_t i, TextView text) const {
    return TextView(source_).substr(std::min(i, source_.size())).starts_with(text);
  }
  size_t skip_space(size_t i) const {
    while (i < source_.size() && is_space(source_[i])) ++i;
    return i;
  }
  Token& emit(TokenKind kind) {
    tokens_.push_back({});
    tokens_.back().kind = kind;
    tokens_.back().line = line_;
    return tokens_.back();
  }
  // Moves to `end`, counting lines.
  void advance(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(pos_),
                                         source_.begin() + static_cast<ptrdiff_t>(end), U'\n'));
    line_starting_ = end > pos_ ? source_[end - 1] == '\n' : line_starting_;
    pos_ = end;
  }
  void emit_data(size_t end, char32_t sign, bool variable) {
    TextView text = TextView(source_).substr(pos_, end - pos_);
    if (sign == '-') {
      text = strip(text, Side::right);
    } else if (sign != '+' && !variable) {
      const size_t newline = text.rfind('\n'), line_begin = newline == TextView::npos ? 0 : newline + 1;
      const bool only_space = strip(text.substr(line_begin), Side::left).empty();
      if ((line_begin > 0 || line_starting_) && only_space) text = text.substr(0, line_begin);
    }
    if (!text.empty()) emit(TokenKind::data).text = Text(text);
    advance(end);
  }
  // The length of a closing tag with its sign and the space it swallows, or 0. `tag` is one of %} }} #}.
  size_t closing(size_t i, TextView tag) const {
    if (at(i) == '-' && looking_at(i + 1, tag)) return skip_space(i + 3) - i;
    if (tag != U"}}" && at(i) == '+' && looking_at(i + 1, tag)) return 3;
    if (looking_at(i, tag)) return 2 + (tag != U"}}" && at(i + 2) == '\n' ? 1 : 0);
    return 0;
  }

  void lex_root() {
    size_t tag = pos_;
    const auto opens = [&](size_t i) {
      return at(i) == '{' && (at(i + 1) == '%' || at(i + 1) == '{' || at(i + 1) == '#');
    };
    while (tag < source_.size() && !opens(tag)) ++tag;
    if (tag == source_.size()) {
      emit(TokenKind::data).text = source_.substr(pos_);
      return advance(tag);
    }
    const char32_t kind = at(tag + 1), sign = at(tag + 2) == '-' || at(tag + 2) == '+' ? at(tag + 2) : 0;
    emit_data(tag, sign, kind == '{');
    const size_t inside = tag + 2 + (sign != 0);
    if (kind == '#') return lex_comment(inside);
    if (kind == '%' && lex_raw(inside)) return;
    emit(kind == '%' ? TokenKind::block_begin : TokenKind::variable_begin);
    advance(inside);
    lex_tag(kind == '%' ? U"%}" : U"}}", kind == '%' ? TokenKind::block_end : TokenKind::variable_end);
  }

  void lex_comment(size_t inside) {
    for (size_t i = inside; i < source_.size(); ++i)
      if (const size_t length = closing(i, U"#}")) return advance(i + length);
    fail("this comment has no end");
  }

  // Reads {% raw %} up to its {% endraw %}; false when the tag is another one.
  bool lex_raw(size_t inside) {
    size_t i = skip_space(inside);
    if (!looking_at(i, U"raw")) return false;
    i = skip_space(i + 3);
    if (looking_at(i, U"-%}")) i = skip_space(i + 3);
    else if (looking_at(i, U"%}")) i += 2;
    else return false;
    const int begin_line = line_;
    advance(i);
    for (size_t tag = i; tag < source_.size(); ++tag) {
      if (!looking_at(tag, U"{%")) continue;
      const char32_t sign = at(tag + 2) == '-' || at(tag + 2) == '+' ? at(tag + 2) : 0;
      size_t end = skip_space(tag + 2 + (sign != 0));
      if (!looking_at(end, U"endraw")) continue;
      end = skip_space(end + 6);
      const size_t length = closing(end, U"%}");
      if (length == 0) continue;
      emit_data(tag, sign, false);
      advance(end + length);
      return true;
    }
    line_ = begin_line;
    fail("this raw block has no {% endraw %}");
  }

  void lex_tag(TextView close, TokenKind end_kind) {
    std::vector<char32_t> open;
    const int begin_line = line_;
    while (pos_ < source_.size()) {
      if (const size_t length = open.empty() ? closing(pos_, close) : 0) {
        emit(end_kind);
        return advance(pos_ + length);
      }
      const char32_t c = source_[pos_];
      if (is_space(c)) advance(skip_space(pos_));
      else if (c >= '0' && c <= '9') lex_number();
      else if (is_identifier_start(c)) lex_name();
      else if (c == '"' || c == '\'') lex_string(c);
      else lex_operator(open);
    }
    line_ = begin_line;
    fail("this tag is not closed");
  }

  void lex_name() {
    size_t end = pos_;
    while (end < source_.size() && is_identifier_part(source_[end])) ++end;
    emit(TokenKind::name).name = encode_utf8(TextView(source_).substr(pos_, end - pos_));
    advance(end);
  }

  // Digits with single underscores between them, from i on.
  size_t digits(size_t i, int base) const {
    const auto is = [&](size_t k) { return k < source_.size() && source_[k] < 0x80 && digit_value(source_[k]) < base; };
    while (is(i) || (at(i) == '_' && is(i + 1))) ++i;
    return i;
  }
  bool is_ascii_digit(size_t i) const { return at(i) >= '0' && at(i) <= '9'; }

  void lex_number() {
    size_t end = digits(pos_, 10);
    bool real = false;
    if (!(pos_ > 0 && source_[pos_ - 1] == '.')) {
      if (at(end) == '.' && is_ascii_digit(end + 1)) real = true, end = digits(end + 1, 10);
      const size_t exponent = end + 1 + (at(end + 1) == '+' || at(end + 1) == '-');
      if ((at(end) | 0x20) == 'e' && is_ascii_digit(exponent)) real = true, end = digits(exponent, 10);
    }
    if (real) lex_real(end);
    else lex_integer();
  }
  void lex_real(size_t end) {
    std::string text;
    for (size_t i = pos_; i < end; ++i)
      if (source_[i] != '_') text += static_cast<char>(source_[i]);
    emit(TokenKind::real).number = std::strtod(text.c_str(), nullptr);
    advance(end);
  }
  void lex_integer() {
    const char32_t letter = at(pos_) == '0' ? at(pos_ + 1) | 0x20 : 0;
    const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    size_t begin = base == 10 ? pos_ : pos_ + 2;
    if (base != 10 && at(begin) == '_') ++begin;
    size_t end = digits(begin, base);
    if (base != 10 && end == begin) begin = pos_, end = pos_ + 1;
    if (base == 10 && at(pos_) == '0') end = digits(pos_, 1);  // jinja2 reads 012 as 0 and 12
    Int value = 0;
    for (size_t i = begin; i < end; ++i) {
      if (source_[i] == '_') continue;
      if (__builtin_mul_overflow(value, Int{base}, &value) ||
          __builtin_add_overflow(value, Int{digit_value(source_[i])}, &value))
        fail("integer literal out of range");
    }
    emit(TokenKind::integer).number = value;
    advance(end);
  }

  void lex_string(char32_t quote) {
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("this string has no closing quote");
    emit(TokenKind::string).text = unescape(TextView(source_).substr(pos_ + 1, end - pos_ - 1));
    advance(end + 1);
  }

  Text unescape(TextView text) const {
    Text out;
    for (size_t i = 0; i < text.size();) {
      if (text[i] != '\\') out += text[i++];
      else i = unescape_one(text, i + 1, out);
    }
    return out;
  }
  // `i` is the index after the backslash; returns the index after the escape.
  size_t unescape_one(TextView text, size_t i, Text& out) const {
    static constexpr std::u32string_view kFrom = U"\\'\"abfnrtv", kTo = U"\\'\"\a\b\f\n\r\t\v";
    const char32_t c = text[i];
    if (c == '\n') return i + 1;
    if (const size_t k = kFrom.find(c); k != TextView::npos) return out += kTo[k], i + 1;
    if (c >= '0' && c <= '7') {
      char32_t value = 0;
      size_t end = i;
      for (; end < std::min(i + 3, text.size()) && text[end] >= '0' && text[end] <= '7'; ++end)
        value = value * 8 + (text[end] - '0');
      return out += value, end;
    }
    const size_t length = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c == 'N') fail("\\N{...} escapes are not supported; write the character itself");
    if (length == 0) return out += U'\\', out += c, i + 1;
    uint64_t value = 0;
    for (size_t k = i + 1; k <= i + length; ++k) {
      if (k >= text.size() || text[k] >= 0x80 || digit_value(text[k]) >= 16) fail("truncated escape in a string");
      value = value * 16 + static_cast<uint64_t>(digit_value(text[k]));
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) fail("an escape in a string is not a character");
    return out += static_cast<char32_t>(value), i + 1 + length;
  }

  void lex_operator(std::vector<char32_t>& open) {
    static constexpr std::string_view kLong[] = {"//", "**", "==", "!=", ">=", "<="};
    const char32_t c = source_[pos_], next = at(pos_ + 1);
    std::string name =
        c < 0x80 && std::string_view("+-/*%~[](){}<>=.:|,;").find(static_cast<char>(c)) != std::string_view::npos
            ? std::string(1, static_cast<char>(c))
            : "";
    for (const std::string_view two : kLong)
      if (c == static_cast<char32_t>(two[0]) && next == static_cast<char32_t>(two[1])) name = two;
    if (name.empty()) fail("unexpected character '" + encode_utf8(TextView(&c, 1)) + "'");
    if (name == "(" || name == "[" || name == "{") open.push_back(name == "(" ? ')' : name == "[" ? ']' : '}');
    if (name == ")" || name == "]" || name == "}") {
      if (open.empty() || open.back() != c) fail("unexpected '" + name + "'");
      open.pop_back();
    }
    emit(TokenKind::op).name = name;
    advance(pos_ + name.size());
  }

  const Text source_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace moesaic::jinja
