// Random weights, made where they will lie: a checkpoint's worth in a fraction of a second.
#include <cmath>

#include "kernels/cuda/numbers.cuh"
#include "kernels/dummy.h"
#include "quant/bf16.h"

namespace moesaic {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kBlocks = 132 * 8;

__device__ uint64_t mix(uint64_t x) {  // base/rng.h, mix64
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// About normal with deviation 1: the sum of four uniform 16-bit numbers.
__device__ float cheap_normal(uint64_t bits) {
  const auto sum = static_cast<float>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48));
  return (sum / 65536 - 2) * 1.7320508f;
}

template <typename Body>
__device__ void for_each(int64_t count, Body body) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kThreads)
    body(i);
}

template <typename T>
__global__ void normal_kernel(T* out, int64_t count, float mean, float deviation, uint64_t seed) {
  after_previous();
  for_each(count, [&](int64_t i) {
    store_element(out + i, mean + deviation * cheap_normal(mix(seed ^ mix(static_cast<uint64_t>(i)))));
  });
}

__global__ void codes_kernel(uint8_t* out, int64_t count, uint64_t seed, bool e4m3) {
  after_previous();
  for_each(count, [&](int64_t i) {
    auto code = static_cast<uint8_t>(mix(seed ^ mix(static_cast<uint64_t>(i))));
    if (e4m3 && (code & 0x7F) == 0x7F) code ^= 1;  // not a NaN
    out[i] = code;
  });
}

// Scale bytes centre - 1 to centre + 1.
__global__ void exponents_kernel(uint8_t* out, int64_t count, int centre, uint64_t seed) {
  after_previous();
  for_each(count, [&](int64_t i) {
    out[i] = static_cast<uint8_t>(centre - 1 + static_cast<int>(mix(seed + static_cast<uint64_t>(i)) % 3));
  });
}

template <typename T>
__global__ void fill_kernel(T* out, int64_t count, T value) {
  after_previous();
  for_each(count, [&](int64_t i) { out[i] = value; });
}

unsigned blocks_for(int64_t count) {
  return static_cast<unsigned>(std::min<int64_t>(kBlocks, ceil_div(count, kThreads)));
}

template <typename Kernel, typename T, typename... Given>
void fill(Kernel kernel, T* out, int64_t count, Stream& stream, Given... given) {
  launch(kernel, blocks_for(count), kThreads, 0, stream, out, count, given...);
}

void fill_plain(const WeightSlot& slot, std::byte* out, uint64_t seed, Stream& stream) {
  const int64_t n = slot.spec.shape.elements();
  const bool vector = slot.spec.kind == WeightKind::vector;
  const bool norm = vector && slot.spec.name.find("norm") != std::string::npos;
  const float mean = norm ? 1.0f : 0.0f;
  const float deviation = norm     ? 0.0f
                          : vector ? 0.1f
                          : slot.spec.kind == WeightKind::embedding
                              ? 1.0f
                              : 1 / std::sqrt(static_cast<float>(slot.spec.shape[-1]));
  if (slot.stored == DType::f32)
    return fill(normal_kernel<float>, reinterpret_cast<float*>(out), n, stream, mean, deviation, seed);
  CHECK(slot.stored == DType::bf16, "dummy weights of type {}", dtype_name(slot.stored));
  fill(normal_kernel<uint16_t>, reinterpret_cast<uint16_t*>(out), n, stream, mean, deviation, seed);
}

// One matrix [N, K] of codes and scales, row_major.
void fill_matrix(const WeightSpec& spec, std::byte* out, uint64_t seed, Stream& stream) {
  const int64_t K = spec.shape[-1], n = spec.shape[-2] * K;
  const float deviation = 1 / std::sqrt(static_cast<float>(K));
  auto* codes = reinterpret_cast<uint8_t*>(out);
  if (spec.format == Format::fp8) {
    fill(codes_kernel, codes, n, stream, seed, true);
    fill(fill_kernel<float>, reinterpret_cast<float*>(out + (n + 3) / 4 * 4), fp8_scale_count(spec), stream,
         deviation / 100);
    return;
  }
  fill(codes_kernel, codes, n / 2, stream, seed, false);
  if (spec.format == Format::int4)
    return fill(fill_kernel<uint16_t>, reinterpret_cast<uint16_t*>(out + n / 2), n / 32, stream,
                float_to_bf16(deviation / 4.6f));
  // Uniform codes have a mean square of 9.1: scale * 3 should be about the deviation.
  const int centre = static_cast<int>(std::lround(127 + std::log2(deviation / 3)));
  fill(exponents_kernel, codes + n / 2, n / 32, stream, centre, seed);
}

}  // namespace
}  // namespace cuda

void fill_dummy_on_gpu(const WeightMap& map, std::byte* arena, Stream& stream) {
  uint64_t seed = 1;
  for (const WeightSlot& slot : map.slots) {
    CHECK(slot.layout == Layout::row_major, "{} is not row-major", slot.spec.name);
    std::byte* out = arena + slot.offset;
    ++seed;
    if (slot.spec.kind == WeightKind::table) {  // expert 0
      cuda::fill(cuda::fill_kernel<int32_t>, reinterpret_cast<int32_t*>(out), slot.bytes / 4, stream, 0);
    } else if (slot.spec.format == Format::plain) {
      cuda::fill_plain(slot, out, seed, stream);
    } else {
      const int64_t bytes = matrix_bytes(slot.spec);
      for (int64_t m = 0; m < slot.bytes / bytes; ++m) cuda::fill_matrix(slot.spec, out + m * bytes, ++seed, stream);
    }
  }
}

}  // namespace moesaic
