#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/progress.h"
#include "device/device.h"

namespace moesaic {
namespace {

int64_t physical_memory() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

void unmap(std::byte* data, int64_t bytes) {
  munmap(data, static_cast<size_t>(bytes));
}

class CpuDevice final : public Device {
 public:
  CpuDevice(Backend backend, int threads) : pool_(threads), stream_{&pool_} {
    info_.backend = backend;
    info_.isa = cpu_isa();
    info_.threads = pool_.threads();
    info_.memory_bytes = physical_memory();
    info_.name = backend == Backend::ref ? fmt::format("reference (float64, {} threads)", info_.threads)
                                         : fmt::format("cpu ({}, {} threads)", isa_name(info_.isa), info_.threads);
  }

  const DeviceInfo& info() const override { return info_; }
  Stream& stream() override { return stream_; }

  Buffer allocate(int64_t bytes, const std::string& purpose) override {
    CHECK(bytes >= 0, "{} bytes for {}", bytes, purpose);
    if (bytes == 0) return {};
    void* data = bytes > info_.memory_bytes ? MAP_FAILED
                                            : mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
      throw Error(StatusCode::resource_exhausted,
                  fmt::format("{} needs {}, this machine has {} in all; use a shorter context, fewer sequences or a "
                              "smaller model",
                              purpose, human_bytes(static_cast<double>(bytes)),
                              human_bytes(static_cast<double>(info_.memory_bytes))));
    madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    return {static_cast<std::byte*>(data), bytes, unmap};
  }

 private:
  ThreadPool pool_;
  Stream stream_;
  DeviceInfo info_;
};

}  // namespace

std::string backend_name(Backend backend) {
  return backend == Backend::ref ? "ref" : "cpu";
}

std::unique_ptr<Device> make_cpu_device(Backend backend, int threads) {
  return std::make_unique<CpuDevice>(backend, threads);
}

}  // namespace moesaic
