// Images that messages name by URL.
#pragma once

#include "server/fields.h"

namespace moesaic {

constexpr int64_t kMaxImageBytes = int64_t{20} << 20;
constexpr int64_t kMaxImageSide = 4096;

struct MediaRules {
  bool vision = false;  // the model sees images
  int max_images = 16;
  std::string local_path;                 // file:// may name files below it; empty: none
  std::vector<std::string> domains = {};  // http:// and https:// may name these hosts; empty: none
};

// The bytes of the image file at `url`: data:image/...;base64, file:// below the allowed path, or http(s):// at an
// allowed host, which blocks for up to 5 s. Decoded once, so that a damaged or too large one is refused with its
// `param`: invalid_image, media_url_not_allowed.
std::string load_image(std::string_view url, const MediaRules& rules, const std::string& param, ApiError& error);

// Standard alphabet with padding; nothing for anything else.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace moesaic
