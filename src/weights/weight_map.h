// WeightSlot: where one weight of a graph lies in the weight arena, and in which layout.
#pragma once

#include <vector>

#include "ir/weight_spec.h"

namespace moesaic {

struct WeightSlot {
  WeightSpec spec;
  Layout layout = Layout::row_major;
  DType stored = DType::none;  // plain elements in memory: vectors are converted to the activation type
  int64_t offset = 0, bytes = 0;
};

struct WeightMap {
  std::vector<WeightSlot> slots;  // in the order of Graph::weights
  int64_t bytes = 0;              // of the arena
};

}  // namespace moesaic
