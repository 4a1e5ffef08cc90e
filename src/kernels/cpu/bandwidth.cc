#include "kernels/cpu/bandwidth.h"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

#include "base/error.h"

#define MOESAIC_AVX2 __attribute__((target("avx2,fma")))
#define MOESAIC_AVX512 __attribute__((target("avx512f")))

namespace moesaic {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kChunkBytes = int64_t{2} << 20;
constexpr int64_t kFmaLoops = 2'000'000;
constexpr int kChains = 12;  // independent sums: more than latency times throughput of any x86 core

template <typename Body>
double best_seconds(int passes, Body body) {
  double best = INFINITY;
  for (int i = 0; i < passes; ++i) {
    const auto start = Clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

MOESAIC_AVX512 uint64_t sum_avx512(const std::byte* data, int64_t bytes) {
  __m512i sum[4] = {};
  for (int64_t i = 0; i < bytes; i += 256)
    for (int64_t j = 0; j < 4; ++j) sum[j] = _mm512_add_epi64(sum[j], _mm512_load_si512(data + i + j * 64));
  alignas(64) uint64_t lanes[8];
  _mm512_store_si512(lanes, _mm512_add_epi64(_mm512_add_epi64(sum[0], sum[1]), _mm512_add_epi64(sum[2], sum[3])));
  uint64_t total = 0;
  for (uint64_t lane : lanes) total += lane;
  return total;
}

MOESAIC_AVX2 uint64_t sum_avx2(const std::byte* data, int64_t bytes) {
  __m256i sum[4] = {};
  for (int64_t i = 0; i < bytes; i += 128)
    for (int64_t j = 0; j < 4; ++j)
      sum[j] = _mm256_add_epi64(sum[j], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + j * 32)));
  alignas(32) uint64_t lanes[4];
  const __m256i all = _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]), _mm256_add_epi64(sum[2], sum[3]));
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), all);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

uint64_t sum_scalar(const std::byte* data, int64_t bytes) {
  const uint64_t* words = reinterpret_cast<const uint64_t*>(data);
  uint64_t sum[4] = {};
  for (int64_t i = 0; i < bytes / 8; i += 4)
    for (int64_t j = 0; j < 4; ++j) sum[j] += words[i + j];
  return sum[0] + sum[1] + sum[2] + sum[3];
}

// The chains run with a factor and an addend that keep the sums near 1, so that no operand is slow.
MOESAIC_AVX512 float fma_avx512(int64_t loops) {
  __m512 sum[kChains];
  for (int c = 0; c < kChains; ++c) sum[c] = _mm512_set1_ps(1.0f + static_cast<float>(c));
  const __m512 factor = _mm512_set1_ps(0.5f), addend = _mm512_set1_ps(0.5f);
  for (int64_t i = 0; i < loops; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sum[c] = _mm512_fmadd_ps(sum[c], factor, addend);
  }
  for (int c = 1; c < kChains; ++c) sum[0] = _mm512_add_ps(sum[0], sum[c]);
  return _mm512_cvtss_f32(sum[0]);
}

MOESAIC_AVX2 float fma_avx2(int64_t loops) {
  __m256 sum[kChains];
  for (int c = 0; c < kChains; ++c) sum[c] = _mm256_set1_ps(1.0f + static_cast<float>(c));
  const __m256 factor = _mm256_set1_ps(0.5f), addend = _mm256_set1_ps(0.5f);
  for (int64_t i = 0; i < loops; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sum[c] = _mm256_fmadd_ps(sum[c], factor, addend);
  }
  for (int c = 1; c < kChains; ++c) sum[0] = _mm256_add_ps(sum[0], sum[c]);
  return _mm256_cvtss_f32(sum[0]);
}

float multiply_add_scalar(int64_t loops) {
  float sum[kChains];
  for (int c = 0; c < kChains; ++c) sum[c] = 1.0f + static_cast<float>(c);
  for (int64_t i = 0; i < loops; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sum[c] = sum[c] * 0.5f + 0.5f;
  }
  for (int c = 1; c < kChains; ++c) sum[0] += sum[c];
  return sum[0];
}

int lanes_of(Isa isa) {
  return isa == Isa::avx512 ? 16 : isa == Isa::avx2 ? 8 : 1;
}

// Stops the compiler from dropping a result.
template <typename T>
void keep(T value) {
  asm volatile("" : : "r,m"(value) : "memory");
}

}  // namespace

double measure_read_bandwidth(ThreadPool& pool, size_t bytes, int passes) {
  const int64_t chunks = std::max<int64_t>(pool.threads(), static_cast<int64_t>(bytes) / kChunkBytes);
  const size_t size = static_cast<size_t>(chunks * kChunkBytes);
  void* map = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) throw Error(StatusCode::resource_exhausted, "no memory for the bandwidth measurement");
  madvise(map, size, MADV_HUGEPAGE);
  std::byte* data = static_cast<std::byte*>(map);
  pool.run(chunks,
           [&](int64_t i, int) { std::fill_n(data + i * kChunkBytes, kChunkBytes, static_cast<std::byte>(i)); });
  const auto sum = cpu_isa() == Isa::avx512 ? sum_avx512 : cpu_isa() == Isa::avx2 ? sum_avx2 : sum_scalar;
  const double seconds = best_seconds(
      passes, [&] { pool.run(chunks, [&](int64_t i, int) { keep(sum(data + i * kChunkBytes, kChunkBytes)); }); });
  munmap(map, size);
  return static_cast<double>(size) / seconds;
}

double measure_fma_peak(ThreadPool& pool, Isa isa, int passes) {
  const auto run = isa == Isa::avx512 ? fma_avx512 : isa == Isa::avx2 ? fma_avx2 : multiply_add_scalar;
  const int64_t chunks = pool.threads() * 8;
  const double seconds = best_seconds(passes, [&] { pool.run(chunks, [&](int64_t, int) { keep(run(kFmaLoops)); }); });
  return 2.0 * kChains * lanes_of(isa) * static_cast<double>(kFmaLoops * chunks) / seconds;
}

}  // namespace moesaic
