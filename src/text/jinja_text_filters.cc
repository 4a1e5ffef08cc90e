// Filters over texts and numbers.
#include <algorithm>
#include <cmath>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"

namespace moesaic::jinja {
namespace {

// The operand as jinja2's soft_str: a text with its Markup mark, or anything else printed.
Str soft_text(Interpreter& in, const Value& v) {
  if (const Str* s = v.get<Str>()) return *s;
  return *in.text_value(to_text(v, in.meter())).get<Str>();
}

Value as_method(Interpreter& in, const Value& v, std::string_view method, const Arguments& a) {
  return call_text_method(in, soft_text(in, v), method, a);
}

Value escape(Interpreter& in, const Value& v, const Arguments& a) {
  bind(a, "escape", {});
  const Str text = soft_text(in, v);
  return text.markup ? Value(text) : in.text_value(escape_html(*text.text), true);
}

Value mark_safe(Interpreter& in, const Value& v, const Arguments& a) {
  bind(a, "safe", {});
  return make_text(*soft_text(in, v).text, true);
}

Value replace(Interpreter& in, const Value& v, const Arguments& arguments) {
  const std::vector<const Value*> a = bind(arguments, "replace", {"old", "new", "count"}, 2);
  const Text text = to_text(v, in.meter()), old = to_text(*a[0], in.meter()), fresh = to_text(*a[1], in.meter());
  const Int count = a[2] == nullptr || a[2]->is<None>() ? -1 : require_integer(*a[2], "count");
  return make_text(replace_text(text, old, fresh, count, in.meter()));
}

// Words start after spaces, hyphens and opening brackets.
Value title(Interpreter& in, const Value& v, const Arguments& a) {
  bind(a, "title", {});
  const Str text = soft_text(in, v);
  const auto separates = [](char32_t c) {
    return is_space(c) || std::u32string_view(U"-({[<").find(code_point(c)) != TextView::npos;
  };
  Text out;
  for (size_t i = 0; i < text.text->size();) {
    size_t end = i;
    while (end < text.text->size() && separates((*text.text)[end]) == separates((*text.text)[i])) ++end;
    out += to_upper(TextView(*text.text).substr(i, 1));
    out += to_lower(TextView(*text.text).substr(i + 1, end - i - 1));
    i = end;
  }
  return in.text_value(std::move(out));
}

Value indent(Interpreter& in, const Value& v, const Arguments& arguments) {
  const std::vector<const Value*> a = bind(arguments, "indent", {"width", "first", "blank"});
  const Text& source = text_argument(v, "the operand of indent");
  Text margin;
  if (a[0] != nullptr && a[0]->text() != nullptr) {
    margin = *a[0]->text();
  } else {
    const Int width = std::clamp<Int>(integer(a[0], 4, "the width of indent"), 0, 1 << 20);
    margin = Text(static_cast<size_t>(width), U' ');
  }
  const Text padded = source + U"\n";
  Text out = flag(a[1]) ? margin : Text();
  bool first_line = true;
  for (const TextView line : split_lines(padded)) {
    in.meter().grow(out.size(), line.size() + margin.size() + 1);
    if (!first_line) out += U'\n';
    if (!first_line && (flag(a[2]) || !line.empty())) out += margin;
    out += line;
    first_line = false;
  }
  return make_text(std::move(out), v.get<Str>()->markup);
}

Value truncate(Interpreter& in, const Value& v, const Arguments& arguments) {
  const std::vector<const Value*> a = bind(arguments, "truncate", {"length", "killwords", "end", "leeway"});
  const Text end = a[2] != nullptr ? text_argument(*a[2], "the end of truncate") : U"...";
  const Int length = integer(a[0], 255, "the length of truncate");
  const Int leeway = a[3] == nullptr || a[3]->is<None>() ? 5 : require_integer(*a[3], "the leeway of truncate");
  const auto end_size = static_cast<Int>(end.size());
  if (length < end_size || leeway < 0)
    fail_render("truncate expects a length of at least {} and a leeway of at least 0", end.size());
  const std::optional<size_t> size = length_of(v);
  if (!size) fail_render("object of type '{}' has no len()", type_name(v));
  if (length > static_cast<Int>(*size) || static_cast<Int>(*size) <= length + leeway) return v;
  const Text& text = text_argument(v, "the operand of truncate");
  Text cut = text.substr(0, static_cast<size_t>(length - end_size));
  const size_t space = flag(a[1]) ? Text::npos : rfind_text(cut, U" ");
  if (space != Text::npos) cut.resize(space);
  return in.text_value(cut + end, v.get<Str>()->markup);
}

Value word_count(Interpreter& in, const Value& v, const Arguments& a) {
  bind(a, "wordcount", {});
  const Str text = soft_text(in, v);
  size_t count = 0;
  bool inside = false;
  for (const char32_t c : *text.text) {
    const bool word = code_point(c) == '_' || is_alpha(c) || is_numeric(c);
    count += word && !inside;
    inside = word;
  }
  return count;
}

void append_percent(Text& out, TextView text, bool form) {
  static constexpr std::string_view kSafe = "_.-~/";
  for (const char32_t c : text) {
    for (const char byte : encode_utf8(TextView(&c, 1))) {
      const auto b = static_cast<unsigned char>(byte);
      const bool plain = std::isalnum(b) != 0 || (kSafe.find(byte) != std::string_view::npos && !(form && byte == '/'));
      const std::string piece = b < 0x80 && plain     ? std::string(1, byte)
                                : form && byte == ' ' ? "+"
                                                      : fmt::format("%{:02X}", b);
      for (const char p : piece) out += static_cast<char32_t>(p) | mark_of(c);
    }
  }
}

Value url_encode(Interpreter& in, const Value& v, const Arguments& a) {
  bind(a, "urlencode", {});
  Text out;
  if (v.is<Str>() || !length_of(v)) {
    append_percent(out, to_text(v, in.meter()), false);
    return in.text_value(std::move(out));
  }
  const Arguments none;
  const Value pairs = v.dict() != nullptr ? call_method(in, v, "items", none) : v;
  for (const Value& pair : in.list_of(pairs)) {
    const std::vector<Value> parts = in.list_of(pair);
    if (parts.size() != 2) fail_render("urlencode needs pairs; found {} items", parts.size());
    if (!out.empty()) out += U'&';
    append_percent(out, to_text(parts[0], in.meter()), true);
    out += U'=';
    append_percent(out, to_text(parts[1], in.meter()), true);
  }
  return in.text_value(std::move(out));
}

Value format(Interpreter& in, const Value& v, const Arguments& a) {
  if (!a.positional.empty() && !a.keywords.empty())
    fail_render("format takes positional or keyword arguments, not both");
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [key, value] : a.keywords) entries.emplace_back(make_text(decode_utf8(key)), value);
  const Value values =
      a.keywords.empty() ? make_sequence(a.positional, SequenceKind::tuple) : make_dict(std::move(entries), in.meter());
  return binary("%", Value(soft_text(in, v)), values, in.meter());
}

JsonStyle json_style(const std::vector<const Value*>& a) {
  JsonStyle style;
  style.ensure_ascii = flag(a[0]);
  style.sort_keys = flag(a[3]);
  if (a[1] != nullptr && a[1]->text() != nullptr) style.indent = *a[1]->text();
  else if (a[1] != nullptr && !a[1]->is<None>())
    style.indent = Text(static_cast<size_t>(std::clamp<Int>(require_integer(*a[1], "indent"), 0, 1000)), U' ');
  if (style.indent) style.item_separator = U",";
  if (a[2] != nullptr && !a[2]->is<None>()) {
    const Sequence* s = a[2]->sequence();
    if (s == nullptr || s->items.size() != 2) fail_render("the separators of tojson must be two strings");
    style.item_separator = text_argument(s->items[0], "a separator");
    style.key_separator = text_argument(s->items[1], "a separator");
  }
  return style;
}

Value tojson(Interpreter& in, const Value& v, const Arguments& arguments) {
  const JsonStyle style = json_style(bind(arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}));
  return make_text(to_json(v, style, in.meter()));
}

