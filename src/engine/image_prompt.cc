#include "engine/image_prompt.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic {
namespace {

Status invalid(std::string message) {
  return {StatusCode::invalid_argument, std::move(message), "images"};
}

std::vector<int32_t> bracket(const Tokenizer* tokenizer, std::string_view text) {
  if (tokenizer == nullptr || !tokenizer->token_to_id("<|media_begin|>") || !tokenizer->token_to_id("<|media_end|>"))
    return {};
  return tokenizer->encode(text);
}

std::vector<int32_t> bracketed(const Vision& vision, const PatchedImage& image, const Tokenizer* tokenizer) {
  const std::string size = vision.sizes_in_prompt ? fmt::format(" {}x{}", image.width, image.height) : "";
  std::vector<int32_t> out = bracket(tokenizer, "<|media_begin|>image" + size + "<|media_content|>");
  out.push_back(vision.placeholder);
  const std::vector<int32_t> end = bracket(tokenizer, "<|media_end|>");
  out.insert(out.end(), end.begin(), end.end());
  return out;
}

void place_at_start(std::vector<int32_t>& tokens, const Vision& vision, const std::vector<PatchedImage>& images,
                    const Tokenizer* tokenizer) {
  std::vector<int32_t> out;
  for (const PatchedImage& image : images) {
    const std::vector<int32_t> one = bracketed(vision, image, tokenizer);
    out.insert(out.end(), one.begin(), one.end());
  }
  tokens.insert(tokens.begin(), out.begin(), out.end());
}

void expand(std::vector<int32_t>& tokens, int32_t placeholder, const std::vector<PatchedImage>& images) {
  std::vector<int32_t> out;
  auto image = images.begin();
  for (int32_t id : tokens) out.insert(out.end(), id == placeholder ? static_cast<size_t>((image++)->tokens()) : 1, id);
  tokens = std::move(out);
}

}  // namespace

PatchOptions load_patch_options(const std::filesystem::path& directory, const Vision& vision) {
  const std::filesystem::path path = directory / "preprocessor_config.json";
  PatchOptions options;
  options.patch = vision.patch, options.merge = vision.merge;
  if (!std::filesystem::exists(path)) return options;
  options = parse_patch_options(json_object(read_json_file(path.string()), path.string()), path.string());
  if (options.patch != vision.patch || options.merge != vision.merge)
    fail_data(path.string(), "patches of {} pixels merged {} by {}; config.json's tower reads {} pixels, {} by {}",
              options.patch, options.merge, options.merge, vision.patch, vision.merge, vision.merge);
  return options;
}

Result<std::vector<PatchedImage>> prepare_images(Request& request, const Vision& vision, const PatchOptions& options,
                                                 const Tokenizer* tokenizer) {
  std::vector<PatchedImage> images;
  if (request.images.empty()) return images;
  const auto places = std::count(request.tokens.begin(), request.tokens.end(), vision.placeholder);
  if (places != 0 && places != static_cast<long>(request.images.size()))
    return invalid(
        fmt::format("there are {} images, and the prompt has {} image tokens (id {}); expected one for each, or "
                    "none to put the images first",
                    request.images.size(), places, vision.placeholder));
  for (size_t i = 0; i < request.images.size(); ++i) {
    const std::string& bytes = request.images[i];
    try {
      const std::string where = fmt::format("image {}", i + 1);
      images.push_back(make_patches(decode_image(std::as_bytes(std::span(bytes)), where), options));
    } catch (const Error& error) {
      return invalid(error.what());
    }
  }
  if (places == 0) place_at_start(request.tokens, vision, images, tokenizer);
  expand(request.tokens, vision.placeholder, images);
  request.images.clear();
  return images;
}

}  // namespace moesaic
