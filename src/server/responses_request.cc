#include "server/responses_request.h"

#include <fmt/format.h>

namespace moesaic {
namespace {

// Of the same name and meaning in both endpoints.
constexpr std::string_view kShared[] = {"model",
                                        "stream",
                                        "temperature",
                                        "top_p",
                                        "top_k",
                                        "min_p",
                                        "seed",
                                        "presence_penalty",
                                        "stop",
                                        "stop_token_ids",
                                        "ignore_eos",
                                        "min_tokens",
                                        "logit_bias",
                                        "user",
                                        "frequency_penalty",
                                        "request_id",
                                        "priority",
                                        "cache_salt",
                                        "chat_template_kwargs",
                                        "repetition_penalty",
                                        "parallel_tool_calls",
                                        "reasoning_effort"};
// Of this endpoint alone, or without effect here.
constexpr std::string_view kOwn[] = {
    "input",    "instructions", "max_output_tokens", "tools",      "tool_choice",          "reasoning", "text",
    "metadata", "store",        "include",           "truncation", "previous_response_id", "background"};

void missing(ApiError& error, const std::string& param, std::string_view expected) {
  report(error, 400, "missing_required_parameter", fmt::format("{} is missing; expected {}", param, expected), param);
}

JsonObject text_part(const Json& text) {
  JsonObject part;
  part["type"] = "text";
  part["text"] = text;
  return part;
}

JsonObject image_part(const JsonObject& part) {
  JsonObject url, out;
  if (const Json* image = json_find(part, "image_url")) url["url"] = *image;
  if (const Json* detail = json_find(part, "detail")) url["detail"] = *detail;
  out["type"] = "image_url";
  out["image_url"] = std::move(url);
  return out;
}

// Parts in the words of chat messages; what is not known stays as it is, for the reader of messages to refuse.
Json chat_part(const Json& part) {
  const JsonObject* object = part.if_object();
  const Json* type = object != nullptr ? json_find(*object, "type") : nullptr;
  if (type == nullptr || !type->is_string()) return part;
  const std::string_view name = type->get_string();
  if (name == "input_text" || name == "output_text") {
    const Json* text = json_find(*object, "text");
    return text_part(text != nullptr ? *text : Json());
  }
  return name == "input_image" ? Json(image_part(*object)) : part;
}

Json chat_content(const Json* content) {
  if (content == nullptr || !content->is_array()) return content != nullptr ? *content : Json();
  JsonArray parts;
  for (const Json& part : content->get_array()) parts.push_back(chat_part(part));
  return parts;
}

struct Translator {
  std::vector<std::string>& paths;
  ApiError& error;
  JsonArray messages = {};
  std::string reasoning = {};  // waits for the assistant's message

