// Quantization: the formats that a config.json promises, for planning where there is no checkpoint.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "ir/graph.h"

namespace moesaic {

struct Quantization {
  Format experts = Format::plain;          // of routed experts
  Format matrices = Format::plain;         // of other matrices, except those that no release quantizes: routers, heads
  int64_t scale_rows = 0, scale_cols = 0;  // of fp8
  std::vector<std::string> plain;          // parts of names of matrices that stay in bf16
};

// quantization_config (of the config or of its text_config) and expert_dtype. Without them everything is bf16. Throws
// Error(data_loss) for a method or format that we cannot read.
Quantization parse_quantization(const JsonObject& config, const std::string& where);

// Sets the format and dtype of every weight of the graph.
void assume_formats(Graph& graph, const Quantization& quantization);

// Tensors that a checkpoint has for the weight: codes and scales of each expert, for example. 0 for a weight that is
// tied to another.
int64_t checkpoint_tensors(const Graph& graph, const WeightSpec& weight);

// Whether the weight is another one's tensor unless the checkpoint has its own (tied embeddings).
bool may_be_tied(const Graph& graph, const WeightSpec& weight);

}  // namespace moesaic
