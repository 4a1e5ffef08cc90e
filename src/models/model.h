// Model: what a config.json says, and the function that builds its graph. One file per family beside this one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "ir/builder.h"

namespace moesaic {

struct Model {
  std::string family;        // "gpt_oss"
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t vocab = 0;
  int64_t max_positions = 0;  // longest context the config allows
  int64_t experts = 0, experts_per_token = 0;
  bool mxfp4_experts = false;  // what the config says of the experts' format, for planning without a checkpoint
  std::vector<int32_t> stop_tokens;      // eos_token_id of config.json
  std::vector<std::string> stop_names;   // tokens that end a turn in the family's format, where the tokenizer has them
  std::function<void(Builder&)> build;
};

// One row per family: the architectures it serves and how its config is read.
struct Family {
  std::string name;
  std::vector<std::string> architectures;  // of config.json
  Model (*parse)(const JsonObject& config, const std::string& where);
};
const std::vector<Family>& families();

// Throws Error(data_loss) when the architecture is unknown (listing those we have) or a field is missing or impossible.
Model parse_model(const JsonObject& config, const std::string& where);

// eos_token_id, an integer or a list of them; empty when absent.
std::vector<int32_t> parse_token_ids(const JsonObject& config, std::string_view key, const std::string& where);

}  // namespace moesaic
