// Faults on demand, for tests of what happens when a GPU fails.
#pragma once

#include <atomic>

namespace emulated_cuda {

// While it is set, launching a captured graph fails as a kernel with a bad address makes it fail.
extern std::atomic<bool> graphs_fail;

}  // namespace emulated_cuda
