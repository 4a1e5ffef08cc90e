#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

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

class Passed final : public Mark {
 public:
  void record() override { time_ = Clock::now(); }
  bool reached() override { return true; }
  void wait() override {}
  double seconds_after(const Mark& earlier) const override {
    return std::chrono::duration<double>(time_ - static_cast<const Passed&>(earlier).time_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point time_;
};

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
  Buffer allocate_host(int64_t bytes, const std::string& purpose) override { return allocate(bytes, purpose); }
  int64_t memory_in_use() const override { return 0; }
  bool shares_host_memory() const override { return true; }
  void upload(std::byte* device, const std::byte* host, int64_t bytes) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void download(std::byte* host, const std::byte* device, int64_t bytes) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void synchronize() override {}
  std::unique_ptr<Recording> record(const std::function<void()>&) override { return nullptr; }
  std::unique_ptr<Mark> make_mark() override { return std::make_unique<Passed>(); }

 private:
  ThreadPool pool_;
  Stream stream_;
  DeviceInfo info_;
};

}  // namespace

std::string backend_name(Backend backend) {
  return backend == Backend::ref ? "ref" : backend == Backend::cpu ? "cpu" : "cuda";
}

std::byte* on_host(Device& device, std::byte* data, int64_t bytes, Buffer& scratch) {
  if (device.shares_host_memory()) return data;
  if (scratch.bytes() < bytes) scratch = device.allocate_host(bytes, "results on the host");
  device.download(scratch.data(), data, bytes);
  device.synchronize();
  return scratch.data();
}

std::unique_ptr<Device> make_device(Backend backend, int threads) {
  return backend == Backend::cuda ? make_cuda_device(threads) : make_cpu_device(backend, threads);
}

std::unique_ptr<Device> make_cpu_device(Backend backend, int threads) {
  return std::make_unique<CpuDevice>(backend, threads);
}

}  // namespace moesaic
