// Device, Stream and Buffer: where plans run. One of the three virtual seams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/cpu.h"
#include "base/thread_pool.h"

struct CUstream_st;

namespace moesaic {

enum class Backend : uint8_t {
  ref,   // float64, obvious, slow: the definition of every op
  cpu,   // SIMD
  cuda,  // sm_90a; activations f32 in memory
};
std::string backend_name(Backend backend);

struct DeviceInfo {
  Backend backend = Backend::cpu;
  std::string name;  // "cpu (avx512, 2 threads)"
  Isa isa = Isa::scalar;
  int threads = 1;
  int64_t memory_bytes = 0;  // what the device has in all
};

// Work is launched on a stream in order. On the CPU it runs at once, on the pool's threads; a GPU runs it later.
struct Stream {
  ThreadPool* pool = nullptr;
  CUstream_st* cuda = nullptr;
  int multiprocessors = 0;  // of the GPU
};

// Memory of a device, or of the host where the device can reach it quickest; released with its last owner. Aligned to a
// page; zeroed.
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

// What was launched while a device recorded, to be launched again with the same arguments: a captured graph.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;  // on the device's stream
};

// A point on the stream that the host can wait for.
class Mark {
 public:
  virtual ~Mark() = default;
  virtual void record() = 0;  // here, on the device's stream
  virtual bool reached() = 0;
  virtual void wait() = 0;
  virtual double seconds_after(const Mark& earlier) const = 0;  // both reached, of the same device
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  // Throws Error(resource_exhausted) that says what was asked for (`purpose`, bytes) and what the device has.
  virtual Buffer allocate(int64_t bytes, const std::string& purpose) = 0;
  // Host memory for copies to and from the device; not cleared.
  virtual Buffer allocate_host(int64_t bytes, const std::string& purpose) = 0;
  virtual Stream& stream() = 0;
  // Device memory that is in use more than when this was made; 0 where the host's memory is the device's.
  virtual int64_t memory_in_use() const = 0;
  // Whether device memory is memory of the host too, and everything on the stream runs at once.
  virtual bool shares_host_memory() const = 0;
  // Copies in stream order. `host` comes from allocate_host() and must not change before the copy is done.
  virtual void upload(std::byte* device, const std::byte* host, int64_t bytes) = 0;
  virtual void download(std::byte* host, const std::byte* device, int64_t bytes) = 0;
  // Between two places of device memory that do not overlap.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // Returns when everything on the stream is done. Throws Error(internal) where something on it failed.
  virtual void synchronize() = 0;
  // Null where the device cannot record. `body` only launches; nothing runs before replay().
  virtual std::unique_ptr<Recording> record(const std::function<void()>& body) = 0;
  virtual std::unique_ptr<Mark> make_mark() = 0;
};

// The processor of this machine. `backend` is ref or cpu; `threads` 0 means one per available core.
std::unique_ptr<Device> make_cpu_device(Backend backend, int threads = 0);
// The first NVIDIA GPU of compute capability 9.0. `threads` serve the host's side. Throws Error(invalid_argument) where
// there is none, or where the build has no CUDA.
std::unique_ptr<Device> make_cuda_device(int threads = 0);
// Why make_cuda_device would throw; empty: it would not.
std::string cuda_unavailable();
// What "auto" means: cuda where there is such a GPU, else cpu.
Backend auto_backend();
std::unique_ptr<Device> make_device(Backend backend, int threads = 0);

// `bytes` of device memory as the host reads them: where they are, or a copy in `scratch`, which grows. Waits for the
// device.
std::byte* on_host(Device& device, std::byte* data, int64_t bytes, Buffer& scratch);

}  // namespace moesaic
