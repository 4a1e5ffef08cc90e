// For the families that publish an encoder instead of a template: messages as plain data, and the prompt in segments.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_format.h"

namespace moesaic {

struct ChatCall {
  std::string id, name;
  std::optional<JsonObject> arguments;  // none where they are no JSON object
  std::string arguments_text;           // then as written
};

struct ChatPart {
  std::string text;
  bool image = false;
};

struct ChatMessage {
  std::string role;  // system, developer, user, assistant or tool
  std::string name;
  std::vector<ChatPart> parts;
  std::string reasoning;
  std::vector<ChatCall> calls;  // of an assistant
  std::string call_id;          // that a tool's message answers
  Json tools;                   // of a system message that brings tools, or null

  std::string text() const;  // of all parts
};

// invalid_argument naming the message and the field: a message that is no object, an unknown role, content that is
// neither text nor parts of text (or, with `images`, of images), malformed calls.
Result<std::vector<ChatMessage>> read_messages(const Json& messages, bool images);
// Results of one assistant's calls, in the order of the calls. Results of unknown calls keep their places.
void sort_tool_results(std::vector<ChatMessage>& messages);
// The last message that a user wrote; -1 for none.
int64_t last_user_message(const std::vector<ChatMessage>& messages);

// The first of these variables that is a boolean.
bool read_switch(const JsonObject& kwargs, std::initializer_list<std::string_view> names, bool fallback);
std::string read_word(const JsonObject& kwargs, std::string_view name, std::string_view fallback);

class PromptWriter {
 public:
  void fixed(std::string_view text) { add(text, false); }
  void input(std::string_view text) { add(text, true); }  // what special tokens are not looked for in
  std::vector<RenderedSegment> take() { return std::move(segments_); }

 private:
  void add(std::string_view text, bool literal);

  std::vector<RenderedSegment> segments_;
};

Result<std::vector<RenderedSegment>> encode_deepseek_v32(const ChatInput& input);
Result<std::vector<RenderedSegment>> encode_deepseek_v4(const ChatInput& input);
Result<std::vector<RenderedSegment>> encode_kimi_k3(const ChatInput& input);

// Shared by the two DeepSeek encoders.
inline constexpr const char* kDeepseekBos = "<｜begin▁of▁sentence｜>";
inline constexpr const char* kDeepseekEos = "<｜end▁of▁sentence｜>";
// <｜DSML｜BLOCK> with one invoke for each call.
void write_dsml_calls(PromptWriter& out, const std::vector<ChatCall>& calls, std::string_view block);
// The functions of tools, one JSON text a line.
std::string tool_schemas(const Json& tools);
bool has_tools(const Json& tools);

}  // namespace moesaic
