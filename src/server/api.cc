#include "server/api.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/api_state.h"
#include "server/auth.h"
#include "server/chat_answer.h"
#include "server/completion_submission.h"
#include "server/responses_api.h"
#include "server/tokenizer_api.h"

namespace moesaic {
namespace {

using StatePtr = std::shared_ptr<ApiState>;

ChatView chat_view(const ApiState& state, const ExchangePtr& exchange, const ChatRequest& chat) {
  ChatView view;
  view.answer = answer_view(state, exchange, chat.answer, "chatcmpl-");
  view.reasoning_field = state.options.reasoning_field;
  view.include_reasoning = chat.include_reasoning;
  view.named_tool = chat.tools.choice == ToolFields::Choice::named;
  view.parallel_calls = chat.tools.parallel;
  return view;
}

void answer_chat(const StatePtr& state, const ExchangePtr& exchange, ApiError& error) {
  const auto body = parse_body(exchange->request(), error);
  if (!body) return;
  ChatRequest chat = read_chat_request(*body, state->facts(), error);
  if (error) return;
  ChatView view = chat_view(*state, exchange, chat);
  Request request = chat_engine_request(*state, chat, error);
  if (error) return;
  view.answer.prompt_tokens = {std::ssize(request.tokens)};
  view.answer.prompt_ids = {request.tokens};
  const int n = chat.answer.n;
  Submission submission{.endpoint = "/v1/chat/completions",
                        .public_id = view.answer.id,
                        .requests = with_choices(std::move(request), n),
                        .n = n,
                        .stream = chat.answer.stream,
                        .names = chat.answer.names,
                        .max_tokens = chat.answer.max_tokens.value_or(0)};
  submission.sink = chat_sink(std::move(view), static_cast<size_t>(n), chat.answer.stream);
  state->submit(exchange, std::move(submission), error);
}

void answer_completion(const StatePtr& state, const ExchangePtr& exchange, ApiError& error) {
  const auto body = parse_body(exchange->request(), error);
  if (!body) return;
  const CompletionRequest completion = read_completion_request(*body, state->facts(), error);
  if (error) return;
  const AnswerOptions& options = completion.answer;
  CompletionView view{.answer = answer_view(*state, exchange, options, "cmpl-"), .echo = completion.echo};
  Submission submission{.endpoint = "/v1/completions",
                        .public_id = view.answer.id,
                        .requests = completion_engine_requests(*state, completion, view, error),
                        .n = options.n,
                        .stream = options.stream,
                        .names = options.names,
                        .max_tokens = options.max_tokens.value_or(kDefaultCompletionTokens)};
  if (error) return;
  const size_t choices = submission.requests.size();
  submission.sink = completion_sink(std::move(view), choices, options.stream);
  state->submit(exchange, std::move(submission), error);
}

JsonObject model_json(const ApiState& state, const std::string& name) {
  JsonObject capabilities, model;
  const ChatFormat format = state.format;
  capabilities["vision"] = state.engine.info().image_token >= 0;
  capabilities["tools"] = format != ChatFormat::plain && format != ChatFormat::think;
  capabilities["reasoning"] = format != ChatFormat::plain;
  model["id"] = name;
  model["object"] = "model";
  model["created"] = state.started;
  model["owned_by"] = "moesaic";
  model["root"] = state.options.model_root;
  model["parent"] = nullptr;
  model["max_model_len"] = state.engine.info().max_model_len;
  model["capabilities"] = std::move(capabilities);
  return model;
}

JsonObject models_json(const ApiState& state) {
  JsonArray data;
  for (const std::string& name : state.options.served_names) data.push_back(model_json(state, name));
  JsonObject list;
  list["object"] = "list";
  list["data"] = std::move(data);
  return list;
}

// Names may hold slashes.
void answer_models(const StatePtr& state, const ExchangePtr& exchange, ApiError& error) {
  const std::string_view path = exchange->request().path;
  const size_t at = path.find("/models/");
  const std::string_view name = at != std::string_view::npos ? path.substr(at + 8) : std::string_view();
  if (name.empty()) return exchange->respond({.body = compact(models_json(*state))});
  const auto& names = state->options.served_names;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return exchange->respond({.body = compact(model_json(*state, *found))});
  report(error, 404, "model_not_found", fmt::format("the model {} is not served here", json_quote(clipped(name))),
         "model");
}

void answer_abort(const StatePtr& state, const ExchangePtr& exchange, ApiError& error) {
  const auto body = parse_body(exchange->request(), error);
  if (!body) return;
  const Fields fields{*body, "", error};
  const auto id = fields.string("rid");
  if (!id || id->empty())
    report(error, 400, "missing_required_parameter", "rid is missing; expected the id of a request", "rid");
  if (error) return;
  const ApiError aborted{kAbortedStatus, "request_aborted", "the request was ended by /abort_request"};
  if (state->abort(aborted, *id, owner_of(exchange->request())) > 0)
    return exchange->respond({.body = R"({"status":"ok"})"});
  report(error, 404, "not_found", fmt::format("no request in flight has the id {}", json_quote(clipped(*id))), "rid");
}

void answer_health_generate(const StatePtr& state, const ExchangePtr& exchange, ApiError& error) {
  Request request{.tokens = {0}, .sampling = {.temperature = 0}, .max_new_tokens = 1};
  Submission submission{.endpoint = "/health_generate", .public_id = exchange->request().request_id, .max_tokens = 1};
  submission.requests.push_back(std::move(request));
  submission.sink = {.chunk = [](size_t, const Chunk&, std::string&) {},
                     .finish = [](size_t, const ChoiceEnd&, std::string&) {},
                     .end = [](std::string& out) { out += R"({"status":"ok"})"; }};
  state->submit(exchange, std::move(submission), error);
  if (error) error.status = 503;
}

}  // namespace

Api::Api(Engine& engine, ApiOptions options, RequestObserver observer)
    : state_(std::make_shared<ApiState>(engine, std::move(options), std::move(observer))) {}

Api::~Api() = default;

void Api::chat_completions(ExchangePtr exchange) {
  handle(state_, exchange, "/v1/chat/completions", [&](ApiError& error) { answer_chat(state_, exchange, error); });
}

void Api::completions(ExchangePtr exchange) {
  handle(state_, exchange, "/v1/completions", [&](ApiError& error) { answer_completion(state_, exchange, error); });
}

void Api::responses(ExchangePtr exchange) {
  handle(state_, exchange, "/v1/responses", [&](ApiError& error) { answer_response(state_, exchange, error); });
}

void Api::models(ExchangePtr exchange) {
  handle(state_, exchange, "/v1/models", [&](ApiError& error) { answer_models(state_, exchange, error); });
}

void Api::tokenize(ExchangePtr exchange) {
  handle(state_, exchange, "/tokenize", [&](ApiError& error) { answer_tokenize(*state_, exchange, error); });
}

void Api::detokenize(ExchangePtr exchange) {
  handle(state_, exchange, "/detokenize", [&](ApiError& error) { answer_detokenize(*state_, exchange, error); });
}

void Api::apply_template(ExchangePtr exchange) {
  handle(state_, exchange, "/apply-template", [&](ApiError& error) { answer_template(*state_, exchange, error); });
}

void Api::abort_request(ExchangePtr exchange) {
  handle(state_, exchange, "/abort_request", [&](ApiError& error) { answer_abort(state_, exchange, error); });
}

void Api::health_generate(ExchangePtr exchange) {
  handle(state_, exchange, "/health_generate",
         [&](ApiError& error) { answer_health_generate(state_, exchange, error); });
}

int64_t Api::in_flight() const {
  return state_->in_flight();
}

void Api::abort_all(std::string_view reason) {
  state_->abort({503, "not_ready", std::string(reason)});
}

}  // namespace moesaic
