// The fragments, tiles and descriptors of wgmma.cuh, and the barriers and copies of async.cuh: exact on small integers.
// On a GPU this checks the instructions, elsewhere their emulation.
#include <gtest/gtest.h>

#include <vector>

#include "base/fresh_rng.h"
#include "kernels/cuda/wgmma.cuh"
#include "quant/bf16.h"
#include "support/mirror.h"

namespace moesaic::cuda {
namespace {

enum class Way : int { bf16_registers, bf16_tiles, e4m3_registers };

constexpr int kRowsA = 64, kTileA = kRowsA * kSwizzleRow;

// d[64, N] = 2 a b^T by one warpgroup; a: [64][128 bytes], b: [N][128 bytes], all of K in one row.
template <int N, Way way>
__global__ void product_kernel(const uint8_t* a, const uint8_t* b, float* d) {
  std::byte* shared = dynamic_shared<std::byte>();
  std::byte* tile_b = shared + kTileA;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, g = lane / 4, q = lane % 4;
  const int row = thread / kWarp * 16 + g;
  for (int i = thread * 4; i < kTileA; i += 512)
    *reinterpret_cast<uint32_t*>(shared + swizzle128(i)) = *reinterpret_cast<const uint32_t*>(a + i);
  for (int i = thread * 4; i < N * kSwizzleRow; i += 512)
    *reinterpret_cast<uint32_t*>(tile_b + swizzle128(i)) = *reinterpret_cast<const uint32_t*>(b + i);
  fence_proxy_async();
  __syncthreads();

  float sum[N / 2];
  uint32_t registers[4][4];
  for (int step = 0; step < 4; ++step)
    for (int i = 0; i < 4; ++i)
      registers[step][i] =
          *reinterpret_cast<const uint32_t*>(a + (row + i % 2 * 8) * kSwizzleRow + step * 32 + i / 2 * 16 + 4 * q);
  const uint64_t at_a = k_major_descriptor(shared), at_b = k_major_descriptor(tile_b);
  keep_in_place(sum);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int step = i % 4;
    const uint64_t more = kDescriptorStep * static_cast<uint64_t>(step);
    if constexpr (way == Way::bf16_registers) wgmma_bf16(sum, registers[step], at_b + more, i > 0);
    if constexpr (way == Way::bf16_tiles) wgmma_bf16(sum, at_a + more, at_b + more, i > 0);
    if constexpr (way == Way::e4m3_registers) wgmma_e4m3(sum, registers[step], at_b + more, i > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  keep_in_place(sum);
  for (int i = 0; i < N / 2; ++i) d[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + 2 * q + i % 2] = sum[i];
}

// Integers -4 .. 4 as 128 bytes a row of bf16 or e4m3, and as they are.
struct Matrix {
  std::vector<uint8_t> bytes;
  std::vector<int> values;
  Matrix(Rng& rng, int rows, bool e4m3) {
    constexpr uint8_t kE4m3[] = {0xC8, 0xC4, 0xC0, 0xB8, 0x00, 0x38, 0x40, 0x44, 0x48};
    for (int i = 0; i < rows * (e4m3 ? 128 : 64); ++i) {
      const int value = static_cast<int>(rng.below(9)) - 4;
      values.push_back(value);
      const uint16_t bits = float_to_bf16(static_cast<float>(value));
      if (e4m3) bytes.push_back(kE4m3[value + 4]);
      else bytes.push_back(static_cast<uint8_t>(bits & 255)), bytes.push_back(static_cast<uint8_t>(bits >> 8));
    }
  }
};

template <int N, Way way>
void expect_product(Rng& rng) {
  const bool e4m3 = way == Way::e4m3_registers;
  const Matrix a(rng, kRowsA, e4m3), b(rng, N, e4m3);
  std::vector<float> d(kRowsA * N, -1);
  Mirror mirror(Backend::cuda);
  Stream& stream = test_device(Backend::cuda).stream();
  const uint8_t* on_device[] = {mirror.of(a.bytes.data(), static_cast<int64_t>(a.bytes.size())),
                                mirror.of(b.bytes.data(), static_cast<int64_t>(b.bytes.size()))};
  auto* out = reinterpret_cast<float*>(mirror.of(std::as_writable_bytes(std::span(d)), true));
  launch(product_kernel<N, way>, 1, 128, kTileA + N * kSwizzleRow, stream, on_device[0], on_device[1], out);
  mirror.finish();
  const int K = e4m3 ? 128 : 64;
  for (int m = 0; m < kRowsA; ++m) {
    for (int n = 0; n < N; ++n) {
      int want = 0;
      for (int k = 0; k < K; ++k)
        want += 2 * a.values[static_cast<size_t>(m * K + k)] * b.values[static_cast<size_t>(n * K + k)];
      ASSERT_EQ(d[static_cast<size_t>(m * N + n)], static_cast<float>(want))
          << "N=" << N << " row " << m << " column " << n;
    }
  }
}

template <int N>
void expect_products(Rng& rng) {
  expect_product<N, Way::bf16_registers>(rng);
  expect_product<N, Way::bf16_tiles>(rng);
  expect_product<N, Way::e4m3_registers>(rng);
}

TEST(Wgmma, ProductsOfEveryWidth) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  Rng rng = fresh_rng();
  expect_products<8>(rng), expect_products<16>(rng), expect_products<24>(rng), expect_products<40>(rng);
  expect_products<64>(rng), expect_products<96>(rng), expect_products<136>(rng), expect_products<192>(rng);
  expect_products<256>(rng);
}

constexpr int kStages = 3, kChunk = 64;  // elements a chunk

// y[i] = 2 x[i] of `chunks` chunks: one warp copies them into a ring, another doubles them.
__global__ void ring_kernel(const int* x, int* y, int chunks) {
  int* ring = dynamic_shared<int>();
  auto* full = reinterpret_cast<uint64_t*>(ring + kStages * kChunk);
  uint64_t* empty = full + kStages;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  if (thread == 0) {
    for (int s = 0; s < kStages; ++s) barrier_init(full + s, 1), barrier_init(empty + s, kWarp);
    fence_barrier_init();
  }
  __syncthreads();
  for (int i = 0; i < chunks; ++i) {
    const int s = i % kStages;
    const auto parity = static_cast<unsigned>(i / kStages & 1);
    if (thread == 0) {
      barrier_wait(empty + s, parity ^ 1);
      barrier_arrive_expect(full + s, kChunk * 4);
      bulk_load(ring + s * kChunk, x + i * kChunk, kChunk * 2, full + s);
      bulk_load_once(ring + s * kChunk + kChunk / 2, x + i * kChunk + kChunk / 2, kChunk * 2, full + s);
    }
    if (thread < kWarp) continue;
    barrier_wait(full + s, parity);
    for (int j = lane; j < kChunk; j += kWarp) y[i * kChunk + j] = 2 * ring[s * kChunk + j];
    barrier_arrive(empty + s);
  }
}

TEST(Async, RingOfBulkCopies) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  constexpr int kChunks = 11;
  Rng rng = fresh_rng();
  std::vector<int> x, y(kChunks * kChunk, -1);
  for (size_t i = 0; i < y.size(); ++i) x.push_back(static_cast<int>(rng.below(1000)));
  Mirror mirror(Backend::cuda);
  const int* from = mirror.of(x.data(), static_cast<int64_t>(x.size()));
  auto* to = reinterpret_cast<int*>(mirror.of(std::as_writable_bytes(std::span(y)), true));
  launch(ring_kernel, 1, 2 * kWarp, kStages * kChunk * 4 + 2 * kStages * 8, test_device(Backend::cuda).stream(), from,
         to, kChunks);
  mirror.finish();
  for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], 2 * x[i]) << i;
}

}  // namespace
}  // namespace moesaic::cuda
