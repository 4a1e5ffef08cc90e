// str(), repr() and json.dumps() of template values.
#include <cmath>

#include "text/jinja_operators.h"

namespace moesaic::jinja {
namespace {

const char* bool_name(bool b) {
  return b ? "True" : "False";
}

void append(Text& out, std::string_view ascii, bool input) {
  for (const char c : ascii) out += static_cast<char32_t>(static_cast<unsigned char>(c)) | (input ? kInputMark : 0);
}

class Printer {
 public:
  explicit Printer(Meter& meter) : meter_(meter) {}

  void write(const Value& value, bool input) {
    const DepthGuard guard(meter_);
    meter_.step();
    if (const Str* s = value.get<Str>()) return write_text(*s);
    if (const Sequence* s = value.sequence()) return write_sequence(*s);
    if (const Dict* d = value.dict()) return write_dict(*d);
    if (const auto* ns = value.get<Namespace*>()) return write_namespace(**ns);
    append(out, plain(value), input);
  }

  Text out;

 private:
  static std::string plain(const Value& value) {
    if (value.is<None>()) return "None";
    if (value.is<Undefined>()) return "Undefined";
    if (const bool* b = value.get<bool>()) return bool_name(*b);
    if (const Int* i = value.get<Int>()) return int_to_string(*i);
    if (const double* d = value.get<double>()) return float_to_string(*d);
    if (const auto* c = value.get<std::shared_ptr<const Callable>>())
      return fmt::format("<{} '{}'>", type_name(value), (*c)->name);
    return fmt::format("<{} object>", type_name(value));
  }
  void write_text(const Str& s) {
    meter_.text(s.text->size() + out.size() / 8);
    if (s.markup) append(out, "Markup(", false);
    out += quote_python(*s.text);
    if (s.markup) append(out, ")", false);
  }
  void write_items(const std::vector<Value>& items, bool input) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) append(out, ", ", input);
      write(items[i], input);
    }
  }
  void write_sequence(const Sequence& s) {
    if (s.kind == SequenceKind::range) {
      const std::string step = s.step == 1 ? "" : ", " + int_to_string(s.step);
      return append(out, fmt::format("range({}, {}{})", int_to_string(s.start), int_to_string(s.stop), step), s.input);
    }
    const bool tuple = s.kind == SequenceKind::tuple || s.kind == SequenceKind::group;
    const bool view = s.kind != SequenceKind::list && !tuple;
    if (view) append(out, type_name(SequencePtr(SequencePtr{}, &s)), s.input);
    append(out, tuple ? "(" : view ? "([" : "[", s.input);
    write_items(s.items, s.input);
    append(out, tuple ? s.items.size() == 1 ? ",)" : ")" : view ? "])" : "]", s.input);
  }
  void write_dict(const Dict& d) {
    append(out, "{", d.input);
    for (size_t i = 0; i < d.entries.size(); ++i) {
      if (i > 0) append(out, ", ", d.input);
      write(d.entries[i].first, d.input);
      append(out, ": ", d.input);
      write(d.entries[i].second, d.input);
    }
    append(out, "}", d.input);
  }
  void write_namespace(const Namespace& ns) {
    append(out, "<Namespace {", false);
    bool first = true;
    for (const auto& [name, value] : ns.attributes) {
      append(out, first ? "'" : ", '", false);
      append(out, name, false);
      append(out, "': ", false);
      write(value, false);
      first = false;
    }
    append(out, "}>", false);
  }

  Meter& meter_;
};

// json.dumps, with the marks of the strings kept.
class JsonPrinter {
 public:
  JsonPrinter(const JsonStyle& style, Meter& meter) : style_(style), meter_(meter) {}

  void write(const Value& value, size_t level, bool input) {
    const DepthGuard guard(meter_);
    meter_.step();
    if (const Text* t = value.text()) return write_text(*t);
    if (const Dict* d = value.dict()) return write_dict(*d, level);
    const Sequence* s = value.sequence();
    if (s != nullptr &&
        (s->kind == SequenceKind::list || s->kind == SequenceKind::tuple || s->kind == SequenceKind::group))
      return write_list(*s, level);
    append(out, scalar(value), input);
  }

  Text out;

