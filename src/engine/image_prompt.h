// Images of a request: decoded and cut into patches, and their places in the prompt.
#pragma once

#include "media/patches.h"
#include "models/model.h"
#include "moesaic/engine.h"
#include "text/tokenizer.h"

namespace moesaic {

// preprocessor_config.json of the model's directory, or the family's values where there is none. Throws
// Error(data_loss) when it cuts other patches than the tower reads.
PatchOptions load_patch_options(const std::filesystem::path& directory, const Vision& vision);

// Decodes request.images and gives each its place in request.tokens: the n-th image token becomes as many as image n
// has embeddings. A prompt without image tokens gets its images at the start, in the model's brackets where
// `tokenizer` (may be null) has them. invalid_argument when images and places do not match or an image is damaged.
Result<std::vector<PatchedImage>> prepare_images(Request& request, const Vision& vision, const PatchOptions& options,
                                                 const Tokenizer* tokenizer);

}  // namespace moesaic
