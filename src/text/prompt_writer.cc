#include "text/prompt_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace moesaic {
namespace {

// Reads one message; `status` is the first thing that is wrong.
struct MessageReader {
  size_t index = 0;
  bool images = false;
  Status status = {};

  void fail(const std::string& field, const std::string& what) {
    if (!status.ok()) return;
    const std::string param = fmt::format("messages[{}]{}{}", index, field.empty() ? "" : ".", field);
    status = Status(StatusCode::invalid_argument, param + " " + what, param);
  }

  std::string text_of(const JsonObject& object, std::string_view key, const std::string& field) {
    const Json* value = json_find(object, key);
    if (value == nullptr) return {};
    if (value->is_string()) return std::string(value->get_string());
    fail(field, "must be a string, not " + write_json(*value).substr(0, 40));
    return {};
  }

  void read_part(const Json& part, const std::string& field, ChatMessage& message) {
    if (part.is_string()) return message.parts.push_back({std::string(part.get_string()), false});
    const JsonObject* object = part.if_object();
    if (object == nullptr) return fail(field, "must be an object such as {\"type\": \"text\", \"text\": ...}");
    if (json_find(*object, "text") != nullptr)
      return message.parts.push_back({text_of(*object, "text", field + ".text"), false});
    const std::string type = text_of(*object, "type", field + ".type");
    const bool image = type == "image" || type == "image_url" || json_find(*object, "image_url") != nullptr;
    if (image && images) return message.parts.push_back({{}, true});
    fail(field, fmt::format("is of type \"{}\", but this model reads text only: send \"text\" parts", type));
  }

  void read_content(const JsonObject& object, ChatMessage& message) {
    const Json* content = json_find(object, "content");
    if (content == nullptr) return;
    if (content->is_string()) return message.parts.push_back({std::string(content->get_string()), false});
    const JsonArray* parts = content->if_array();
    if (parts == nullptr) return fail("content", "must be a string or an array of parts");
    for (size_t i = 0; i < parts->size(); ++i) read_part((*parts)[i], fmt::format("content[{}]", i), message);
  }

  void read_arguments(const JsonObject& function, ChatCall& call) {
    const Json* arguments = json_find(function, "arguments");
    if (arguments == nullptr) return void(call.arguments.emplace());
    if (arguments->is_object()) return void(call.arguments = arguments->get_object());
    call.arguments_text = arguments->is_string() ? std::string(arguments->get_string()) : write_json(*arguments);
    if (call.arguments_text.find_first_not_of(" \n\r\t") == std::string::npos) return void(call.arguments.emplace());
    try {
      const Json parsed = parse_json(call.arguments_text, "arguments");
      if (parsed.is_object()) call.arguments = parsed.get_object();
    } catch (const Error&) {
      // as it is
    }
  }

  void read_call(const Json& value, const std::string& field, ChatMessage& message) {
    const JsonObject* object = value.if_object();
    const Json* function = object == nullptr ? nullptr : json_find(*object, "function");
    if (function == nullptr || !function->is_object())
      return fail(field, "must be {\"id\": ..., \"type\": \"function\", \"function\": {\"name\", \"arguments\"}}");
    ChatCall call;
    call.id = text_of(*object, "id", field + ".id");
    call.name = text_of(function->get_object(), "name", field + ".function.name");
    if (call.name.empty()) fail(field + ".function.name", "is missing");
    read_arguments(function->get_object(), call);
    message.calls.push_back(std::move(call));
  }

  ChatMessage read(const Json& value) {
    ChatMessage message;
    const JsonObject* object = value.if_object();
    if (object == nullptr) return fail("", "must be an object with \"role\" and \"content\""), message;
    message.role = text_of(*object, "role", "role");
    const std::initializer_list<std::string_view> roles = {"system", "developer", "user", "assistant", "tool"};
    if (std::find(roles.begin(), roles.end(), message.role) == roles.end())
      fail("role", fmt::format("is \"{}\": expected system, developer, user, assistant or tool", message.role));
    message.name = text_of(*object, "name", "name");
    message.call_id = text_of(*object, "tool_call_id", "tool_call_id");
    message.reasoning = text_of(*object, "reasoning_content", "reasoning_content");
    if (message.reasoning.empty()) message.reasoning = text_of(*object, "reasoning", "reasoning");
    if (const Json* tools = json_find(*object, "tools")) message.tools = *tools;
    read_content(*object, message);
    const Json* calls = json_find(*object, "tool_calls");
    if (calls == nullptr) return message;
    if (!calls->is_array()) return fail("tool_calls", "must be an array"), message;
    for (size_t i = 0; i < calls->get_array().size(); ++i)
      read_call(calls->get_array()[i], fmt::format("tool_calls[{}]", i), message);
    return message;
  }
};

}  // namespace

