#include <turbojpeg.h>

#include <memory>
#include <type_traits>

#include "base/error.h"
#include "media/decode.h"

namespace moesaic {
namespace {

struct CloseHandle {
  void operator()(void* handle) const { tjDestroy(handle); }
};
using Handle = std::unique_ptr<std::remove_pointer_t<tjhandle>, CloseHandle>;

[[noreturn]] void fail_decoder(const Handle& handle, const std::string& where) {
  fail_data(where, "the JPEG image is damaged: {}; save it again", tjGetErrorStr2(handle.get()));
}

// a * b / 255, rounded, for bytes.
uint8_t times_255th(int a, int b) {
  const int product = a * b + 128;
  return static_cast<uint8_t>(((product >> 8) + product) >> 8);
}

// CMYK JPEG files hold inverted inks: 255 means none.
Image from_inverted_cmyk(const Image& cmyk) {
  Image image = make_image(cmyk.width, cmyk.height, 3);
  for (size_t i = 0; i < image.pixels.size() / 3; ++i)
    for (size_t c = 0; c < 3; ++c) {
      const int black = cmyk.pixels[4 * i + 3];
      image.pixels[3 * i + c] = static_cast<uint8_t>(black - times_255th(255 - cmyk.pixels[4 * i + c], black));
    }
  return image;
}

}  // namespace

Image decode_jpeg(std::span<const std::byte> bytes, const std::string& where, const ImageLimits& limits) {
  const Handle handle(tjInitDecompress());
  CHECK(handle != nullptr);
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto size = static_cast<unsigned long>(bytes.size());
  int width = 0, height = 0, subsampling = 0, colours = 0;
  if (tjDecompressHeader3(handle.get(), data, size, &width, &height, &subsampling, &colours) != 0)
    fail_decoder(handle, where);
  check_image_size(width, height, where, limits);
  const bool inks = colours == TJCS_CMYK || colours == TJCS_YCCK;
  Image image = make_image(width, height, inks ? 4 : 3);
  // A limit on scans would refuse honest progressive files; pixels and bytes are bounded already. Warnings are errors:
  // they mean that part of the picture is missing.
  const int flags = TJFLAG_ACCURATEDCT | TJFLAG_STOPONWARNING;
  if (tjDecompress2(handle.get(), data, size, image.pixels.data(), width, 0, height, inks ? TJPF_CMYK : TJPF_RGB,
                    flags) != 0)
    fail_decoder(handle, where);
  return inks ? from_inverted_cmyk(image) : image;
}

}  // namespace moesaic
