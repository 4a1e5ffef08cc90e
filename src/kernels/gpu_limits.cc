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

double measure_gpu_read_bandwidth(Device& device) {
  const Buffer data = allocate_what_fits(device), sink = device.allocate(4, "measuring the read bandwidth");
  if (data.bytes() == 0) return 0;
  const auto begin = device.make_mark(), end = device.make_mark();
  std::vector<double> rates;
  for (int i = 0; i < 6; ++i) {
    begin->record();
    read_on_gpu(data.data(), data.bytes(), reinterpret_cast<float*>(sink.data()), device.info().multiprocessors,
                device.stream());
    end->record();
    device.synchronize();
    rates.push_back(static_cast<double>(data.bytes()) / end->seconds_after(*begin));
  }
  std::sort(rates.begin() + 1, rates.end());  // the first was the warm-up
  return rates[1 + (rates.size() - 1) / 2];
}

}  // namespace moesaic
