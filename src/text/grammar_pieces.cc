#include <fmt/format.h>

#include "base/error.h"
#include "text/answer_grammar.h"
#include "text/unicode.h"

namespace moesaic {
namespace {

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool continues_name(char c) {
  return begins_name(c) || (c >= '0' && c <= '9') || c == '-' || c == '.';
}

// The end of what begins with `text[at]`, which is one of "([/" and closed by `close`; backslashes escape.
size_t end_of_quoted(std::string_view text, size_t at, char close) {
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\') ++i;
    else if (text[i] == close) return i + 1;
  }
  return text.size();
}

// The end of a JSON value in braces.
size_t end_of_braces(std::string_view text, size_t at) {
  int depth = 0;
  while (at < text.size()) {
    if (text[at] == '"') {
      at = end_of_quoted(text, at, '"');
      continue;
    }
    depth += text[at] == '{' ? 1 : text[at] == '}' ? -1 : 0;
    ++at;
    if (depth == 0) break;
  }
  return at;
}

// The end of a directive: %text, %json_object, %json{...}, %regex/.../.
size_t end_of_directive(std::string_view text, size_t at) {
  size_t end = at + 1;
  while (end < text.size() && continues_name(text[end])) ++end;
  if (end < text.size() && text[end] == '{') return end_of_braces(text, end);
  if (end < text.size() && text[end] == '/') return end_of_quoted(text, end, '/');
  return end;
}

size_t end_of_line(std::string_view text, size_t at) {
  return std::min(text.find('\n', at), text.size());
}

// What is copied as it stands from `at` on; `at` itself when a name or a single character stands there.
size_t end_of_verbatim(std::string_view text, size_t at) {
  switch (text[at]) {
    case '"': return end_of_quoted(text, at, '"');
    case '[': return end_of_quoted(text, at, ']');
    case '#': return end_of_line(text, at);
    case '%': return end_of_directive(text, at);
    default: return at;
  }
}

// A grammar with "user-" before the names of its rules, and the name of the rule that it begins with.
struct Renamed {
  std::string text, entry;
};

bool is_defined_at(std::string_view text, size_t after_name) {
  const size_t next = text.find_first_not_of(" \t\r\n", after_name);
  return next != std::string_view::npos && text.substr(next).starts_with("::=");
}

Renamed rename_rules(std::string_view text) {
  Renamed out;
  for (size_t at = 0; at < text.size();) {
    size_t end = end_of_verbatim(text, at);
    if (end == at && begins_name(text[at])) {
      while (end < text.size() && continues_name(text[end])) ++end;
      const std::string name = "user-" + std::string(text.substr(at, end - at));
      if ((out.entry.empty() || name == "user-root") && is_defined_at(text, end)) out.entry = name;
      out.text += "user-";
    }
    end = std::max(end, at + 1);
    out.text += text.substr(at, end - at);
    at = end;
  }
  return out;
}

// Slashes end the directive, newlines the line.
std::string escaped_regex(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\' && i + 1 < pattern.size()) {
      out += pattern[i++];
      out += pattern[i];
    } else if (pattern[i] == '/') {
      out += "\\/";
    } else if (pattern[i] == '\n') {
      out += "\\n";
    } else {
      out += pattern[i];
    }
  }
  return out;
}

Result<std::string> embed_schema(const std::string& text) {
  try {
    const std::string schema = write_json(parse_json(text, "the JSON schema"), {.compact = true});
    return schema.starts_with('{') ? "%json" + schema : "%json{\"allOf\":[" + schema + "]}";  // true or false
  } catch (const Error& error) {
    return Status(StatusCode::invalid_argument, error.what(), "response_format.json_schema.schema");
  }
}

// What "$ref": "#/$defs/name" stands for; null when it is something else.
const Json* referenced(const JsonObject& schema, const JsonObject& whole) {
  const Json* reference = schema.if_contains("$ref");
  if (reference == nullptr || !reference->is_string()) return nullptr;
  std::string_view path = reference->get_string();
  const JsonObject* at = &whole;
  if (!path.starts_with("#/")) return nullptr;
  for (path.remove_prefix(2);;) {
    const size_t slash = path.find('/');
    const Json* next = at->if_contains(path.substr(0, slash));
    if (next == nullptr || slash == std::string_view::npos) return next;
    at = next->if_object();
    if (at == nullptr) return nullptr;
    path.remove_prefix(slash + 1);
  }
}

