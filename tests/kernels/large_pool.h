// A cache beyond 4 GB, of which only the blocks in use are ever touched.
#pragma once

#include <sys/mman.h>

#include "kernels/kernel_harness.h"

namespace moesaic {

class LargePool {
 public:
  LargePool() = default;
  LargePool(const LargePool&) = delete;
  LargePool& operator=(const LargePool&) = delete;
  ~LargePool() { munmap(data_, kBytes); }

  bool mapped() const { return data_ != MAP_FAILED; }
  CacheView view() const { return {static_cast<std::byte*>(data_), kStride, static_cast<std::byte*>(data_), kStride}; }

 private:
  static constexpr int64_t kBytes = int64_t{6} << 30, kStride = 1002240;
  void* data_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
};

// The first output of a case of one step whose cache is the pool.
inline std::vector<std::byte> run_in_pool(const Kernel& kernel, const KernelCase& test, const LargePool& pool) {
  const KernelStep& step = test.steps[0];
  std::vector<std::vector<float>> inputs;
  for (const TestOperand& input : step.inputs) inputs.emplace_back(input.values.begin(), input.values.end());
  std::vector<std::byte> out(static_cast<size_t>(test.desc.out(0).type.bytes(step.now)));
  std::vector<std::byte*> in, outs{out.data()};
  for (std::vector<float>& input : inputs) in.push_back(reinterpret_cast<std::byte*>(input.data()));
  ThreadPool threads(2);
  Stream stream{&threads};
  DeviceInfo device;
  device.threads = 2;
  std::vector<std::byte> workspace(static_cast<size_t>(kernel.workspace_bytes(test.desc, device)));
  const BatchView batch = step.batch.view();
  kernel.launch(test.desc, {in, outs, step.now, &batch, pool.view()}, workspace.data(), stream);
  return out;
}

}  // namespace moesaic
