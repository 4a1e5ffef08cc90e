#pragma once

#include "models/model.h"

namespace moesaic::kimi_linear {

Model parse(const JsonObject& json, const std::string& where);

}  // namespace moesaic::kimi_linear