void add_variants(const Json& schema, const JsonObject& whole, std::vector<SchemaVariant>& out, int depth) {
  const JsonObject* object = schema.if_object();
  const auto all = [&](const JsonArray& list) {
    for (const Json& alternative : list) add_variants(alternative, whole, out, depth + 1);
  };
  if (object != nullptr && depth <= 8)
    if (const Json* meant = referenced(*object, whole)) return add_variants(*meant, whole, out, depth + 1);
  if (object == nullptr || depth > 8) return out.push_back({"", schema});
  for (const char* key : {"anyOf", "oneOf"})
    if (const Json* list = object->if_contains(key); list != nullptr && list->is_array()) return all(list->get_array());
  const Json* type = object->if_contains("type");
  if (type == nullptr) {
    const Json* values = object->if_contains("enum");
    const Json* constant = object->if_contains("const");
    bool strings = values != nullptr && values->is_array() && !values->get_array().empty();
    if (strings)
      for (const Json& v : values->get_array()) strings = strings && v.is_string();
    return out.push_back({strings || (constant != nullptr && constant->is_string()) ? "string" : "", schema});
  }
  const JsonArray types = type->is_array() ? type->get_array() : JsonArray{*type};
  for (const Json& t : types) {
    if (!t.is_string()) continue;
    JsonObject restricted = *object;
    restricted["type"] = t;
    const std::string name = t.get_string() == "integer" ? "number" : std::string(t.get_string());
    out.push_back({name, Json(restricted)});
  }
}

}  // namespace

std::string grammar_literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\', out += c;
    else if (c == '\n') out += "\\n";
    else if (c == '\r') out += "\\r";
    else if (c == '\t') out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20) out += fmt::format("\\x{:02x}", c);
    else out += c;
  }
  return out + "\"";
}

Result<std::string> embed_source(const GrammarSource& source, std::string& rules) {
  switch (source.kind) {
    case GrammarSource::Kind::json_object: return std::string("%json_object");
    case GrammarSource::Kind::json_schema: return embed_schema(source.text);
    case GrammarSource::Kind::regex: return "%regex/" + escaped_regex(source.text) + "/";
    case GrammarSource::Kind::grammar: break;
  }
  const Renamed renamed = rename_rules(source.text);
  if (renamed.entry.empty())
    return Status(StatusCode::invalid_argument, "the grammar has no rules: write at least root ::= ...");
  rules += renamed.text + "\n";
  return renamed.entry;
}

std::vector<SchemaVariant> schema_variants(const Json& schema, const JsonObject& whole) {
  std::vector<SchemaVariant> out;
  add_variants(schema, whole, out, 0);
  if (out.empty()) out.push_back({"", schema});
  return out;
}

void GrammarRules::add(std::string_view name, std::string_view expression) {
  text_ += fmt::format("{} ::= {}\n", name, expression);
}

std::string GrammarRules::marker(std::string_view name) const {
  const auto id = tokenizer_->token_to_id(name);
  return id ? fmt::format("<[{}]>", *id) : grammar_literal(name);
}

// Letters: the automaton of Knuth, Morris and Pratt, one rule for each beginning of the marker.
std::string GrammarRules::text_before(std::string_view end) {
  if (tokenizer_->token_to_id(end)) return "%text";
  if (const auto found = texts_.find(end); found != texts_.end()) return found->second;
  std::vector<std::string> letters;
  for (size_t at = 0; at < end.size();) {
    const size_t size = code_point_at(end, at).size;
    letters.emplace_back(end.substr(at, size));
    at += size;
  }
  const std::string name = fmt::format("before-{}", texts_.size());
  const auto join = [&](size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += letters[i];
    return out;
  };
  std::vector<std::string> distinct;
  std::string others = "[^";
  for (const std::string& letter : letters) {
    if (std::find(distinct.begin(), distinct.end(), letter) != distinct.end()) continue;
    distinct.push_back(letter);
    others += letter == "]" || letter == "\\" || letter == "^" || letter == "-" ? "\\" + letter : letter;
  }
  for (size_t state = 0; state < letters.size(); ++state) {
    std::string rule = "\"\"";
    for (const std::string& letter : distinct) {
      const std::string seen = join(state) + letter;
      size_t next = std::min(state + 1, letters.size());
      while (!seen.ends_with(join(next))) --next;
      if (next < letters.size()) rule += fmt::format(" | {} {}-{}", grammar_literal(letter), name, next);
    }
    add(fmt::format("{}-{}", name, state), rule + fmt::format(" | {}] {}-0", others, name));
  }
  return texts_[std::string(end)] = name + "-0";
}

std::string GrammarRules::json_arguments(const Json& parameters) const {
  if (!parameters.is_object() || parameters.get_object().empty()) return "%json_object";
  return "%json" + write_json(parameters, {.compact = true});
}

}  // namespace moesaic
