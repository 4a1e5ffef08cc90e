// quantize alone; behind add_rms_norm it is part of that launch (norm.cu).
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/quantize.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 256;

// A warp a group of 128. x [rows, K].
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const float* x, int64_t items, int K, bool fours, std::byte* y) {
  after_previous();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (item >= items) return;
  const int groups = ceil_div(K, 128),
            k = static_cast<int>(item % groups) * 128 + static_cast<int>(threadIdx.x) % kWarp * 4;
  const int64_t row = item / groups;
  const float* from = x + row * K + k;
  Floats<4> v{};
  if (fours && k < K) v = load_floats<4>(from);
  for (int i = 0; !fours && i < 4; ++i)
    if (k + i < K) v.v[i] = from[i];
  quantize_group(v, k, K, y + row * quantized_width(K));
}

const char* refuse(const OpDesc& desc, const DeviceInfo&) {
  return desc.in(0).type.dtype == DType::f32 ? nullptr : "activations must be f32";
}

void quantize(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t K = width_of(desc.in(0)), items = rows_of(desc.in(0), args.now) * quantized_groups(K);
  const float* x = args.input<float>(0);
  launch(quantize_kernel, static_cast<unsigned>(ceil_div(items, int64_t{kThreads / kWarp})), kThreads, 0, stream, x,
         items, static_cast<int>(K), in_fours(K, x), args.out[0]);
}

}  // namespace

const Kernel kQuantize{
    .name = "quantize.cuda", .op = Op::quantize, .backend = Backend::cuda, .refuse = refuse, .launch = quantize};

}  // namespace moesaic::cuda
