// Finding a model for commands that need no weights but look at them where there are some.
#pragma once

#include "runtime/loaded_model.h"

namespace moesaic {

// As open_model(model, false); where `checkpoint` is wanted and `model` is a directory (or a name) that holds one, its
// shards are opened too. A path to a config alone never looks beside it.
ModelSource find_model(const std::string& model, bool checkpoint);

// "model.layers.3.mlp.router" is pattern "model.layers.*.mlp.router", layer 3 and name "mlp.router". A label without a
// number is its own name, with layer -1.
struct LayerLabel {
  std::string pattern, name;
  int64_t layer = -1;
};
LayerLabel split_layer(const std::string& label);

// Ascending layers in short: "0-23", "0,2,...,22", "0,1,5".
std::string layer_list(const std::vector<int64_t>& layers);

}  // namespace moesaic
