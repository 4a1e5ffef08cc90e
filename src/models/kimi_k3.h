#pragma once

#include "models/model.h"

namespace moesaic::kimi_k3 {

Model parse(const JsonObject& config, const std::string& where);

}  // namespace moesaic::kimi_k3
