#pragma once

#include "models/model.h"

namespace moesaic::deepseek_v4 {

Model parse(const JsonObject& config, const std::string& where);

}  // namespace moesaic::deepseek_v4
