// Follows Pillow's src/libImaging/Resample.c: coefficients in double, rounded to 22 bits after the point; sums of
// products in int32; one rounding per pass. PyTorch's ATen/native/cpu/UpSampleKernel.cpp does the same with as many
// bits as let the largest weight of a pass fit int16.
#include "media/resize.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace moesaic {
namespace {

constexpr int kMostFractionBits = 22;  // 32 bits less 8 of the pixel and 2 for the filter's overshoot
constexpr double kSupport = 2;         // of the bicubic filter, in pixels

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

// The input pixels that one output pixel is made of.
struct Window {
  int64_t first = 0;
  std::vector<double> shares;    // of each, together 1
  std::vector<int32_t> weights;  // the same in fixed point
};

Window window_of(double centre, double stretch, int64_t size) {
  const double support = kSupport * stretch;
  Window window;
  window.first = std::max<int64_t>(0, static_cast<int64_t>(centre - support + 0.5));
  const int64_t end = std::min(size, static_cast<int64_t>(centre + support + 0.5));
  double total = 0;
  for (int64_t x = window.first; x < end; ++x) {
    window.shares.push_back(bicubic((static_cast<double>(x) - centre + 0.5) * (1 / stretch)));
    total += window.shares.back();
  }
  if (total != 0)
    for (double& share : window.shares) share /= total;
  return window;
}

// The windows of all output pixels of one pass.
struct Filter {
  int fraction_bits = kMostFractionBits;
  std::vector<Window> windows;
};

int torchvision_fraction_bits(const std::vector<Window>& windows) {
  double largest = 0;
  for (const Window& window : windows)
    largest = std::max(largest, *std::max_element(window.shares.begin(), window.shares.end()));
  int bits = 0;
  while (bits < kMostFractionBits && static_cast<int>(0.5 + largest * (1 << (bits + 1))) < 1 << 15) ++bits;
  return bits;
}

Filter make_filter(int64_t from, int64_t to, Resampler resampler) {
  const double scale = static_cast<double>(from) / static_cast<double>(to), stretch = std::max(scale, 1.0);
  Filter out;
  for (int64_t i = 0; i < to; ++i)
    out.windows.push_back(window_of((static_cast<double>(i) + 0.5) * scale, stretch, from));
  if (resampler == Resampler::torchvision) out.fraction_bits = torchvision_fraction_bits(out.windows);
  for (Window& window : out.windows)
    for (double share : window.shares)
      window.weights.push_back(static_cast<int32_t>(share * (1 << out.fraction_bits) + (share < 0 ? -0.5 : 0.5)));
  return out;
}

uint8_t to_byte(int32_t fixed, int fraction_bits) {
  return static_cast<uint8_t>(std::clamp(fixed >> fraction_bits, 0, 255));
}

Image resize_rows(const Image& image, int64_t width, Resampler resampler) {
  Image out = make_image(width, image.height, image.channels);
  const Filter filter = make_filter(image.width, width, resampler);
  for (int64_t y = 0; y < image.height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      const Window& window = filter.windows[static_cast<size_t>(x)];
      for (int c = 0; c < image.channels; ++c) {
        int32_t sum = 1 << (filter.fraction_bits - 1);
        const uint8_t* from = image.row(y) + window.first * image.channels + c;
        for (size_t i = 0; i < window.weights.size(); ++i)
          sum += from[i * static_cast<size_t>(image.channels)] * window.weights[i];
        out.row(y)[x * image.channels + c] = to_byte(sum, filter.fraction_bits);
      }
    }
  return out;
}

Image resize_columns(const Image& image, int64_t height, Resampler resampler) {
  Image out = make_image(image.width, height, image.channels);
  const Filter filter = make_filter(image.height, height, resampler);
  std::vector<int32_t> sums(static_cast<size_t>(image.row_bytes()));
  for (int64_t y = 0; y < height; ++y) {
    const Window& window = filter.windows[static_cast<size_t>(y)];
    std::fill(sums.begin(), sums.end(), 1 << (filter.fraction_bits - 1));
    for (size_t i = 0; i < window.weights.size(); ++i) {
      const uint8_t* from = image.row(window.first + static_cast<int64_t>(i));
      for (size_t x = 0; x < sums.size(); ++x) sums[x] += from[x] * window.weights[i];
    }
    for (size_t x = 0; x < sums.size(); ++x) out.row(y)[x] = to_byte(sums[x], filter.fraction_bits);
  }
  return out;
}

Image resize_channels(const Image& image, int64_t width, int64_t height, Resampler resampler) {
  Image out = width == image.width ? image : resize_rows(image, width, resampler);
  return height == out.height ? out : resize_columns(out, height, resampler);
}

// Colours times alpha, rounded as Pillow's mode RGBa.
void multiply_alpha(Image& image) {
  for (size_t i = 0; i < image.pixels.size(); i += 4)
    for (size_t c = 0; c < 3; ++c) {
      const int product = image.pixels[i + c] * image.pixels[i + 3] + 128;
      image.pixels[i + c] = static_cast<uint8_t>(((product >> 8) + product) >> 8);
    }
}

void divide_alpha(Image& image) {
  for (size_t i = 0; i < image.pixels.size(); i += 4) {
    const int alpha = image.pixels[i + 3];
    if (alpha == 0 || alpha == 255) continue;
    for (size_t c = 0; c < 3; ++c)
      image.pixels[i + c] = static_cast<uint8_t>(std::min(255, 255 * image.pixels[i + c] / alpha));
  }
}

}  // namespace

Image resize_bicubic(const Image& image, int64_t width, int64_t height, Resampler resampler) {
  CHECK(width > 0 && height > 0, "{} x {}", width, height);
  if (width == image.width && height == image.height) return image;
  if (image.channels != 4) return resize_channels(image, width, height, resampler);
  Image weighted = image;
  multiply_alpha(weighted);
  weighted = resize_channels(weighted, width, height, resampler);
  divide_alpha(weighted);
  return weighted;
}

}  // namespace moesaic
