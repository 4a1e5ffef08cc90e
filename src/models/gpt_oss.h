#pragma once

#include "models/model.h"

namespace moesaic::gpt_oss {

Model parse(const JsonObject& config, const std::string& where);

}  // namespace moesaic::gpt_oss
