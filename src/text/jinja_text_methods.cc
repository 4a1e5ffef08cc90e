// The methods of Python's str.
#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"

namespace moesaic::jinja {
namespace {

struct Call {
  Interpreter& in;
  const Str& self;
  std::string_view name;
  const Arguments& arguments;

  TextView text() const { return *self.text; }
  Value result(TextView t) const { return in.text_value(Text(t), self.markup); }
  Value results(const std::vector<TextView>& parts) const {
    in.meter().items(parts.size());
    std::vector<Value> items;
    for (const TextView part : parts) items.push_back(result(part));
    return make_sequence(std::move(items));
  }
  // A Markup string escapes the plain strings that it is combined with.
  Text escaped(const Value& value, std::string_view what) const {
    const Text& t = text_argument(value, what);
    return self.markup && !value.get<Str>()->markup ? escape_html(t) : t;
  }
};

std::vector<TextView> split_space(TextView text, Int limit, bool from_right) {
  std::vector<TextView> parts;
  text = from_right ? strip(text, Side::right) : strip(text, Side::left);
  while (!text.empty() && (limit < 0 || static_cast<Int>(parts.size()) < limit)) {
    size_t at = from_right ? text.size() : 0;
    if (from_right) {
      while (at > 0 && !is_space(text[at - 1])) --at;
      parts.push_back(text.substr(at));
      text = strip(text.substr(0, at), Side::right);
    } else {
      while (at < text.size() && !is_space(text[at])) ++at;
      parts.push_back(text.substr(0, at));
      text = strip(text.substr(at), Side::left);
    }
  }
  if (!text.empty()) parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<size_t> occurrences(TextView text, TextView part, Int limit, bool from_right) {
  std::vector<size_t> found;
  if (from_right) {
    const Text backwards(text.rbegin(), text.rend()), mirrored(part.rbegin(), part.rend());
    for (const size_t at : occurrences(backwards, mirrored, limit, false))
      found.push_back(text.size() - part.size() - at);
    std::reverse(found.begin(), found.end());
    return found;
  }
  for (size_t at = find_text(text, part); at != TextView::npos && (limit < 0 || static_cast<Int>(found.size()) < limit);
       at = find_text(text, part, at + part.size()))
    found.push_back(at);
  return found;
}

Value split(const Call& c) {
  const bool from_right = c.name == "rsplit";
  const std::vector<const Value*> a = bind(c.arguments, c.name, {"sep", "maxsplit"});
  const Int limit = integer(a[1], -1, "maxsplit");
  if (a[0] == nullptr || a[0]->is<None>()) return c.results(split_space(c.text(), limit, from_right));
  const Text& separator = text_argument(*a[0], "the separator");
  if (separator.empty()) fail_render("empty separator");
  std::vector<TextView> parts;
  size_t begin = 0;
  for (const size_t at : occurrences(c.text(), separator, limit, from_right)) {
    parts.push_back(c.text().substr(begin, at - begin));
    begin = at + separator.size();
  }
  parts.push_back(c.text().substr(begin));
  return c.results(parts);
}

Value strip_ends(const Call& c) {
  const std::vector<const Value*> a = bind(c.arguments, c.name, {"chars"});
  const Side side = c.name == "strip" ? Side::both : c.name == "lstrip" ? Side::left : Side::right;
  if (a[0] == nullptr || a[0]->is<None>()) return c.result(strip(c.text(), side));
  const Text chars = c.escaped(*a[0], "the characters to strip");
  const TextView view = chars;
  return c.result(strip(c.text(), side, &view));
}

// The part of the text that optional start and end arguments select, and its offset. Empty when start is past the end.
std::optional<std::pair<TextView, size_t>> window(TextView text, const Value* start, const Value* end) {
  const Int length = static_cast<Int>(text.size());
  const auto bound = [&](const Value* v, Int fallback) {
    if (v == nullptr || v->is<None>()) return fallback;
    const Int i = require_integer(*v, "a position");
    return i < 0 ? std::max<Int>(i, -length) + length : i;
  };
  const Int from = bound(start, 0), to = std::min(bound(end, length), length);
  if (from > length || from > to) return std::nullopt;
  return std::pair{text.substr(static_cast<size_t>(from), static_cast<size_t>(to - from)), static_cast<size_t>(from)};
}

Value test_affix(const Call& c) {
  const std::vector<const Value*> a = bind(c.arguments, c.name, {"affix", "start", "end"}, 1);
  const auto part = window(c.text(), a[1], a[2]);
  const auto matches = [&](const Value& v) {
    const Text& affix = text_argument(v, "the argument of " + std::string(c.name));
    if (!part) return false;
    return c.name == "startswith" ? starts_with(part->first, affix) : ends_with(part->first, affix);
  };
  const Sequence* s = a[0]->sequence();
  if (s == nullptr || s->kind != SequenceKind::tuple) return matches(*a[0]);
  return std::any_of(s->items.begin(), s->items.end(), matches);
}

Value find_part(const Call& c) {
  const std::vector<const Value*> a = bind(c.arguments, c.name, {"sub", "start", "end"}, 1);
  const Text& part = text_argument(*a[0], "the text to find");
  c.in.meter().step(static_cast<int64_t>((c.text().size() + part.size()) / 16));
  const auto where = window(c.text(), a[1], a[2]);
  const bool last = c.name == "rfind" || c.name == "rindex";
  const size_t at = !where ? TextView::npos : last ? rfind_text(where->first, part) : find_text(where->first, part);
  if (at != TextView::npos) return at + where->second;
  if (c.name == "index" || c.name == "rindex") fail_render("substring not found");
  return -1;
}

Value count_part(const Call& c) {
  const std::vector<const Value*> a = bind(c.arguments, c.name, {"sub", "start", "end"}, 1);
  const Text& part = text_argument(*a[0], "the text to count");
  const auto where = window(c.text(), a[1], a[2]);
  if (!where) return 0;
  if (part.empty()) return where->first.size() + 1;
  c.in.meter().step(static_cast<int64_t>(c.text().size() / 16));
  return occurrences(where->first, part, -1, false).size();
}

Value replace(const Call& c) {
  const std::vector<const Value*> a = bind(c.arguments, "replace", {"old", "new", "count"}, 2);
  const Text old = c.escaped(*a[0], "the text to replace"), fresh = c.escaped(*a[1], "the replacement");
  return make_text(replace_text(c.text(), old, fresh, integer(a[2], -1, "count"), c.in.meter()), c.self.markup);
}

Value join(const Call& c) {
  const std::vector<const Value*> a = bind(c.arguments, "join", {"iterable"}, 1);
  Text out;
  bool first = true;
  for (const Value& item : c.in.list_of(*a[0])) {
    const Text piece =
        c.self.markup && !item.is<Str>() ? to_text(item, c.in.meter()) : c.escaped(item, "each item of a join");
    c.in.meter().grow(out.size(), piece.size() + c.text().size());
    if (!std::exchange(first, false)) out += c.text();
    out += piece;
  }
  return make_text(std::move(out), c.self.markup);
}

Value change_case(const Call& c) {
  bind(c.arguments, c.name, {});
  c.in.meter().step(static_cast<int64_t>(c.text().size() / 8));
  if (c.name == "upper") return c.result(to_upper(c.text()));
  if (c.name == "capitalize") return c.result(capitalize(c.text()));
  if (c.name == "title") return c.result(title_case(c.text()));
  if (c.name == "swapcase") return c.result(swap_case(c.text()));
  return c.result(to_lower(c.text()));
}

Value test_class(const Call& c) {
  bind(c.arguments, c.name, {});
  const TextView t = c.text();
  const auto all = [&](auto test) { return !t.empty() && std::all_of(t.begin(), t.end(), test); };
  if (c.name == "isdigit") return all(is_digit);
  if (c.name == "isdecimal") return all(is_decimal);
  if (c.name == "isnumeric") return all(is_numeric);
  if (c.name == "isalpha") return all(is_alpha);
  if (c.name == "isalnum") return all([](char32_t x) { return is_alpha(x) || is_numeric(x); });
  if (c.name == "isspace") return all(is_space);
  if (c.name == "isascii") return std::all_of(t.begin(), t.end(), [](char32_t x) { return code_point(x) < 0x80; });
  if (c.name == "isidentifier")
    return all([](char32_t x) { return is_identifier_part(code_point(x)); }) && is_identifier_start(code_point(t[0]));
  const bool upper = c.name == "isupper";
  const auto wrong = [&](char32_t x) { return upper ? is_lower(x) : is_upper(x); };
  const auto right = [&](char32_t x) { return upper ? is_upper(x) : is_lower(x); };
  return std::any_of(t.begin(), t.end(), right) && std::none_of(t.begin(), t.end(), wrong);
}

Value pad(const Call& c) {
  const std::vector<const Value*> a = bind(c.arguments, c.name, {"width", "fillchar"}, 1);
  const Int width = std::clamp<Int>(require_integer(*a[0], "the width"), 0, Int{1} << 40);
  const Text fill = a[1] != nullptr ? c.escaped(*a[1], "the fill character") : c.name == "zfill" ? U"0" : U" ";
  if (fill.size() != 1) fail_render("the fill character must be exactly one character long");
  const auto size = static_cast<Int>(c.text().size());
  if (width <= size) return c.result(c.text());
  const auto missing = static_cast<size_t>(width - size);
  c.in.meter().text(missing);
  // Python puts the odd space of a centred text on the left when the width is odd.
  size_t left = c.name == "ljust"    ? 0
                : c.name == "center" ? missing / 2 + (missing & static_cast<size_t>(width) & 1)
                                     : missing;
  const bool sign = c.name == "zfill" && size > 0 && (code_point(c.text()[0]) == '-' || code_point(c.text()[0]) == '+');
  return c.result(Text(c.text().substr(0, sign)) + Text(left, fill[0]) + Text(c.text().substr(sign)) +
                  Text(missing - left, fill[0]));
}

Value partition(const Call& c) {
  const std::vector<const Value*> a = bind(c.arguments, c.name, {"sep"}, 1);
  const Text& separator = text_argument(*a[0], "the separator");
  if (separator.empty()) fail_render("empty separator");
  const bool last = c.name == "rpartition";
  const size_t at = last ? rfind_text(c.text(), separator) : find_text(c.text(), separator);
  std::vector<Value> parts;
  if (at == TextView::npos)
    parts = last ? std::vector{c.result({}), c.result({}), c.result(c.text())}
                 : std::vector{c.result(c.text()), c.result({}), c.result({})};
  else
    parts = {c.result(c.text().substr(0, at)), c.result(c.text().substr(at, separator.size())),
             c.result(c.text().substr(at + separator.size()))};
  return make_sequence(std::move(parts), SequenceKind::tuple);
}

Value remove_affix(const Call& c) {
  const std::vector<const Value*> a = bind(c.arguments, c.name, {"affix"}, 1);
  const Text& affix = text_argument(*a[0], "the affix");
  const bool front = c.name == "removeprefix";
  if (!(front ? starts_with(c.text(), affix) : ends_with(c.text(), affix))) return c.result(c.text());
  return c.result(front ? c.text().substr(affix.size()) : c.text().substr(0, c.text().size() - affix.size()));
}

Value lines(const Call& c) {
  const std::vector<const Value*> a = bind(c.arguments, c.name, {"keepends"});
  return c.results(split_lines(c.text(), flag(a[0])));
}

Value format(const Call& c) {
  return make_text(format_braces(c.text(), c.arguments, c.in.meter()), c.self.markup);
}

struct Method {
  std::string_view name;
  Value (*function)(const Call&);
};

constexpr Method kMethods[] = {{"split", split},
                               {"rsplit", split},
                               {"splitlines", lines},
                               {"strip", strip_ends},
                               {"lstrip", strip_ends},
                               {"rstrip", strip_ends},
                               {"startswith", test_affix},
                               {"endswith", test_affix},
                               {"replace", replace},
                               {"find", find_part},
                               {"rfind", find_part},
                               {"index", find_part},
                               {"rindex", find_part},
                               {"count", count_part},
                               {"join", join},
                               {"format", format},
                               {"upper", change_case},
                               {"lower", change_case},
                               {"casefold", change_case},
                               {"capitalize", change_case},
                               {"title", change_case},
                               {"swapcase", change_case},
                               {"isdigit", test_class},
                               {"isdecimal", test_class},
                               {"isnumeric", test_class},
                               {"isalpha", test_class},
                               {"isalnum", test_class},
                               {"isspace", test_class},
                               {"isupper", test_class},
                               {"islower", test_class},
                               {"isascii", test_class},
                               {"isidentifier", test_class},
                               {"zfill", pad},
                               {"ljust", pad},
                               {"rjust", pad},
                               {"center", pad},
                               {"partition", partition},
                               {"rpartition", partition},
                               {"removeprefix", remove_affix},
                               {"removesuffix", remove_affix}};

const Method* find_method(std::string_view name) {
  for (const Method& method : kMethods)
    if (method.name == name) return &method;
  return nullptr;
}

}  // namespace

std::vector<TextView> split_lines(TextView text, bool keep_ends) {
  const auto ends_line = [](char32_t c) {
    c = code_point(c);
    return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
  };
  std::vector<TextView> parts;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    while (end < text.size() && !ends_line(text[end])) ++end;
    const bool two = end + 1 < text.size() && code_point(text[end]) == '\r' && code_point(text[end + 1]) == '\n';
    const size_t next = std::min(text.size(), end + 1 + two);
    parts.push_back(text.substr(begin, (keep_ends ? next : end) - begin));
    begin = next;
  }
  return parts;
}

Text replace_text(TextView text, TextView old, TextView fresh, Int count, Meter& meter) {
  meter.step(static_cast<int64_t>(text.size() / 16));
  std::vector<size_t> found;
  if (old.empty()) {
    for (size_t i = 0; i <= text.size() && (count < 0 || static_cast<Int>(i) < count); ++i) found.push_back(i);
  } else {
    found = occurrences(text, old, count, false);
  }
  const size_t added = fresh.size() > old.size() ? fresh.size() - old.size() : 0;
  meter.text(text.size() + (added > 0 ? std::min(found.size(), (size_t{1} << 40) / added) * added : 0));
  Text out;
  size_t begin = 0;
  for (const size_t at : found) {
    out += text.substr(begin, at - begin);
    out += fresh;
    begin = at + old.size();
  }
  return out += text.substr(begin);
}

bool has_text_method(std::string_view name) {
  return find_method(name) != nullptr;
}

Value call_text_method(Interpreter& in, const Str& self, std::string_view name, const Arguments& arguments) {
  return find_method(name)->function(Call{in, self, name, arguments});
}

}  // namespace moesaic::jinja
