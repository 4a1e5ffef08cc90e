// From the messages of a chat request to the tokens of its prompt.
#pragma once

#include "engine/text_files.h"
#include "server/chat_request.h"

namespace moesaic {

struct ChatPrompt {
  std::vector<RenderedSegment> segments;
  std::vector<int32_t> tokens;
};

// The templates that a server has, in the order in which they are taken: the caller's (where trusted), the server's
// own, the family's encoder, the checkpoint's.
struct PromptWriter {
  const TextFiles& files;
  ChatFormat format = ChatFormat::plain;
  std::optional<ChatTemplate> server_template = {};
};

// Text of messages never becomes a special token. With continue_final_message the prompt ends after the last message's
// text. Errors: what a template refuses, a template that is none, no template at all.
ChatPrompt write_prompt(const ChatRequest& request, const PromptWriter& writer, ApiError& error);

// Cuts `segments` after the last place where `text` comes from a message; false: there is none.
bool cut_after(std::vector<RenderedSegment>& segments, std::string_view text);

}  // namespace moesaic
