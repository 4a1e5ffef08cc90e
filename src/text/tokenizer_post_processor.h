// The "post_processor" of tokenizer.json: the ids it puts before and after a single text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/bpe_tables.h"

namespace moesaic {

// What the post-processor puts around a text.
struct Surroundings {
  std::vector<int32_t> before, after;
};

// value: null for none; its ids must be among `tokens`. Throws Error(data_loss) naming an unknown type.
Surroundings parse_post_processor(const Json* value, const TokenStrings& tokens, const std::string& where);

}  // namespace moesaic
