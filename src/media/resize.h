// Resizing as Pillow does it, on which the models' training pipelines stand.
#pragma once

#include "media/image.h"

namespace moesaic {

// Bicubic (a = -0.5) with the filter widened when shrinking, horizontally and then vertically, each pass rounded to
// bytes: bit for bit what Image.resize((width, height), BICUBIC) of Pillow 9.4 gives for RGB and RGBA. The colours of
// RGBA are weighted by alpha, as there.
Image resize_bicubic(const Image& image, int64_t width, int64_t height);

}  // namespace moesaic
