// From the public options to what load_model takes.
#pragma once

#include "moesaic/engine.h"
#include "runtime/loaded_model.h"

namespace moesaic {

LoadOptions load_options(const EngineOptions& options);

// "auto", "cpu" or "ref"; "fast", "fp8" or "float32". All throw Error(invalid_argument) for anything else.
Backend parse_backend(const std::string& name);
Precision parse_precision(const std::string& name);
const char* precision_name(Precision precision);
// vLLM's JSON {"method": "mtp", "num_speculative_tokens": 3}: how many to draft. Throws Error(invalid_argument) for
// another method or key, or no number.
int64_t parse_speculative_config(const std::string& text);
// "auto", "f32" or "bf16".
DType parse_cache_dtype(const std::string& name);

}  // namespace moesaic
