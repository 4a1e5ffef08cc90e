// Device, Stream and Buffer: where plans run. One of the three virtual seams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/cpu.h"
#include "base/thread_pool.h"

namespace moesaic {

enum class Backend : uint8_t {
  ref,  // float64, obvious, slow: the definition of every op
  cpu,  // SIMD
};
std::string backend_name(Backend backend);

struct DeviceInfo {
  Backend backend = Backend::cpu;
  std::string name;  // "cpu (avx512, 2 threads)"
  Isa isa = Isa::scalar;
  int threads = 1;
  int64_t memory_bytes = 0;  // what the device has in all
};

// Work is launched on a stream in order. On the CPU it runs at once, on the pool's threads.
struct Stream {
  ThreadPool* pool = nullptr;
};

// Device memory, released with its last owner; page aligned and zeroed.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::byte* data, int64_t bytes, void (*release)(std::byte*, int64_t))
      : owner_(data, [bytes, release](std::byte* p) { release(p, bytes); }), bytes_(bytes) {}

  std::byte* data() const { return owner_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<std::byte> owner_;
  int64_t bytes_ = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  // Throws Error(resource_exhausted) that says what was asked for (`purpose`, bytes) and what the device has.
  virtual Buffer allocate(int64_t bytes, const std::string& purpose) = 0;
  virtual Stream& stream() = 0;
};

// The processor of this machine. `backend` is ref or cpu; `threads` 0 means one per available core.
std::unique_ptr<Device> make_cpu_device(Backend backend, int threads = 0);

}  // namespace moesaic
