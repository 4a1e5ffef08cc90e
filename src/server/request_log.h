// One line for each request, and one for each answer of the engine, with the request's id.
#pragma once

#include <string>

#include "server/api.h"
#include "server/http.h"

namespace moesaic {

// none; meta: who asked for what and how it went, never what was said; full: bodies too.
enum class RequestLog { none, meta, full };

// Throws Error(invalid_argument) for another name.
RequestLog parse_request_log(const std::string& name);

// Polls of probes and scrapers are left out where they succeed.
void log_answered(RequestLog log, const http::Request& request, const http::Answered& answered);
void log_record(RequestLog log, const RequestRecord& record);
void log_body(RequestLog log, const http::Request& request);

}  // namespace moesaic
