#include "media/patches.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace moesaic {
namespace {

int64_t positive(const JsonObject& json, std::string_view key, const std::string& where, int64_t fallback) {
  const int64_t value = json_int(json, key, where, fallback);
  if (value < 1 || value > 1 << 20) fail_data(where, "\"{}\" is {}; expected 1 to 2^20", key, value);
  return value;
}

std::array<float, 3> parse_channels(const JsonObject& json, std::string_view key, const std::string& where,
                                    bool divides) {
  std::array<float, 3> out = {0.5f, 0.5f, 0.5f};
  const Json* list = json_find(json, key);
  if (list == nullptr) return out;
  const auto fits = [&](const Json& v) { return v.is_number() && (!divides || v.to_number<double>() > 0); };
  if (!list->is_array() || list->get_array().size() != 3 ||
      !std::all_of(list->get_array().begin(), list->get_array().end(), fits))
    fail_data(where, "\"{}\" is {}; expected three {}numbers", key, write_json(*list).substr(0, 80),
              divides ? "positive " : "");
  for (size_t c = 0; c < 3; ++c) out[c] = list->get_array()[c].to_number<float>();
  return out;
}

// merge_kernel_size is a number or a pair of equal ones.
int64_t parse_merge(const JsonObject& json, const std::string& where) {
  const Json* pair = json_find(json, "merge_kernel_size");
  if (pair == nullptr || !pair->is_array())
    return positive(json, "merge_kernel_size", where, positive(json, "merge_size", where, 2));
  const JsonArray& sides = pair->get_array();
  if (sides.size() != 2 || sides[0] != sides[1] || !sides[0].is_int64() || sides[0].get_int64() < 1)
    fail_data(where, "\"merge_kernel_size\" is {}; expected two equal numbers", write_json(*pair).substr(0, 80));
  return sides[0].get_int64();
}

std::optional<Chessboard> parse_background(const JsonObject& json, const std::string& where) {
  const Json* value = json_find(json, "transparent_bg_config");
  if (value == nullptr) return std::nullopt;
  const JsonObject* object = value->if_object();
  const std::string kind =
      object != nullptr ? json_string(*object, "pattern", where, json_string(*object, "type", where, "chessboard"))
                        : json_string(json, "transparent_bg_config", where);
  if (kind != "chessboard") fail_data(where, "transparent_bg_config is \"{}\"; expected \"chessboard\"", kind);
  return Chessboard{};
}

// Rounded to nearest even by neither: Kimi K3's processor truncates.
uint8_t blend(int colour, int alpha, int under) {
  const double share = alpha / 255.0;
  return static_cast<uint8_t>(share * colour + (1 - share) * under);
}

Image without_alpha(const Image& image, const std::optional<Chessboard>& background) {
  if (image.channels == 3) return image;
  Image out = make_image(image.width, image.height, 3);
  for (int64_t y = 0; y < image.height; ++y)
    for (int64_t x = 0; x < image.width; ++x) {
      const uint8_t* from = image.row(y) + 4 * x;
      uint8_t* to = out.row(y) + 3 * x;
      if (!background) {
        std::copy_n(from, 3, to);
        continue;
      }
      const bool light = (x / background->square + y / background->square) % 2 == 0;
      for (int c = 0; c < 3; ++c) to[c] = blend(from[c], from[3], light ? background->light : background->dark);
    }
  return out;
}

int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// One normalised pixel of the padded image.
float pixel(const Image& image, int64_t x, int64_t y, int c, const PatchOptions& o) {
  const int value = x < image.width && y < image.height ? image.row(y)[3 * x + c] : 0;
  const auto channel = static_cast<size_t>(c);
  return (static_cast<float>(value) / 255.0f - o.mean[channel]) / o.deviation[channel];
}

}  // namespace

// A grid of r x c patches needs (r - m)(c - m) <= max_patches up to rounding, so the widest strip is the worst case.
int64_t PatchOptions::most_patches() const {
  const int64_t longest = round_up(std::max(max_rows, max_columns), merge);
  return std::min(round_up(max_rows, merge) * round_up(max_columns, merge),
                  max_patches + merge * (longest + longest + merge));
}

PatchOptions parse_patch_options(const JsonObject& config, const std::string& where) {
  const Json* inner = json_find(config, "media_proc_cfg");
  const JsonObject& json = inner != nullptr ? json_object(*inner, where) : config;
  PatchOptions o;
  o.patch = positive(json, "patch_size", where, o.patch);
  o.merge = parse_merge(json, where);
  o.max_patches = positive(json, "in_patch_limit", where, positive(json, "max_patches", where, o.max_patches));
  o.max_rows = o.max_columns = positive(json, "patch_limit_on_one_side", where, 512);
  if (const Json* size = json_find(json, "size")) {
    o.max_rows = positive(json_object(*size, where), "max_height", where, o.max_rows);
    o.max_columns = positive(json_object(*size, where), "max_width", where, o.max_columns);
  }
  o.mean = parse_channels(json, "image_mean", where, false);
  o.deviation = parse_channels(json, "image_std", where, true);
  o.resampler = inner != nullptr ? Resampler::pillow : Resampler::torchvision;
  o.background = parse_background(json, where);
  return o;
}

ImageSize fitted_size(int64_t width, int64_t height, const PatchOptions& o) {
  const double patches = static_cast<double>(std::max<int64_t>(1, width / o.patch)) *
                         static_cast<double>(std::max<int64_t>(1, height / o.patch));
  const auto most_wide = static_cast<double>(o.max_columns * o.patch),
             most_high = static_cast<double>(o.max_rows * o.patch);
  const double scale = std::min({1.0, std::sqrt(static_cast<double>(o.max_patches) / patches),
                                 most_wide / static_cast<double>(width), most_high / static_cast<double>(height)});
  const auto fit = [&](int64_t side, int64_t most) {
    return std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(side) * scale), 1, most * o.patch);
  };
  return {fit(width, o.max_columns), fit(height, o.max_rows)};
}

PatchedImage make_patches(const Image& source, const PatchOptions& o) {
  // With a background the colours under transparent pixels do not show and alpha takes part in resizing; without one,
  // they are what the picture is.
  const ImageSize size = fitted_size(source.width, source.height, o);
  const auto resize = [&](const Image& from) { return resize_bicubic(from, size.width, size.height, o.resampler); };
  const Image image = o.background ? without_alpha(resize(source), o.background) : resize(without_alpha(source, {}));
  PatchedImage out;
  out.merge = o.merge;
  out.width = source.width, out.height = source.height;
  out.rows = round_up(image.height, o.patch * o.merge) / o.patch;
  out.columns = round_up(image.width, o.patch * o.merge) / o.patch;
  out.values.reserve(static_cast<size_t>(out.rows * out.columns * 3 * o.patch * o.patch));
  for (int64_t r = 0; r < out.rows; ++r)
    for (int64_t col = 0; col < out.columns; ++col)
      for (int c = 0; c < 3; ++c)
        for (int64_t y = r * o.patch; y < (r + 1) * o.patch; ++y)
          for (int64_t x = col * o.patch; x < (col + 1) * o.patch; ++x) out.values.push_back(pixel(image, x, y, c, o));
  return out;
}

}  // namespace moesaic
