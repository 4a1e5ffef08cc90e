// Mirror: host arrays as a backend's kernels see them. Where the device shares the host's memory they are themselves,
// else copies on the device for as long as the mirror lives.
#pragma once

#include <span>
#include <vector>

#include "device/device.h"

namespace moesaic {

// The device that tests run a backend's kernels on; it lives as long as the program.
inline Device& test_device(Backend backend) {
  static const std::unique_ptr<Device> cpu = make_cpu_device(Backend::cpu, 3);
  if (backend != Backend::cuda) return *cpu;
  static const std::unique_ptr<Device> cuda = make_cuda_device(3);
  return *cuda;
}

class Mirror {
 public:
  explicit Mirror(Backend backend) : device_(test_device(backend)) {}

  // What kernels are given for `host`, whose content is copied now and, if `back`, again by finish().
  std::byte* of(std::span<std::byte> host, bool back) {
    if (device_.shares_host_memory() || host.empty()) return host.data();
    Copy& copy = copies_.emplace_back();
    copy.host = host;
    copy.back = back;
    copy.device = device_.allocate(static_cast<int64_t>(host.size()), "a test's array");
    device_.upload(copy.device.data(), host.data(), static_cast<int64_t>(host.size()));
    return copy.device.data();
  }
  template <typename T>
  const T* of(const T* host, int64_t count) {
    if (host == nullptr) return nullptr;
    auto* bytes = reinterpret_cast<std::byte*>(const_cast<T*>(host));
    return reinterpret_cast<const T*>(of({bytes, static_cast<size_t>(count) * sizeof(T)}, false));
  }

  void finish() {
    for (const Copy& copy : copies_)
      if (copy.back) device_.download(copy.host.data(), copy.device.data(), static_cast<int64_t>(copy.host.size()));
    device_.synchronize();
  }

 private:
  struct Copy {
    std::span<std::byte> host;
    Buffer device;
    bool back = false;
  };
  Device& device_;
  std::vector<Copy> copies_;
};

}  // namespace moesaic