Value from_json_text(Interpreter& in, const Value& v, const Arguments& a) {
  bind(a, "from_json", {});
  const Text& text = text_argument(v, "the operand of from_json");
  const bool input = std::any_of(text.begin(), text.end(), [](char32_t c) { return mark_of(c) != 0; });
  in.meter().step(static_cast<int64_t>(text.size()));
  try {
    JsonOptions options;
    options.python_constants = true;
    return from_json(parse_json(encode_utf8(text), "the operand of from_json", options), input, in.meter());
  } catch (const Error& error) {
    fail_render("{}", error.what());
  }
}

std::optional<double> parse_float(TextView text) {
  text = strip(text, Side::both);
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t c = code_point(text[i]);
    if (c >= 0x80 || c == 'x' || c == 'X' || c == '(') return std::nullopt;
    const bool between = i > 0 && i + 1 < text.size() && is_decimal(text[i - 1]) && is_decimal(text[i + 1]);
    if (c == '_' && !between) return std::nullopt;
    if (c != '_') plain += static_cast<char>(c);
  }
  char* end = nullptr;
  const double value = std::strtod(plain.c_str(), &end);
  return plain.empty() || end != plain.data() + plain.size() ? std::nullopt : std::optional(value);
}

std::optional<Int> parse_integer(TextView text, Int base) {
  text = strip(text, Side::both);
  const bool negative = !text.empty() && code_point(text[0]) == '-';
  if (negative || (!text.empty() && code_point(text[0]) == '+')) text.remove_prefix(1);
  const char32_t letter = text.size() > 1 && code_point(text[0]) == '0' ? code_point(text[1]) | 0x20 : 0;
  const Int named = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  if (named != 0 && (base == named || base == 0)) text.remove_prefix(2), base = named;
  if (base == 0) base = 10;
  if (base < 2 || base > 36 || text.empty()) return std::nullopt;
  Int value = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t c = code_point(text[i]);
    if (c == '_' && i > 0 && i + 1 < text.size() && code_point(text[i - 1]) != '_') continue;
    const Int digit = c >= '0' && c <= '9'                     ? Int{c} - '0'
                      : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? Int{c | 0x20} - 'a' + 10
                                                               : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value))
      fail_render("an integer became larger than 127 bits");
  }
  return negative ? -value : value;
}

