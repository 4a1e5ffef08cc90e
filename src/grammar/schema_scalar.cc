#include <algorithm>

#include "base/error.h"
#include "grammar/regex_parser.h"
#include "grammar/regular.h"
#include "grammar/schema.h"

namespace moesaic::grammar {
namespace {

#define MOESAIC_DATE                                                                          \
  "((000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|" \
  "(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))|"                                 \
  "(\\d\\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29)"
#define MOESAIC_TIME "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define MOESAIC_BYTE "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define MOESAIC_IPV4 MOESAIC_BYTE "(\\." MOESAIC_BYTE "){3}"
#define MOESAIC_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define MOESAIC_HOST MOESAIC_LABEL "(\\." MOESAIC_LABEL "){0,8}"
#define MOESAIC_H16 "[0-9A-Fa-f]{1,4}"
#define MOESAIC_URI_CHARS "([A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"

// The usual forms; each is a subset of what its RFC allows.
const std::map<std::string_view, const char*> kFormats = {
    {"date", MOESAIC_DATE},
    {"time", MOESAIC_TIME},
    {"date-time", "(" MOESAIC_DATE ")T" MOESAIC_TIME},
    {"duration",
     "P(\\d{1,9}W|(\\d{1,9}Y(\\d{1,9}M(\\d{1,9}D)?)?|\\d{1,9}M(\\d{1,9}D)?|\\d{1,9}D)(T(\\d{1,9}H(\\d{1,9}M(\\d{1,9}S)?"
     ")?|"
     "\\d{1,9}M(\\d{1,9}S)?|\\d{1,9}S))?|T(\\d{1,9}H(\\d{1,9}M(\\d{1,9}S)?)?|\\d{1,9}M(\\d{1,9}S)?|\\d{1,9}S))"},
    {"email", "[A-Za-z0-9_%+-]+(\\.[A-Za-z0-9_%+-]+)*@" MOESAIC_LABEL "(\\." MOESAIC_LABEL "){1,8}"},
    {"hostname", MOESAIC_HOST},
    {"ipv4", MOESAIC_IPV4},
    {"ipv6", "(" MOESAIC_H16 "(:" MOESAIC_H16 "){7}|" MOESAIC_H16 "(:" MOESAIC_H16 "){0,5}::|::(" MOESAIC_H16
             "(:" MOESAIC_H16 "){0,5})?|" MOESAIC_H16 "::" MOESAIC_H16 "(:" MOESAIC_H16 "){0,4}|" MOESAIC_H16
             ":" MOESAIC_H16 "::" MOESAIC_H16 "(:" MOESAIC_H16 "){0,3}|" MOESAIC_H16 "(:" MOESAIC_H16
             "){2}::" MOESAIC_H16 "(:" MOESAIC_H16 "){0,2}|::ffff:" MOESAIC_IPV4 ")"},
    {"uuid", "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
    {"uri", "[A-Za-z][A-Za-z0-9+.-]{0,30}://" MOESAIC_HOST "(:\\d{1,5})?(/" MOESAIC_URI_CHARS ")?(\\?" MOESAIC_URI_CHARS
            ")?(#" MOESAIC_URI_CHARS ")?"},
};

struct Lengths {
  int64_t min = 0, max = kNoBound;
};

// One character of a string that has one spelling.
ExprId spelled_character(Pool& pool) {
  CodePoints all;
  all.add(0, kLastCodePoint);
  return one_of(pool, all, Spelling::json);
}

struct Pattern {
  std::string text;
  Anchoring anchoring = Anchoring::search;
};

// Digits whose number is a multiple of `factor`, with or without a sign.
Dfa multiples(int64_t factor) {
  Dfa dfa;
  const auto states = static_cast<size_t>(factor) + 2;  // 0: begin, 1: behind the sign, 2 + remainder
  dfa.next.resize(states);
  dfa.final.assign(states, 0);
  dfa.final[2] = 1;
  for (size_t state = 0; state < states; ++state) {
    dfa.next[state].fill(-1);
    const int64_t remainder = state < 2 ? 0 : static_cast<int64_t>(state) - 2;
    for (int64_t digit = 0; digit <= 9; ++digit)
      dfa.next[state][static_cast<size_t>('0' + digit)] = static_cast<int32_t>(2 + (remainder * 10 + digit) % factor);
  }
  dfa.next[0]['-'] = 1;
  return dfa;
}

// k for 10^-k, else nothing.
std::optional<int> decimal_places(const Decimal& step) {
  if (step.whole != "0" || step.fraction.empty() || step.fraction.back() != '1') return std::nullopt;
  if (step.fraction.find_first_not_of('0') != step.fraction.size() - 1) return std::nullopt;
  return static_cast<int>(step.fraction.size());
}

}  // namespace

const char* format_pattern(std::string_view format) {
  const auto found = kFormats.find(format);
  return found == kFormats.end() ? nullptr : found->second;
}

std::string format_names() {
  std::vector<std::string_view> names;
  for (const auto& [name, pattern] : kFormats) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

ExprId SchemaReader::string_values(const JsonObject& schema, const std::string& where) {
  Lengths lengths{count(schema, "minLength", where, 0), count(schema, "maxLength", where, kNoBound)};
  std::vector<Pattern> patterns;
  JsonArray given;
  if (const Json* one = schema.if_contains("pattern")) given.push_back(*one);
  if (const Json* some = schema.if_contains(kPatterns); some != nullptr && some->is_array())
    given.insert(given.end(), some->get_array().begin(), some->get_array().end());
  for (const Json& each : given) {
    if (!each.is_string()) return problem("pattern", where, "it must be a regular expression"), pool.never();
    patterns.push_back({std::string(each.get_string())});
  }
  if (const Json* format = schema.if_contains("format")) {
    const char* known = format->is_string() ? format_pattern(std::string_view(format->get_string())) : nullptr;
    if (known == nullptr) return problem("format", where, "known are " + format_names()), pool.never();
    patterns.push_back({known, Anchoring::full});
  }
  if (lengths.max != kNoBound && lengths.min > lengths.max) return pool.never();
  if (patterns.empty()) return text.string(lengths.min, lengths.max);
  const std::string what = "the pattern at " + where;
  const auto expression = [&](Pool& into, const Pattern& pattern) {
    return parse_regex(into, pattern.text, Spelling::json, pattern.anchoring, what);
  };
  const bool bounded = lengths.min > 0 || lengths.max != kNoBound;
  if (patterns.size() == 1 && !bounded) return pool.join({text.quote, expression(pool, patterns[0]), text.quote});
  Dfa common = make_dfa(pool, [&](Pool& own) { return expression(own, patterns[0]); });
  for (size_t i = 1; i < patterns.size(); ++i)
    common = combine(pool, common, make_dfa(pool, [&](Pool& own) { return expression(own, patterns[i]); }), Keep::both);
  if (bounded) {
    const Dfa length =
        make_dfa(pool, [&](Pool& own) { return own.repeat(spelled_character(own), lengths.min, lengths.max); });
    common = combine(pool, common, length, Keep::both);
  }
  return pool.join({text.quote, pool.dfa(std::move(common)), text.quote});
}

ExprId SchemaReader::number_values(const JsonObject& schema, bool whole, const std::string& where) {
  Range range;
  const auto tighten = [&](const char* keyword, std::optional<Bound>& bound, bool exclusive, int direction) {
    const Json* value = schema.if_contains(keyword);
    if (value == nullptr) return;
    if (!value->is_number()) return problem(keyword, where, "it must be a number");
    const Decimal decimal = to_decimal(*value);
    const int order = bound ? compare(decimal, bound->value) * direction : 1;
    if (order > 0) bound = Bound{decimal, exclusive};
    if (order == 0) bound->exclusive |= exclusive;
  };
  tighten("minimum", range.low, false, 1);
  tighten("exclusiveMinimum", range.low, true, 1);
  tighten("maximum", range.high, false, -1);
  tighten("exclusiveMaximum", range.high, true, -1);
  const Json* step = schema.if_contains("multipleOf");
  if (step == nullptr) return whole ? whole_numbers(pool, range) : decimal_numbers(pool, range);
  const Decimal factor = step->is_number() ? to_decimal(*step) : Decimal{};
  if (const auto places = decimal_places(factor); places && *places <= 9) {
    range.places = *places;
    return whole ? whole_numbers(pool, range) : decimal_numbers(pool, range);
  }
  if (factor.negative || factor.zero() || !factor.fraction.empty() || compare(factor, {false, "1000"}) > 0)
    return problem("multipleOf", where, "supported are whole numbers up to 1000 and 0.1, 0.01 and so on"), pool.never();
  const Dfa numbers = make_dfa(pool, [&](Pool& own) { return whole_numbers(own, range); });
  return pool.dfa(combine(pool, numbers, multiples(std::stoll(factor.whole)), Keep::both));
}

}  // namespace moesaic::grammar
