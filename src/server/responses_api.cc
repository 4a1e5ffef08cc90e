#include "server/responses_api.h"

#include <fmt/format.h>

#include <string>

#include "server/auth.h"
#include "server/response_answer.h"
#include "server/responses_request.h"

namespace moesaic {
namespace {

// 0.8f is 0.8, not 0.800000011920929.
double shortest(float value) {
  return std::stod(fmt::format("{}", value));
}

ResponseView response_view(const ApiState& state, const ExchangePtr& exchange, const ChatRequest& chat,
                           TranslatedResponse& translated) {
  ResponseView view;
  view.answer = answer_view(state, exchange, chat.answer, "resp_");
  view.echoed = std::move(translated.echoed);
  const SamplingParams& sampling = chat.answer.request.sampling;
  if (Json& value = view.echoed["temperature"]; value.is_null()) value = shortest(sampling.temperature);
  if (Json& value = view.echoed["top_p"]; value.is_null()) value = shortest(sampling.top_p);
  view.include_reasoning = chat.include_reasoning;
  view.parallel_calls = chat.tools.parallel;
  return view;
}

// Keeps the conversation, this answer included.
std::function<void(const JsonArray&)> keep(const std::shared_ptr<ApiState>& state, std::string id, std::string owner,
                                           TranslatedResponse& translated) {
  if (!translated.store || !state->stored.enabled()) return [](const JsonArray&) {};
  return [state, id = std::move(id), owner = std::move(owner),
          items = std::move(translated.items)](const JsonArray& output) {
    JsonArray all = items;
    for (const Json& item : output) all.push_back(item);
    state->stored.put(id, std::move(all), owner);
  };
}

}  // namespace

void answer_response(const std::shared_ptr<ApiState>& state, const ExchangePtr& exchange, ApiError& error) {
  const auto body = parse_body(exchange->request(), error);
  if (!body) return;
  const std::string owner = owner_of(exchange->request());
  TranslatedResponse translated = translate_response(*body, state->stored, error, owner);
  if (error) return;
  const auto path = [&](size_t i) { return translated.paths.at(i); };
  ChatRequest chat = read_chat_request(translated.chat, state->facts(), error, path);
  chat.answer.names.prompt = "input";
  chat.answer.names.max_tokens = "max_output_tokens";
  Request request = error ? Request() : chat_engine_request(*state, chat, error);
  if (error) return rename_chat_fields(error);
  ResponseView view = response_view(*state, exchange, chat, translated);
  const std::string id = view.answer.id;
  Submission submission{.endpoint = "/v1/responses",
                        .public_id = id,
                        .requests = with_choices(std::move(request), 1),
                        .stream = chat.answer.stream,
                        .names = chat.answer.names,
                        .max_tokens = chat.answer.max_tokens.value_or(0)};
  submission.sink = response_sink(std::move(view), chat.answer.stream, keep(state, id, owner, translated));
  state->submit(exchange, std::move(submission), error);
}

}  // namespace moesaic
