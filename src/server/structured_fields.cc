#include "server/structured_fields.h"

#include <fmt/format.h>

#include <algorithm>

namespace moesaic {
namespace {

using Kind = GrammarSource::Kind;

enum class Spelling : uint8_t { schema, text, choice, flag };

struct Constraint {
  const char* key;
  Spelling spelling;
  Kind kind;
};
constexpr Constraint kNested[] = {{"json", Spelling::schema, Kind::json_schema},
                                  {"regex", Spelling::text, Kind::regex},
                                  {"choice", Spelling::choice, Kind::regex},
                                  {"grammar", Spelling::text, Kind::grammar},
                                  {"json_object", Spelling::flag, Kind::json_object}};
constexpr Constraint kTop[] = {{"guided_json", Spelling::schema, Kind::json_schema},
                               {"guided_regex", Spelling::text, Kind::regex},
                               {"guided_choice", Spelling::choice, Kind::regex},
                               {"guided_grammar", Spelling::text, Kind::grammar},
                               {"regex", Spelling::text, Kind::regex},
                               {"ebnf", Spelling::text, Kind::grammar},
                               {"json_schema", Spelling::schema, Kind::json_schema}};

// A schema is an object, true, false, or the text of one.
std::optional<std::string> schema_text(const Fields& fields, std::string_view key) {
  const Json* value = fields.find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return std::string(value->get_string());
  if (value->is_object() || value->is_bool()) return write_json(*value, {.compact = true});
  fields.wrong_type(key, *value, "a JSON schema");
  return std::nullopt;
}

std::optional<std::string> choice_text(const Fields& fields, std::string_view key) {
  const JsonArray* array = fields.array_at(key);
  if (array == nullptr) return std::nullopt;
  std::vector<std::string> choices;
  for (const Json& item : *array)
    if (item.is_string() && !item.get_string().empty()) choices.emplace_back(item.get_string());
  if (choices.empty() || choices.size() != array->size())
    fields.invalid(key, fields.at(key) + " is not a list of one or more non-empty strings");
  return choice_regex(choices);
}

std::optional<std::string> constraint_text(const Fields& fields, const Constraint& constraint) {
  switch (constraint.spelling) {
    case Spelling::schema: return schema_text(fields, constraint.key);
    case Spelling::text: return fields.string(constraint.key);
    case Spelling::choice: return choice_text(fields, constraint.key);
    case Spelling::flag: break;
  }
  return fields.boolean(constraint.key, false) ? std::optional<std::string>("") : std::nullopt;
}

void collect(const Fields& fields, std::span<const Constraint> constraints, std::vector<StructuredOutput>& found) {
  for (const Constraint& constraint : constraints)
    if (auto text = constraint_text(fields, constraint))
      found.push_back({{constraint.kind, std::move(*text)}, fields.at(constraint.key)});
}

std::optional<StructuredOutput> read_json_schema(const Fields& format, bool flat) {
  const JsonObject* nested = flat ? &format.object : format.object_at("json_schema");
  if (nested == nullptr) {
    report(
        format.error, 400, "missing_required_parameter",
        format.path + ".type is json_schema, and json_schema is missing; expected {\"name\": ..., \"schema\": {...}}",
        format.path);
    return std::nullopt;
  }
  const Fields inner{*nested, flat ? format.path : format.at("json_schema"), format.error};
  inner.string("name");
  const std::string param = inner.at("schema");
  auto text = schema_text(inner, "schema");
  if (!text) {
    report(format.error, 400, "missing_required_parameter", param + " is missing; expected a JSON schema", param);
    return std::nullopt;
  }
  return StructuredOutput{{Kind::json_schema, std::move(*text)}, param};
}

}  // namespace

std::string choice_regex(const std::vector<std::string>& choices) {
  std::string out;
  for (const std::string& choice : choices) {
    out += out.empty() ? "(" : "|";
    for (const char c : choice) {
      if (std::string_view("\\^$.|?*+()[]{}/-").find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
  }
  return out + ")";
}

std::optional<StructuredOutput> read_format(const Fields& format, bool flat) {
  const auto type = format.string("type");
  const std::string param = format.at("type");
  if (!type) {
    report(format.error, 400, "missing_required_parameter",
           param + " is missing; expected text, json_object or json_schema", param);
    return std::nullopt;
  }
  if (*type == "text") return std::nullopt;
  if (*type == "json_object") return StructuredOutput{{Kind::json_object, ""}, param};
  if (*type == "json_schema") return read_json_schema(format, flat);
  format.invalid("type",
                 fmt::format("{} is {}; expected text, json_object or json_schema", param, json_quote(clipped(*type))));
  return std::nullopt;
}

std::optional<StructuredOutput> read_structured_output(const Fields& body) {
  std::vector<StructuredOutput> found;
  if (const JsonObject* format = body.object_at("response_format"))
    if (auto output = read_format({*format, body.at("response_format"), body.error}, false))
      found.push_back(std::move(*output));
  if (const JsonObject* outputs = body.object_at("structured_outputs"))
    collect({*outputs, body.at("structured_outputs"), body.error}, kNested, found);
  collect(body, kTop, found);
  if (found.empty()) return std::nullopt;
  if (found.size() > 1)
    report(body.error, 400, "invalid_value",
           fmt::format("{} and {} both say what the answer must be; send one", found[0].param, found[1].param),
           found[1].param);
  return std::move(found[0]);
}

}  // namespace moesaic
