// Python's two ways of formatting strings: "%s" % x and "{}".format(x).
#include <algorithm>
#include <cmath>

#include "text/jinja_operators.h"

namespace moesaic::jinja {
namespace {

constexpr size_t kMaxWidth = 10000;

struct Spec {
  bool left = false, zero = false, space = false, plus = false, alternate = false, comma = false;
  char32_t fill = ' ', align = 0;
  size_t width = 0;
  std::optional<size_t> precision;
  char32_t type = 0;
};

Text ascii(std::string_view s) {
  return Text(s.begin(), s.end());
}

size_t read_number(TextView text, size_t& i) {
  size_t value = 0;
  for (; i < text.size() && code_point(text[i]) >= '0' && code_point(text[i]) <= '9'; ++i) {
    value = value * 10 + (code_point(text[i]) - '0');
    if (value > kMaxWidth) fail_render("a format width is larger than {}", kMaxWidth);
  }
  return value;
}

Text pad(const Text& body, const Spec& spec, char32_t align) {
  if (body.size() >= spec.width) return body;
  const size_t missing = spec.width - body.size();
  const size_t before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  return Text(before, spec.fill) + body + Text(missing - before, spec.fill);
}

std::string group_thousands(const std::string& digits) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && i < whole && (whole - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

Text place_number(bool negative, std::string digits, const Spec& spec, char32_t align) {
  if (spec.comma) digits = group_thousands(digits);
  const std::string sign = negative ? "-" : spec.plus ? "+" : spec.space ? " " : "";
  if (spec.zero && !spec.left && digits.size() + sign.size() < spec.width)
    digits.insert(0, spec.width - digits.size() - sign.size(), '0');
  return pad(ascii(sign + digits), spec, spec.left ? U'<' : align);
}

Text format_integer(Int value, const Spec& spec, char32_t align) {
  const bool negative = value < 0;
  const auto magnitude = negative ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  std::string digits = spec.type == 'x'   ? fmt::format("{:x}", magnitude)
                       : spec.type == 'X' ? fmt::format("{:X}", magnitude)
                       : spec.type == 'o' ? fmt::format("{:o}", magnitude)
                       : spec.type == 'b' ? fmt::format("{:b}", magnitude)
                                          : fmt::format("{}", magnitude);
  if (spec.precision && digits.size() < *spec.precision) digits.insert(0, *spec.precision - digits.size(), '0');
  if (spec.alternate && spec.type != 'd' && spec.type != 0) digits.insert(0, {'0', static_cast<char>(spec.type)});
  return place_number(negative, std::move(digits), spec, align);
}

Text format_float(double value, const Spec& spec, char32_t align) {
  const int precision = static_cast<int>(spec.precision.value_or(6));
  const double magnitude = std::abs(value);
  std::string digits;
  switch (spec.type) {
    case 'e': digits = fmt::format("{:.{}e}", magnitude, precision); break;
    case 'E': digits = fmt::format("{:.{}E}", magnitude, precision); break;
    case 'g': digits = fmt::format("{:.{}g}", magnitude, precision == 0 ? 1 : precision); break;
    case 'G': digits = fmt::format("{:.{}G}", magnitude, precision == 0 ? 1 : precision); break;
    case '%': digits = fmt::format("{:.{}f}%", magnitude * 100, precision); break;
    default: digits = fmt::format("{:.{}f}", magnitude, precision);
  }
  return place_number(std::signbit(value) && !std::isnan(value), std::move(digits), spec, align);
}

Text format_text(Text text, const Spec& spec, char32_t align) {
  if (spec.precision && text.size() > *spec.precision) text.resize(*spec.precision);
  return pad(text, spec, spec.left ? U'<' : align);
}

class PercentFormatter {
 public:
  PercentFormatter(TextView format, const Value& arguments, Meter& meter, bool escape)
      : format_(format), arguments_(arguments), meter_(meter), escape_(escape) {
    const Sequence* s = arguments.sequence();
    tuple_ = s != nullptr && (s->kind == SequenceKind::tuple || s->kind == SequenceKind::group) ? s : nullptr;
  }

  Text run() {
    Text out;
    for (size_t i = 0; i < format_.size();) {
      if (code_point(format_[i]) != '%') {
        out += format_[i++];
        continue;
      }
      const Text piece = directive(++i);
      meter_.grow(out.size(), piece.size());
      out += piece;
    }
    meter_.text(out.size());
    // Python lets anything with subscripts, except text, go unused.
    const bool subscripts =
        arguments_.dict() != nullptr || arguments_.is<Undefined>() || arguments_.sequence() != nullptr;
    const size_t given = tuple_ != nullptr ? tuple_->items.size() : subscripts ? 0 : 1;
    if (!named_ && used_ < given) fail_render("not all arguments converted during string formatting");
    return out;
  }

 private:
  const Value& next() {
    if (tuple_ == nullptr && used_++ == 0) return arguments_;
    if (tuple_ == nullptr || used_ >= tuple_->items.size()) fail_render("not enough arguments for format string");
    return tuple_->items[used_++];
  }
  const Value* by_name(size_t& i) {
    if (i >= format_.size() || code_point(format_[i]) != '(') return nullptr;
    const size_t end = find_text(format_, U")", i);
    if (end == TextView::npos) fail_render("incomplete format key");
    if (arguments_.dict() == nullptr) fail_render("format requires a mapping");
    const Value* value = dict_find(*arguments_.dict(), format_.substr(i + 1, end - i - 1), meter_);
    if (value == nullptr) fail_render("missing key in a format: '{}'", encode_utf8(format_.substr(i + 1, end - i - 1)));
    i = end + 1;
    named_ = true;
    return value;
  }
  Spec read_spec(size_t& i) {
    Spec spec;
    for (; i < format_.size(); ++i) {
      const char32_t c = code_point(format_[i]);
      if (c == '-') spec.left = true;
      else if (c == '0') spec.zero = true;
      else if (c == ' ') spec.space = true;
      else if (c == '+') spec.plus = true;
      else if (c == '#') spec.alternate = true;
      else break;
    }
    spec.width = read_number(format_, i);
    if (i < format_.size() && code_point(format_[i]) == '.') spec.precision = read_number(format_, ++i);
    if (i >= format_.size()) fail_render("incomplete format");
    spec.type = code_point(format_[i++]);
    return spec;
  }
  Text directive(size_t& i) {
    const Value* named = by_name(i);
    const Spec spec = read_spec(i);
    if (spec.type == '%') return U"%";
    const Value& value = named != nullptr ? *named : next();
    if (spec.type == 's')
      return format_text(escape_ ? escape_html(to_text(value, meter_)) : to_text(value, meter_), spec, '>');
    if (spec.type == 'r') return format_text(repr(value, meter_), spec, '>');
    require_defined(value);
    if (!is_number(value))
      fail_render("%{} format: a number is required, not {}", encode_utf8(TextView(&spec.type, 1)), type_name(value));
    return number(value, spec);
  }
  static Text number(const Value& value, Spec spec) {
    const std::u32string_view integers = U"diuxXo", floats = U"fFeEgG";
    if (floats.find(spec.type) != TextView::npos) return format_float(*as_double(value), spec, '>');
    if (integers.find(spec.type) == TextView::npos)
      fail_render("unsupported format character '{}'", encode_utf8(TextView(&spec.type, 1)));
    const double* d = value.get<double>();
    if (d != nullptr && !(std::abs(*d) < 1e38)) fail_render("cannot convert this float to an integer");
    if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
    return format_integer(d != nullptr ? static_cast<Int>(*d) : *as_integer(value), spec, '>');
  }

  const TextView format_;
  const Value& arguments_;
  Meter& meter_;
  const bool escape_;
  const Sequence* tuple_;
  size_t used_ = 0;
  bool named_ = false;
};

class BraceFormatter {
 public:
  BraceFormatter(TextView format, const Arguments& arguments, Meter& meter)
      : format_(format), arguments_(arguments), meter_(meter) {}

  Text run() {
    Text out;
    for (size_t i = 0; i < format_.size();) {
      const char32_t c = code_point(format_[i]);
      const bool doubled = i + 1 < format_.size() && code_point(format_[i + 1]) == c;
      if (c == '}' && !doubled) fail_render("Single '}}' encountered in format string");
      if (c != '{' || doubled) {
        out += format_[i];
        i += c == '{' || c == '}' ? 2 : 1;
        continue;
      }
      const size_t end = find_text(format_, U"}", i);
      if (end == TextView::npos) fail_render("Single '{{' encountered in format string");
      const Text piece = field(format_.substr(i + 1, end - i - 1));
      meter_.grow(out.size(), piece.size());
      out += piece;
      i = end + 1;
    }
    meter_.text(out.size());
    return out;
  }

 private:
  Text field(TextView text) {
    const size_t colon = find_text(text, U":"), bang = find_text(text.substr(0, colon), U"!");
    const TextView name = text.substr(0, std::min(colon, bang));
    const Value value = resolve(name);
    if (bang != TextView::npos) {
      const TextView conversion = text.substr(bang + 1, colon == TextView::npos ? colon : colon - bang - 1);
      if (!same(conversion, U"r") && !same(conversion, U"s")) fail_render("unsupported conversion in a format string");
      const Value converted = make_text(same(conversion, U"r") ? repr(value, meter_) : to_text(value, meter_));
      return apply(converted, colon == TextView::npos ? TextView() : text.substr(colon + 1));
    }
    return apply(value, colon == TextView::npos ? TextView() : text.substr(colon + 1));
  }
  // A number, a name or nothing; attribute and item access inside a field are not supported.
  Value resolve(TextView name) {
    if (find_text(name, U".") != TextView::npos || find_text(name, U"[") != TextView::npos)
      fail_render("attributes and items inside a format field are not supported");
    size_t digits = 0;
    const size_t index = name.empty() ? next_++ : read_number(name, digits);
    if (digits == name.size()) {
      if (index >= arguments_.positional.size())
        fail_render("Replacement index {} out of range for positional args tuple", index);
      return arguments_.positional[index];
    }
    for (const auto& [key, value] : arguments_.keywords)
      if (same(decode_utf8(key), name)) return value;
    fail_render("a format string names '{}', which was not given", encode_utf8(name));
  }
  static Spec read_spec(TextView text) {
    Spec spec;
    size_t i = 0;
    const auto at = [&](size_t k) { return k < text.size() ? code_point(text[k]) : 0; };
    const auto is_align = [](char32_t c) { return c == '<' || c == '>' || c == '^'; };
    if (is_align(at(1))) spec.fill = text[0], spec.align = at(1), i = 2;
    else if (is_align(at(0))) spec.align = at(0), i = 1;
    if (at(i) == '+') spec.plus = true, ++i;
    else if (at(i) == ' ') spec.space = true, ++i;
    else if (at(i) == '-') ++i;
    if (at(i) == '#') spec.alternate = true, ++i;
    if (at(i) == '0' && spec.align == 0) spec.zero = true, ++i;
    spec.width = read_number(text, i);
    if (at(i) == ',') spec.comma = true, ++i;
    if (at(i) == '.') spec.precision = read_number(text, ++i);
    spec.type = at(i);
    if (i + (spec.type != 0) != text.size()) fail_render("invalid format specifier '{}'", encode_utf8(text));
    return spec;
  }
  Text apply(const Value& value, TextView spec_text) {
    if (spec_text.empty()) return to_text(value, meter_);
    const Spec spec = read_spec(spec_text);
    if (value.is<Str>() && (spec.type == 0 || spec.type == 's'))
      return format_text(*value.text(), spec, spec.align != 0 ? spec.align : U'<');
    const char32_t align = spec.align != 0 ? spec.align : U'>';
    const double* d = value.get<double>();
    if (d != nullptr && spec.type == 0 && !spec.precision) return pad(ascii(float_to_string(*d)), spec, align);
    if (is_number(value) && (d != nullptr || std::u32string_view(U"fFeEgG%").find(spec.type) != TextView::npos))
      return format_float(*as_double(value), spec, align);
    if (!as_integer(value) || std::u32string_view(U"\0dxXob", 6).find(spec.type) == TextView::npos)
      fail_render("unsupported format '{}' for {}", encode_utf8(spec_text), type_name(value));
    return format_integer(*as_integer(value), spec, align);
  }

  const TextView format_;
  const Arguments& arguments_;
  Meter& meter_;
  size_t next_ = 0;
};

}  // namespace

Text format_percent(TextView format, const Value& arguments, Meter& meter, bool escape) {
  return PercentFormatter(format, arguments, meter, escape).run();
}

Text format_braces(TextView format, const Arguments& arguments, Meter& meter) {
  return BraceFormatter(format, arguments, meter).run();
}

}  // namespace moesaic::jinja
