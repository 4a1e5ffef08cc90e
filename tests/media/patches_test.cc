// Patches against those of Kimi K2.5's processor, and the rules of size, padding and transparency.
#include "media/patches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "pillow.h"

namespace moesaic {
namespace {

std::string kimi(const std::string& name) {
  return std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/kimi_k25/" + name;
}

PatchOptions options_of(const std::string& json) {
  return parse_patch_options(parse_json(json, "test").as_object(), "test");
}

TEST(Patches, MatchTheProcessorOfKimiK25) {
  const SafetensorsFile file = SafetensorsFile::open(kimi("image.safetensors"));
  const PatchOptions options =
      parse_patch_options(read_json_file(kimi("preprocessor_config.json")).as_object(), "test");
  const PatchedImage got = make_patches(stored_image(file, "image_rgb"), options);
  const auto* grid = file.tensor("image_grid_thw").as<int64_t>();
  EXPECT_EQ((std::vector<int64_t>{1, got.rows, got.columns}), std::vector<int64_t>(grid, grid + 3));
  const Tensor want = file.tensor("pixel_values");
  ASSERT_EQ(static_cast<int64_t>(got.values.size()), want.shape.elements());
  for (size_t i = 0; i < got.values.size(); ++i)  // a grey level is 2 / 255 here: none may differ
    EXPECT_NEAR(got.values[i], want.as<float>()[i], 1e-6) << i;
  EXPECT_EQ(got.tokens(), 20);
}

// The published configs' own processor, against transformers' above.
TEST(Patches, ThePublishedFormResizesWithPillow) {
  const Image image = stored_image(SafetensorsFile::open(kimi("image.safetensors")), "image_rgb");
  const char* limits = R"("patch_size": 4, "in_patch_limit": 64, "patch_limit_on_one_side": 12)";
  const PatchOptions published = options_of(fmt::format(R"({{"media_proc_cfg": {{{}}}}})", limits));
  const ImageSize size = fitted_size(image.width, image.height, published);
  const PatchedImage got = make_patches(image, published);
  EXPECT_EQ(got.values, make_patches(resize_bicubic(image, size.width, size.height), published).values);
  EXPECT_NE(got.values, make_patches(image, options_of(fmt::format("{{{}}}", limits))).values);
}

using Size = std::pair<int64_t, int64_t>;

TEST(Patches, TheFileIsTheGoldenImage) {
  const SafetensorsFile file = SafetensorsFile::open(kimi("image.safetensors"));
  EXPECT_EQ(read_image(media_data("kimi_k25.png")).pixels, stored_image(file, "image_rgb").pixels);
}

TEST(Patches, SizesShrinkAndNeverGrow) {
  const PatchOptions o;  // Kimi K2.5's
  const auto size = [&](int64_t width, int64_t height) {
    const ImageSize s = fitted_size(width, height, o);
    return Size{s.width, s.height};
  };
  EXPECT_EQ(size(1, 1), (Size{1, 1}));
  EXPECT_EQ(size(1792, 1792), (Size{1792, 1792}));  // 128 * 128 patches: the most
  EXPECT_EQ(size(3584, 3584), (Size{1792, 1792}));
  EXPECT_EQ(size(14336, 10), (Size{7168, 5}));
  EXPECT_EQ(size(3, 60000), (Size{1, 7168}));
}

TEST(Patches, EveryImageFitsTheMostPatches) {
  Rng rng = fresh_rng();
  const PatchOptions o =
      options_of(R"({"patch_size": 2, "max_patches": 40, "size": {"max_height": 9, "max_width": 30}})");
  for (int i = 0; i < 200; ++i) {
    const Image image = make_image(1 + rng.below(90), 1 + rng.below(90), 3);
    const PatchedImage patched = make_patches(image, o);
    EXPECT_LE(patched.rows * patched.columns, o.most_patches()) << image.width << " x " << image.height;
    EXPECT_EQ(patched.rows % 2 + patched.columns % 2, 0);
    EXPECT_EQ(static_cast<int64_t>(patched.values.size()), patched.rows * patched.columns * 3 * 2 * 2);
  }
}

TEST(Patches, RowsOfPatchesChannelsFirstPaddedWithBlack) {
  Image image = make_image(3, 2, 3);
  for (size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = static_cast<uint8_t>(10 * i);
  const PatchedImage got = make_patches(image, options_of(R"({"patch_size": 2, "merge_size": 1})"));
  EXPECT_EQ(got.rows, 1);
  EXPECT_EQ(got.columns, 2);
  const std::vector<int> bytes = {0,  30, 90,  120, 10, 40, 100, 130, 20, 50, 110, 140,  // left patch: red, green, blue
                                  60, 0,  150, 0,   70, 0,  160, 0,   80, 0,  170, 0};   // right patch, half padding
  for (size_t i = 0; i < bytes.size(); ++i)
    EXPECT_FLOAT_EQ(got.values[i], static_cast<float>(bytes[i]) / 127.5f - 1) << i;
}

TEST(Patches, MeanAndDeviationPerChannel) {
  Image image = make_image(1, 1, 3);
  image.pixels = {255, 0, 51};
  const PatchedImage got = make_patches(
      image,
      options_of(R"({"patch_size": 1, "merge_size": 1, "image_mean": [0, 0.5, 0.1], "image_std": [2, 0.25, 1]})"));
  EXPECT_FLOAT_EQ(got.values[0], 0.5f);
  EXPECT_FLOAT_EQ(got.values[1], -2.0f);
  EXPECT_FLOAT_EQ(got.values[2], 0.1f);
}

// Kimi K3: transparency shows a chessboard of 8-pixel squares, white at the top left, 180 beside it.
TEST(Patches, TransparencyShowsTheChessboard) {
  Image image = make_image(16, 16, 4);
  image.pixels[4 * 3 + 0] = 100, image.pixels[4 * 3 + 3] = 255;  // opaque red at (3, 0)
  image.pixels[4 * 9 + 1] = 200, image.pixels[4 * 9 + 3] = 128;  // half green at (9, 0)
  const std::string config =
      R"({"media_proc_cfg": {"patch_size": 16, "merge_kernel_size": 1, "transparent_bg_config": {"pattern": "chessboard"}}})";
  const PatchedImage got = make_patches(image, options_of(config));
  const auto byte = [&](int64_t x, int64_t y, int64_t c) {
    return std::lround((got.values[static_cast<size_t>(c * 256 + y * 16 + x)] + 1) * 127.5f);
  };
  EXPECT_EQ(byte(0, 0, 0), 255);
  EXPECT_EQ(byte(8, 0, 0), 180);
  EXPECT_EQ(byte(0, 8, 1), 180);
  EXPECT_EQ(byte(8, 8, 2), 255);
  EXPECT_EQ(byte(3, 0, 0), 100);
  EXPECT_EQ(byte(3, 0, 1), 0);
  EXPECT_EQ(byte(9, 0, 1), 190);  // 200 * 128/255 + 180 * 127/255 = 190.04
  EXPECT_EQ(byte(9, 0, 0), 89);   // 89.6, cut
  // Without a background the colours under the transparency are the picture.
  const PatchedImage plain = make_patches(image, options_of(R"({"patch_size": 16, "merge_size": 1})"));
  EXPECT_FLOAT_EQ(plain.values[256 + 9], 200 / 127.5f - 1);
}

TEST(Patches, ConfigsThatCannotBeAreErrors) {
  const auto message = [](const std::string& json) -> std::string {
    try {
      options_of(json);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message(R"({"patch_size": 0})"), testing::HasSubstr("\"patch_size\" is 0; expected 1 to"));
  EXPECT_THAT(message(R"({"image_std": [0.5, 0, 0.5]})"), testing::HasSubstr("expected three positive numbers"));
  EXPECT_THAT(message(R"({"image_mean": [0.5]})"), testing::HasSubstr("expected three numbers"));
  EXPECT_THAT(message(R"({"merge_kernel_size": [2, 3]})"), testing::HasSubstr("expected two equal numbers"));
  EXPECT_THAT(message(R"({"transparent_bg_config": "stripes"})"), testing::HasSubstr("expected \"chessboard\""));
  EXPECT_EQ(message(R"({"media_proc_cfg": {"merge_kernel_size": [2, 2], "in_patch_limit": 65536}})"), "no error");
}

}  // namespace
}  // namespace moesaic
