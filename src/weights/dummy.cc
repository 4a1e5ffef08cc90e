#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "quant/bf16.h"
#include "quant/fp4.h"
#include "weights/layout.h"
#include "weights/load.h"

namespace moesaic {
namespace {

// About normal with deviation 1: the sum of four uniform 16-bit numbers, cheap enough for billions of weights.
float cheap_normal(uint64_t bits) {
  const double sum =
      static_cast<double>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48));
  return static_cast<float>((sum / 65536 - 2) * 1.7320508);
}

void fill_plain(const WeightSlot& slot, std::byte* out, ThreadPool& pool, uint64_t seed) {
  constexpr int64_t kChunk = 1 << 20;
  const int64_t n = slot.spec.shape.elements(), K = slot.spec.shape[-1];
  const double deviation = slot.spec.kind == WeightKind::embedding ? 1 : 1 / std::sqrt(static_cast<double>(K));
  pool.run((n + kChunk - 1) / kChunk, [&](int64_t i, int) {
    random_elements(slot.stored, i * kChunk, std::min(kChunk, n - i * kChunk), deviation, seed,
                    out + i * kChunk * dtype_bytes(slot.stored));
  });
}

// The layouts differ only in where codes and scales lie, which random bytes do not care about, but every scale must
// be a finite one.
void fill_mxfp4(const WeightSlot& slot, std::byte* out, ThreadPool& pool, uint64_t seed) {
  const int64_t K = slot.spec.shape[-1], N = slot.spec.shape[-2], matrices = slot.spec.shape.elements() / (N * K);
  const int64_t groups = K / kMxGroup, blocks = N / kBlockRows;
  if (slot.layout == Layout::row_major) {
    for (int64_t m = 0; m < matrices; ++m) {
      std::byte* matrix = out + m * mxfp4_bytes(N, K);
      random_codes(m * N * K, N * K, seed, matrix);
      for (int64_t g = 0; g < N * groups; ++g)
        matrix[N * K / 2 + g] = std::byte{random_scale(m * N * groups + g, K, seed)};
    }
    return;
  }
  pool.run(matrices, [&](int64_t m, int) {
    std::byte* matrix = out + m * mxfp4_bytes(N, K);
    random_codes(m * N * K, 2 * mxfp4_bytes(N, K), mix64(seed ^ static_cast<uint64_t>(m)), matrix);
    for (int64_t i = 0; i < blocks * groups; ++i)
      for (int64_t r = 0; r < kBlockRows; ++r)
        matrix[i * kMxBlockGroupBytes + r] = std::byte{random_scale(i * kBlockRows + r, K, seed)};
    std::byte* tail = matrix + blocks * groups * kMxBlockGroupBytes;
    for (int64_t i = 0; i < (N % kBlockRows) * groups; ++i)
      tail[i * kMxRowGroupBytes] = std::byte{random_scale(i, K, seed)};
  });
}

// FP8: any finite code, with scales that bring the deviation (about 100 over all codes) to 1/sqrt(K). INT4: any code.
void fill_coded(const WeightSlot& slot, std::byte* out, uint64_t seed) {
  const int64_t K = slot.spec.shape[-1], n = slot.spec.shape[-2] * K, bytes = matrix_bytes(slot.spec);
  const float deviation = 1 / std::sqrt(static_cast<float>(K));
  for (int64_t m = 0; m < slot.bytes / bytes; ++m) {
    std::byte* matrix = out + m * bytes;
    random_codes(2 * m * bytes, 2 * bytes, seed, matrix);
    if (slot.spec.format == Format::int4) {
      const uint16_t scale = float_to_bf16(deviation / 4.6f);
      for (int64_t i = 0; i < n / kMxGroup; ++i) std::memcpy(matrix + n / 2 + 2 * i, &scale, 2);
      continue;
    }
    const float scale = deviation / 100;
    for (int64_t i = 0; i < n; ++i)
      if ((matrix[i] & std::byte{0x7F}) == std::byte{0x7F}) matrix[i] ^= std::byte{1};  // not a NaN
    for (int64_t i = 0; i < fp8_scale_count(slot.spec); ++i) std::memcpy(matrix + (n + 3) / 4 * 4 + 4 * i, &scale, 4);
  }
}

void fill_vector(const WeightSlot& slot, std::byte* out, uint64_t seed) {
  const int64_t n = slot.spec.shape.elements();
  const bool norm = slot.spec.name.find("norm") != std::string::npos;
  Rng rng(seed);
  for (int64_t i = 0; i < n; ++i) {
    const double value = norm ? 1 : 0.1 * rng.normal();
    if (slot.stored == DType::f64) reinterpret_cast<double*>(out)[i] = value;
    else reinterpret_cast<float*>(out)[i] = static_cast<float>(value);
  }
}

}  // namespace

void random_elements(DType dtype, int64_t first, int64_t count, double deviation, uint64_t seed, std::byte* out) {
  const float scale = static_cast<float>(deviation);
  const bool wide = dtype == DType::f32;
  CHECK(wide || dtype == DType::bf16, "random elements of type {}", dtype_name(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const float value = scale * cheap_normal(mix64(seed ^ mix64(static_cast<uint64_t>(first + i))));
    const uint16_t narrow = float_to_bf16(value);
    if (wide) std::memcpy(out + i * 4, &value, 4);
    else std::memcpy(out + i * 2, &narrow, 2);
  }
}

void random_codes(int64_t first, int64_t count, uint64_t seed, std::byte* out) {
  for (int64_t i = 0; i < count / 2; i += 8) {
    const uint64_t bits = mix64(seed ^ mix64(static_cast<uint64_t>(first / 2 + i)));
    std::memcpy(out + i, &bits, static_cast<size_t>(std::min<int64_t>(8, count / 2 - i)));
  }
}

uint8_t random_scale(int64_t index, int64_t K, uint64_t seed) {
  // Uniform codes have a mean square of 9.1: scale * 3 should be about 1/sqrt(K), give or take a factor of two.
  const int centre = static_cast<int>(std::lround(127 - std::log2(3 * std::sqrt(static_cast<double>(K)))));
  return static_cast<uint8_t>(centre - 1 + static_cast<int>(mix64(seed + static_cast<uint64_t>(index)) % 3));
}

void fill_dummy_weights(const WeightMap& map, std::span<std::byte> arena, ThreadPool& pool, Progress& progress,
                        uint64_t seed) {
  CHECK(static_cast<int64_t>(arena.size()) >= map.bytes);
  for (const WeightSlot& slot : map.slots) {
    std::byte* out = arena.data() + slot.offset;
    seed = mix64(seed);
    if (slot.spec.kind == WeightKind::vector) fill_vector(slot, out, seed);
    else if (slot.spec.kind == WeightKind::table) std::memset(out, 0, static_cast<size_t>(slot.bytes));  // expert 0
    else if (slot.spec.format == Format::mxfp4) fill_mxfp4(slot, out, pool, seed);
    else if (slot.spec.format != Format::plain) fill_coded(slot, out, seed);
    else fill_plain(slot, out, pool, seed);
    progress.advance(slot.bytes);
  }
}

}  // namespace moesaic
