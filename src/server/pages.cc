#include "server/pages.h"

#include "server/api.h"

namespace moesaic {
namespace {

// Pages are one file each: their script and style are inside, and they talk to this server alone.
constexpr const char* kContentPolicy =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace

http::Response page_response(std::string_view page) {
  if (page.empty())
    return error_response(404, "not_found", "this program was built without its pages; the API is under /v1");
  return {.status = 200,
          .body = std::string(page),
          .content_type = "text/html; charset=utf-8",
          .headers = {{"Content-Security-Policy", kContentPolicy},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}}};
}

}  // namespace moesaic
