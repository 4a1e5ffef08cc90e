// Random weights made on the device.
#pragma once

#include "device/device.h"
#include "weights/weight_map.h"

namespace moesaic {

// As fill_dummy_weights (weights/load.h): the same formats and deviations, other numbers. `arena` is device memory of
// map.bytes.
void fill_dummy_on_gpu(const WeightMap& map, std::byte* arena, Stream& stream);

}  // namespace moesaic
