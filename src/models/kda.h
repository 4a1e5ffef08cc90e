// Kimi delta attention as a block of a layer (Kimi-Linear, Kimi K3). Follows transformers models/kimi_linear.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "ir/builder.h"

namespace moesaic {

struct KdaConfig {
  int64_t hidden = 0, heads = 0, head_dim = 0;
  int64_t conv_width = 0;             // taps of the short convolutions
  double eps = 0;                     // of o_norm
  bool full_rank_gate = false;        // g_proj, or g_a_proj and g_b_proj
  std::optional<double> lower_bound;  // of the log decay
  std::vector<bool> layers;           // which layers are of this kind; the others have full attention
};
// linear_attn_config, whose lists of layers count from 1, or transformers' layer_types and linear_* fields;
// hidden_size, num_hidden_layers and rms_norm_eps.
KdaConfig parse_kda(const JsonObject& config, const std::string& where);

// y[T, hidden] from the normalised x[T, hidden], with the weights in the current scope (self_attn).
Value kda_attention(Builder& g, const KdaConfig& c, Value x);

}  // namespace moesaic