std::string ChatMessage::text() const {
  std::string out;
  for (const ChatPart& part : parts) out += part.text;
  return out;
}

Result<std::vector<ChatMessage>> read_messages(const Json& messages, bool images) {
  const JsonArray* array = messages.if_array();
  if (array == nullptr || array->empty())
    return Status(StatusCode::invalid_argument, "messages must be an array of at least one message", "messages");
  std::vector<ChatMessage> out;
  for (size_t i = 0; i < array->size(); ++i) {
    MessageReader reader{.index = i, .images = images};
    out.push_back(reader.read((*array)[i]));
    if (!reader.status.ok()) return reader.status;
  }
  return out;
}

void sort_tool_results(std::vector<ChatMessage>& messages) {
  const std::vector<ChatCall>* calls = nullptr;
  const auto place = [&](const ChatMessage& m) {
    for (size_t i = 0; i < calls->size(); ++i)
      if (!m.call_id.empty() && (*calls)[i].id == m.call_id) return i;
    return calls->size();
  };
  for (size_t i = 0; i < messages.size();) {
    if (messages[i].role == "assistant") calls = &messages[i].calls;
    size_t end = i;
    bool known = calls != nullptr;
    for (; end < messages.size() && messages[end].role == "tool"; ++end)
      known = known && place(messages[end]) < calls->size();
    const auto at = messages.begin() + static_cast<std::ptrdiff_t>(i);
    if (known && end > i)
      std::stable_sort(at, at + static_cast<std::ptrdiff_t>(end - i),
                       [&](const ChatMessage& a, const ChatMessage& b) { return place(a) < place(b); });
    i = std::max(end, i + 1);
  }
}

int64_t last_user_message(const std::vector<ChatMessage>& messages) {
  for (size_t i = messages.size(); i-- > 0;)
    if (messages[i].role == "user" || messages[i].role == "developer") return static_cast<int64_t>(i);
  return -1;
}

bool read_switch(const JsonObject& kwargs, std::initializer_list<std::string_view> names, bool fallback) {
  for (const std::string_view name : names)
    if (const Json* value = kwargs.if_contains(name); value != nullptr && value->is_bool()) return value->get_bool();
  return fallback;
}

std::string read_word(const JsonObject& kwargs, std::string_view name, std::string_view fallback) {
  const Json* value = kwargs.if_contains(name);
  return std::string(value != nullptr && value->is_string() ? std::string_view(value->get_string()) : fallback);
}

void PromptWriter::add(std::string_view text, bool literal) {
  if (text.empty()) return;
  if (segments_.empty() || segments_.back().literal != literal) segments_.push_back({{}, literal});
  segments_.back().text += text;
}

bool has_tools(const Json& tools) {
  return tools.is_array() && !tools.get_array().empty();
}

std::string tool_schemas(const Json& tools) {
  std::string out;
  for (const Json& tool : tools.get_array()) {
    const JsonObject* object = tool.if_object();
    const Json* function = object == nullptr ? nullptr : object->if_contains("function");
    out += (out.empty() ? "" : "\n") + write_json(function == nullptr ? tool : *function);
  }
  return out;
}

void write_dsml_calls(PromptWriter& out, const std::vector<ChatCall>& calls, std::string_view block) {
  out.fixed(fmt::format("<｜DSML｜{}>\n", block));
  for (const ChatCall& call : calls) {
    out.fixed("<｜DSML｜invoke name=\"");
    out.input(call.name);
    out.fixed("\">\n");
    const JsonObject arguments =
        call.arguments ? *call.arguments : JsonObject{{"arguments", std::string_view(call.arguments_text)}};
    for (size_t i = 0; const auto& [key, value] : arguments) {
      out.fixed(i++ > 0 ? "\n<｜DSML｜parameter name=\"" : "<｜DSML｜parameter name=\"");
      out.input(key);
      out.fixed(value.is_string() ? "\" string=\"true\">" : "\" string=\"false\">");
      out.input(value.is_string() ? std::string(value.get_string()) : write_json(value));
      out.fixed("</｜DSML｜parameter>");
    }
    out.fixed("\n</｜DSML｜invoke>\n");
  }
  out.fixed(fmt::format("</｜DSML｜{}>", block));
}

bool has_encoder(ChatFormat format) {
  return format == ChatFormat::deepseek_v32 || format == ChatFormat::deepseek_v4 || format == ChatFormat::kimi_k3;
}

std::optional<Result<std::vector<RenderedSegment>>> encode_natively(ChatFormat format, const ChatInput& input) {
  switch (format) {
    case ChatFormat::deepseek_v32: return encode_deepseek_v32(input);
    case ChatFormat::deepseek_v4: return encode_deepseek_v4(input);
    case ChatFormat::kimi_k3: return encode_kimi_k3(input);
    default: return std::nullopt;
  }
}

}  // namespace moesaic
