#include "server/request_log.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "server/routes.h"

namespace moesaic {
namespace {

constexpr size_t kMostBody = 16 << 10;

std::string milliseconds(double seconds) {
  return fmt::format("{:.1f}", seconds * 1e3);
}

const char* reason_name(FinishReason reason) {
  constexpr const char* kNames[] = {"none", "stop", "length", "abort", "error"};
  return kNames[static_cast<int>(reason)];
}

}  // namespace

RequestLog parse_request_log(const std::string& name) {
  if (name == "none") return RequestLog::none;
  if (name == "meta") return RequestLog::meta;
  if (name == "full") return RequestLog::full;
  fail_argument("--log-requests is \"{}\"; expected none, meta or full", name);
}

void log_answered(RequestLog log, const http::Request& request, const http::Answered& answered) {
  if (log == RequestLog::none || (is_polled(request.path) && answered.status < 400)) return;
  log_event(LogLevel::info, "request",
            {{"id", json_quote(request.request_id)},
             {"from", json_quote(request.remote)},
             {"method", json_quote(request.method)},
             {"path", json_quote(request.path)},
             {"status", std::to_string(answered.status)},
             {"bytes", std::to_string(answered.body_bytes)},
             {"ms", milliseconds(answered.seconds)},
             {"complete", answered.complete ? "true" : "false"}});
}

void log_record(RequestLog log, const RequestRecord& record) {
  if (log == RequestLog::none) return;
  std::string reasons;
  for (FinishReason reason : record.reasons) reasons += (reasons.empty() ? "" : ",") + std::string(reason_name(reason));
  std::vector<LogField> fields = {{"id", json_quote(record.request_id)},
                                  {"endpoint", json_quote(record.endpoint)},
                                  {"prompt_tokens", std::to_string(record.prompt_tokens)},
                                  {"cached_tokens", std::to_string(record.cached_tokens)},
                                  {"generated_tokens", std::to_string(record.generated_tokens)},
                                  {"queue_ms", milliseconds(record.queue)},
                                  {"first_token_ms", milliseconds(record.first_token)},
                                  {"total_ms", milliseconds(record.total)},
                                  {"finish", json_quote(reasons.empty() ? "refused" : reasons)}};
  if (!record.error.empty()) fields.push_back({"error", json_quote(record.error)});
  log_event(record.status >= 500 ? LogLevel::error : LogLevel::info, "answer", fields);
}

void log_body(RequestLog log, const http::Request& request) {
  if (log != RequestLog::full || request.body.empty()) return;
  log_event(LogLevel::info, "body",
            {{"id", json_quote(request.request_id)},
             {"path", json_quote(request.path)},
             {"bytes", std::to_string(request.body.size())},
             {"text", json_quote(request.body.substr(0, kMostBody))}});
}

}  // namespace moesaic
