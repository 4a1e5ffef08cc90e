// Where a model's files are: a directory, or a name that the local Hugging Face cache holds. Never a network access.
#pragma once

#include <filesystem>
#include <string>

namespace moesaic {

// The directory of `model`: a directory, a path to its config.json, or a name such as "openai/gpt-oss-20b" in the
// cache at HF_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub (the
// snapshot of refs/main; without that the newest). Throws Error(not_found) saying where it looked and what to do.
std::filesystem::path resolve_model(const std::string& model);

}  // namespace moesaic
