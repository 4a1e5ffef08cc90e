// generation_config.json: the sampling that a model's authors suggest, and the tokens that end an answer.
#pragma once

#include <filesystem>
#include <vector>

#include "moesaic/sampling.h"

namespace moesaic {

struct GenerationConfig {
  SamplingParams sampling;  // greedy where do_sample is false
  std::vector<int32_t> eos_token_ids;
};

// Of a model directory; defaults where the file is absent. Throws Error(data_loss) when it is malformed.
GenerationConfig load_generation_config(const std::filesystem::path& directory);

}  // namespace moesaic