  void add(JsonObject message, const std::string& path) {
    if (!reasoning.empty() && message["role"] == "assistant") {
      message["reasoning_content"] = reasoning;
      reasoning.clear();
    }
    messages.push_back(std::move(message));
    paths.push_back(path);
  }
  void read_message(const JsonObject& item, const std::string& path);
  void read_reasoning(const JsonObject& item);
  void read_call(const Fields& item);
  void read_output(const Fields& item);
  void read_item(const Json& item, const std::string& path);
};

void Translator::read_message(const JsonObject& item, const std::string& path) {
  JsonObject message;
  const Json* role = json_find(item, "role");
  message["role"] = role != nullptr ? *role : Json();
  message["content"] = chat_content(json_find(item, "content"));
  add(std::move(message), path);
}

void Translator::read_reasoning(const JsonObject& item) {
  const Json* content = json_find(item, "content");
  if (content == nullptr || !content->is_array()) return;
  for (const Json& part : content->get_array())
    if (const JsonObject* object = part.if_object())
      if (const Json* text = json_find(*object, "text"); text != nullptr && text->is_string())
        reasoning += text->get_string();
}

// Calls of one turn are one message, together with its text.
void Translator::read_call(const Fields& item) {
  const auto id = item.string("call_id"), name = item.string("name"), arguments = item.string("arguments");
  if (!id) return missing(error, item.at("call_id"), "the id of the call");
  if (!name) return missing(error, item.at("name"), "the tool's name");
  JsonObject function, call;
  function["name"] = *name;
  function["arguments"] = arguments.value_or("{}");
  call["id"] = *id;
  call["type"] = "function";
  call["function"] = std::move(function);
  if (messages.empty() || messages.back().at("role") != "assistant") {
    JsonObject message;
    message["role"] = "assistant";
    message["content"] = nullptr;
    add(std::move(message), item.path);
  }
  JsonObject& message = messages.back().get_object();
  if (!message.contains("tool_calls")) message["tool_calls"] = JsonArray();
  message["tool_calls"].get_array().push_back(std::move(call));
}

void Translator::read_output(const Fields& item) {
  const auto id = item.string("call_id");
  if (!id) return missing(error, item.at("call_id"), "the id of the call that this answers");
  const Json* output = item.find("output");
  if (output == nullptr) return missing(error, item.at("output"), "a string");
  JsonObject message;
  message["role"] = "tool";
  message["tool_call_id"] = *id;
  message["content"] = chat_content(output);
  add(std::move(message), item.path);
}

void Translator::read_item(const Json& item, const std::string& path) {
  if (!item.is_object())
    return report(error, 400, "invalid_type", fmt::format("{} is {}; expected an object", path, json_kind(item)), path);
  const Fields fields{item.get_object(), path, error};
  const std::string type = fields.string("type").value_or("message");
  if (type == "message") return read_message(item.get_object(), path);
  if (type == "reasoning") return read_reasoning(item.get_object());
  if (type == "function_call") return read_call(fields);
  if (type == "function_call_output") return read_output(fields);
  report(error, 400, "unsupported_content_type",
         fmt::format("{} has the type {}; expected message, reasoning, function_call or function_call_output", path,
                     json_quote(clipped(type))),
         path);
}

JsonArray input_items(const Fields& body) {
  const Json* input = body.find("input");
  if (input == nullptr) missing(body.error, "input", "a string or an array of items");
  else if (input->is_array()) return input->get_array();
  else if (!input->is_string()) body.wrong_type("input", *input, "a string or an array of items");
  if (body.error) return {};
  JsonObject message;
  message["type"] = "message";
  message["role"] = "user";
  message["content"] = *input;
  return {std::move(message)};
}

JsonArray previous_items(const Fields& body, const ResponseStore& stored, const std::string& owner) {
  const auto id = body.string("previous_response_id");
  if (!id) return {};
  if (!stored.enabled()) {
    body.invalid("previous_response_id",
                 "this server keeps no responses (--response-store-size is 0); send the whole conversation as input");
    return {};
  }
  auto items = stored.get(*id, owner);
  if (!items)
    report(body.error, 404, "previous_response_not_found",
           fmt::format("no response {} is kept here", json_quote(clipped(*id))), "previous_response_id");
  return items.value_or(JsonArray());
}

// {"type", "name", ...} with name and the rest in `function`.
Json nested_function(const Json& flat) {
  const JsonObject* object = flat.if_object();
  const Json* type = object != nullptr ? json_find(*object, "type") : nullptr;
  if (type == nullptr || *type != "function" || object->contains("function")) return flat;
  JsonObject function, out;
  for (const auto& item : *object)
    if (item.key() != "type") function[item.key()] = item.value();
  out["type"] = "function";
  out["function"] = std::move(function);
  return out;
}

void translate_tools(const Fields& body, JsonObject& chat) {
  // Agents send an empty list where the chat API wants none.
  if (const JsonArray* tools = body.array_at("tools"); tools != nullptr && !tools->empty()) {
    JsonArray nested;
    for (const Json& tool : *tools) nested.push_back(nested_function(tool));
    chat["tools"] = std::move(nested);
  }
  const Json* choice = body.find("tool_choice");
  const bool idle = choice != nullptr && *choice == "auto" && !chat.contains("tools");
  if (choice != nullptr && !idle) chat["tool_choice"] = nested_function(*choice);
}

void translate_format(const Fields& body, JsonObject& chat) {
  const JsonObject* text = body.object_at("text");
  const JsonObject* format = text != nullptr ? Fields{*text, "text", body.error}.object_at("format") : nullptr;
  if (format == nullptr) return;
  JsonObject schema, nested;
  for (const auto& item : *format)
    if (item.key() != "type") schema[item.key()] = item.value();
  if (const Json* type = json_find(*format, "type")) nested["type"] = *type;
  if (!schema.empty()) nested["json_schema"] = std::move(schema);
  chat["response_format"] = std::move(nested);
}

void translate_options(const Fields& body, JsonObject& chat) {
  for (const std::string_view key : kShared)
    if (const Json* value = body.find(key)) chat[key] = *value;
  if (const Json* most = body.find("max_output_tokens")) chat["max_completion_tokens"] = *most;
  if (const JsonObject* reasoning = body.object_at("reasoning"))
    if (const Json* effort = json_find(*reasoning, "effort")) chat["reasoning_effort"] = *effort;
  translate_tools(body, chat);
  translate_format(body, chat);
}

void refuse_unsupported(const Fields& body) {
  if (body.boolean("background", false))
    report(body.error, 400, "unsupported_parameter", "background: true is not supported here; wait for the answer",
           "background");
  for (const char* key : {"prompt", "conversation"})
    if (body.find(key) != nullptr)
      report(body.error, 400, "unsupported_parameter",
             fmt::format("{} is not supported here; send instructions and input", key), key);
}

Json value_or(const JsonObject& body, std::string_view key, Json fallback) {
  const Json* value = json_find(body, key);
  return value != nullptr ? *value : std::move(fallback);
}

JsonObject echoed_fields(const JsonObject& body) {
  JsonObject out;
  out["parallel_tool_calls"] = value_or(body, "parallel_tool_calls", true);
  out["temperature"] = value_or(body, "temperature", nullptr);
  out["top_p"] = value_or(body, "top_p", nullptr);
  out["tool_choice"] = value_or(body, "tool_choice", "auto");
  out["tools"] = value_or(body, "tools", JsonArray());
  out["instructions"] = value_or(body, "instructions", nullptr);
  out["max_output_tokens"] = value_or(body, "max_output_tokens", nullptr);
  out["previous_response_id"] = value_or(body, "previous_response_id", nullptr);
  out["metadata"] = value_or(body, "metadata", JsonObject());
  return out;
}

void replace_first(std::string& text, std::string_view from, std::string_view to) {
  if (const size_t at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
}

}  // namespace

JsonArray messages_of(const JsonArray& items, std::vector<std::string>& paths, ApiError& error) {
  Translator translator{paths, error};
  for (size_t i = 0; i < items.size() && !error; ++i) translator.read_item(items[i], fmt::format("input[{}]", i));
  return std::move(translator.messages);
}

TranslatedResponse translate_response(const JsonObject& body, const ResponseStore& stored, ApiError& error,
                                      const std::string& owner) {
  const Fields fields{body, "", error};
  TranslatedResponse out;
  refuse_unsupported(fields);
  out.items = previous_items(fields, stored, owner);
  const size_t before = out.items.size();
  for (Json& item : input_items(fields)) out.items.push_back(std::move(item));
  JsonArray messages;
  if (const auto instructions = fields.string("instructions")) {
    JsonObject system;
    system["role"] = "system";
    system["content"] = *instructions;
    messages.push_back(std::move(system));
    out.paths.push_back("instructions");
  }
  for (Json& message : messages_of(out.items, out.paths, error)) messages.push_back(std::move(message));
  translate_options(fields, out.chat);
  out.chat["messages"] = std::move(messages);
  out.echoed = echoed_fields(body);
  out.store = fields.boolean("store", true);
  if (before > 0 && error.param.starts_with("input[")) error.message += " (counted from the previous responses' items)";
  std::vector<std::string_view> known(std::begin(kShared), std::end(kShared));
  known.insert(known.end(), std::begin(kOwn), std::end(kOwn));
  log_unknown_fields(body, known, "/v1/responses");
  return out;
}

void rename_chat_fields(ApiError& error) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {{"response_format.json_schema", "text.format"},
                                                                      {"response_format", "text.format"},
                                                                      {"max_completion_tokens", "max_output_tokens"},
                                                                      {"reasoning_effort", "reasoning.effort"},
                                                                      {"].function", "]"},
                                                                      {"messages", "input"}};
  for (const auto& [from, to] : kNames) {
    replace_first(error.param, from, to);
    replace_first(error.message, from, to);
  }
}

}  // namespace moesaic
