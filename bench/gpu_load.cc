// gpu_load MODEL COUNT: how fast a checkpoint's weights reach the GPU, beside what a copy from pinned memory does.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

#include "base/error.h"
#include "runtime/loaded_model.h"

namespace moesaic {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double pinned_rate(Device& device) {
  const int64_t bytes = int64_t{1} << 30;
  const Buffer host = device.allocate_host(bytes, "measuring a copy"),
               there = device.allocate(bytes, "measuring a copy");
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    device.synchronize();
    const auto start = Clock::now();
    device.upload(there.data(), host.data(), bytes);
    device.synchronize();
    best = std::max(best, static_cast<double>(bytes) / seconds_since(start));
  }
  return best;
}

int measure(const char* directory, int count) {
  LoadOptions options;
  options.model = directory;
  options.backend = Backend::cuda;
  options.max_sequences = 1;
  options.max_model_len = 64;
  options.progress = false;
  double rate = 0;
  for (int i = 0; i < count; ++i) {
    const LoadedModel loaded = load_model(options);
    if (i == 0) rate = pinned_rate(*loaded.device);
    fmt::print("{}: {:.2f} GB of weights in {:.3f} s, {:.1f} GB/s; pinned copy {:.1f} GB/s: {:.0f} percent\n", i,
               static_cast<double>(loaded.weights.bytes()) / 1e9, loaded.fill_seconds,
               static_cast<double>(loaded.weights.bytes()) / loaded.fill_seconds / 1e9, rate / 1e9,
               100 * static_cast<double>(loaded.weights.bytes()) / loaded.fill_seconds / rate);
  }
  return 0;
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  try {
    if (argc != 3) return fmt::print(stderr, "gpu_load MODEL COUNT\n"), 2;
    return moesaic::measure(argv[1], std::atoi(argv[2]));
  } catch (const moesaic::Error& error) {
    return fmt::print(stderr, "gpu_load: {}\n", error.what()), 1;
  }
}
