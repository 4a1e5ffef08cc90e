// From an image to the patches that a vision tower reads, as Kimi's processors do it.
#pragma once

#include <array>
#include <optional>

#include "base/json.h"
#include "media/image.h"
#include "media/resize.h"

namespace moesaic {

// Squares of two greys behind transparent pixels: `light` at the top left.
struct Chessboard {
  int64_t square = 8;
  uint8_t light = 255, dark = 180;
};

struct PatchOptions {
  int64_t patch = 14;                         // pixels per side
  int64_t merge = 2;                          // patches per side that become one token
  int64_t max_patches = 16384;                // of an image before padding
  int64_t max_rows = 512, max_columns = 512;  // in patches
  std::array<float, 3> mean = {0.5f, 0.5f, 0.5f}, deviation = {0.5f, 0.5f, 0.5f};
  Resampler resampler = Resampler::pillow;
  std::optional<Chessboard> background;  // none: transparency is ignored (Kimi K2.5)

  // Patches that any image may become, padding included.
  int64_t most_patches() const;
};

// Reads preprocessor_config.json in the published form (media_proc_cfg), whose processor resizes with Pillow, or that
// of transformers, which does with torchvision. Throws Error(data_loss) for a value that is impossible or not one we
// follow.
PatchOptions parse_patch_options(const JsonObject& config, const std::string& where);

struct PatchedImage {
  int64_t rows = 0, columns = 0;  // the grid of patches, multiples of `merge`
  int64_t merge = 2;
  int64_t width = 0, height = 0;  // of the image as it came, in pixels
  std::vector<float> values;      // [rows * columns, 3, patch, patch], normalised

  int64_t tokens() const { return rows * columns / (merge * merge); }
};

// The size to which an image is shrunk (never enlarged), before padding.
struct ImageSize {
  int64_t width, height;
};
ImageSize fitted_size(int64_t width, int64_t height, const PatchOptions& options);

// Shrinks the image, lays it on the background, pads it right and below with black to whole merged patches, and
// normalises it.
PatchedImage make_patches(const Image& image, const PatchOptions& options);

}  // namespace moesaic
