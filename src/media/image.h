// Image: decoded pixels, and reading them from JPEG, PNG and WebP files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace moesaic {

// Rows from the top, pixels from the left, `channels` bytes each: RGB, or RGBA with alpha not multiplied in.
struct Image {
  int64_t width = 0, height = 0;
  int channels = 3;
  std::vector<uint8_t> pixels;

  int64_t row_bytes() const { return width * channels; }
  const uint8_t* row(int64_t y) const { return pixels.data() + y * row_bytes(); }
  uint8_t* row(int64_t y) { return pixels.data() + y * row_bytes(); }
};

// An image of this size, all zeros.
Image make_image(int64_t width, int64_t height, int channels);

// What a file may ask for before any pixel is decoded: a few bytes can announce gigabytes.
struct ImageLimits {
  int64_t file_bytes = int64_t{64} << 20;
  int64_t pixels = 100'000'000;
  int64_t side = 65'535;
};

// Decodes a JPEG, PNG or WebP file, recognised by its first bytes: RGBA where it has transparency, else RGB; 16-bit
// channels keep their upper byte. Throws Error(data_loss) with `where` when the bytes are no such image, damaged or cut
// off, an animation, or beyond the limits.
Image decode_image(std::span<const std::byte> bytes, const std::string& where, const ImageLimits& limits = {});
// The same for a file; Error(not_found) where there is none.
Image read_image(const std::filesystem::path& path, const ImageLimits& limits = {});

}  // namespace moesaic
