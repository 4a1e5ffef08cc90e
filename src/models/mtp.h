// The multi-token prediction layer behind the others of DeepSeek's and GLM's models.
// Follows vLLM model_executor/models/deepseek_mtp.py and SGLang srt/models/deepseek_nextn.py; transformers has neither.
#pragma once

#include <functional>
#include <string>

#include "models/blocks.h"

namespace moesaic {

// What the layer leaves for a guess one token further (vllm#46075).
enum class Carry : uint8_t {
  raw,         // DeepSeek: its own output
  normalised,  // GLM: after shared_head.norm
};

// A decoder layer in the current scope, from x[T, hidden] to the same.
using DecoderLayer = std::function<Value(Builder&, Value x)>;

// The first of `num_nextn_predict_layers` layers, the others being skipped; nothing where there is none:
//   z = eh_proj [enorm(embedding of the next token), hnorm(hidden)], the layer, shared_head.norm, shared_head.head.
// Its embedding and head are the model's where the checkpoint has no copies for it.
std::optional<Mtp> make_mtp(const JsonObject& json, const TextEnd& end, Carry carry, const DecoderLayer& layer,
                            const std::string& where);

}  // namespace moesaic
