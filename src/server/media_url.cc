#include "server/media_url.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/mapped_file.h"
#include "media/image.h"
#include "server/media_fetch.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr auto kSextets = [] {
  std::array<int8_t, 256> table{};
  table.fill(-1);
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kAlphabet.size(); ++i)
    table[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int8_t>(i);
  return table;
}();

void not_allowed(std::string message, const std::string& param, ApiError& error) {
  report(error, 400, "media_url_not_allowed", std::move(message), param);
}

void bad_image(std::string message, const std::string& param, ApiError& error) {
  report(error, 400, "invalid_image", std::move(message), param);
}

std::string from_data(std::string_view url, const std::string& param, ApiError& error) {
  const size_t comma = url.find(',');
  const std::string_view head = url.substr(0, comma);
  if (comma == std::string_view::npos || !head.starts_with("data:image/") || !head.ends_with(";base64")) {
    bad_image("the image's data: URL does not begin with data:image/png;base64, or its like (jpeg, png, webp)", param,
              error);
    return {};
  }
  const std::string_view text = url.substr(comma + 1);
  if (static_cast<int64_t>(text.size() / 4 * 3) > kMaxImageBytes + 3) {
    bad_image(fmt::format("the image has about {} bytes; expected at most {}", text.size() / 4 * 3, kMaxImageBytes),
              param, error);
    return {};
  }
  auto bytes = decode_base64(text);
  if (!bytes)
    bad_image("the image's data: URL does not hold base64 (A-Z, a-z, 0-9, +, /, padded with =)", param, error);
  return bytes.value_or("");
}

// Symbolic links are resolved first, so that none leads out of the allowed directory.
bool lies_below(const fs::path& path, const fs::path& directory) {
  const auto [end, rest] = std::mismatch(directory.begin(), directory.end(), path.begin(), path.end());
  return end == directory.end() && rest != path.end();
}

std::string from_file(std::string_view url, const MediaRules& rules, const std::string& param, ApiError& error) {
  std::error_code failed;
  const fs::path path = fs::canonical(std::string(url.substr(7)), failed);
  const fs::path allowed = rules.local_path.empty() ? fs::path() : fs::canonical(rules.local_path, failed);
  // One message for all of these: whether a file exists elsewhere is nobody's business.
  if (allowed.empty() || failed || !lies_below(path, allowed) || !fs::is_regular_file(path, failed)) {
    not_allowed("file:// images must be files below the server's --allowed-local-media-path", param, error);
    return {};
  }
  if (static_cast<int64_t>(fs::file_size(path, failed)) > kMaxImageBytes || failed) {
    bad_image(fmt::format("the image file is larger than {} bytes", kMaxImageBytes), param, error);
    return {};
  }
  return read_text_file(path.string());
}

std::string from_network(std::string_view url, const MediaRules& rules, const std::string& param, ApiError& error) {
  if (!rules.domains.empty())
    return fetch_image(url, {.hosts = rules.domains, .max_bytes = kMaxImageBytes}, param, error);
  not_allowed("this server fetches no images from the network; send the image as a data: URL", param, error);
  return {};
}

void check_image(const std::string& bytes, const std::string& param, ApiError& error) {
  try {
    decode_image(std::as_bytes(std::span(bytes)), "the image", {.file_bytes = kMaxImageBytes, .side = kMaxImageSide});
  } catch (const Error& broken) {
    bad_image(broken.what(), param, error);
  }
}

}  // namespace

std::optional<std::string> decode_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string out;
  out.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const int8_t value = kSextets[static_cast<unsigned char>(c)];
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value), count += 6;
    if (count >= 8) count -= 8, out += static_cast<char>(bits >> count & 0xFF);
  }
  return out;
}

std::string load_image(std::string_view url, const MediaRules& rules, const std::string& param, ApiError& error) {
  std::string bytes;
  if (url.starts_with("data:")) bytes = from_data(url, param, error);
  else if (url.starts_with("file://")) bytes = from_file(url, rules, param, error);
  else if (url.starts_with("http://") || url.starts_with("https://")) bytes = from_network(url, rules, param, error);
  else
    not_allowed(
        fmt::format("the image's URL {} is none of data:, file://, http:// and https://", json_quote(clipped(url))),
        param, error);
  if (!error) check_image(bytes, param, error);
  return bytes;
}

}  // namespace moesaic
