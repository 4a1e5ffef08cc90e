// The decoders behind decode_image(), one per format.
#pragma once

#include "media/image.h"

namespace moesaic {

// Throws Error(data_loss) unless an image of this size is within the limits. Decoders call it after the header.
void check_image_size(int64_t width, int64_t height, const std::string& where, const ImageLimits& limits);

Image decode_jpeg(std::span<const std::byte> bytes, const std::string& where, const ImageLimits& limits);
Image decode_png(std::span<const std::byte> bytes, const std::string& where, const ImageLimits& limits);
Image decode_webp(std::span<const std::byte> bytes, const std::string& where, const ImageLimits& limits);

}  // namespace moesaic
