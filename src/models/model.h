// Model: what a config.json says, and the function that builds its graph. One file per family beside this one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "ir/builder.h"

namespace moesaic {

// A tower that turns one image (T: its patches) into embeddings (output "image_rows" [S, hidden]) for the text model.
struct Vision {
  int64_t patch = 14, merge = 2;     // pixels per side of a patch; patches per side of a token
  int32_t placeholder = -1;          // token that each embedding replaces
  bool sizes_in_prompt = false;      // the text before an image names its width and height (Kimi K3)
  std::vector<std::string> skipped;  // prefixes of the text model's tensors
  std::function<void(Builder&)> build;
};

// A multi-token prediction layer, which guesses the token after the next. From the next token's embedding and the
// model's hidden state of the token before it (join_hidden), it makes outputs "logits" [S, vocab], and "hidden"
// [S, hidden] in place of the model's to guess one token further.
struct Mtp {
  std::string prefix;                // of its tensors
  std::vector<std::string> skipped;  // prefixes of the other tensors of the checkpoint
  std::function<void(Builder&)> build;
};

struct Model {
  std::string family;  // "gpt_oss"
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t vocab = 0;
  int64_t max_positions = 0;  // longest context the config allows
  int64_t experts = 0, experts_per_token = 0;
  std::vector<int32_t> stop_tokens;     // eos_token_id of config.json
  std::vector<std::string> stop_names;  // tokens that end a turn in the family's format, where the tokenizer has them
  std::vector<std::string> skipped;     // prefixes of tensors that a checkpoint may hold and this graph does not use
  std::function<void(Builder&)> build;
  std::optional<Vision> vision;  // of a model that sees images
  std::optional<Mtp> mtp;        // of a model that can draft; its tensors are among `skipped`
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

// Throws Error(data_loss) unless a norm's epsilon is between 0 and 1.
void check_eps(const std::string& where, const char* field, double value);
// Throws Error(data_loss) naming the first field that is not from 1 to 2^31 (layers: to 10,000).
void check_sizes(const std::string& where, std::initializer_list<std::pair<const char*, int64_t>> fields);

// eos_token_id, an integer or a list of them; empty when absent.
std::vector<int32_t> parse_token_ids(const JsonObject& config, std::string_view key, const std::string& where);

}  // namespace moesaic
