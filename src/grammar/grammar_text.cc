#include "grammar/grammar_text.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "grammar/json_text.h"
#include "grammar/regex_parser.h"
#include "grammar/schema.h"
#include "text/unicode.h"

namespace moesaic::grammar {
namespace {

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool continues_name(char c) {
  return begins_name(c) || (c >= '0' && c <= '9') || c == '-' || c == '.';
}

struct Reader {
  Pool& pool;
  JsonText json;
  std::string_view text;
  const Tokenizer& tokenizer;
  size_t at = 0;
  int64_t depth = 0;
  std::map<std::string, int32_t, std::less<>> rules = {};
  std::map<std::string, size_t, std::less<>> used = {};  // where each rule is first used

  bool end() const { return at >= text.size(); }
  char peek() const { return end() ? '\0' : text[at]; }
  [[noreturn]] void fail(size_t place, std::string_view problem) const;
  void skip_space();
  std::string_view name();
  bool at_rule();
  int32_t rule_of(std::string_view name_of);
  void definition();
  ExprId alternatives();
  ExprId sequence();
  ExprId quantified();
  ExprId element();
  ExprId literal();
  ExprId special_token();
  ExprId directive();
  ExprId inline_schema();
  ExprId inline_regex();
  void finish();
};

void Reader::fail(size_t place, std::string_view problem) const {
  const std::string_view before = text.substr(0, place);
  const size_t line = static_cast<size_t>(std::ranges::count(before, '\n')) + 1;
  const size_t column = place - (before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1) + 1;
  fail_argument("the grammar, line {}, column {}: {}", line, column, problem);
}

void Reader::skip_space() {
  while (!end()) {
    if (peek() == '#') {
      while (!end() && peek() != '\n') ++at;
    } else if (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '\n') {
      ++at;
    } else {
      return;
    }
  }
}

std::string_view Reader::name() {
  const size_t begin = at;
  if (begins_name(peek()))
    while (!end() && continues_name(peek())) ++at;
  return text.substr(begin, at - begin);
}

// Whether a name and ::= follow, which end the rule before.
bool Reader::at_rule() {
  const size_t before = at;
  const bool named = !name().empty();
  skip_space();
  const bool found = named && text.substr(at).starts_with("::=");
  at = before;
  return found;
}

int32_t Reader::rule_of(std::string_view name_of) {
  const auto known = rules.find(name_of);
  if (known != rules.end()) return known->second;
  const int32_t rule = pool.add_rule(std::string(name_of));
  rules.emplace(name_of, rule);
  return rule;
}

void Reader::definition() {
  const size_t place = at;
  if (!at_rule()) fail(at, "expected a rule, `name ::= ...`");
  const std::string_view rule_name = name();
  skip_space();
  at += 3;
  const int32_t rule = rule_of(rule_name);
  if (pool.rules[static_cast<size_t>(rule)].body >= 0)
    fail(place, fmt::format("there are two rules of the name {}; join them with |", rule_name));
  const ExprId body = alternatives();
  pool.rules[static_cast<size_t>(rule)].body = body;
  if (!end() && !at_rule())
    fail(at, fmt::format("unexpected {}; a rule is made of \"text\", [classes], names, ( ), |, * + ? and {{m,n}}",
                         quote_beginning(text.substr(at, 8))));
}

ExprId Reader::alternatives() {
  if (++depth > pool.limits.depth) fail(at, fmt::format("groups are nested deeper than {}", pool.limits.depth));
  std::vector<ExprId> choices = {sequence()};
  while (peek() == '|') {
    ++at;
    choices.push_back(sequence());
  }
  --depth;
  return pool.choice(std::move(choices));
}

ExprId Reader::sequence() {
  std::vector<ExprId> parts;
  for (;;) {
    skip_space();
    const char c = peek();
    const bool begins = c == '"' || c == '[' || c == '.' || c == '(' || c == '<' || c == '%' || begins_name(c);
    if (end() || !begins || (begins_name(c) && at_rule())) return pool.join(std::move(parts));
    parts.push_back(quantified());
  }
}

ExprId Reader::quantified() {
  const Slice slice = peek() == '.' ? Slice::text : Slice::none;
  ExprId part = element();
  for (bool first = true;; first = false) {
    const Slice of = first ? slice : Slice::none;
    const size_t before = at;
    skip_space();
    if (peek() == '*') {
      ++at, part = pool.repeat(part, 0, kNoBound, of);
    } else if (peek() == '+') {
      ++at, part = pool.repeat(part, 1, kNoBound, of);
    } else if (peek() == '?') {
      ++at, part = pool.optional(part);
    } else if (peek() == '{') {
      const auto bounds = repetition_bounds(text, at);
      if (!bounds) fail(at, "expected {m}, {m,} or {m,n}; write \"{\" in quotes for a brace");
      part = pool.repeat(part, bounds->first, bounds->second, of);
    } else {
      at = before;
      return part;
    }
  }
}

ExprId Reader::element() {
  const size_t place = at;
  switch (peek()) {
    case '"': return literal();
    case '[': return ++at, one_of(pool, parse_class(text, at, "the class in"), Spelling::utf8);
    case '<': return special_token();
    case '%': return directive();
    case '.': {
      CodePoints all;
      all.add(0, kLastCodePoint);
      return ++at, one_of(pool, all, Spelling::utf8);
    }
    case '(': {
      ++at;
      const ExprId inner = alternatives();
      if (peek() != ')') fail(place, "this ( is not closed");
      return ++at, inner;
    }
    default: {
      const std::string_view callee = name();
      used.emplace(callee, place);
      return pool.call(rule_of(callee));
    }
  }
}

ExprId Reader::literal() {
  const size_t place = at++;
  std::string out;
  while (!end() && peek() != '"') {
    if (peek() != '\\') {
      out += text[at++];
      continue;
    }
    if (++at >= text.size()) break;
    const size_t escape = at;
    const auto code = escaped_character(text, at, false);
    if (!code || (*code >= 0xD800 && *code < 0xE000))
      fail(escape - 1, "this escape is not known; known are \\n \\r \\t \\\\ \\\" \\xHH \\uHHHH \\u{...}");
    append_utf8(out, *code);
  }
  if (end()) fail(place, "this text has no closing quote");
  ++at;
  return pool.literal(out);
}

ExprId Reader::special_token() {
  const size_t place = at;
  const size_t close = text.find("]>", at);
  if (!text.substr(at).starts_with("<[") || close == std::string_view::npos)
    fail(place, "expected <[name]> or <[id]> of a special token");
  const std::string inner(text.substr(at + 2, close - at - 2));
  at = close + 2;
  if (const auto named = tokenizer.token_to_id(inner)) return pool.token(*named);
  const bool number = !inner.empty() && inner.size() < 10 && inner.find_first_not_of("0123456789") == std::string::npos;
  if (number && tokenizer.id_to_token(std::stoi(inner))) return pool.token(std::stoi(inner));
  fail(place, fmt::format("the model has no token {}; name one by its text or id", quote_beginning(inner)));
}

ExprId Reader::directive() {
  const size_t place = at++;
  const std::string_view word = name();
  if (word == "json_object") return json.object();
  if (word == "json") return inline_schema();
  if (word == "regex") return inline_regex();
  if (word == "text") {
    CodePoints all;
    all.add(0, kLastCodePoint);
    return pool.repeat(one_of(pool, all, Spelling::utf8), 0, kNoBound, Slice::text);
  }
  fail(place, fmt::format("%{} is not known; known are %json{{...}}, %json_object, %regex/.../ and %text", word));
}

ExprId Reader::inline_schema() {
  skip_space();
  const size_t place = at;
  if (peek() != '{') fail(at, "expected the schema's { behind %json");
  int64_t braces = 0;
  bool quoted = false;
  for (; !end(); ++at) {
    const char c = peek();
    if (quoted && c == '\\') {
      ++at;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '{' || c == '}')) {
      braces += c == '{' ? 1 : -1;
      if (braces == 0) break;
    }
  }
  if (end()) fail(place, "this schema has no closing brace");
  ++at;
  const JsonOptions options{.max_depth = static_cast<int>(pool.limits.depth)};
  return schema_values(pool, json, parse_json(text.substr(place, at - place), "the schema behind %json", options));
}

ExprId Reader::inline_regex() {
  skip_space();
  const size_t place = at;
  if (peek() != '/') fail(at, "expected /.../ behind %regex");
  std::string pattern;
  bool in_class = false;
  for (++at; !end() && (in_class || peek() != '/'); ++at) {
    if (peek() == '\\' && at + 1 < text.size()) {
      if (text[at + 1] != '/') pattern += '\\';
      ++at;
    } else if (peek() == '[' || peek() == ']') {
      in_class = peek() == '[';
    }
    pattern += peek();
  }
  if (end()) fail(place, "this expression has no closing /");
  ++at;
  return parse_regex(pool, pattern, Spelling::utf8, Anchoring::full, "the expression");
}

void Reader::finish() {
  for (const auto& [callee, place] : used)
    if (pool.rules[static_cast<size_t>(rules.at(callee))].body < 0)
      fail(place, fmt::format("there is no rule {}; add `{} ::= ...`", callee, callee));
}

// name: ... at the beginning of a line, and no ::= anywhere.
bool looks_like_lark(std::string_view text) {
  if (text.find("::=") != std::string_view::npos) return false;
  for (size_t begin = 0; begin < text.size();) {
    size_t at = begin;
    while (at < text.size() && (text[at] == '?' || text[at] == '!')) ++at;
    const size_t first = at;
    while (at < text.size() && continues_name(text[at])) ++at;
    const bool named = at > first;
    while (at < text.size() && text[at] == ' ') ++at;
    if (named && at < text.size() && text[at] == ':') return true;
    const size_t line = text.find('\n', begin);
    begin = line == std::string_view::npos ? text.size() : line + 1;
  }
  return false;
}

}  // namespace

void read_grammar_text(Pool& pool, std::string_view text, const Tokenizer& tokenizer) {
  if (looks_like_lark(text))
    fail_argument("Lark grammars are not supported; write rules as `name ::= ...` (docs/grammars.md)");
  const int32_t entry = pool.add_rule("the answer");
  Reader reader{pool, JsonText(pool), text, tokenizer};
  reader.skip_space();
  if (reader.end()) fail_argument("the grammar has no rules; write at least `root ::= ...`");
  const std::string first(reader.name());
  reader.at -= first.size();
  while (!reader.end()) {
    reader.definition();
    reader.skip_space();
  }
  reader.finish();
  const bool has_root = reader.rules.contains("root");
  pool.rules[static_cast<size_t>(entry)].body = pool.call(reader.rules.at(has_root ? "root" : first));
}

}  // namespace moesaic::grammar