Value truncate_float(double value, const Value& fallback) {
  if (std::isnan(value)) return fallback;
  if (!(std::abs(value) < 1e38)) fail_render("cannot convert the float {} to an integer", float_to_string(value));
  return static_cast<Int>(value);
}

Value to_integer(Interpreter&, const Value& v, const Arguments& arguments) {
  const std::vector<const Value*> a = bind(arguments, "int", {"default", "base"});
  const Value fallback = a[0] != nullptr ? *a[0] : Value(0);
  require_defined(v);
  if (const auto i = as_integer(v)) return *i;
  if (const double* d = v.get<double>()) return truncate_float(*d, fallback);
  if (v.text() == nullptr) return fallback;
  if (const auto i = parse_integer(*v.text(), integer(a[1], 10, "the base of int"))) return *i;
  const auto d = parse_float(*v.text());
  return d ? truncate_float(*d, fallback) : fallback;
}

Value to_float(Interpreter&, const Value& v, const Arguments& arguments) {
  const std::vector<const Value*> a = bind(arguments, "float", {"default"});
  require_defined(v);
  if (const auto d = as_double(v)) return *d;
  const auto d = v.text() != nullptr ? parse_float(*v.text()) : std::nullopt;
  return d ? Value(*d) : a[0] != nullptr ? *a[0] : Value(0.0);
}

Value absolute(Interpreter&, const Value& v, const Arguments& a) {
  bind(a, "abs", {});
  require_defined(v);
  if (const double* d = v.get<double>()) return std::abs(*d);
  if (!as_integer(v)) fail_render("bad operand type for abs(): '{}'", type_name(v));
  return *as_integer(v) < 0 ? negate(v, "-") : Value(*as_integer(v));
}

