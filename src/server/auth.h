// API keys: who may use the protected endpoints.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

namespace moesaic {

using KeyHash = std::array<unsigned char, 32>;  // SHA-256
KeyHash hash_key(std::string_view key);
// Whose request it is: the hash of its key as bytes. Callers without a key are one.
std::string owner_of(const http::Request& request);

// Keys are kept and compared as hashes; a comparison takes the same time whichever key it is and wherever it differs.
class ApiKeys {
 public:
  ApiKeys() = default;
  explicit ApiKeys(const std::vector<std::string>& keys);
  bool empty() const { return hashes_.empty(); }  // everybody may
  // Authorization: Bearer KEY (the scheme in any case), or x-api-key: KEY.
  bool accept(const http::Request& request) const;

 private:
  std::vector<KeyHash> hashes_;
};

// One key per line; empty lines and those that begin with # are skipped. Throws Error for a file that cannot be read or
// that holds no key.
std::vector<std::string> read_key_file(const std::string& path);

// Which pages of other origins may read answers (the fetch standard's CORS protocol).
struct CorsOptions {
  std::vector<std::string> origins = {"*"}, methods = {"GET", "POST", "OPTIONS"};
  std::vector<std::string> headers = {"*"};  // *: those that the browser asks for
  bool credentials = false;
};
// The headers of an answer to this request; an OPTIONS request gets those of a preflight.
http::Headers cors_headers(const CorsOptions& options, const http::Request& request);

}  // namespace moesaic
