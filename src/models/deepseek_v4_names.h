// How checkpoints of DeepSeek-V4 spell the names of their tensors.
#pragma once

#include <string>

#include "ir/builder.h"

namespace moesaic::deepseek_v4 {

// Gives the weights of a graph declared under the published names ("layers.0.attn.wq_a.weight") those of the
// checkpoint, which transformers may have written: under its own names ("model.layers.0.self_attn.q_a_proj.weight"), or
// turned back into the published ones but for a few. Without a checkpoint they stay as published.
void rename_weights(Builder& g);

}  // namespace moesaic::deepseek_v4
