#pragma once

#include "models/model.h"

namespace moesaic::glm_moe_dsa {

Model parse(const JsonObject& config, const std::string& where);

}  // namespace moesaic::glm_moe_dsa
