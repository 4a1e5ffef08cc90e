#include "media/image.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/mapped_file.h"
#include "media/decode.h"

namespace moesaic {
namespace {

bool starts_with(std::span<const std::byte> bytes, size_t offset, std::string_view magic) {
  if (bytes.size() < offset + magic.size()) return false;
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + offset;
  return std::equal(magic.begin(), magic.end(), text);
}

}  // namespace

Image make_image(int64_t width, int64_t height, int channels) {
  CHECK(width > 0 && height > 0 && channels > 0, "{} x {} x {}", width, height, channels);
  Image image{width, height, channels, {}};
  image.pixels.resize(static_cast<size_t>(image.row_bytes() * height));
  return image;
}

void check_image_size(int64_t width, int64_t height, const std::string& where, const ImageLimits& limits) {
  if (width < 1 || height < 1) fail_data(where, "the image is {} x {} pixels; expected at least 1 x 1", width, height);
  if (width <= limits.side && height <= limits.side && width * height <= limits.pixels) return;
  fail_data(where, "the image is {} x {} pixels; at most {} pixels and {} per side are decoded; scale it down", width,
            height, limits.pixels, limits.side);
}

Image decode_image(std::span<const std::byte> bytes, const std::string& where, const ImageLimits& limits) {
  if (static_cast<int64_t>(bytes.size()) > limits.file_bytes)
    fail_data(where, "the image has {} bytes; at most {} are read", bytes.size(), limits.file_bytes);
  if (starts_with(bytes, 0, "\xFF\xD8\xFF")) return decode_jpeg(bytes, where, limits);
  if (starts_with(bytes, 0, "\x89PNG\r\n\x1A\n")) return decode_png(bytes, where, limits);
  if (starts_with(bytes, 0, "RIFF") && starts_with(bytes, 8, "WEBP")) return decode_webp(bytes, where, limits);
  fail_data(where, "this is no JPEG, PNG or WebP image; convert it to one of them");
}

Image read_image(const std::filesystem::path& path, const ImageLimits& limits) {
  return decode_image(MappedFile::open(path).bytes(), path.string(), limits);
}

}  // namespace moesaic
