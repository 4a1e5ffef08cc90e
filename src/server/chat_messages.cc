#include "server/chat_messages.h"

#include <fmt/format.h>

#include "base/error.h"

namespace moesaic {
namespace {

constexpr const char* kRoles = "system, developer, user, assistant or tool";

void missing(const Fields& fields, std::string_view key, std::string_view expected) {
  report(fields.error, 400, "missing_required_parameter",
         fmt::format("{} is missing; expected {}", fields.at(key), expected), fields.at(key));
}

struct Reader {
  const MessageRules& rules;
  ApiError& error;
  ChatMessages out = {};

  Json text_part(const Fields& part, std::string_view key);
  Json image_part(const Fields& part);
  Json read_part(const Json& part, const std::string& path);
  Json read_parts(const JsonArray& parts, const std::string& path);
  Json read_content(const Fields& message);
  void read_message(const Json& message, const std::string& path);
};

JsonObject typed_part(std::string_view type) {
  JsonObject part;
  part["type"] = type;
  return part;
}

Json Reader::text_part(const Fields& part, std::string_view key) {
  const auto text = part.string(key);
  if (!text) missing(part, key, "a string");
  JsonObject out_part = typed_part("text");
  out_part["text"] = text.value_or("");
  return out_part;
}

Json Reader::image_part(const Fields& part) {
  if (!rules.media.vision) {
    report(error, 400, "unsupported_content_type", part.path + " is an image, and this model reads text alone",
           part.path);
    return nullptr;
  }
  std::optional<std::string> url;
  const Json* image = part.find("image_url");
  if (image != nullptr && image->is_object()) {
    const Fields inner{image->get_object(), part.at("image_url"), error};
    url = inner.string("url");
    const std::string detail = inner.string("detail").value_or("auto");
    if (detail != "auto" && detail != "low" && detail != "high")
      inner.invalid("detail",
                    inner.at("detail") + " is " + json_quote(clipped(detail)) + "; expected auto, low or high");
  } else {
    url = part.string("image_url");
  }
  if (!url) missing(part, "image_url", "{\"url\": \"data:image/png;base64,...\"}");
  if (std::ssize(out.images) >= rules.media.max_images)
    report(error, 400, "image_limit_exceeded",
           fmt::format("the messages hold more than {} images, which is this server's limit", rules.media.max_images),
           part.path);
  if (error) return nullptr;
  out.images.push_back(load_image(*url, rules.media, part.path, error));
  out.image_params.push_back(part.path);
  return typed_part("image");
}

// A missing type is told from the field that is there.
std::string part_type(const Fields& part) {
  if (const auto type = part.string("type")) return *type;
  if (part.find("text") != nullptr) return "text";
  return part.find("image_url") != nullptr ? "image_url" : "";
}

Json Reader::read_part(const Json& part, const std::string& path) {
  if (!part.is_object()) {
    report(error, 400, "invalid_type", fmt::format("{} is {}; expected an object", path, json_kind(part)), path);
    return nullptr;
  }
  const Fields fields{part.get_object(), path, error};
  const std::string type = part_type(fields);
  if (type == "text") return text_part(fields, "text");
  if (type == "refusal") return text_part(fields, "refusal");
  if (type == "image_url") return image_part(fields);
  report(error, 400, "unsupported_content_type",
         fmt::format("{} has the type {}; expected text or image_url", path, json_quote(clipped(type))), path);
  return nullptr;
}

// Parts of text alone become one text, one line each: many templates know no parts.
Json Reader::read_parts(const JsonArray& parts, const std::string& path) {
  JsonArray read;
  bool images = false;
  std::string text;
  for (size_t i = 0; i < parts.size() && !error; ++i) {
    Json part = read_part(parts[i], fmt::format("{}[{}]", path, i));
    if (error) break;
    if (const Json* words = part.get_object().if_contains("text")) (text += i > 0 ? "\n" : "") += words->get_string();
    else images = true;
    read.push_back(std::move(part));
  }
  if (images) return read;
  return Json(text);
}

Json Reader::read_content(const Fields& message) {
  const Json* content = message.find("content");
  if (content == nullptr) return nullptr;
  if (content->is_string()) return *content;
  if (content->is_array()) return read_parts(content->get_array(), message.at("content"));
  message.wrong_type("content", *content, "a string or an array of parts");
  return nullptr;
}

// Templates read objects; text that is none is passed on as it is.
Json parsed_arguments(const std::string& text) {
  try {
    Json value = parse_json(text, "arguments");
    if (value.is_object()) return value;
  } catch (const Error&) {
  }
  return Json(text);
}

Json read_tool_call(const Json& call, const std::string& path, ApiError& error) {
  if (!call.is_object()) {
    report(error, 400, "invalid_type", fmt::format("{} is {}; expected an object", path, json_kind(call)), path);
    return nullptr;
  }
  const Fields fields{call.get_object(), path, error};
  const JsonObject* function = fields.object_at("function");
  if (function == nullptr) return missing(fields, "function", "{\"name\": ..., \"arguments\": \"{...}\"}"), nullptr;
  const Fields inner{*function, fields.at("function"), error};
  const auto name = inner.string("name");
  if (!name) missing(inner, "name", "the tool's name");
  const Json* arguments = inner.find("arguments");
  JsonObject read_function, out;
  read_function["name"] = name.value_or("");
  if (arguments != nullptr && arguments->is_object()) read_function["arguments"] = *arguments;
  else read_function["arguments"] = parsed_arguments(inner.string("arguments").value_or("{}"));
  if (const auto id = fields.string("id")) out["id"] = *id;
  out["type"] = "function";
  out["function"] = std::move(read_function);
  return out;
}

JsonArray read_tool_calls(const JsonArray& calls, const std::string& path, ApiError& error) {
  JsonArray out;
  for (size_t i = 0; i < calls.size() && !error; ++i)
    out.push_back(read_tool_call(calls[i], fmt::format("{}[{}]", path, i), error));
  return out;
}

void read_assistant(const Fields& message, const MessageRules& rules, JsonObject& out) {
  if (const JsonArray* calls = message.array_at("tool_calls"); calls != nullptr && !calls->empty())
    out["tool_calls"] = read_tool_calls(*calls, message.at("tool_calls"), message.error);
  if (out.at("content").is_null() && !out.contains("tool_calls"))
    report(message.error, 400, "invalid_value", message.path + " has neither content nor tool_calls", message.path);
  auto reasoning = message.string("reasoning_content");
  if (!reasoning) reasoning = message.string("reasoning");
  if (!reasoning) return;
  out["reasoning"] = *reasoning;
  out["reasoning_content"] = *reasoning;
  if (rules.thinking_key) out["thinking"] = *reasoning;
}

std::string read_role(const Fields& message, const MessageRules& rules) {
  const auto role = message.string("role");
  if (!role) return missing(message, "role", kRoles), "";
  if (*role == "developer") return rules.developer_role ? "developer" : "system";
  if (*role == "system" || *role == "user" || *role == "assistant" || *role == "tool") return *role;
  report(message.error, 400, "invalid_value",
         fmt::format("{}.role is {}; expected {}", message.path, json_quote(clipped(*role)), kRoles), message.path);
  return "";
}

void Reader::read_message(const Json& message, const std::string& path) {
  if (!message.is_object())
    return report(error, 400, "invalid_type", fmt::format("{} is {}; expected an object", path, json_kind(message)),
                  path);
  const Fields fields{message.get_object(), path, error};
  JsonObject read;
  const std::string role = read_role(fields, rules);
  if (error) return;
  read["role"] = role;
  read["content"] = read_content(fields);
  if (const auto name = fields.string("name")) read["name"] = *name;
  if (role == "assistant") read_assistant(fields, rules, read);
  else if (read["content"].is_null()) missing(fields, "content", "a string or an array of parts");
  if (const auto id = fields.string("tool_call_id")) read["tool_call_id"] = *id;
  else if (role == "tool") missing(fields, "tool_call_id", "the id of the call that this answers");
  out.messages.push_back(std::move(read));
}

}  // namespace

ChatMessages read_messages(const JsonArray& messages, const MessageRules& rules, ApiError& error) {
  Reader reader{rules, error};
  if (messages.empty())
    report(error, 400, "invalid_value", "messages is empty; expected at least one message", "messages");
  if (messages.size() > kMaxMessages)
    report(error, 400, "invalid_value",
           fmt::format("there are {} messages; expected at most {}", messages.size(), kMaxMessages), "messages");
  for (size_t i = 0; i < messages.size() && !error; ++i)
    reader.read_message(messages[i], rules.path ? rules.path(i) : fmt::format("messages[{}]", i));
  return std::move(reader.out);
}

}  // namespace moesaic
