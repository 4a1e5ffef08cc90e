#include "grammar/json_text.h"

#include <algorithm>

#include "base/error.h"
#include "grammar/decimal.h"
#include "text/unicode.h"

namespace moesaic::grammar {
namespace {

constexpr size_t kLongestName = 500;  // each character of a name nests its expression one deeper

CodePoints plain_characters() {
  CodePoints set;
  set.ranges = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, kLastCodePoint}};
  return set;
}

ExprId hex_class(Pool& pool, std::string_view digits) {
  ByteSet set;
  for (const char c : digits) {
    set.add(c, c);
    if (c >= 'a') set.add(c - 32, c - 32);
  }
  return pool.bytes(set);
}

// \uXXXX, a surrogate only as half of a pair.
ExprId unicode_escape(Pool& pool) {
  const ExprId u = pool.byte('u', 'u'), d = hex_class(pool, "d"), any = hex_class(pool, "0123456789abcdef");
  const ExprId two = pool.join({any, any});
  const ExprId basic = pool.choice(
      {pool.join({hex_class(pool, "0123456789abcef"), any, two}), pool.join({d, hex_class(pool, "01234567"), two})});
  const ExprId pair =
      pool.join({d, hex_class(pool, "89ab"), two, pool.literal("\\u"), d, hex_class(pool, "cdef"), two});
  return pool.join({u, pool.choice({basic, pair})});
}

std::u32string decode(std::string_view text) {
  std::u32string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint code = code_point_at(text, at);
    out += code.value;
    at += code.size;
  }
  return out;
}

}  // namespace

std::string json_text(std::string_view text) {
  std::string out;
  for (const char32_t code : decode(text)) out += json_spelling(code);
  return out;
}

JsonText::JsonText(Pool& pool) : pool_(pool) {
  const ExprId space = pool.optional(pool.byte(' ', ' '));
  comma = pool.join({pool.byte(',', ','), space});
  colon = pool.join({pool.byte(':', ':'), space});
  quote = pool.byte('"', '"');
}

ExprId JsonText::character() {
  if (character_ >= 0) return character_;
  ByteSet letters;
  for (const char c : std::string_view("\"\\/bfnrt")) letters.add(c, c);
  const ExprId escape =
      pool_.join({pool_.byte('\\', '\\'), pool_.choice({pool_.bytes(letters), unicode_escape(pool_)})});
  return character_ = pool_.choice({one_of(pool_, plain_characters(), Spelling::utf8), escape});
}

ExprId JsonText::string(int64_t min, int64_t max) {
  return pool_.join({quote, pool_.repeat(character(), min, max, Slice::json), quote});
}

ExprId JsonText::key(std::string_view name) {
  return pool_.join({pool_.literal('"' + json_text(name) + '"'), colon});
}

ExprId JsonText::in_braces(ExprId members) {
  return pool_.join({pool_.byte('{', '{'), members, pool_.byte('}', '}')});
}

ExprId JsonText::in_brackets(ExprId values) {
  return pool_.join({pool_.byte('[', '['), values, pool_.byte(']', ']')});
}

ExprId JsonText::list(ExprId part) {
  return pool_.optional(pool_.join({part, pool_.repeat(pool_.join({comma, part}), 0, kNoBound)}));
}

ExprId JsonText::value() {
  if (value_ >= 0) return value_;
  const int32_t rule = pool_.add_rule("any JSON value");
  value_ = pool_.call(rule);
  pool_.rules[static_cast<size_t>(rule)].body =
      pool_.choice({object(), array(), string(0, kNoBound), decimal_numbers(pool_, {}), pool_.literal("true"),
                    pool_.literal("false"), pool_.literal("null")});
  return value_;
}

ExprId JsonText::object() {
  if (object_ < 0) object_ = in_braces(list(pool_.join({string(0, kNoBound), colon, value()})));
  return object_;
}

ExprId JsonText::array() {
  if (array_ < 0) array_ = in_brackets(list(value()));
  return array_;
}

ExprId JsonText::constant(const Json& value) {
  if (value.is_string()) return pool_.literal('"' + json_text(value.get_string()) + '"');
  if (!value.is_object() && !value.is_array()) return pool_.literal(write_json(value));
  std::vector<ExprId> parts;
  const auto add = [&](std::vector<ExprId> part) {
    if (!parts.empty()) parts.push_back(comma);
    parts.insert(parts.end(), part.begin(), part.end());
  };
  if (value.is_array()) {
    for (const Json& each : value.get_array()) add({constant(each)});
    return in_brackets(pool_.join(std::move(parts)));
  }
  for (const auto& [name, each] : value.get_object()) add({key(name), constant(each)});
  return in_braces(pool_.join(std::move(parts)));
}

ExprId JsonText::unlike(std::span<const std::u32string> names, size_t from) {
  const ExprId free = pool_.repeat(one_of(pool_, plain_characters(), Spelling::utf8), 0, kNoBound, Slice::json);
  if (names.empty()) return free;
  std::vector<ExprId> choices;
  const bool is_name = names[0].size() == from;  // sorted: the shortest comes first
  if (is_name) names = names.subspan(1);
  else choices.push_back(pool_.empty());
  CodePoints begun;
  while (!names.empty()) {
    const char32_t code = names[0][from];
    const auto same = std::ranges::find_if(names, [&](const std::u32string& name) { return name[from] != code; });
    const auto count = static_cast<size_t>(same - names.begin());
    std::string spelled;
    append_utf8(spelled, code);
    choices.push_back(pool_.join({pool_.literal(spelled), unlike(names.first(count), from + 1)}));
    begun.add(code, code);
    names = names.subspan(count);
  }
  CodePoints others = plain_characters().complement();
  others.add(begun);
  choices.push_back(pool_.join({one_of(pool_, others.complement(), Spelling::utf8), free}));
  return pool_.choice(std::move(choices));
}

ExprId JsonText::other_key(std::vector<std::string> names) {
  std::vector<std::u32string> decoded;
  for (const std::string& name : names) {
    if (name.find_first_of("\"\\") != std::string::npos ||
        std::ranges::any_of(name, [](char c) { return static_cast<uint8_t>(c) < 0x20; }))
      continue;  // needs an escape, which other keys do not have
    decoded.push_back(decode(name));
    if (decoded.back().size() > kLongestName)
      fail_argument(
          "a property's name has {} characters, more than the {} that are supported beside "
          "additionalProperties; shorten it or set additionalProperties to false",
          decoded.back().size(), kLongestName);
  }
  std::ranges::sort(decoded);
  decoded.erase(std::ranges::unique(decoded).begin(), decoded.end());
  return pool_.join({quote, unlike(decoded, 0), quote, colon});
}

}  // namespace moesaic::grammar
