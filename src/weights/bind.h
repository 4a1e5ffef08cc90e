// Binding: which tensors of a checkpoint hold which weights of a graph, and in which format.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "weights/shards.h"

namespace moesaic {

// Where a weight's numbers are: one tensor or one per expert, and for block formats as many of scales.
struct WeightSource {
  std::vector<StoredTensor> tensors, scales;
  bool k_first = false;         // experts as [E, K, N] (BF16 re-exports of gpt-oss) instead of [E, N, K]
  int64_t parts = 1, part = 0;  // the weight's rows are this part of the tensor's rows, of so many equal parts
};

struct Binding {
  std::vector<WeightSource> sources;    // in the order of Graph::weights; meaningless where a weight has a problem
  std::vector<std::string> missing;     // names that no tensor provides
  std::vector<std::string> unexpected;  // tensors that no weight uses
  std::vector<std::string> skipped;     // tensors that the model knows and does not use: multi-token prediction
  std::vector<std::string> mismatched;  // one sentence each: wrong shape or type
  bool complete() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
};

// Finds every weight of `graph` in `shards` and sets its format and dtype in the graph. Never throws for a mismatch:
// all of them are listed in the result. Tensors whose names begin with one of `skipped` may be there and are not used.
Binding bind_weights(Graph& graph, const Shards& shards, const std::vector<std::string>& skipped = {});
// Throws one Error(data_loss) with all problems of a binding, unless it is complete.
void check_binding(const Binding& binding, const std::string& where);

}  // namespace moesaic
