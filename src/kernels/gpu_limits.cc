#include "kernels/gpu_limits.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace moesaic {
namespace {

Buffer allocate_what_fits(Device& device) {
  for (int64_t bytes = int64_t{4} << 30; bytes >= int64_t{256} << 20; bytes /= 2) {
    try {
      return device.allocate(bytes, "measuring the read bandwidth");
    } catch (const Error& error) {
      if (error.code() != StatusCode::resource_exhausted) throw;
    }
  }
  return {};
}

}  // namespace

double median_gpu_seconds(Device& device, const std::function<void()>& body) {
  constexpr int kRuns = 6;  // the first is the warm-up
  const auto begin = device.make_mark(), end = device.make_mark();
  std::vector<double> seconds;
  for (int i = 0; i < kRuns; ++i) {
    begin->record();
    body();
    end->record();
    device.synchronize();
    if (i > 0) seconds.push_back(end->seconds_after(*begin));
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

double measure_gpu_read_bandwidth(Device& device) {
  const Buffer data = allocate_what_fits(device), sink = device.allocate(4, "measuring the read bandwidth");
  if (data.bytes() == 0) return 0;
  const double seconds = median_gpu_seconds(
      device, [&] { read_on_gpu(data.data(), data.bytes(), reinterpret_cast<float*>(sink.data()), device.stream()); });
  return static_cast<double>(data.bytes()) / seconds;
}

}  // namespace moesaic
