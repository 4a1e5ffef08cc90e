#include "kernels/cpu/bandwidth.h"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/error.h"

#define MOESAIC_AVX2 __attribute__((target("avx2,fma")))
#define MOESAIC_AVX512 __attribute__((target("avx512f")))

namespace moesaic {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kChunkBytes = int64_t{512} << 10;
constexpr int64_t kWindowBytes = int64_t{32} << 20;  // short readings: some fall between other processes' turns
constexpr int64_t kStreams = 4;                      // per thread; one alone leaves memory requests unused
constexpr int64_t kFmaLoops = 4'000;                 // short, for the same reason
constexpr int kChains = 12;  // independent sums: more than latency times throughput of any x86 core

template <typename Body>
double seconds_of(Body body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

MOESAIC_AVX512 uint64_t sum_avx512(const std::byte* data, int64_t bytes) {
  __m512i sum[kStreams] = {};
  const int64_t part = bytes / kStreams;
  for (int64_t i = 0; i + 64 <= part; i += 64) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < kStreams; ++j) sum[j] = _mm512_add_epi64(sum[j], _mm512_loadu_si512(data + j * part + i));
  }
  alignas(64) uint64_t lanes[8];
  _mm512_store_si512(lanes, _mm512_add_epi64(_mm512_add_epi64(sum[0], sum[1]), _mm512_add_epi64(sum[2], sum[3])));
  uint64_t total = 0;
  for (uint64_t lane : lanes) total += lane;
  return total;
}

MOESAIC_AVX2 uint64_t sum_avx2(const std::byte* data, int64_t bytes) {
  __m256i sum[kStreams] = {};
  const int64_t part = bytes / kStreams;
  for (int64_t i = 0; i + 32 <= part; i += 32) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < kStreams; ++j) {
      const __m256i* from = reinterpret_cast<const __m256i*>(data + j * part + i);
      sum[j] = _mm256_add_epi64(sum[j], _mm256_loadu_si256(from));
    }
  }
  alignas(32) uint64_t lanes[4];
  const __m256i all = _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]), _mm256_add_epi64(sum[2], sum[3]));
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), all);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

uint64_t sum_scalar(const std::byte* data, int64_t bytes) {
  uint64_t sum[kStreams] = {};
  const int64_t part = bytes / kStreams;
  for (int64_t i = 0; i + 8 <= part; i += 8) {
    for (int64_t j = 0; j < kStreams; ++j) {
      uint64_t word;
      std::memcpy(&word, data + j * part + i, 8);
      sum[j] += word;
    }
  }
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

void read_all(ThreadPool& pool, const std::byte* data, int64_t bytes) {
  const auto sum = cpu_isa() == Isa::avx512 ? sum_avx512 : cpu_isa() == Isa::avx2 ? sum_avx2 : sum_scalar;
  pool.run((bytes + kChunkBytes - 1) / kChunkBytes,
           [&](int64_t i, int) { keep(sum(data + i * kChunkBytes, std::min(kChunkBytes, bytes - i * kChunkBytes))); });
}

double multiply_add_all(ThreadPool& pool, Isa isa, int64_t loops) {
  const auto run = isa == Isa::avx512 ? fma_avx512 : isa == Isa::avx2 ? fma_avx2 : multiply_add_scalar;
  const int64_t chunks = pool.threads() * 8;
  pool.run(chunks, [&](int64_t, int) { keep(run(loops)); });
  return 2.0 * kChains * lanes_of(isa) * static_cast<double>(loops * chunks);
}

double measure_read_bandwidth(ThreadPool& pool, size_t bytes, int passes) {
  const int64_t windows = std::max<int64_t>(1, static_cast<int64_t>(bytes) / kWindowBytes);
  const size_t size = static_cast<size_t>(windows * kWindowBytes);
  void* map = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) throw Error(StatusCode::resource_exhausted, "no memory for the bandwidth measurement");
  madvise(map, size, MADV_HUGEPAGE);
  std::byte* data = static_cast<std::byte*>(map);
  pool.run(windows, [&](int64_t i, int) { std::fill_n(data + i * kWindowBytes, kWindowBytes, std::byte{1}); });
  double best = INFINITY;
  for (int64_t i = 0; i < passes * windows; ++i)
    best = std::min(best, seconds_of([&] { read_all(pool, data + i % windows * kWindowBytes, kWindowBytes); }));
  munmap(map, size);
  return static_cast<double>(kWindowBytes) / best;
}

double measure_fma_peak(ThreadPool& pool, Isa isa, int passes) {
  double best = 0;
  for (int i = 0; i < 5 * passes; ++i) {
    double operations = 0;
    const double seconds = seconds_of([&] { operations = multiply_add_all(pool, isa, kFmaLoops); });
    best = std::max(best, operations / seconds);
  }
  return best;
}

}  // namespace moesaic