 private:
  static std::string scalar(const Value& value) {
    if (value.is<None>()) return "null";
    if (const bool* b = value.get<bool>()) return *b ? "true" : "false";
    if (const Int* i = value.get<Int>()) return int_to_string(*i);
    if (const double* d = value.get<double>()) return python_float(*d);
    fail_render("Object of type {} is not JSON serializable", type_name(value));
  }
  void write_text(TextView text) {
    meter_.text(text.size() + out.size() / 8);
    out += '"';
    for (const char32_t c : text) write_code_point(c);
    out += '"';
  }
  void write_code_point(char32_t c) {
    const char32_t p = code_point(c);
    const bool input = mark_of(c) != 0;
    static constexpr std::string_view kFrom = "\"\\\n\r\t\b\f", kTo = "\"\\nrtbf";
    const size_t at = p < 0x80 ? kFrom.find(static_cast<char>(p)) : std::string_view::npos;
    if (at != std::string_view::npos) append(out, {'\\', kTo[at]}, input);
    else if (p < 0x20 || (style_.ensure_ascii && p >= 0x7F && p < 0x10000))
      append(out, fmt::format("\\u{:04x}", static_cast<uint32_t>(p)), input);
    else if (style_.ensure_ascii && p >= 0x10000)
      append(out,
             fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((static_cast<uint32_t>(p) - 0x10000) >> 10),
                         0xDC00 + (static_cast<uint32_t>(p) & 0x3FF)),
             input);
    else out += c;
  }
  void append(Text& to, std::initializer_list<char> chars, bool input) {
    jinja::append(to, std::string_view(chars.begin(), chars.size()), input);
  }
  void append(Text& to, std::string_view ascii, bool input) { jinja::append(to, ascii, input); }
  void append_marked(TextView text, bool input) {
    for (const char32_t c : text) out += c | (input ? kInputMark : 0);
  }
  void newline(size_t level, bool input) {
    if (!style_.indent) return;
    meter_.text(style_.indent->size() * level + 1);
    append(out, "\n", input);
    for (size_t i = 0; i < level; ++i) append_marked(*style_.indent, input);
  }
  void write_list(const Sequence& s, size_t level) {
    append(out, "[", s.input);
    for (size_t i = 0; i < s.items.size(); ++i) {
      if (i > 0) append_marked(style_.item_separator, s.input);
      newline(level + 1, s.input);
      write(s.items[i], level + 1, s.input);
    }
    if (!s.items.empty()) newline(level, s.input);
    append(out, "]", s.input);
  }
  void write_key(const Value& key, bool input) {
    if (const Text* t = key.text()) return write_text(*t);
    if (!is_number(key) && !key.is<None>())
      fail_render("keys must be str, int, float, bool or None, not {}", type_name(key));
    append(out, "\"" + scalar(key) + "\"", input);
  }
  void write_dict(const Dict& d, size_t level) {
    std::vector<const std::pair<Value, Value>*> entries;
    const auto by_key = [&](size_t a, size_t b) { return order(d.entries[a].first, d.entries[b].first, meter_) < 0; };
    for (const auto& entry : d.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      const std::vector<size_t> sorted = stable_order(entries.size(), by_key);
      for (size_t i = 0; i < sorted.size(); ++i) entries[i] = &d.entries[sorted[i]];
    }
    append(out, "{", d.input);
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) append_marked(style_.item_separator, d.input);
      newline(level + 1, d.input);
      write_key(entries[i]->first, d.input);
      append_marked(style_.key_separator, d.input);
      write(entries[i]->second, level + 1, d.input);
    }
    if (!entries.empty()) newline(level, d.input);
    append(out, "}", d.input);
  }

  const JsonStyle& style_;
  Meter& meter_;
};

}  // namespace

std::string int_to_string(Int value) {
  return fmt::format("{}", value);
}

std::string float_to_string(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return python_float(value);
}

Text to_text(const Value& value, Meter& meter) {
  if (const Text* t = value.text()) return *t;
  if (value.is<Undefined>()) return {};
  return repr(value, meter);
}

Text repr(const Value& value, Meter& meter) {
  Printer printer(meter);
  printer.write(value, false);
  meter.text(printer.out.size());
  return std::move(printer.out);
}

Text to_json(const Value& value, const JsonStyle& style, Meter& meter) {
  JsonPrinter printer(style, meter);
  printer.write(value, 0, false);
  meter.text(printer.out.size());
  return std::move(printer.out);
}

}  // namespace moesaic::jinja