// Rounded half to even on the exact binary value, as Python's round.
Value round_common(const Value& v, int precision, Meter& meter) {
  if (const auto i = as_integer(v)) {
    if (precision >= 0) return *i;
    const Value unit = binary("**", Int{10}, Int{-precision}, meter);
    const Value rest = binary("%", *i, unit, meter), down = binary("-", *i, rest, meter);
    const Int twice = *as_integer(rest) * 2 - *as_integer(unit);
    const bool odd = *as_integer(binary("%", binary("//", down, unit, meter), Int{2}, meter)) == 1;
    return twice > 0 || (twice == 0 && odd) ? binary("+", down, unit, meter) : down;
  }
  const double value = *v.get<double>();
  if (!std::isfinite(value)) return value;
  if (precision >= 0) return std::strtod(fmt::format("{:.{}f}", value, precision).c_str(), nullptr);
  const double unit = std::pow(10.0, -precision);
  return std::nearbyint(value / unit) * unit;
}

Value round_number(Interpreter& in, const Value& v, const Arguments& arguments) {
  const std::vector<const Value*> a = bind(arguments, "round", {"precision", "method"});
  const Text method = a[1] != nullptr ? text_argument(*a[1], "the method of round") : U"common";
  const auto precision = static_cast<int>(std::clamp<Int>(integer(a[0], 0, "the precision of round"), -30, 400));
  require_defined(v);
  if (!is_number(v)) fail_render("type {} cannot be rounded", type_name(v));
  if (same(method, U"common")) return round_common(v, precision, in.meter());
  if (!same(method, U"ceil") && !same(method, U"floor"))
    fail_render("the method of round must be common, ceil or floor");
  const Value scale = binary("**", Int{10}, Int{precision}, in.meter());
  const Value scaled = binary("*", v, scale, in.meter());
  const double whole = same(method, U"ceil") ? std::ceil(*as_double(scaled)) : std::floor(*as_double(scaled));
  return binary("/", whole, scale, in.meter());
}

const FilterEntry kFilters[] = {
    {"string", [](Interpreter& in, const Value& v,
                  const Arguments& a) { return bind(a, "string", {}), Value(soft_text(in, v)); }},
    {"upper", [](Interpreter& in, const Value& v, const Arguments& a) { return as_method(in, v, "upper", a); }},
    {"lower", [](Interpreter& in, const Value& v, const Arguments& a) { return as_method(in, v, "lower", a); }},
    {"capitalize",
     [](Interpreter& in, const Value& v, const Arguments& a) { return as_method(in, v, "capitalize", a); }},
    {"trim", [](Interpreter& in, const Value& v, const Arguments& a) { return as_method(in, v, "strip", a); }},
    {"center",
     [](Interpreter& in, const Value& v, const Arguments& a) {
       const Value width = a.positional.empty() && a.keywords.empty() ? Value(80) : *bind(a, "center", {"width"}, 1)[0];
       return as_method(in, v, "center", Arguments{{width}, {}});
     }},
    {"escape", escape},
    {"e", escape},
    {"safe", mark_safe},
    {"replace", replace},
    {"title", title},
    {"indent", indent},
    {"forceescape",
     [](Interpreter& in, const Value& v, const Arguments& a) {
       return bind(a, "forceescape", {}), in.text_value(escape_html(to_text(v, in.meter())), true);
     }},
    {"truncate", truncate},
    {"wordcount", word_count},
    {"urlencode", url_encode},
    {"format", format},
    {"tojson", tojson},
    {"from_json", from_json_text},
    {"int", to_integer},
    {"float", to_float},
    {"abs", absolute},
    {"round", round_number}};

}  // namespace

const FilterEntry* find_text_filter(std::string_view name) {
  for (const FilterEntry& entry : kFilters)
    if (entry.name == name) return &entry;
  return nullptr;
}

}  // namespace moesaic::jinja
