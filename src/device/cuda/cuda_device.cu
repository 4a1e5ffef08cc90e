#include <cuda_runtime.h>

#include <cstring>

#include "base/progress.h"
#include "device/cuda/check.h"
#include "device/device.h"

namespace moesaic {
namespace {

void free_device(std::byte* data, int64_t) {
  cudaFree(data);
}
void free_host(std::byte* data, int64_t) {
  cudaFreeHost(data);
}

class GraphRecording final : public Recording {
 public:
  GraphRecording(cudaGraph_t graph, cudaStream_t stream) : stream_(stream) {
    const cudaError_t error = cudaGraphInstantiate(&exec_, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(error, "instantiating a captured step");
  }
  ~GraphRecording() override { cudaGraphExecDestroy(exec_); }
  GraphRecording(const GraphRecording&) = delete;
  GraphRecording& operator=(const GraphRecording&) = delete;

  void replay() override { check_cuda(cudaGraphLaunch(exec_, stream_), "launching a captured step"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t exec_ = nullptr;
};

class EventMark final : public Mark {
 public:
  explicit EventMark(cudaStream_t stream) : stream_(stream) {
    check_cuda(cudaEventCreateWithFlags(&event_, 0), "creating an event");
  }
  ~EventMark() override { cudaEventDestroy(event_); }
  EventMark(const EventMark&) = delete;
  EventMark& operator=(const EventMark&) = delete;

  void record() override { check_cuda(cudaEventRecord(event_, stream_), "recording an event"); }
  bool reached() override {
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) return false;
    check_cuda(error, "a step on the device");
    return true;
  }
  void wait() override { check_cuda(cudaEventSynchronize(event_), "a step on the device"); }
  double seconds_after(const Mark& earlier) const override {
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, static_cast<const EventMark&>(earlier).event_, event_), "timing a step");
    return static_cast<double>(ms) / 1000;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t event_ = nullptr;
};

std::string bytes_text(size_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int threads) : pool_(threads) {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, 0), "reading the GPU's properties");
    check_cuda(cudaStreamCreateWithFlags(&stream_.cuda, cudaStreamNonBlocking), "creating a stream");
    stream_.pool = &pool_;
    info_.backend = Backend::cuda;
    info_.isa = cpu_isa();
    info_.threads = pool_.threads();
    stream_.multiprocessors = properties.multiProcessorCount;
    info_.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
    size_t total = 0;
    check_cuda(cudaMemGetInfo(&free_at_start_, &total), "asking for the GPU's free memory");
    info_.name = fmt::format("cuda ({}, {} multiprocessors)", properties.name, stream_.multiprocessors);
  }
  ~CudaDevice() override {
    cudaStreamSynchronize(stream_.cuda);
    cudaStreamDestroy(stream_.cuda);
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const DeviceInfo& info() const override { return info_; }
  Stream& stream() override { return stream_; }
  int64_t memory_in_use() const override {
    size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "asking for the GPU's free memory");
    return static_cast<int64_t>(free_at_start_) - static_cast<int64_t>(free);
  }
  bool shares_host_memory() const override { return false; }

  Buffer allocate(int64_t bytes, const std::string& purpose) override {
    CHECK(bytes >= 0, "{} bytes for {}", bytes, purpose);
    if (bytes == 0) return {};
    const auto size = static_cast<size_t>(bytes);
    size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "asking for the GPU's free memory");
    void* data = nullptr;
    const cudaError_t error = size > free ? cudaErrorMemoryAllocation : cudaMalloc(&data, size);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // not sticky
      throw Error(StatusCode::resource_exhausted,
                  fmt::format("{} needs {}, the GPU has {} free of {}; use a shorter context, fewer sequences or a "
                              "smaller model",
                              purpose, bytes_text(size), bytes_text(free), bytes_text(total)));
    }
    check_cuda(error, "allocating GPU memory");
    check_cuda(cudaMemsetAsync(data, 0, size, stream_.cuda), "clearing GPU memory");
    return {static_cast<std::byte*>(data), bytes, free_device};
  }

  Buffer allocate_host(int64_t bytes, const std::string& purpose) override {
    if (bytes == 0) return {};
    void* data = nullptr;
    if (cudaMallocHost(&data, static_cast<size_t>(bytes)) != cudaSuccess) {
      cudaGetLastError();
      throw Error(StatusCode::resource_exhausted,
                  fmt::format("{} needs {} of pinned host memory, which the system refused", purpose,
                              bytes_text(static_cast<size_t>(bytes))));
    }
    return {static_cast<std::byte*>(data), bytes, free_host};
  }

  void upload(std::byte* device, const std::byte* host, int64_t bytes) override {
    check_cuda(cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_.cuda),
               "a copy to the GPU");
  }
  void download(std::byte* host, const std::byte* device, int64_t bytes) override {
    check_cuda(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_.cuda),
               "a copy from the GPU");
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_.cuda),
               "a copy on the GPU");
  }
  void synchronize() override { check_cuda(cudaStreamSynchronize(stream_.cuda), "the work on the GPU"); }

  std::unique_ptr<Recording> record(const std::function<void()>& body) override {
    check_cuda(cudaStreamBeginCapture(stream_.cuda, cudaStreamCaptureModeThreadLocal), "starting to capture a step");
    cudaGraph_t graph = nullptr;
    try {
      body();
    } catch (...) {
      cudaStreamEndCapture(stream_.cuda, &graph);
      throw;
    }
    check_cuda(cudaStreamEndCapture(stream_.cuda, &graph), "capturing a step");
    return std::make_unique<GraphRecording>(graph, stream_.cuda);
  }
  std::unique_ptr<Mark> make_mark() override { return std::make_unique<EventMark>(stream_.cuda); }

 private:
  ThreadPool pool_;
  Stream stream_;
  DeviceInfo info_;
  size_t free_at_start_ = 0;
};

}  // namespace

std::string cuda_unavailable() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0)
    return fmt::format("no CUDA device was found ({}); use --device cpu", cudaGetErrorString(error));
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "reading the GPU's properties");
  if (properties.major != 9)
    return fmt::format("the GPU \"{}\" has compute capability {}.{}; these kernels are for 9.0 (Hopper)",
                       properties.name, properties.major, properties.minor);
  return {};
}

Backend auto_backend() {
#ifdef MOESAIC_EMULATED_CUDA
  return Backend::cpu;  // nobody wants to wait for an emulated GPU unasked
#else
  return cuda_unavailable().empty() ? Backend::cuda : Backend::cpu;
#endif
}

std::unique_ptr<Device> make_cuda_device(int threads) {
  if (const std::string reason = cuda_unavailable(); !reason.empty()) fail_argument("{}", reason);
  check_cuda(cudaSetDevice(0), "selecting the GPU");
  return std::make_unique<CudaDevice>(threads);
}

}  // namespace moesaic
