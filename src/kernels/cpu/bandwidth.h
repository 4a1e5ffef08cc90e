// What this machine can do, to compare kernels with: memory read bandwidth and fused multiply-adds per second.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"
#include "base/thread_pool.h"

namespace moesaic {

// Reads `bytes` bytes with all threads of `pool`, summing them with the widest vectors in several streams per thread.
// `data` need not be aligned.
void read_all(ThreadPool& pool, const std::byte* data, int64_t bytes);

// Runs `loops` rounds of independent fused multiply-adds on registers, 8 times per thread; returns the number of f32
// operations (2 per multiply-add). For Isa::scalar, multiplications and additions.
double multiply_add_all(ThreadPool& pool, Isa isa, int64_t loops);

// The best of many readings, in bytes per second, of a buffer of `bytes`, which should be far larger than the last
// cache level. Throws Error(resource_exhausted) when there is no memory for it.
double measure_read_bandwidth(ThreadPool& pool, size_t bytes = size_t{1} << 30, int passes = 5);
double measure_fma_peak(ThreadPool& pool, Isa isa, int passes = 50);

}  // namespace moesaic
