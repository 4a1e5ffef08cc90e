#include "server/tool_fields.h"

#include <fmt/format.h>

#include <algorithm>

namespace moesaic {
namespace {

bool is_tool_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == '-';
  };
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), allowed);
}

void missing(const Fields& fields, std::string_view key, std::string_view expected) {
  report(fields.error, 400, "missing_required_parameter",
         fmt::format("{} is missing; expected {}", fields.at(key), expected), fields.at(key));
}

void check_function(const Fields& function) {
  const auto name = function.string("name");
  if (!name) return missing(function, "name", "the tool's name");
  if (!is_tool_name(*name))
    function.invalid("name", fmt::format("{} is {}; expected 1 to 64 letters, digits, '_', '.' or '-'",
                                         function.at("name"), json_quote(clipped(*name))));
  function.string("description");
  function.object_at("parameters");
  function.boolean("strict", false);
}

void check_tool(const Json& tool, const std::string& path, ApiError& error) {
  if (!tool.is_object())
    return report(error, 400, "invalid_type", fmt::format("{} is {}; expected an object", path, json_kind(tool)), path);
  const Fields fields{tool.get_object(), path, error};
  const auto type = fields.string("type");
  if (!type) return missing(fields, "type", "\"function\"");
  if (*type != "function")
    return fields.invalid("type", fmt::format("{} is {}; the only type of tool here is \"function\"", fields.at("type"),
                                              json_quote(clipped(*type))));
  const JsonObject* function = fields.object_at("function");
  if (function == nullptr) return missing(fields, "function", "{\"name\": ..., \"parameters\": {...}}");
  check_function({*function, fields.at("function"), error});
}

void check_tools(const JsonArray& tools, const Fields& body) {
  if (tools.empty())
    report(body.error, 400, "empty_array", "tools is empty; expected at least one tool, or no tools at all", "tools");
  if (tools.size() > kMaxTools)
    body.invalid("tools", fmt::format("there are {} tools; expected at most {}", tools.size(), kMaxTools));
  for (size_t i = 0; i < std::min(tools.size(), kMaxTools); ++i)
    check_tool(tools[i], fmt::format("tools[{}]", i), body.error);
}

bool offers(const Json& tools, std::string_view name) {
  if (!tools.is_array() || name.empty()) return false;
  return std::any_of(tools.get_array().begin(), tools.get_array().end(), [&](const Json& tool) {
    return std::string_view(tool.at("function").at("name").as_string()) == name;
  });
}

void read_named(const JsonObject& choice, const Fields& body, ToolFields& out) {
  const Fields fields{choice, "tool_choice", body.error};
  const JsonObject* function = fields.object_at("function");
  const auto name = function != nullptr ? Fields{*function, "tool_choice.function", body.error}.string("name")
                                        : std::optional<std::string>();
  if (!name || fields.string("type").value_or("") != "function")
    return body.invalid("tool_choice",
                        "tool_choice is an object other than {\"type\": \"function\", \"function\": {\"name\": ...}}");
  out.choice = ToolFields::Choice::named, out.name = *name;
  if (body.error || offers(out.tools, *name)) return;
  body.invalid("tool_choice", fmt::format("tool_choice names {}, which is none of tools", json_quote(clipped(*name))));
}

void read_choice(const Json& choice, const Fields& body, ToolFields& out) {
  using Choice = ToolFields::Choice;
  if (choice.is_object()) return read_named(choice.get_object(), body, out);
  if (!choice.is_string()) return body.wrong_type("tool_choice", choice, "a string or an object");
  const std::string_view word = choice.get_string();
  if (word == "none") out.choice = Choice::none;
  else if (word == "auto") out.choice = Choice::automatic;
  else if (word == "required") out.choice = Choice::required;
  else
    return body.invalid("tool_choice", fmt::format("tool_choice is {}; expected none, auto, required or a function",
                                                   json_quote(clipped(word))));
  if (out.tools.is_null() && out.choice != Choice::none)
    body.invalid("tool_choice", fmt::format("tool_choice is {} and there are no tools; send tools with it", word));
}

}  // namespace

ToolFields read_tools(const Fields& body) {
  ToolFields out;
  if (const JsonArray* tools = body.array_at("tools")) {
    check_tools(*tools, body);
    out.tools = *tools;
    out.choice = ToolFields::Choice::automatic;
  }
  if (const Json* choice = body.find("tool_choice"); choice != nullptr && !body.error) read_choice(*choice, body, out);
  out.parallel = body.boolean("parallel_tool_calls", true);
  for (const char* old : {"functions", "function_call"})
    if (body.find(old) != nullptr)
      body.invalid(old, fmt::format("{} is no longer part of the API; send tools and tool_choice instead", old));
  return out;
}

}  // namespace moesaic
