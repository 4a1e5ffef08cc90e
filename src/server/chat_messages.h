// messages of a chat request: checked, and put in the form that chat templates read.
#pragma once

#include "server/media_url.h"

namespace moesaic {

constexpr size_t kMaxMessages = 10'000;

struct MessageRules {
  MediaRules media = {};
  bool developer_role = false;  // the family's template has one; otherwise it is a system message
  bool thinking_key = false;    // the family's template calls earlier reasoning `thinking` (harmony)
  // What to call message i in errors; by default messages[i].
  std::function<std::string(size_t)> path = {};
};

struct ChatMessages {
  JsonArray messages;
  std::vector<std::string> images;        // files, in order
  std::vector<std::string> image_params;  // the path of each
};

// Text parts become one string, parts with images stay an array without the images' data, arguments of tool calls
// become objects, and reasoning_content and reasoning each other's copy.
ChatMessages read_messages(const JsonArray& messages, const MessageRules& rules, ApiError& error);

}  // namespace moesaic
