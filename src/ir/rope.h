// Rotary position embedding as configs state it, and its frequencies.
#pragma once

#include <span>
#include <vector>

#include "base/json.h"
#include "ir/op.h"

namespace moesaic {

// Frequencies follow YaRN (Peng et al. 2023, arXiv 2309.00071) as transformers computes them
// (modeling_rope_utils.py, _compute_yarn_parameters); factor 1 is plain RoPE.
struct RopeConfig {
  double theta = 10000;
  double factor = 1;
  double beta_fast = 32, beta_slow = 1;
  double original_positions = 0;
  bool truncate = true;         // round the correction range outwards to whole dimensions
  double attention_factor = 1;  // multiplies cos and sin

  Attrs attrs(int64_t head_dim) const;
  static RopeConfig from(const Attrs& attrs);
};

// Reads rope_theta and rope_scaling, or their newer spelling rope_parameters, from a config.json object. An explicit
// attention_factor is final; otherwise YaRN's is m(mscale) / m(mscale_all_dim), or m(1) where one of them is missing or
// 0, with m(a) = 0.1 a ln(factor) + 1. Throws Error(data_loss) for an unknown rope_type.
RopeConfig parse_rope(const JsonObject& config, const std::string& where);

// The dimensions between which YaRN's ramp runs, before the clamp to the head.
struct RopeRange {
  double low, high;
};
RopeRange yarn_range(const RopeConfig& rope, int64_t head_dim);

// Inverse frequencies [head_dim/2], rounded to float32.
std::vector<float> rope_frequencies(const RopeConfig& rope, int64_t head_dim);
// The same into `out` [head_dim/2]; allocates nothing.
void rope_frequencies(const RopeConfig& rope, std::span<float> out);

}  // namespace moesaic
