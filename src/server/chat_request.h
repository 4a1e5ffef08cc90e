// ChatRequest: the body of POST /v1/chat/completions, checked.
#pragma once

#include "server/answer_options.h"
#include "server/chat_messages.h"
#include "server/tool_fields.h"

namespace moesaic {

struct ChatRequest {
  AnswerOptions answer;
  ChatMessages conversation;
  ToolFields tools;
  JsonObject template_kwargs;  // the server's defaults, the caller's, and what reasoning_effort means to the family
  std::optional<std::string> chat_template;  // the caller's own
  bool add_generation_prompt = true, continue_final_message = false, add_special_tokens = false;
  bool include_reasoning = true;
};

// The first thing wrong is left in `error`. `path`: what to call message i in errors, where it was made from something
// else (see MessageRules).
ChatRequest read_chat_request(const JsonObject& body, const ModelFacts& facts, ApiError& error,
                              std::function<std::string(size_t)> path = {});

// The part that decides on the prompt, for /tokenize and /apply-template.
void read_prompt_fields(const Fields& body, const ModelFacts& facts, ChatRequest& out,
                        std::function<std::string(size_t)> path = {});

}  // namespace moesaic
