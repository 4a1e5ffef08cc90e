// Any body is either refused with an error that is a good answer, or read within the bounds of requests: as a chat, as
// a text completion and as a response.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "server/chat_request.h"
#include "server/completion_request.h"
#include "server/responses_request.h"

namespace moesaic {
namespace {

constexpr int64_t kVocab = 64;

void check_error(const ApiError& error) {
  CHECK(error.status >= 400 && error.status < 500, "{}", error.status);
  CHECK(!error.code.empty() && !error.message.empty(), "{}", error.code);
  const Json body = parse_json(error_response(error).body, "error");  // valid UTF-8, whatever it quotes
  CHECK(body.at("error").at("message").as_string() == std::string_view(error.message), "{}", error.message);
}

void check_options(const AnswerOptions& options) {
  const SamplingParams& sampling = options.request.sampling;
  CHECK(sampling.temperature >= 0 && sampling.temperature <= kMaxTemperature, "{}", sampling.temperature);
  CHECK(sampling.top_p > 0 && sampling.top_p <= 1, "{}", sampling.top_p);
  CHECK(options.n >= 1 && options.n <= 8, "{}", options.n);
  CHECK(options.request.stop.size() <= kMaxStopStrings, "{}", options.request.stop.size());
  for (const auto& [id, bias] : sampling.logit_bias) CHECK(id >= 0 && id < kVocab, "{}", id);
  for (const int32_t id : options.request.stop_token_ids) CHECK(id >= 0 && id < kVocab, "{}", id);
}

void check_chat(const JsonObject& body, const ModelFacts& facts) {
  ApiError error;
  const ChatRequest chat = read_chat_request(body, facts, error);
  if (error) return check_error(error);
  check_options(chat.answer);
  CHECK(!chat.conversation.messages.empty() && chat.conversation.messages.size() <= kMaxMessages, "messages");
  CHECK(chat.conversation.images.size() == chat.conversation.image_params.size(), "images");
}

void check_completion(const JsonObject& body, const ModelFacts& facts) {
  ApiError error;
  const CompletionRequest completion = read_completion_request(body, facts, error);
  if (error) return check_error(error);
  check_options(completion.answer);
  CHECK(!completion.prompts.empty() && completion.prompts.size() <= kMaxPrompts, "prompts");
}

void check_response(const JsonObject& body, const ModelFacts& facts) {
  ApiError error;
  const TranslatedResponse translated = translate_response(body, ResponseStore(0), error);
  if (error) return check_error(error);
  read_chat_request(translated.chat, facts, error, [&](size_t i) { return translated.paths.at(i); });
  if (!error) return;
  rename_chat_fields(error);
  check_error(error);
}

}  // namespace
}  // namespace moesaic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moesaic;
  static const ApiOptions options{.served_names = {"m"}};
  const ModelFacts facts{.options = options, .vocab = kVocab, .max_model_len = 128, .vision = true};
  http::Request request;
  request.body.assign(reinterpret_cast<const char*>(data), size);
  ApiError error;
  const auto body = parse_body(request, error);
  if (!body) return check_error(error), 0;
  check_chat(*body, facts);
  check_completion(*body, facts);
  check_response(*body, facts);
  return 0;
}
