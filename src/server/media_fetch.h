// Images that messages name by http:// and https:// URLs. Boost.Asio, Beast and OpenSSL live in media_fetch.cc alone.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "server/error_body.h"

namespace moesaic {

struct FetchRules {
  const std::vector<std::string>& hosts;  // entries of --allowed-media-domains (media_hosts.h)
  int64_t max_bytes;
  std::chrono::milliseconds time = std::chrono::seconds(5);  // from the first name to the last byte
  int redirects = 3;
};

// The body of a 200 at `url`, whatever it holds. Blocks for at most rules.time; any thread. The URL and each redirect
// must lead to an allowed host; a name's addresses are checked and one of those is connected to, so that a name which
// means something else a moment later does not matter. Certificates and host names are verified with the system's
// store. Errors, with `param`: media_url_not_allowed for where it leads, invalid_image for what came or did not come.
// No message says an address, nor a host that the caller did not name.
std::string fetch_image(std::string_view url, const FetchRules& rules, const std::string& param, ApiError& error);

}  // namespace moesaic
