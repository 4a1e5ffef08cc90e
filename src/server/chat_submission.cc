// From a checked chat request to what the engine takes.
#include <fmt/format.h>

#include "server/api_state.h"

namespace moesaic {
namespace {

using Choice = ToolFields::Choice;

// What the answer must be, where the caller says so: a format, calls of tools, or both.
std::shared_ptr<const Grammar> chat_grammar(const ApiState& state, const ChatRequest& chat,
                                            const std::vector<int32_t>& prompt, ApiError& error) {
  const ToolFields& tools = chat.tools;
  const bool calls = tools.choice == Choice::required || tools.choice == Choice::named;
  if (!chat.answer.structured && !calls) return nullptr;
  AnswerShape shape;
  if (chat.answer.structured) shape.content = chat.answer.structured->source;
  if (tools.choice != Choice::none) shape.tools = tools.tools;
  shape.calls_required = calls;
  shape.tool = tools.name;
  shape.parallel = tools.parallel;
  const std::string param = chat.answer.structured ? chat.answer.structured->param : "tools";
  auto source = answer_grammar(state.format, *state.tokenizer, prompt, shape);
  if (source.ok()) return compiled(state, *source, param, error);
  report(error, 400, "invalid_schema", source.status().message(), param);
  return nullptr;
}

}  // namespace

Request chat_engine_request(const ApiState& state, ChatRequest& chat, ApiError& error) {
  Request request = std::move(chat.answer.request);
  if (state.tokenizer == nullptr) {
    report(error, 400, "unsupported_endpoint", "this model has no tokenizer.json, which text needs", "messages");
    return request;
  }
  request.tokens = write_prompt(chat, state.writer, error).tokens;
  if (!error) check_prompt(state, request.tokens, chat.answer.names.prompt, error);
  if (!error) request.grammar = chat_grammar(state, chat, request.tokens, error);
  request.images = std::move(chat.conversation.images);
  request.max_new_tokens = chat.answer.max_tokens.value_or(0);
  if (chat.tools.choice != Choice::none && chat.tools.tools.is_array()) request.tools = write_json(chat.tools.tools);
  return request;
}

}  // namespace moesaic
