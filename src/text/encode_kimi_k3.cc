// The prompt of Kimi K3 (moonshotai/Kimi-K3 encoding_k3.py, as vllm-project/vllm carries it in
// vllm/tokenizers/encoding_k3.py; the fixed texts are the model's).
#include <fmt/format.h>

#include <span>

#include "text/prompt_writer.h"

namespace moesaic {
namespace {

struct Attribute {
  std::string_view name;
  std::string value;
};

std::string escape_attribute(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '&') out += "&amp;";
    else if (c == '"') out += "&quot;";
    else out += c;
  }
  return out;
}

const char* value_type(const Json& value) {
  switch (value.kind()) {
    case boost::json::kind::null: return "null";
    case boost::json::kind::bool_: return "boolean";
    case boost::json::kind::string: return "string";
    case boost::json::kind::array: return "array";
    case boost::json::kind::object: return "object";
    default: return "number";
  }
}

struct Writer {
  const ChatInput& input;
  bool thinking;
  PromptWriter out = {};
  Status status = {};

  void open(std::string_view tag, std::initializer_list<Attribute> attributes = {}) {
    out.fixed(fmt::format("<|open|>{}", tag));
    for (const Attribute& a : attributes) {
      out.fixed(fmt::format(" {}=\"", a.name));
      out.input(escape_attribute(a.value));
      out.fixed("\"");
    }
    out.fixed("<|sep|>");
  }
  void close(std::string_view tag) { out.fixed(fmt::format("<|close|>{}<|sep|>", tag)); }
  void open_message(const ChatMessage& m) {
    if (m.name.empty()) open("message", {{"role", m.role}});
    else open("message", {{"role", m.role}, {"name", m.name}});
  }
  void close_message() {
    close("message");
    out.fixed("<|end_of_msg|>");
  }

  // A message of the system about the request.
  void note(const char* type, std::string_view text, std::string_view json = {}, std::string_view after = {}) {
    open("message", {{"role", "system"}, {"type", type}});
    out.fixed(text);
    out.input(json);
    out.fixed(after);
    close_message();
  }

  void tools(const Json& value, bool more) {
    if (!has_tools(value)) return;
    const std::string text = more ? "## New Tools Available\nThe system dynamically extends the toolset via "
                                    "lazy-loading.\nYou have access to all existing and extended tools.\nHere are the "
                                    "specs for the extended tools.\n\n```json\n"
                                  : "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n";
    note("tool-declare", text, write_json(value, {.sort_keys = true, .compact = true}), "\n```");
  }

  void effort() {
    if (!thinking) return;
    std::string effort = read_word(input.kwargs, "reasoning_effort", "max");
    if (effort == "medium") effort = "high";
    effort = read_word(input.kwargs, "thinking_effort", effort);
    if (effort != "low" && effort != "medium" && effort != "high" && effort != "max") {
      const std::string what = fmt::format("thinking_effort is \"{}\": expected low, medium, high or max", effort);
      status = Status(StatusCode::invalid_argument, what, "chat_template_kwargs");
    }
    note("thinking-effort",
         "`thinking_effort` guides on how much to think in your thinking channel (not including the "
         "response channel), supported values include `low`, `medium`, `high`, and `max`.\nNow the "
         "system is invoked with `thinking_effort=" +
             effort + "`.");
  }

  void content(const ChatMessage& m) {
    for (const ChatPart& part : m.parts) {
      if (part.image) out.fixed("<|media_begin|>image<|media_content|><|media_pad|><|media_end|>");
      else out.input(part.text);
    }
  }

  void call(const ChatCall& c, size_t number) {
    open("call", {{"tool", c.name}, {"index", std::to_string(number)}});
    if (!c.arguments) {
      open("json", {{"type", "object"}});
      out.input(c.arguments_text);
      close("json");
    } else {
      for (const auto& [key, value] : *c.arguments) {
        open("argument", {{"key", std::string(key)}, {"type", value_type(value)}});
        out.input(value.is_string() ? std::string(value.get_string()) : write_json(value));
        close("argument");
      }
    }
    close("call");
  }

