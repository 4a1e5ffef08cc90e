// What the image tests share: Pillow's answers, as committed in data/expected.safetensors and, where it is installed,
// live (pillow.py).
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/fresh_rng.h"
#include "base/temp_dir.h"
#include "media/image.h"
#include "weights/safetensors.h"

namespace moesaic {

inline std::string media_data(const std::string& name) {
  return std::string(MOESAIC_SOURCE_DIR) + "/tests/media/data/" + name;
}

// A u8 tensor [height, width, channels] as an image.
inline Image stored_image(const SafetensorsFile& file, const std::string& name) {
  const Tensor t = file.tensor(name);
  Image image{t.shape[1], t.shape[0], static_cast<int>(t.shape[2]), {}};
  const auto* bytes = reinterpret_cast<const uint8_t*>(t.data);
  image.pixels.assign(bytes, bytes + t.bytes());
  return image;
}
inline SafetensorsFile expectations() {
  return SafetensorsFile::open(media_data("expected.safetensors"));
}

// Smooth and noisy rectangles of random size, so that encoders and filters meet edges, ramps and flat parts.
inline Image random_image(Rng& rng, int64_t width, int64_t height, int channels) {
  Image image = make_image(width, height, channels);
  const double noise = rng.below(2) == 0 ? 0 : 60, slope = rng.uniform(-9, 9);
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width * channels; ++x) {
      const double edge = (x / 20 + y / 13) % 3 == 0 ? 200 : 0;
      const double value = edge + slope * static_cast<double>(x + y) + noise * rng.normal();
      image.row(y)[x] = static_cast<uint8_t>(static_cast<int64_t>(value) & 255);
    }
  return image;
}

inline bool have_pillow() {
  return std::system("/usr/bin/python3 -c 'import PIL; assert PIL.__version__ == \"9.4.0\"' 2>/dev/null") == 0;
}

// Runs pillow.py with `input` and returns what it printed.
inline std::vector<uint8_t> pillow(const std::string& arguments, const std::vector<uint8_t>& input) {
  const TempDir dir;
  dir.write("in", {reinterpret_cast<const char*>(input.data()), input.size()});
  const std::string out = (dir.path() / "out").string();
  const std::string command = std::string("/usr/bin/python3 ") + MOESAIC_SOURCE_DIR + "/tests/media/pillow.py " +
                              arguments + " < " + (dir.path() / "in").string() + " > " + out;
  CHECK(std::system(command.c_str()) == 0, "{}", command);
  std::ifstream file(out, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace moesaic
