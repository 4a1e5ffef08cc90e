// POST /v1/responses as a chat request.
#pragma once

#include "server/chat_request.h"
#include "server/response_store.h"

namespace moesaic {

struct TranslatedResponse {
  JsonObject chat;                 // the body of /v1/chat/completions that means the same
  std::vector<std::string> paths;  // of the input item behind each of its messages
  JsonArray items;                 // of the conversation, those of the previous response included
  JsonObject echoed;               // the fields that the answer repeats; sampling that was left open is null
  bool store = true;
};

TranslatedResponse translate_response(const JsonObject& body, const ResponseStore& stored, ApiError& error,
                                      const std::string& owner = {});

// Items of a conversation as messages: reasoning and calls join the assistant's message. Appends the path of the item
// behind each.
JsonArray messages_of(const JsonArray& items, std::vector<std::string>& paths, ApiError& error);

// An error of the chat request in the words of this endpoint.
void rename_chat_fields(ApiError& error);

}  // namespace moesaic
