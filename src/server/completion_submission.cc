#include "server/completion_submission.h"

#include <algorithm>

namespace moesaic {
namespace {

using Prompt = std::variant<std::string, std::vector<int32_t>>;

std::vector<int32_t> prompt_tokens(const ApiState& state, const CompletionRequest& completion, const Prompt& prompt,
                                   ApiError& error) {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) return *ids;
  if (state.tokenizer == nullptr) {
    report(error, 400, "unsupported_endpoint", "this model has no tokenizer.json; send token ids as the prompt",
           "prompt");
    return {};
  }
  return state.tokenizer->encode(std::get<std::string>(prompt), {.add_special_tokens = completion.add_special_tokens});
}

std::string prompt_text(const ApiState& state, const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return *text;
  return state.tokenizer != nullptr ? state.tokenizer->decode(std::get<std::vector<int32_t>>(prompt), false) : "";
}

// A length that the caller did not ask for gives way to the context.
int64_t most_tokens(const ApiState& state, const CompletionRequest& completion, int64_t prompt) {
  if (completion.answer.max_tokens) return *completion.answer.max_tokens;
  return std::max<int64_t>(std::min(kDefaultCompletionTokens, state.engine.info().max_model_len - prompt), 1);
}

}  // namespace

std::vector<Request> completion_engine_requests(const ApiState& state, const CompletionRequest& completion,
                                                CompletionView& view, ApiError& error) {
  std::vector<Request> out;
  Request common = completion.answer.request;
  if (const auto& structured = completion.answer.structured)
    common.grammar = compiled(state, structured->source, structured->param, error);
  for (const Prompt& prompt : completion.prompts) {
    if (error) break;
    Request request = common;
    request.tokens = prompt_tokens(state, completion, prompt, error);
    if (!error) check_prompt(state, request.tokens, "prompt", error);
    request.max_new_tokens = most_tokens(state, completion, std::ssize(request.tokens));
    view.answer.prompt_tokens.push_back(std::ssize(request.tokens));
    view.answer.prompt_ids.push_back(request.tokens);
    if (completion.echo) view.prompt_texts.push_back(prompt_text(state, prompt));
    for (Request& choice : with_choices(std::move(request), completion.answer.n)) out.push_back(std::move(choice));
  }
  return out;
}

}  // namespace moesaic
