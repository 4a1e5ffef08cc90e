// Resizing bit for bit as Pillow. What torchvision makes of an image is in patches_test.cc, from its own processor.
#include "media/resize.h"

#include <gtest/gtest.h>

#include "pillow.h"

namespace moesaic {
namespace {

Image drop_alpha(const Image& image) {
  Image out = make_image(image.width, image.height, 3);
  for (size_t i = 0; i < image.pixels.size(); ++i)
    if (i % 4 < 3) out.pixels[i / 4 * 3 + i % 4] = image.pixels[i];
  return out;
}

TEST(Resize, MatchesCommittedExpectations) {
  const SafetensorsFile file = expectations();
  const Image rgba = stored_image(file, "source"), rgb = drop_alpha(rgba);
  int compared = 0;
  for (const SafetensorsEntry& entry : file.tensors()) {
    char mode[5] = "";
    long width = 0, height = 0;
    if (std::sscanf(entry.name.c_str(), "%4s %ld %ld", mode, &width, &height) != 3) continue;
    const Image& from = std::string_view(mode) == "rgb" ? rgb : rgba;
    EXPECT_EQ(resize_bicubic(from, width, height).pixels, stored_image(file, entry.name).pixels) << entry.name;
    ++compared;
  }
  EXPECT_EQ(compared, 12);
}

TEST(Resize, MatchesPillowOnRandomImages) {
  if (!have_pillow()) GTEST_SKIP() << "Pillow 9.4 is not installed";
  Rng rng = fresh_rng();
  for (int i = 0; i < 10; ++i) {
    const int channels = i % 2 == 0 ? 3 : 4;
    const Image image = random_image(rng, 1 + rng.below(150), 1 + rng.below(150), channels);
    const int64_t width = 1 + rng.below(200), height = i % 5 == 0 ? image.height : 1 + rng.below(200);
    const std::vector<uint8_t> want = pillow(
        fmt::format("resize {} {} {} {} {}", channels == 3 ? "RGB" : "RGBA", image.width, image.height, width, height),
        image.pixels);
    EXPECT_EQ(resize_bicubic(image, width, height).pixels, want)
        << image.width << " x " << image.height << " x " << channels << " to " << width << " x " << height;
  }
}

TEST(Resize, TorchvisionDiffersByAtMostOneLevelPerPass) {
  Rng rng = fresh_rng();
  int64_t different = 0, all = 0;
  for (int i = 0; i < 10; ++i) {
    const Image image = random_image(rng, 2 + rng.below(150), 2 + rng.below(150), 3);
    const int64_t width = 1 + rng.below(200), height = 1 + rng.below(200);
    const Image a = resize_bicubic(image, width, height);
    const Image b = resize_bicubic(image, width, height, Resampler::torchvision);
    for (size_t p = 0; p < a.pixels.size(); ++p) {
      const int difference = std::abs(a.pixels[p] - b.pixels[p]);
      EXPECT_LE(difference, 2);
      different += difference != 0 ? 1 : 0, ++all;
    }
  }
  EXPECT_LT(different * 20, all);
}

TEST(Resize, TheSameSizeIsTheSameImage) {
  Rng rng = fresh_rng();
  const Image image = random_image(rng, 30, 20, 4);
  EXPECT_EQ(resize_bicubic(image, 30, 20).pixels, image.pixels);
}

}  // namespace
}  // namespace moesaic
