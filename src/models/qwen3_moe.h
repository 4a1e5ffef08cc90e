#pragma once

#include "models/model.h"

namespace moesaic::qwen3_moe {

Model parse(const JsonObject& config, const std::string& where);

}  // namespace moesaic::qwen3_moe
