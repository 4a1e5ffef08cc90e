// config.json of DeepSeek-V4 under its published names and those of transformers.
#pragma once

#include "models/blocks.h"

namespace moesaic::deepseek_v4 {

struct Layer {
  int64_t ratio = 0;    // tokens of a compressed entry; 0: the window alone
  bool sparse = false;  // pools overlapping windows and chooses entries by an indexer
  bool hash = false;    // experts follow from the token's id
};

struct Config {
  int64_t hidden, heads, head_dim, rope_dim, q_lora, o_groups, o_lora, window, vocab, max_positions;
  int64_t index_heads, index_dim, index_topk;
  double eps;
  std::vector<Layer> layers;
  StreamShape streams;
  MoeConfig moe;
  RopeConfig rope, compress_rope;
};

// Throws Error(data_loss) for a field that is missing, impossible or of something we do not have.
Config parse_config(const JsonObject& json, const std::string& where);

}  // namespace moesaic::deepseek_v4
