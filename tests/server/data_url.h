// Images of the tests as data: URLs.
#pragma once

#include <string>
#include <string_view>

#include "base/mapped_file.h"

namespace moesaic {

inline std::string base64(std::string_view bytes) {
  const char* alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += i + k > bytes.size() ? '=' : alphabet[bits >> (18 - 6 * k) & 63];
  }
  return out;
}

inline std::string image_file(const std::string& name) {
  return read_text_file(std::string(MOESAIC_SOURCE_DIR) + "/tests/media/data/" + name);
}

inline std::string data_url(const std::string& name) {
  return "data:image/png;base64," + base64(image_file(name));
}

}  // namespace moesaic
