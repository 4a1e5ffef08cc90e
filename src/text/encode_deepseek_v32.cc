// The prompt of DeepSeek V3.2 (deepseek-ai/DeepSeek-V3.2 encoding/encoding_dsv32.py; the fixed texts are the model's).
#include <fmt/format.h>

#include "text/prompt_writer.h"

namespace moesaic {
namespace {

constexpr const char* kToolsBefore =
    R"(## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>

String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:

<｜DSML｜function_calls>
...
</｜DSML｜function_calls>

<function_results>
...
</function_results>

<think>...thinking about results</think>

Here are the functions available in JSONSchema format:
<functions>
)";
constexpr const char* kToolsAfter = "\n</functions>\n";

struct Writer {
  const std::vector<ChatMessage>& messages;
  const ChatInput& input;
  bool thinking;
  int64_t last_user;
  PromptWriter out = {};
  Status status = {};

  // What the assistant's turn begins with.
  void think(size_t i) { out.fixed(thinking && static_cast<int64_t>(i) >= last_user ? "<think>" : "</think>"); }
  bool generates(size_t i) const { return i + 1 < messages.size() || input.add_generation_prompt; }

  void tools() {
    if (!has_tools(input.tools)) return;
    out.fixed("\n\n");
    out.fixed(kToolsBefore);
    out.input(tool_schemas(input.tools));
    out.fixed(kToolsAfter);
  }

  void user(size_t i) {
    out.fixed("<｜User｜>");
    if (messages[i].role == "developer") out.fixed("\n\n# The user's message is: ");
    out.input(messages[i].text());
    if (!generates(i)) return;
    out.fixed("<｜Assistant｜>");
    think(i);
  }

  void assistant(size_t i) {
    const ChatMessage& m = messages[i];
    if (thinking && static_cast<int64_t>(i) > last_user) {
      out.input(m.reasoning);
      out.fixed("</think>");
    }
    out.input(m.text());
    if (!m.calls.empty()) {
      out.fixed("\n\n");
      write_dsml_calls(out, m.calls, "function_calls");
    }
    out.fixed(kDeepseekEos);
  }

  // One result; the first and the last of a run also begin and end its block.
  void tool(size_t i) {
    size_t first = i;
    while (first > 0 && messages[first - 1].role == "tool") --first;
    const size_t calls = first > 0 ? messages[first - 1].calls.size() : 0;
    if (i - first >= calls) return fail(i, calls);
    if (i == first) out.fixed("\n\n<function_results>");
    out.fixed("\n<result>");
    out.input(messages[i].text());
    out.fixed("</result>");
    if (i + 1 < messages.size() && messages[i + 1].role == "tool") return;
    out.fixed("\n</function_results>");
    if (!generates(i)) return;
    out.fixed("\n\n");
    think(i);
  }

  void fail(size_t i, size_t calls) {
    const std::string param = fmt::format("messages[{}]", i);
    status = Status(StatusCode::invalid_argument,
                    fmt::format("{} is a tool's result, but the assistant's message before it has {} tool_calls: each "
                                "result must follow the message that called",
                                param, calls),
                    param);
  }

  void message(size_t i) {
    const std::string& role = messages[i].role;
    if (role == "assistant") return assistant(i);
    if (role == "tool") return tool(i);
    if (role != "system") return user(i);
    out.input(messages[i].text());
    if (i == 0) tools();
  }
};

}  // namespace

Result<std::vector<RenderedSegment>> encode_deepseek_v32(const ChatInput& input) {
  Result<std::vector<ChatMessage>> messages = read_messages(input.messages, false);
  if (!messages.ok()) return messages.status();
  sort_tool_results(*messages);
  Writer writer{.messages = *messages,
                .input = input,
                .thinking = read_switch(input.kwargs, {"thinking", "enable_thinking"}, false),
                .last_user = last_user_message(*messages)};
  writer.out.fixed(input.bos_token.value_or(kDeepseekBos));
  if (messages->front().role != "system") writer.tools();
  for (size_t i = 0; i < messages->size() && writer.status.ok(); ++i) writer.message(i);
  if (!writer.status.ok()) return writer.status;
  return writer.out.take();
}

}  // namespace moesaic
