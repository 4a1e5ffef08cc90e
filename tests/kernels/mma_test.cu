// The fragments of mma.cuh, its loads and its copies: exact on small integers, whose sums float32 holds. On a GPU this
// checks the instructions, elsewhere their emulation.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "base/fresh_rng.h"
#include "kernels/cuda/mma.cuh"
#include "quant/bf16.h"
#include "support/mirror.h"

namespace moesaic::cuda {
namespace {

enum Way : int { kByHand, kLoaded, kTransposedA, kTransposedB, kWays };

// d[16, 8] = c + a[16, 16] b[8, 16]^T by one warp; a_by_k and b_by_k are their transposes.
struct Operands {
  const uint16_t *a, *a_by_k, *b, *b_by_k;
  const float* c;
  float* d;
};

__device__ unsigned pair_at(const uint16_t* p) {
  return static_cast<unsigned>(p[1]) << 16 | p[0];
}

__global__ void product_kernel(Operands o, Way way) {
  __shared__ __align__(16) uint16_t a[16 * 16], a_by_k[16 * 16], b[8 * 16], b_by_k[16 * 8];
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, q = lane % 4;
  for (int i = lane; i < 256; i += kWarp) a[i] = o.a[i], a_by_k[i] = o.a_by_k[i];
  for (int i = lane; i < 128; i += kWarp) b[i] = o.b[i], b_by_k[i] = o.b_by_k[i];
  __syncthreads();

  unsigned x[4], w[2];
  float d[4];
  for (int i = 0; i < 4; ++i) {
    x[i] = pair_at(a + (g + i % 2 * 8) * 16 + i / 2 * 8 + 2 * q);
    d[i] = o.c[(g + i / 2 * 8) * 8 + 2 * q + i % 2];
  }
  for (int i = 0; i < 2; ++i) w[i] = pair_at(b + g * 16 + i * 8 + 2 * q);
  const int row = lane % 8, matrix = lane / 8;
  if (way == kLoaded) {
    load_matrices(x, a + (row + matrix % 2 * 8) * 16 + matrix / 2 * 8);
    load_matrices(w, b + row * 16 + matrix % 2 * 8);
  }
  if (way == kTransposedA) load_matrices_transposed(x, a_by_k + (row + matrix / 2 * 8) * 16 + matrix % 2 * 8);
  if (way == kTransposedB) load_matrices_transposed(w, b_by_k + (row + matrix % 2 * 8) * 8);
  mma_bf16(d, x, w[0], w[1]);
  for (int i = 0; i < 4; ++i) o.d[(g + i / 2 * 8) * 8 + 2 * q + i % 2] = d[i];
}

// [rows][columns] small integers as bf16.
std::vector<uint16_t> integers(Rng& rng, int count) {
  std::vector<uint16_t> out;
  for (int i = 0; i < count; ++i) out.push_back(float_to_bf16(static_cast<float>(rng.below(17) - 8)));
  return out;
}

std::vector<uint16_t> transposed(const std::vector<uint16_t>& from, size_t columns) {
  const size_t rows = from.size() / columns;
  std::vector<uint16_t> out(from.size());
  for (size_t i = 0; i < from.size(); ++i) out[i % columns * rows + i / columns] = from[i];
  return out;
}

std::byte* writable(Mirror& mirror, std::vector<float>& values) {
  return mirror.of(std::as_writable_bytes(std::span(values)), true);
}

TEST(Mma, FragmentsAreWhereTheyAreSaidToBe) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  Rng rng = fresh_rng();
  const std::vector<uint16_t> a = integers(rng, 256), b = integers(rng, 128);
  const std::vector<uint16_t> a_by_k = transposed(a, 16), b_by_k = transposed(b, 16);
  std::vector<float> c(128), want(128);
  for (size_t i = 0; i < 128; ++i) {
    want[i] = c[i] = static_cast<float>(rng.below(100));
    for (size_t k = 0; k < 16; ++k) want[i] += bf16_to_float(a[i / 8 * 16 + k]) * bf16_to_float(b[i % 8 * 16 + k]);
  }
  for (int way = 0; way < kWays; ++way) {
    std::vector<float> d(128, -1);
    Mirror mirror(Backend::cuda);
    const Operands operands{mirror.of(a.data(), 256), mirror.of(a_by_k.data(), 256),
                            mirror.of(b.data(), 128), mirror.of(b_by_k.data(), 128),
                            mirror.of(c.data(), 128), reinterpret_cast<float*>(writable(mirror, d))};
    launch(product_kernel, 1, kWarp, 0, test_device(Backend::cuda).stream(), operands, static_cast<Way>(way));
    mirror.finish();
    EXPECT_EQ(d, want) << way;
  }
}

// Lane i copies 16 bytes, of which it reads 4 * (i % 5), in each of two groups; what it finds after waiting for the
// first, and for both, goes to `out` [2 groups][32 lanes][4 floats].
__global__ void copy_kernel(const float* from, float* out) {
  __shared__ __align__(16) float to[2][kWarp][4];
  const int lane = static_cast<int>(threadIdx.x), bytes = lane % 5 * 4;
  for (int group = 0; group < 2; ++group) {
    for (int i = 0; i < 4; ++i) to[group][lane][i] = -1;
    copy_async(to[group][lane], from + (group * kWarp + lane) * 4, bytes);
    commit_copies();
  }
  wait_copies<1>();
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = to[0][lane][i];
  wait_copies<0>();
  for (int i = 0; i < 4; ++i) out[(kWarp + lane) * 4 + i] = to[1][lane][i];
}

TEST(Mma, CopiesFillUpWithZeros) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  std::vector<float> from(256), out(256, -2), want(256);
  for (size_t i = 0; i < 256; ++i) from[i] = static_cast<float>(i + 1), want[i] = i % 4 < i / 4 % 32 % 5 ? from[i] : 0;
  Mirror mirror(Backend::cuda);
  launch(copy_kernel, 1, kWarp, 0, test_device(Backend::cuda).stream(), mirror.of(from.data(), 256),
         reinterpret_cast<float*>(writable(mirror, out)));
  mirror.finish();
  EXPECT_EQ(out, want);
}

}  // namespace
}  // namespace moesaic::cuda
