#include "compile/device_models.h"

#include "base/error.h"

namespace moesaic {
namespace {

constexpr int64_t kGiga = 1'000'000'000;
constexpr double kPcie5 = 64e9;  // 16 lanes

constexpr DeviceModel kDeviceModels[] = {
    {"h200", 141 * kGiga, 4.8e12, kPcie5},
    {"h100", 80 * kGiga, 3.35e12, kPcie5},
    {"h20", 96 * kGiga, 4.0e12, kPcie5},
    {"h20-141", 141 * kGiga, 4.8e12, kPcie5},
};

}  // namespace

std::span<const DeviceModel> device_models() {
  return kDeviceModels;
}

const DeviceModel& find_device_model(const std::string& name) {
  std::string known;
  for (const DeviceModel& model : kDeviceModels) {
    if (model.name == name) return model;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", model.name);
  }
  fail_argument("there is no device model \"{}\"; known are {}", name, known);
}

}  // namespace moesaic
