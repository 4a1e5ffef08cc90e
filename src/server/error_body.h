// ApiError: why a request is refused or fails, as HTTP status and as the body that OpenAI's clients unpack.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "moesaic/status.h"
#include "server/http.h"

namespace moesaic {

struct ApiError {
  int status = 0;  // HTTP's; 0: there is no error
  std::string code, message;
  std::string param = {};  // path of the field, like messages[2].content; empty: null

  explicit operator bool() const { return status != 0; }
};

// Keeps the first of several errors.
void report(ApiError& error, int status, std::string_view code, std::string message, std::string param = {});

// {"error": {"message", "type", "param", "code"}}
JsonObject error_object(const ApiError& error);
// With the headers that steer a client's retries: Retry-After for 429 and 503, x-should-retry: false where another try
// would fail alike.
http::Response error_response(const ApiError& error);

// How a request's fields are called where it came from.
struct ParamNames {
  std::string prompt = "messages", max_tokens = "max_tokens";
  std::vector<std::string> images = {};  // path of each, in order
};
// What Engine::submit(), Engine::compile() or a Completion said, with the caller's names in it. `context_tokens`: the
// model's maximum, which a message about lengths must state.
ApiError from_status(const Status& status, const ParamNames& names, int64_t context_tokens);

}  // namespace moesaic
