#include <webp/decode.h>

#include "base/error.h"
#include "media/decode.h"

namespace moesaic {

Image decode_webp(std::span<const std::byte> bytes, const std::string& where, const ImageLimits& limits) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(data, bytes.size(), &features) != VP8_STATUS_OK)
    fail_data(where, "the WebP image is damaged: its header cannot be read; save it again");
  check_image_size(features.width, features.height, where, limits);
  if (features.has_animation != 0) fail_data(where, "this WebP file is an animation; expected a single image");
  Image image = make_image(features.width, features.height, features.has_alpha != 0 ? 4 : 3);
  const auto decode = image.channels == 4 ? WebPDecodeRGBAInto : WebPDecodeRGBInto;
  if (decode(data, bytes.size(), image.pixels.data(), image.pixels.size(), static_cast<int>(image.row_bytes())) ==
      nullptr)
    fail_data(where, "the WebP image is damaged or cut off; save it again");
  return image;
}

}  // namespace moesaic
