#pragma once

#include <vector>

#include "models/blocks.h"
#include "models/mla.h"
#include "models/model.h"
#include "models/mtp.h"

namespace moesaic::deepseek_v32 {

// Multi-head latent attention over chosen positions, dense or expert feed-forward: also GLM-5's structure.
struct Config {
  int64_t layers, hidden, vocab, max_positions, intermediate;
  MlaConfig mla;
  IndexerConfig indexer;
  std::vector<bool> own_indexer;  // by layer; without one it attends to what the layer before attended to
  std::vector<bool> dense;        // by layer: no experts
  MoeConfig moe;
  double eps;
  bool tied;
  RopeConfig rope;
  Carry carry = Carry::raw;
};
// Every layer gets an indexer of its own.
Config parse_config(const JsonObject& config, const std::string& where);
Model make_model(const Config& c, const JsonObject& config, const std::string& where);

Model parse(const JsonObject& config, const std::string& where);

}  // namespace moesaic::deepseek_v32
