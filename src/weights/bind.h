// Binding: which tensors of a checkpoint hold which weights of a graph, and in which format.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "weights/shards.h"

namespace moesaic {

// Where a weight's numbers are: one tensor, or MXFP4 codes and their scales.
struct WeightSource {
  StoredTensor tensor;
  std::optional<StoredTensor> scales;
  bool k_first = false;  // experts as [E, K, N] (BF16 re-exports of gpt-oss) instead of [E, N, K]
};

struct Binding {
  std::vector<WeightSource> sources;      // in the order of Graph::weights; meaningless where a weight has a problem
  std::vector<std::string> missing;       // names that no tensor provides
  std::vector<std::string> unexpected;    // tensors that no weight uses
  std::vector<std::string> mismatched;    // one sentence each: wrong shape or type
  bool complete() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
};

// Finds every weight of `graph` in `shards` and sets its format and dtype in the graph. Never throws for a mismatch:
// all of them are listed in the result.
Binding bind_weights(Graph& graph, const Shards& shards);
// Throws one Error(data_loss) with all problems of a binding, unless it is complete.
void check_binding(const Binding& binding, const std::string& where);
// The formats a checkpoint would have, from the config alone: bf16, and MXFP4 experts where it says so.
void assume_formats(Graph& graph, bool mxfp4_experts);

}  // namespace moesaic
