// What a GPU's memory delivers, to hold speeds against.
#pragma once

#include "device/device.h"

namespace moesaic {

// Seconds of what `body` launches: the median of five runs after a warm-up.
double median_gpu_seconds(Device& device, const std::function<void()>& body);

// Bytes per second of reading device memory, far more of it than caches hold: the median of several passes over up to
// 4 GiB, as much as is free. 0 where there is no room to measure.
double measure_gpu_read_bandwidth(Device& device);

// Launches that read `bytes` (a multiple of 16) at `data` once.
void read_on_gpu(const std::byte* data, int64_t bytes, float* sink, Stream& stream);

}  // namespace moesaic
