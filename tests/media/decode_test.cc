// Decoding against Pillow, and files that are damaged or too large.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "pillow.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Image decode(std::string_view bytes, const ImageLimits& limits = {}) {
  return decode_image({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "upload", limits);
}

std::string failure(std::string_view bytes, const ImageLimits& limits = {}) {
  try {
    decode(bytes, limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::data_loss);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "no error";
}

constexpr const char* kFiles[] = {"photo.jpg",         "progressive.jpg", "gray.jpg",       "inks.jpg", "photo.png",
                                  "alpha.png",         "gray.png",        "gray-alpha.png", "bits.png", "palette.png",
                                  "palette-alpha.png", "photo.webp",      "alpha.webp"};

class Decode : public testing::TestWithParam<const char*> {};

TEST_P(Decode, GivesPillowsPixels) {
  const Image got = read_image(media_data(GetParam())), want = stored_image(expectations(), GetParam());
  EXPECT_EQ(got.width, want.width);
  EXPECT_EQ(got.height, want.height);
  EXPECT_EQ(got.channels, want.channels);
  EXPECT_EQ(got.pixels, want.pixels);
}

TEST_P(Decode, EveryCutIsOneClearError) {
  const std::string whole = file_bytes(media_data(GetParam()));
  for (size_t length = 0; length + 20 < whole.size(); ++length) {  // trailers hold no pixels
    const std::string message = failure(std::string_view(whole).substr(0, length));
    EXPECT_THAT(message, HasSubstr("upload: ")) << length;
  }
}

TEST_P(Decode, DamageNeverCrashes) {
  Rng rng = fresh_rng();
  const std::string whole = file_bytes(media_data(GetParam()));
  for (int i = 0; i < 300; ++i) {
    std::string bytes = whole;
    for (int64_t n = 1 + rng.below(4); n > 0; --n)
      bytes[static_cast<size_t>(rng.below(static_cast<int64_t>(bytes.size())))] = static_cast<char>(rng.bits());
    try {
      const Image image = decode(bytes, {.pixels = 1 << 20});
      EXPECT_EQ(static_cast<int64_t>(image.pixels.size()), image.width * image.height * image.channels);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), StatusCode::data_loss);
    }
  }
}

std::string test_name(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(, Decode, testing::ValuesIn(kFiles), test_name);

TEST(Image, LimitsAreCheckedBeforeDecoding) {
  for (const char* name : {"photo.jpg", "photo.png", "photo.webp"}) {
    const std::string bytes = file_bytes(media_data(name));
    EXPECT_THAT(failure(bytes, {.pixels = 37 * 23 - 1}), HasSubstr("37 x 23 pixels; at most 850")) << name;
    EXPECT_THAT(failure(bytes, {.side = 36}), HasSubstr("37 x 23 pixels")) << name;
    EXPECT_THAT(failure(bytes, {.file_bytes = 100}), HasSubstr("at most 100 are read")) << name;
    EXPECT_EQ(failure(bytes, {.file_bytes = static_cast<int64_t>(bytes.size()), .pixels = 37 * 23, .side = 37}),
              "no error");
  }
}

// A header that announces 2^31 - 1 pixels a side, with no more bytes behind it than a thumbnail's.
TEST(Image, AHugeHeaderAllocatesNothing) {
  std::string png = file_bytes(media_data("photo.png"));
  const std::string size("\x7F\xFF\xFF\xFF\x7F\xFF\xFF\xFF", 8);
  png.replace(16, 8, size);
  EXPECT_THAT(failure(png), HasSubstr("PNG image is damaged"));  // the header's checksum
  std::string webp = file_bytes(media_data("photo.webp"));
  webp.replace(26, 4, std::string("\xFF\x3F\xFF\x3F"));  // 16383 x 16383, the format's largest
  EXPECT_THAT(failure(webp), HasSubstr("16383 x 16383 pixels; at most 100000000 pixels"));
}

TEST(Image, OtherFilesAreNamed) {
  EXPECT_EQ(failure("GIF89a.........."), "upload: this is no JPEG, PNG or WebP image; convert it to one of them");
  EXPECT_EQ(failure(""), "upload: this is no JPEG, PNG or WebP image; convert it to one of them");
  EXPECT_THROW(read_image(media_data("none.png")), Error);
}

TEST(Image, RandomFilesDecodeAsInPillow) {
  if (!have_pillow()) GTEST_SKIP() << "Pillow 9.4 is not installed";
  Rng rng = fresh_rng();
  for (const char* format : {"png", "jpeg", "progressive", "webp", "lossless"}) {
    const bool alpha =
        std::string_view(format) != "jpeg" && std::string_view(format) != "progressive" && rng.below(2) == 1;
    const Image image = random_image(rng, 1 + rng.below(90), 1 + rng.below(90), alpha ? 4 : 3);
    const TempDir dir;
    const std::string path = (dir.path() / "image").string();
    pillow(fmt::format("encode {} {} {} {} {}", format, alpha ? "RGBA" : "RGB", image.width, image.height, path),
           image.pixels);
    EXPECT_EQ(read_image(path).pixels, pillow("decode " + path, {})) << format;
  }
}

}  // namespace
}  // namespace moesaic
