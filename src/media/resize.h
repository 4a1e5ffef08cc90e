// Resizing as Pillow does it, on which the models' training pipelines stand, and as torchvision does.
#pragma once

#include "media/image.h"

namespace moesaic {

// Both make the same sums with weights in fixed point; torchvision's have 16 bits where Pillow's have 32, so now and
// then a channel differs by one.
enum class Resampler { pillow, torchvision };

// Bicubic (a = -0.5) with the filter widened when shrinking, horizontally and then vertically, each pass rounded to
// bytes: bit for bit what Image.resize((width, height), BICUBIC) of Pillow 9.4 gives for RGB and RGBA, or what
// torchvision's resize with antialias gives for a uint8 tensor on a CPU. The colours of RGBA are weighted by alpha, as
// Pillow does.
Image resize_bicubic(const Image& image, int64_t width, int64_t height, Resampler resampler = Resampler::pillow);

}  // namespace moesaic
