// Api: the OpenAI-compatible endpoints over one engine. It reads and writes JSON and server-sent events; connections
// are http.h's business, and which path leads where is routes.cc's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/json.h"
#include "moesaic/engine.h"
#include "server/http.h"

namespace moesaic {

struct ApiOptions {
  std::vector<std::string> served_names = {};  // the first is what answers say
  std::string model_root = {};                 // the directory, for /v1/models
  bool any_model_name = false;
  std::string reasoning_field = "reasoning_content";  // or reasoning, or both
  int max_n = 8, max_logprobs = 20;
  int stream_interval = 1;             // tokens grouped into one event
  int64_t max_input_tokens = 0;        // 0: the context
  double request_timeout_seconds = 0;  // until the first token; 0: none
  bool trust_request_chat_template = false;
  bool priorities = false;  // the scheduler honours `priority`
  bool timings = false;
  bool model_sampling = true;            // what requests leave open is generation_config.json's, else OpenAI's
  std::string chat_template = {};        // instead of the checkpoint's; a template's text
  JsonObject chat_template_kwargs = {};  // defaults
  int max_images = 16;
  std::vector<std::string> allowed_media_domains = {};  // hosts that images may be fetched from
  std::string allowed_local_media_path = {};
  int64_t response_store_size = 0;       // of /v1/responses
  std::string fingerprint = {};          // system_fingerprint
  size_t stream_buffer_bytes = 1 << 20;  // as http::ServerOptions has it: above it, a stream's answer waits
};

// The status of a request that POST /abort_request ended: nginx's "client closed request"; OpenAI's clients do not try
// again.
constexpr int kAbortedStatus = 499;

// What became of one request, for metrics and the request log. Times in seconds.
struct RequestRecord {
  std::string request_id = {}, endpoint = {};
  int n = 1;
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0, max_tokens = 0;
  double queue = 0, first_token = 0, total = 0;  // since the request arrived
  std::vector<double> between_tokens = {};
  std::vector<FinishReason> reasons = {};  // of each choice; none: the engine never had the request
  int status = 200;                        // as HTTP has it, also of an error inside a stream
  std::string error = {};                  // its message
};
using RequestObserver = std::function<void(const RequestRecord&)>;

// The error shape of every endpoint: {"error": {"message", "type", "param", "code"}}, and the headers that go with it.
http::Response error_response(int status, std::string_view code, std::string_view message, std::string_view param = {});

class Api {
 public:
  // The engine outlives it. `observer` is called once for each request that reached the engine or was refused.
  Api(Engine& engine, ApiOptions options, RequestObserver observer);
  ~Api();

  void chat_completions(std::shared_ptr<http::Exchange> exchange);
  void completions(std::shared_ptr<http::Exchange> exchange);
  void responses(std::shared_ptr<http::Exchange> exchange);
  void models(std::shared_ptr<http::Exchange> exchange);  // also one model, from the path
  void tokenize(std::shared_ptr<http::Exchange> exchange);
  void detokenize(std::shared_ptr<http::Exchange> exchange);
  void apply_template(std::shared_ptr<http::Exchange> exchange);
  void abort_request(std::shared_ptr<http::Exchange> exchange);
  void health_generate(std::shared_ptr<http::Exchange> exchange);

  int64_t in_flight() const;
  // Ends every request in flight with an error event or answer.
  void abort_all(std::string_view reason);

 private:
  std::shared_ptr<struct ApiState> state_;
};

}  // namespace moesaic
