// The prompt of DeepSeek V4 (deepseek-ai/DeepSeek-V4 encoding/encoding_dsv4.py, as sgl-project/sglang carries it in
// python/sglang/srt/entrypoints/openai/encoding_dsv4.py; the fixed texts are the model's).
#include <fmt/format.h>

#include "text/prompt_writer.h"

namespace moesaic {
namespace {

constexpr const char* kMaximum =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";

constexpr const char* kToolsBefore =
    R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
constexpr const char* kToolsAfter =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

// Users and tools share turns: what follows one without an assistant in between goes on in the same turn.
struct Turn {
  std::string role;  // of its first message; a tool's is the user's
  std::vector<const ChatMessage*> messages;
};

std::vector<Turn> turns_of(const std::vector<ChatMessage>& messages) {
  std::vector<Turn> turns;
  for (const ChatMessage& m : messages) {
    const std::string role = m.role == "tool" ? "user" : m.role;
    if (role != "user" || turns.empty() || turns.back().role != "user") turns.push_back({role, {}});
    turns.back().messages.push_back(&m);
  }
  return turns;
}

struct Writer {
  const std::vector<Turn>& turns;
  const ChatInput& input;
  bool thinking, keep_reasoning;
  size_t last_user;  // turns.size(): none
  PromptWriter out = {};

  void tools() {
    if (!has_tools(input.tools)) return;
    out.fixed("\n\n");
    out.fixed(kToolsBefore);
    out.input(tool_schemas(input.tools));
    out.fixed(kToolsAfter);
  }

  bool thinks(size_t i) const { return thinking && (keep_reasoning || last_user == turns.size() || i >= last_user); }

  void user(size_t i) {
    out.fixed("<｜User｜>");
    for (const ChatMessage* m : turns[i].messages) {
      if (m != turns[i].messages.front()) out.fixed("\n\n");
      if (m->role == "tool") out.fixed("<tool_result>");
      out.input(m->text());
      if (m->role == "tool") out.fixed("</tool_result>");
    }
    const bool last = i + 1 == turns.size();
    if (last ? !input.add_generation_prompt : turns[i + 1].role != "assistant") return;
    out.fixed("<｜Assistant｜>");
    out.fixed(thinks(i) ? "<think>" : "</think>");
  }

  void assistant(size_t i) {
    const ChatMessage& m = *turns[i].messages.front();
    if (thinks(i)) {
      out.input(m.reasoning);
      out.fixed("</think>");
    }
    out.input(m.text());
    if (!m.calls.empty()) {
      out.fixed("\n\n");
      write_dsml_calls(out, m.calls, "tool_calls");
    }
    out.fixed(kDeepseekEos);
  }

  void turn(size_t i) {
    const std::string& role = turns[i].role;
    if (role == "assistant") return assistant(i);
    if (role != "system") {
      // A developer's message before the last user's goes with the reasoning of its turn.
      const bool dropped = role == "developer" && thinking && !keep_reasoning && i < last_user;
      return dropped ? void() : user(i);
    }
    out.input(turns[i].messages.front()->text());
    if (i == 0) tools();
  }
};

size_t last_user_turn(const std::vector<Turn>& turns) {
  for (size_t i = turns.size(); i-- > 0;)
    if (turns[i].role == "user" || turns[i].role == "developer") return i;
  return turns.size();
}

}  // namespace

Result<std::vector<RenderedSegment>> encode_deepseek_v4(const ChatInput& input) {
  Result<std::vector<ChatMessage>> messages = read_messages(input.messages, false);
  if (!messages.ok()) return messages.status();
  sort_tool_results(*messages);
  const std::vector<Turn> turns = turns_of(*messages);
  Writer writer{.turns = turns,
                .input = input,
                .thinking = read_switch(input.kwargs, {"thinking", "enable_thinking"}, false),
                .keep_reasoning = has_tools(input.tools),
                .last_user = last_user_turn(turns)};
  writer.out.fixed(input.bos_token.value_or(kDeepseekBos));
  if (writer.thinking && read_word(input.kwargs, "reasoning_effort", "high") == "max") writer.out.fixed(kMaximum);
  if (turns.front().role != "system") writer.tools();
  for (size_t i = 0; i < turns.size(); ++i) writer.turn(i);
  return writer.out.take();
}

}  // namespace moesaic
