#include "server/auth.h"

#include <fmt/ranges.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>

#include "base/error.h"
#include "base/mapped_file.h"

namespace moesaic {
namespace {

constexpr std::string_view kBearer = "bearer ";

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

bool has_prefix_any_case(std::string_view text, std::string_view prefix) {
  return text.size() >= prefix.size() &&
         std::equal(prefix.begin(), prefix.end(), text.begin(), [](char p, char t) { return p == lower(t); });
}

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::string_view key_of(const http::Request& request) {
  const std::string_view authorization = request.header("Authorization");
  if (has_prefix_any_case(authorization, kBearer)) return trim(authorization.substr(kBearer.size()));
  return trim(request.header("x-api-key"));
}

bool contains(const std::vector<std::string>& all, std::string_view one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

}  // namespace

KeyHash hash_key(std::string_view key) {
  KeyHash hash;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), hash.data());
  return hash;
}

std::string owner_of(const http::Request& request) {
  const KeyHash hash = hash_key(key_of(request));
  return {hash.begin(), hash.end()};
}

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) hashes_.push_back(hash_key(key));
}

bool ApiKeys::accept(const http::Request& request) const {
  const KeyHash given = hash_key(key_of(request));
  bool known = hashes_.empty();
  for (const KeyHash& hash : hashes_)  // all of them: which one it is does not show in the time
    known = (CRYPTO_memcmp(hash.data(), given.data(), hash.size()) == 0) | known;
  return known;
}

std::vector<std::string> read_key_file(const std::string& path) {
  const std::string text = read_text_file(path);
  std::vector<std::string> keys;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = trim(std::string_view(text).substr(begin, end - begin));
    if (!line.empty() && line.front() != '#') keys.emplace_back(line);
    begin = end + 1;
  }
  if (keys.empty()) fail_data(path, "the file holds no API key; expected one on a line");
  return keys;
}

http::Headers cors_headers(const CorsOptions& options, const http::Request& request) {
  const std::string_view origin = request.header("Origin");
  const bool any = contains(options.origins, "*");
  http::Headers headers;
  if (any && !options.credentials) headers.emplace_back("Access-Control-Allow-Origin", "*");
  else headers.emplace_back("Vary", "Origin");
  if (any && options.credentials && origin.empty()) return headers;
  if (!any && !contains(options.origins, origin)) return headers;
  // A browser refuses * together with credentials.
  if (!any || options.credentials) headers.emplace_back("Access-Control-Allow-Origin", origin);
  if (options.credentials) headers.emplace_back("Access-Control-Allow-Credentials", "true");
  headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  if (request.method != "OPTIONS") return headers;
  headers.emplace_back("Access-Control-Allow-Methods", fmt::format("{}", fmt::join(options.methods, ", ")));
  // Browsers do not let * stand for Authorization.
  const std::string_view asked = request.header("Access-Control-Request-Headers");
  headers.emplace_back("Access-Control-Allow-Headers", contains(options.headers, "*") && !asked.empty()
                                                           ? std::string(asked)
                                                           : fmt::format("{}", fmt::join(options.headers, ", ")));
  headers.emplace_back("Access-Control-Max-Age", "86400");
  return headers;
}

}  // namespace moesaic
