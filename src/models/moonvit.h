// MoonViT, the vision tower of Kimi K2.5 and K3, with the projector to the text model's embeddings.
#pragma once

#include "models/model.h"

namespace moesaic::moonvit {

// What differs between the two towers.
enum class Kind : uint8_t {
  k25,  // LayerNorm, biases, bicubic positions, a norm before the projector
  k3,   // RMSNorm, no biases, bilinear positions, a norm after it
};

// Reads vision_config of the whole `config`, in the published spelling or that of transformers. `placeholder`: the
// token that images replace. Throws Error(data_loss) for a field that is missing or impossible.
Vision parse(const JsonObject& config, Kind kind, int64_t text_hidden, const std::string& where);

}  // namespace moesaic::moonvit
