#include "server/api_state.h"

#include <fmt/format.h>

#include <charconv>
#include <ctime>

#include "base/log.h"
#include "server/auth.h"

namespace moesaic {
namespace {

using Clock = std::chrono::steady_clock;

// config.json's model_type; empty where there is no such file.
std::string model_type(const TextFiles& files) {
  const std::string path = files.directory + "/config.json";
  if (!std::filesystem::exists(path)) return "";
  const Json config = read_json_file(path, {.python_constants = true});
  return json_string(json_object(config, path), "model_type", path, "");
}

ChatFormat format_of(const TextFiles& files) {
  return files.tokenizer != nullptr ? detect_chat_format(*files.tokenizer, model_type(files)) : ChatFormat::plain;
}

std::optional<ChatTemplate> own_template(const ApiOptions& options, const TextFiles& files) {
  if (options.chat_template.empty()) return std::nullopt;
  ChatTemplate own = ChatTemplate::parse(options.chat_template, "--chat-template");
  if (files.chat_template) own.set_special_tokens_of(*files.chat_template);
  return own;
}

// X-Request-Timeout-Ms, else the server's --request-timeout.
std::optional<Clock::time_point> deadline_of(const http::Request& request, const ApiOptions& options) {
  const std::string_view header = request.header("x-request-timeout-ms");
  int64_t ms = 0;
  std::from_chars(header.data(), header.data() + header.size(), ms);
  if (ms <= 0) ms = static_cast<int64_t>(options.request_timeout_seconds * 1e3);
  if (ms <= 0) return std::nullopt;
  return request.arrived + std::chrono::milliseconds(std::min<int64_t>(ms, 86'400'000));
}

}  // namespace

ApiState::ApiState(Engine& the_engine, ApiOptions the_options, RequestObserver the_observer)
    : engine(the_engine),
      options(std::move(the_options)),
      observer(std::move(the_observer)),
      files(engine.tokenizer().files()),
      tokenizer(files.tokenizer.get()),
      format(format_of(files)),
      writer{files, format, own_template(options, files)},
      started(std::time(nullptr)),
      stored(options.response_store_size) {}

ModelFacts ApiState::facts() const {
  const EngineInfo& info = engine.info();
  return {.options = options,
          .vocab = info.vocab,
          .max_model_len = info.max_model_len,
          .vision = info.image_token >= 0,
          .format = format,
          .default_sampling = options.model_sampling ? info.default_sampling : SamplingParams{}};
}

void ApiState::observe(const RequestRecord& record) const {
  if (observer) observer(record);
}

void ApiState::submit(const ExchangePtr& exchange, Submission submission, ApiError& error) {
  const auto deadline = deadline_of(exchange->request(), options);
  RequestRecord record{.request_id = exchange->request().request_id,
                       .endpoint = submission.endpoint,
                       .n = submission.n,
                       .max_tokens = submission.max_tokens};
  std::vector<Completion> completions;
  for (size_t i = 0; i < submission.requests.size(); ++i) {
    Request& request = submission.requests[i];
    request.deadline = deadline;
    if (i % static_cast<size_t>(submission.n) == 0) record.prompt_tokens += std::ssize(request.tokens);
    auto completion = engine.submit(std::move(request));
    if (!completion.ok()) {
      error = from_status(completion.status(), submission.names, engine.info().max_model_len);
      return;
    }
    completions.push_back(std::move(*completion));
  }
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = next_++;
  }
  const PumpOptions pumping{options.stream_interval, options.stream_buffer_bytes, deadline.has_value(),
                            submission.names, engine.info().max_model_len};
  auto done = [self = shared_from_this(), number](const RequestRecord& ended) {
    {
      const std::lock_guard lock(self->mutex_);
      self->in_flight_.erase(number);
    }
    self->observe(ended);
  };
  auto pump = std::make_shared<AnswerPump>(exchange, std::move(completions), std::move(submission.sink), pumping,
                                           std::move(record), std::move(done));
  {
    const std::lock_guard lock(mutex_);
    in_flight_[number] = {pump, submission.public_id, exchange->request().request_id, owner_of(exchange->request())};
  }
  pump->start();
}

void ApiState::refuse(const ExchangePtr& exchange, std::string_view endpoint, const ApiError& error) {
  const http::Request& request = exchange->request();
  exchange->respond(error_response(error));
  observe({.request_id = request.request_id,
           .endpoint = std::string(endpoint),
           .total = std::chrono::duration<double>(Clock::now() - request.arrived).count(),
           .status = error.status,
           .error = error.message});
}

int64_t ApiState::abort(const ApiError& error, std::string_view id, std::string_view owner) {
  std::vector<std::shared_ptr<AnswerPump>> pumps;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, one] : in_flight_)
      if (id.empty() || (owner == one.owner && (id == one.public_id || id == one.request_id)))
        pumps.push_back(one.pump);
  }
  for (const auto& pump : pumps) pump->abort(error);
  return std::ssize(pumps);
}

int64_t ApiState::in_flight() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(in_flight_);
}

std::vector<Request> with_choices(Request request, int n) {
  std::vector<Request> out(static_cast<size_t>(n), request);
  for (size_t i = 0; i < out.size(); ++i) out[i].choice = static_cast<uint32_t>(i);
  return out;
}

AnswerView answer_view(const ApiState& state, const ExchangePtr& exchange, const AnswerOptions& options,
                       std::string_view prefix) {
  const Request& request = options.request;
  AnswerView view;
  view.id = std::string(prefix) + (options.id.empty() ? exchange->request().request_id : options.id);
  view.model = options.model;
  view.fingerprint = state.options.fingerprint;
  view.created = std::time(nullptr);
  view.n = options.n;
  view.include_usage = options.include_usage, view.continuous_usage = options.continuous_usage;
  view.return_token_ids = options.return_token_ids, view.timings = options.timings;
  view.logprobs = request.sampling.logprobs >= 0, view.prompt_logprobs = options.prompt_logprobs;
  view.format = {state.tokenizer, options.tokens_as_ids, request.skip_special_tokens};
  return view;
}

std::shared_ptr<const Grammar> compiled(const ApiState& state, const GrammarSource& source, const std::string& param,
                                        ApiError& error) {
  auto grammar = state.engine.compile(source);
  if (grammar.ok()) return *grammar;
  report(error, 400, "invalid_schema", grammar.status().message(), param);
  return nullptr;
}

void check_prompt(const ApiState& state, const std::vector<int32_t>& tokens, const std::string& param,
                  ApiError& error) {
  const int64_t limit = state.options.max_input_tokens, length = std::ssize(tokens);
  if (length == 0) report(error, 400, "invalid_value", "the prompt has no tokens; expected at least one", param);
  if (limit > 0 && length > limit)
    report(error, 400, "context_length_exceeded",
           fmt::format("the prompt has {} tokens, and this server takes at most {} (--max-input-tokens); the model's "
                       "maximum context length is {} tokens",
                       length, limit, state.engine.info().max_model_len),
           param);
}

void handle(const std::shared_ptr<ApiState>& state, const ExchangePtr& exchange, std::string_view endpoint,
            const std::function<void(ApiError& error)>& body) {
  ApiError error;
  try {
    body(error);
  } catch (const std::exception& failed) {
    log_warn("{} failed: {}", endpoint, failed.what());
    error = {500, "internal_error", "the server failed on this request; its log says why"};
  }
  if (error) state->refuse(exchange, endpoint, error);
}

}  // namespace moesaic
