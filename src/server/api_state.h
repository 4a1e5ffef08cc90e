// ApiState: what the endpoints share, and the way of every request from its checks to its answer.
#pragma once

#include <mutex>
#include <unordered_map>

#include "server/answer_pump.h"
#include "server/chat_prompt.h"
#include "server/completion_request.h"
#include "server/response_store.h"

namespace moesaic {

using ExchangePtr = std::shared_ptr<http::Exchange>;

// A request that is checked and ready for the engine.
struct Submission {
  std::string endpoint = {};   // for the record
  std::string public_id = {};  // by which the caller may end it
  std::vector<Request> requests = {};
  int n = 1;  // requests per prompt
  bool stream = false;
  ParamNames names = {};
  int64_t max_tokens = 0;
  AnswerSink sink = {};
};

struct ApiState : std::enable_shared_from_this<ApiState> {
  ApiState(Engine& the_engine, ApiOptions the_options, RequestObserver the_observer);

  Engine& engine;
  const ApiOptions options;
  const RequestObserver observer;
  const TextFiles& files;
  const Tokenizer* const tokenizer;  // null: the model has none
  const ChatFormat format;
  PromptWriter writer;
  const int64_t started;  // Unix time
  ResponseStore stored;

  ModelFacts facts() const;

  // Submits all of them, or none, and leaves the answer to a pump.
  void submit(const ExchangePtr& exchange, Submission submission, ApiError& error);
  // Answers with the error and observes it.
  void refuse(const ExchangePtr& exchange, std::string_view endpoint, const ApiError& error);

  // Ends requests in flight: all, or those of `owner` (auth.h) that he knows by `id`. How many there were.
  int64_t abort(const ApiError& error, std::string_view id = {}, std::string_view owner = {});
  int64_t in_flight() const;

 private:
  struct InFlight {
    std::shared_ptr<AnswerPump> pump;
    std::string public_id, request_id, owner;
  };
  void observe(const RequestRecord& record) const;

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, InFlight> in_flight_;  // by a number of our own: callers' ids may repeat
  uint64_t next_ = 0;
};

// The prompt of a chat with all that its answer must obey, ready for the engine but for choices.
Request chat_engine_request(const ApiState& state, ChatRequest& chat, ApiError& error);
// One request for each of n choices.
std::vector<Request> with_choices(Request request, int n);
// What all answers to it have in common. `prefix`: of its id.
AnswerView answer_view(const ApiState& state, const ExchangePtr& exchange, const AnswerOptions& options,
                       std::string_view prefix);
// The grammar of `source`, or invalid_schema with `param`.
std::shared_ptr<const Grammar> compiled(const ApiState& state, const GrammarSource& source, const std::string& param,
                                        ApiError& error);
// Refuses prompts beyond --max-input-tokens and empty ones.
void check_prompt(const ApiState& state, const std::vector<int32_t>& tokens, const std::string& param, ApiError& error);

// Runs `handle`, which leaves what is wrong in `error`; then, and for whatever it throws, refuses the request.
void handle(const std::shared_ptr<ApiState>& state, const ExchangePtr& exchange, std::string_view endpoint,
            const std::function<void(ApiError& error)>& body);

}  // namespace moesaic
