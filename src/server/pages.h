// Pages that are part of the program: web/*.html, embedded when it is built.
#pragma once

#include <string_view>

#include "server/http.h"

namespace moesaic {

// The bytes of web/NAME.html; empty where the program was built without it.
std::string_view embedded_page(std::string_view name);

// An answer with a page, and the headers that keep it from loading or being framed by anything else; 404 where the
// page is empty.
http::Response page_response(std::string_view page);

}  // namespace moesaic
