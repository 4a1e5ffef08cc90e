// TextFiles: a model's tokenizer and chat template, as far as its directory has them.
#pragma once

#include <memory>
#include <optional>

#include "text/chat_format.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace moesaic {

struct TextFiles {
  std::unique_ptr<Tokenizer> tokenizer;  // null: the directory has no tokenizer.json
  std::optional<ChatTemplate> chat_template;
  ChatFormat chat_format = ChatFormat::plain;
  std::string template_error;  // why there is no chat template although the directory has one

  std::string directory;  // for messages

  // Throws Error for a broken tokenizer. A broken template matters only to chats: plain prompts still work.
  static TextFiles load(const std::filesystem::path& directory);

  // Throws Error(not_found) where there is none.
  const Tokenizer& need_tokenizer() const;
  // Whether there is a chat template, or an encoder in its place.
  bool has_chat() const;
  // The prompt of a conversation, ready for the assistant's answer.
  Result<std::vector<int32_t>> encode_chat(const ChatInput& input) const;
};

}  // namespace moesaic
