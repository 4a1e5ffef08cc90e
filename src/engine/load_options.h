// From the public options to what load_model takes.
#pragma once

#include "moesaic/engine.h"
#include "runtime/loaded_model.h"

namespace moesaic {

LoadOptions load_options(const EngineOptions& options);

// "auto", "cpu" or "ref"; "fast" or "float32". Throw Error(invalid_argument) for anything else.
Backend parse_backend(const std::string& name);
Precision parse_precision(const std::string& name);

}  // namespace moesaic
