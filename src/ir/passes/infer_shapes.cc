#include "ir/passes/passes.h"

namespace moesaic {

void infer_shapes(Graph& graph) {
  graph.infer_types();
}

}  // namespace moesaic
