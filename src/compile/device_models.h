// Accelerators that `moesaic plan` knows, by the numbers on their data sheets.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace moesaic {

struct DeviceModel {
  std::string_view name;
  int64_t memory_bytes;   // as advertised, in powers of ten: the little more that some have is left to the driver
  double read_bandwidth;  // of that memory, bytes/s
  double host_bandwidth;  // from host memory over PCIe, one direction, bytes/s
};

std::span<const DeviceModel> device_models();
// Throws Error(invalid_argument) with the known names.
const DeviceModel& find_device_model(const std::string& name);

}  // namespace moesaic
