// PNG through libpng. Its errors leave by longjmp, so the functions it may leave hold no objects with destructors: they
// live in the Reader, which outlasts the jump.
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>

#include "base/error.h"
#include "media/decode.h"

namespace moesaic {
namespace {

struct Reader {
  std::span<const std::byte> rest;
  std::string message;
  png_structp png = nullptr;
  png_infop info = nullptr;
  Image image;
  std::vector<png_bytep> rows;

  Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
};

void on_error(png_structp png, png_const_charp message) {
  static_cast<Reader*>(png_get_error_ptr(png))->message = message;
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep out, size_t count) {
  auto& rest = static_cast<Reader*>(png_get_io_ptr(png))->rest;
  if (rest.size() < count) png_error(png, "the file ends early");
  std::memcpy(out, rest.data(), count);
  rest = rest.subspan(count);
}

bool read_header(Reader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_set_read_fn(reader.png, &reader, read_bytes);
  png_set_chunk_malloc_max(reader.png, 8 << 20);  // colour profiles and text may be compressed
  png_read_info(reader.png, reader.info);
  return true;
}

// Asks for 8-bit RGB, or RGBA where the file has transparency.
bool set_output(Reader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_set_expand(reader.png);
  png_set_strip_16(reader.png);
  png_set_gray_to_rgb(reader.png);
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  return true;
}

bool read_pixels(Reader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_read_image(reader.png, reader.rows.data());
  png_read_end(reader.png, nullptr);
  return true;
}

}  // namespace

Image decode_png(std::span<const std::byte> bytes, const std::string& where, const ImageLimits& limits) {
  Reader reader;
  reader.rest = bytes;
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, on_error, on_warning);
  CHECK(reader.png != nullptr);
  reader.info = png_create_info_struct(reader.png);
  CHECK(reader.info != nullptr);
  const auto expect = [&](bool ok) {
    if (!ok) fail_data(where, "the PNG image is damaged: {}; save it again", reader.message);
  };
  png_set_user_limits(reader.png, 0x7FFFFFFF, 0x7FFFFFFF);  // ours are checked below, with a better message
  expect(read_header(reader));
  const int64_t width = png_get_image_width(reader.png, reader.info),
                height = png_get_image_height(reader.png, reader.info);
  check_image_size(width, height, where, limits);
  expect(set_output(reader));
  reader.image = make_image(width, height, png_get_channels(reader.png, reader.info));
  CHECK(png_get_rowbytes(reader.png, reader.info) == static_cast<size_t>(reader.image.row_bytes()));
  for (int64_t y = 0; y < height; ++y) reader.rows.push_back(reader.image.row(y));
  expect(read_pixels(reader));
  return std::move(reader.image);
}

}  // namespace moesaic
