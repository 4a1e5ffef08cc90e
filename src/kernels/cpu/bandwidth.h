// What this machine can do, to compare kernels with: memory read bandwidth and fused multiply-adds per second.
#pragma once

#include <cstddef>

#include "base/cpu.h"
#include "base/thread_pool.h"

namespace moesaic {

// Bytes per second that all threads of `pool` together read from a buffer of `bytes` (far larger than the last cache
// level), summing it with the widest vectors: the best of `passes` passes after one to touch the pages.
double measure_read_bandwidth(ThreadPool& pool, size_t bytes = size_t{1} << 30, int passes = 5);

// f32 operations per second (2 per fused multiply-add) of all threads of `pool` on registers alone.
double measure_fma_peak(ThreadPool& pool, Isa isa, int passes = 5);

}  // namespace moesaic
