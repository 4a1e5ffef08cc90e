// In place of the CUDA backend in builds without it.
#include "base/error.h"
#include "kernels/dummy.h"
#include "kernels/gpu_limits.h"
#include "kernels/kernel.h"
#include "kernels/sample.h"

namespace moesaic {

std::string cuda_unavailable() {
  return "this build has no CUDA; configure with the preset \"cuda\" (docs/gpu.md), or use --device cpu";
}

Backend auto_backend() {
  return Backend::cpu;
}

std::unique_ptr<Device> make_cuda_device(int) {
  fail_argument("{}", cuda_unavailable());
}

void register_cuda(Registry&) {}

void fill_dummy_on_gpu(const WeightMap&, std::byte*, Stream&) {
  CHECK(false, "no GPU");
}
void sample_on_gpu(const float*, int64_t, int64_t, int64_t, const SampleRow*, SampledRow*, int32_t*, std::byte*,
                   Stream&) {
  CHECK(false, "no GPU");
}
void read_on_gpu(const std::byte*, int64_t, float*, Stream&) {
  CHECK(false, "no GPU");
}
void feed_on_gpu(int32_t*, const int32_t*, const int32_t*, const int32_t*, int64_t, Stream&) {
  CHECK(false, "no GPU");
}

}  // namespace moesaic