  void assistant(const ChatMessage& m) {
    open_message(m);
    if (thinking) {
      open("think");
      if (m.reasoning.find_first_not_of(" \n\r\t") != std::string::npos) out.input(m.reasoning);
      close("think");
    }
    open("response");
    content(m);
    close("response");
    if (!m.calls.empty()) {
      open("tools");
      for (size_t i = 0; i < m.calls.size(); ++i) call(m.calls[i], i + 1);
      close("tools");
    }
    close_message();
  }

  // `number`: 1 for the first result after an assistant's message, whose calls are `calls`.
  void tool(const ChatMessage& m, size_t message, size_t number, const std::vector<ChatCall>& calls) {
    std::string name = number <= calls.size() ? calls[number - 1].name : m.name;
    for (const ChatCall& c : calls)
      if (!m.call_id.empty() && c.id == m.call_id) name = c.name;
    if (name.empty()) {
      const std::string param = fmt::format("messages[{}]", message);
      const std::string what =
          " is a tool's result without a call: its tool_call_id must be one of the assistant's "
          "tool_calls before it, or \"name\" must say which tool it is from";
      status = Status(StatusCode::invalid_argument, param + what, param);
    }
    open("message", {{"role", "tool"}, {"tool", name}, {"index", std::to_string(number)}});
    content(m);
    close_message();
  }

  void conversation(const std::vector<ChatMessage>& messages) {
    std::vector<ChatCall> calls;
    size_t results = 0;
    for (size_t i = 0; i < messages.size() && status.ok(); ++i) {
      const ChatMessage& m = messages[i];
      if (m.role == "assistant") {
        assistant(m);
        calls = m.calls, results = 0;
      } else if (m.role == "tool") {
        tool(m, i, ++results, calls);
      } else if (m.role == "system" && has_tools(m.tools)) {
        tools(m.tools, true);
      } else {
        ChatMessage plain = m;
        if (m.role == "developer") plain.role = "system";  // K3 has no such role
        open_message(plain);
        content(m);
        close_message();
      }
    }
  }

  void choice() {
    const std::string choice = read_word(input.kwargs, "tool_choice", "");
    if (choice == "required")
      note("tool-choice",
           "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.");
    if (choice == "none")
      note("tool-choice",
           "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.");
  }

  void response_format() {
    const Json* format = json_find(input.kwargs, "response_format");
    if (format == nullptr || !format->is_object()) return;
    const std::string type = read_word(format->get_object(), "type", "");
    const std::string raw = "The system is invoked with `response_format=" + type +
                            "`.\nYour response must be raw JSON data without markdown code blocks (```json) or any "
                            "additional formatting.";
    if (type == "json_object") note("response-format", raw);
    if (type != "json_schema") return;
    const Json* wrapped = json_find(format->get_object(), "json_schema");
    const Json* schema =
        wrapped != nullptr && wrapped->is_object() ? json_find(wrapped->get_object(), "schema") : nullptr;
    note("response-format", raw + "\nThe JSON data must match the following schema:\n```json\n",
         schema == nullptr ? "null" : write_json(*schema, {.sort_keys = true, .compact = true}), "\n```");
  }
};

}  // namespace

Result<std::vector<RenderedSegment>> encode_kimi_k3(const ChatInput& input) {
  Result<std::vector<ChatMessage>> messages = read_messages(input.messages, true);
  if (!messages.ok()) return messages.status();
  sort_tool_results(*messages);
  Writer writer{.input = input, .thinking = read_switch(input.kwargs, {"thinking", "enable_thinking"}, true)};
  writer.tools(input.tools, false);
  writer.effort();
  writer.conversation(*messages);
  writer.choice();
  writer.response_format();
  if (!writer.status.ok()) return writer.status;
  if (input.add_generation_prompt) {
    writer.open("message", {{"role", "assistant"}});
    writer.open(writer.thinking ? "think" : "response");
  }
  return writer.out.take();
}

}  // namespace moesaic
