#include "server/error_body.h"

#include <fmt/format.h>

#include "server/api.h"

namespace moesaic {
namespace {

const char* type_of(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 429) return "rate_limit_error";
  if (status == 408 || status == 504) return "timeout_error";
  if (status == 503) return "service_unavailable_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

http::Headers headers_of(int status) {
  if (status == 401) return {{"WWW-Authenticate", "Bearer"}};
  if (status == 429) return {{"Retry-After", "1"}};
  if (status == 503) return {{"Retry-After", "5"}};
  if (status == 500 || status == kAbortedStatus) return {{"x-should-retry", "false"}};
  return {};
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

ApiError length_error(const Status& status, const ParamNames& names, int64_t context_tokens) {
  ApiError error{.status = 400, .code = "context_length_exceeded", .message = status.message()};
  error.param = status.param() == "tokens" ? names.prompt : names.max_tokens;
  replace_all(error.message, "max_new_tokens", names.max_tokens);
  const std::string words = fmt::format("maximum context length is {} tokens", context_tokens);
  if (error.message.find(words) == std::string::npos) error.message += "; this model's " + words;
  return error;
}

// "image 2: ..." names its image.
std::string image_param(std::string_view message, const ParamNames& names) {
  size_t number = 0;
  if (message.starts_with("image "))
    for (size_t i = 6; i < message.size() && message[i] >= '0' && message[i] <= '9' && number < 10'000; ++i)
      number = number * 10 + static_cast<size_t>(message[i] - '0');
  return number >= 1 && number <= names.images.size() ? names.images[number - 1] : names.prompt;
}

ApiError invalid(const Status& status, const ParamNames& names, int64_t context_tokens) {
  const std::string& param = status.param();
  if (param == "tokens" || param == "max_new_tokens") return length_error(status, names, context_tokens);
  if (param == "images") return {400, "invalid_image", status.message(), image_param(status.message(), names)};
  return {400, "invalid_value", status.message(), param};
}

}  // namespace

void report(ApiError& error, int status, std::string_view code, std::string message, std::string param) {
  if (!error) error = {status, std::string(code), std::move(message), std::move(param)};
}

JsonObject error_object(const ApiError& error) {
  JsonObject body;
  body["message"] = error.message;
  body["type"] = type_of(error.status);
  body["param"] = error.param.empty() ? Json() : Json(error.param);
  body["code"] = error.code.empty() ? Json() : Json(error.code);
  JsonObject outer;
  outer["error"] = std::move(body);
  return outer;
}

http::Response error_response(const ApiError& error) {
  return {.status = error.status,
          .body = write_json(error_object(error), {.compact = true}),
          .headers = headers_of(error.status)};
}

http::Response error_response(int status, std::string_view code, std::string_view message, std::string_view param) {
  return error_response(ApiError{status, std::string(code), std::string(message), std::string(param)});
}

ApiError from_status(const Status& status, const ParamNames& names, int64_t context_tokens) {
  switch (status.code()) {
    case StatusCode::ok: return {};
    case StatusCode::invalid_argument: return invalid(status, names, context_tokens);
    case StatusCode::not_found: return {404, "not_found", status.message(), status.param()};
    case StatusCode::resource_exhausted: return {429, "queue_full", status.message()};
    case StatusCode::unavailable: return {503, "engine_dead", status.message()};
    case StatusCode::cancelled: return {503, "not_ready", status.message()};
    case StatusCode::deadline_exceeded: return {504, "timeout", status.message()};
    case StatusCode::data_loss:
    case StatusCode::internal: break;
  }
  return {500, "internal_error", status.message()};
}

}  // namespace moesaic
