// CPU matrix kernels: every instruction set against double sums within a derived bound, and bit-equal to each other.
#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/rng.h"
#include "quant/bf16.h"
#include "weights/layout.h"

namespace moesaic {
namespace {

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kGuard = -12345.5f;

uint64_t test_seed() {
  const char* text = std::getenv("MOESAIC_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device{}();
}

class Gemm : public ::testing::Test {
 protected:
  Gemm() : seed_(test_seed()), rng_(seed_) {}
  void TearDown() override {
    if (HasFailure()) std::printf("replay with MOESAIC_SEED=%llu\n", static_cast<unsigned long long>(seed_));
  }

  const uint64_t seed_;
  Rng rng_;
};

std::vector<Isa> levels() {
  std::vector<Isa> out{Isa::scalar};
  if (cpu_isa() >= Isa::avx2) out.push_back(Isa::avx2);
  if (cpu_isa() >= Isa::avx512) out.push_back(Isa::avx512);
  return out;
}

// A packed matrix and the exact values of its weights.
struct Weights {
  GemmFormat format;
  int64_t N, K;
  Bytes packed;
  std::vector<double> value;  // [N, K]

  GemmMatrix matrix() const { return {packed.data(), format, N, K}; }
};

Weights dense_weights(Rng& rng, GemmFormat format, int64_t N, int64_t K) {
  const int64_t size = format == GemmFormat::f32 ? 4 : 2;
  Weights w{format, N, K, Bytes(static_cast<size_t>(dense_bytes(size, N, K))), {}};
  Bytes source(w.packed.size());
  for (int64_t i = 0; i < N * K; ++i) {
    const float wide = static_cast<float>(rng.normal());
    uint32_t bits = std::bit_cast<uint32_t>(wide);
    float value = wide;
    if (format == GemmFormat::bf16) value = bf16_to_float(static_cast<uint16_t>(bits = float_to_bf16(wide)));
    if (format == GemmFormat::f16) {
      bits = static_cast<uint32_t>(rng.below(2) << 15 | rng.below(0x4400));  // zeros, subnormals, values up to 4
      value = f16_to_float(static_cast<uint16_t>(bits));
    }
    std::memcpy(source.data() + i * size, &bits, static_cast<size_t>(size));
    w.value.push_back(value);
  }
  pack_dense(source.data(), DenseOrder::rows_first, size, N, K, 0, row_blocks(N), w.packed.data());
  return w;
}

Weights mx_weights(const Bytes& codes, const Bytes& scales, int64_t N, int64_t K) {
  Weights w{GemmFormat::mxfp4, N, K, Bytes(static_cast<size_t>(mxfp4_bytes(N, K))), {}};
  EXPECT_FALSE(pack_mxfp4(codes.data(), scales.data(), N, K, 0, row_blocks(N), w.packed.data()));
  constexpr double kValues[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int64_t i = 0; i < N * K; ++i) {
    const int byte = static_cast<int>(codes[static_cast<size_t>(i / 2)]);
    const int code = i % 2 == 0 ? byte & 15 : byte >> 4;
    const double magnitude = std::ldexp(kValues[code & 7], static_cast<int>(scales[static_cast<size_t>(i / 32)]) - 127);
    w.value.push_back(code >= 8 ? -magnitude : magnitude);
  }
  return w;
}

Weights random_mx(Rng& rng, int64_t N, int64_t K, int64_t scale_low = 120, int64_t scale_high = 135) {
  Bytes codes(static_cast<size_t>(N * K / 2)), scales(static_cast<size_t>(N * K / 32));
  for (std::byte& b : codes) b = static_cast<std::byte>(rng.bits());
  for (std::byte& b : scales) b = static_cast<std::byte>(scale_low + rng.below(scale_high - scale_low));
  return mx_weights(codes, scales, N, K);
}

Weights random_weights(Rng& rng, GemmFormat format, int64_t N, int64_t K) {
  return format == GemmFormat::mxfp4 ? random_mx(rng, N, K) : dense_weights(rng, format, N, K);
}

Floats random_floats(Rng& rng, int64_t count) {
  Floats out(static_cast<size_t>(count));
  for (float& v : out) v = static_cast<float>(rng.normal());
  return out;
}

// How a product is asked for.
struct Call {
  bool q8 = false;
  const int32_t* gather = nullptr;
  int64_t M = 0;
  const float* bias = nullptr;
  int64_t row_begin = 0, row_end = -1;  // -1: N
  int64_t chunk_rows = -1;              // rows of N per call of the kernel; -1: all at once
  int64_t padding = 3;                  // floats between rows of y
};

// Y [M, N + padding] with kGuard where the product must not write, NaN where it must. x is [rows, K] with stride K.
Floats product(Isa isa, const Weights& w, const Floats& x, const Call& call) {
  const GemmKernels& kernels = gemm_kernels(isa);
  const int64_t stride = w.N + call.padding, end = call.row_end < 0 ? w.N : call.row_end;
  Floats y(static_cast<size_t>(call.M * stride + 64), kGuard);
  Bytes scratch(gemm_scratch_bytes(w.K) + 64, std::byte{0xFF});
  const int64_t rows = static_cast<int64_t>(x.size()) / w.K;
  std::vector<Q8Group> q8(call.q8 ? static_cast<size_t>(rows * w.K / kMxGroup) : 0);
  if (call.q8) quantize_q8(kernels, x.data(), w.K, 0, rows, w.K, q8.data());
  const int64_t step = call.chunk_rows < 0 ? w.N + 16 : call.chunk_rows;
  for (int64_t begin = call.row_begin; begin < end; begin += step) {
    const int64_t chunk_end = std::min(end, begin + step);
    if (call.q8) {
      gemm_q8(kernels, w.matrix(), begin, chunk_end, {q8.data(), call.gather, call.M}, call.bias, y.data(), stride,
              scratch.data());
    } else {
      gemm_f32(kernels, w.matrix(), begin, chunk_end, {x.data(), w.K, call.gather, call.M}, call.bias, y.data(), stride,
               scratch.data());
    }
  }
  for (size_t i = gemm_scratch_bytes(w.K); i < scratch.size(); ++i)
    EXPECT_EQ(std::byte{0xFF}, scratch[i]) << "scratch overrun";
  for (int64_t i = 0; i < static_cast<int64_t>(y.size()); ++i) {
    const bool written = i / stride < call.M && i % stride >= call.row_begin && i % stride < end;
    if (!written) {
      EXPECT_EQ(kGuard, y[static_cast<size_t>(i)]) << "guard at " << i;
    }
  }
  return y;
}

// Bit-equal, but any NaN equals any other.
void expect_same_bits(const Floats& want, const Floats& got, const std::string& what) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i]) && std::isnan(got[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(want[i]), std::bit_cast<uint32_t>(got[i])) << what << " at " << i;
  }
}

// The activations that q8 multiplies by: d * q with d = amax / 127 as floats.
std::vector<double> q8_values(const Floats& x) {
  std::vector<double> out;
  for (size_t g = 0; g < x.size(); g += 32) {
    float amax = 0;
    for (size_t k = 0; k < 32; ++k) amax = std::max(amax, std::abs(x[g + k]));
    const float inverse = amax > 0 ? 127.0f / amax : 0.0f, d = amax / 127.0f;
    for (size_t k = 0; k < 32; ++k) out.push_back(static_cast<double>(std::nearbyint(x[g + k] * inverse)) * d);
  }
  return out;
}

// |error| of n fused multiply-adds, one more rounding for the bias and, in q8, two per group for the scale and the
// conversion of isum: gamma_(n+2) * sum |w||x| covers all.
void expect_near_reference(const Weights& w, const std::vector<double>& x, const Floats& y, const Call& call) {
  const int64_t stride = w.N + call.padding, end = call.row_end < 0 ? w.N : call.row_end;
  const double n = static_cast<double>(w.K) + 3, unit = 0x1p-24, gamma = n * unit / (1 - n * unit);
  for (int64_t m = 0; m < call.M; ++m) {
    const int64_t row = call.gather != nullptr ? call.gather[m] : m;
    for (int64_t i = call.row_begin; i < end; ++i) {
      double sum = call.bias != nullptr ? static_cast<double>(call.bias[i]) : 0, magnitude = std::abs(sum);
      for (int64_t k = 0; k < w.K; ++k) {
        const double term = w.value[static_cast<size_t>(i * w.K + k)] * x[static_cast<size_t>(row * w.K + k)];
        sum += term;
        magnitude += std::abs(term);
      }
      const double got = y[static_cast<size_t>(m * stride + i)];
      ASSERT_LE(std::abs(got - sum), gamma * magnitude) << "m " << m << " n " << i << " got " << got << " want " << sum;
    }
  }
}

std::vector<double> doubles(const Floats& x) {
  return {x.begin(), x.end()};
}

std::string describe(Isa isa, const Weights& w, const Call& call) {
  return std::string(isa_name(isa)) + " format " + std::to_string(static_cast<int>(w.format)) +
         (call.q8 ? " q8 M " : " f32 M ") + std::to_string(call.M) + " N " + std::to_string(w.N) + " K " +
         std::to_string(w.K);
}

// Checks scalar against the reference and every other level against scalar.
void check_levels(const Weights& w, const Floats& x, const Call& call) {
  const Floats want = product(Isa::scalar, w, x, call);
  SCOPED_TRACE(describe(Isa::scalar, w, call));
  expect_near_reference(w, call.q8 ? q8_values(x) : doubles(x), want, call);
  for (Isa isa : levels()) expect_same_bits(want, product(isa, w, x, call), describe(isa, w, call));
}

struct Mode {
  GemmFormat format;
  bool q8;
};
constexpr Mode kModes[] = {{GemmFormat::f32, false},
                           {GemmFormat::bf16, false},
                           {GemmFormat::f16, false},
                           {GemmFormat::mxfp4, false},
                           {GemmFormat::mxfp4, true}};

class GemmMode : public Gemm, public ::testing::WithParamInterface<Mode> {};

TEST_P(GemmMode, EveryLevelMatchesTheReferenceForEveryM) {
  for (int64_t K : {1, 7, 32, 96}) {
    if (GetParam().format == GemmFormat::mxfp4 && K % 32 != 0) continue;
    for (int64_t N : {1, 7, 15, 16, 17, 33, 80, 131}) {
      const Weights w = random_weights(rng_, GetParam().format, N, K);
      for (int64_t M : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 64}) {
        const Floats x = random_floats(rng_, M * K), bias = random_floats(rng_, N);
        check_levels(w, x, {.q8 = GetParam().q8, .M = M, .bias = rng_.below(2) != 0 ? bias.data() : nullptr});
        if (HasFatalFailure()) return;
      }
    }
  }
}

// K beyond one panel of columns and M beyond one pass of rows.
TEST_P(GemmMode, LongSumsAndManyRows) {
  const Weights w = random_weights(rng_, GetParam().format, 83, 2880);
  for (int64_t M : {1, 6, 14}) check_levels(w, random_floats(rng_, M * w.K), {.q8 = GetParam().q8, .M = M});
  const Weights small = random_weights(rng_, GetParam().format, 19, 64);
  const Floats bias = random_floats(rng_, small.N);
  for (int64_t M : {191, 192, 193, 4097})
    check_levels(small, random_floats(rng_, M * small.K), {.q8 = GetParam().q8, .M = M, .bias = bias.data()});
}

TEST_P(GemmMode, ARowDoesNotDependOnItsNeighbours) {
  const Weights w = random_weights(rng_, GetParam().format, 49, 1056);
  constexpr int64_t kM = 40;
  const Floats x = random_floats(rng_, kM * w.K), bias = random_floats(rng_, w.N);
  for (Isa isa : levels()) {
    const Call all{.q8 = GetParam().q8, .M = kM, .bias = bias.data(), .padding = 0};
    const Floats want = product(isa, w, x, all);
    for (int64_t M : {1, 2, 3, 5, 7, 11, 13}) {
      for (int64_t m = 0; m + M <= kM; m += M) {
        const Floats part(x.begin() + m * w.K, x.begin() + (m + M) * w.K);
        Call call = all;
        call.M = M;
        Floats got = product(isa, w, part, call);
        got.resize(static_cast<size_t>(M * w.N));
        const Floats expected(want.begin() + m * w.N, want.begin() + (m + M) * w.N);
        expect_same_bits(expected, got, describe(isa, w, call));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(GemmMode, AnySplitOfTheRowsOfWeightsIsTheSame) {
  const Weights w = random_weights(rng_, GetParam().format, 189, 96);
  const Floats bias = random_floats(rng_, w.N);
  for (Isa isa : levels()) {
    for (int64_t M : {1, 4, 30}) {
      const Floats x = random_floats(rng_, M * w.K);
      Call call{.q8 = GetParam().q8, .M = M, .bias = bias.data()};
      const Floats want = product(isa, w, x, call);
      for (int64_t rows : {16, 32, 48, 112}) {
        call.chunk_rows = rows;
        expect_same_bits(want, product(isa, w, x, call), describe(isa, w, call));
      }
    }
  }
}

TEST_P(GemmMode, WritesOnlyTheRowsAskedFor) {
  const Weights w = random_weights(rng_, GetParam().format, 75, 64);
  for (int64_t M : {1, 20}) {
    const Floats x = random_floats(rng_, M * w.K);
    for (auto [begin, end] : {std::pair<int64_t, int64_t>{0, 16}, {16, 64}, {48, 75}, {64, 75}, {32, 32}})
      check_levels(w, x, {.q8 = GetParam().q8, .M = M, .row_begin = begin, .row_end = end});
  }
}

TEST_P(GemmMode, GathersRowsWithRepeats) {
  const Weights w = random_weights(rng_, GetParam().format, 37, 96);
  const Floats x = random_floats(rng_, 11 * w.K);
  for (int64_t M : {1, 3, 8, 25}) {
    std::vector<int32_t> gather;
    for (int64_t m = 0; m < M; ++m) gather.push_back(static_cast<int32_t>(rng_.below(11)));
    gather[0] = 10;
    check_levels(w, x, {.q8 = GetParam().q8, .gather = gather.data(), .M = M});
  }
}

// One bad activation makes its own row non-finite in every column with a non-zero weight, and no other row.
TEST_P(GemmMode, NonFiniteActivationsReachTheirRowAndNoOther) {
  const Weights w = random_weights(rng_, GetParam().format, 35, 64);
  for (float bad : {kNan, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (int64_t M : {1, 5, 21}) {
      Floats x = random_floats(rng_, M * w.K);
      const int64_t row = rng_.below(M);
      x[static_cast<size_t>(row * w.K + rng_.below(w.K))] = bad;
      for (Isa isa : levels()) {
        const Call call{.q8 = GetParam().q8, .M = M, .padding = 0};
        const Floats y = product(isa, w, x, call);
        for (int64_t i = 0; i < M * w.N; ++i)
          ASSERT_EQ(i / w.N != row, std::isfinite(y[static_cast<size_t>(i)])) << describe(isa, w, call) << " at " << i;
      }
    }
  }
}

std::string mode_name(const ::testing::TestParamInfo<Mode>& info) {
  constexpr const char* kFormats[] = {"f32", "bf16", "f16", "mxfp4"};
  return std::string(kFormats[static_cast<int>(info.param.format)]) + (info.param.q8 ? "_q8" : "");
}

INSTANTIATE_TEST_SUITE_P(Modes, GemmMode, ::testing::ValuesIn(kModes), mode_name);

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes out;
  for (int v : values) out.push_back(static_cast<std::byte>(v));
  return out;
}

TEST_F(Gemm, FC001_AdjacentPairsInAByte) {
  const Bytes half = bytes_of({0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE});
  const float want[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  for (int64_t N : {1, 16, 17}) {  // in a block and in the tail
    Bytes codes;
    for (int64_t i = 0; i < 2 * N; ++i) codes.insert(codes.end(), half.begin(), half.end());
    const Weights w = mx_weights(codes, Bytes(static_cast<size_t>(N), std::byte{127}), N, 32);
    Floats identity(32 * 32);
    for (size_t k = 0; k < 32; ++k) identity[k * 33] = 1;
    for (Isa isa : levels()) {
      for (bool q8 : {false, true}) {
        const Floats y = product(isa, w, identity, {.q8 = q8, .M = 32, .padding = 0});
        // q8 multiplies by 127 * (1 / 127 rounded): within one rounding each of the value.
        for (int64_t i = 0; i < 32 * N; ++i)
          ASSERT_NEAR(want[i / N % 16], y[static_cast<size_t>(i)], q8 ? 6 * 0x1p-23 : 0) << isa_name(isa) << " " << i;
      }
    }
  }
}

TEST_F(Gemm, FC002_ScaleBiasIs127) {
  const Weights w = mx_weights(Bytes(48, std::byte{0x22}), bytes_of({125, 127, 129}), 1, 96);
  const Floats ones(96, 1.0f);
  for (Isa isa : levels()) {
    EXPECT_EQ(168.0f, product(isa, w, ones, {.M = 1})[0]) << isa_name(isa);
    EXPECT_NEAR(168.0f, product(isa, w, ones, {.q8 = true, .M = 1})[0], 168 * 0x1p-22) << isa_name(isa);
  }
}

// Small integers make every sum exact, so the f32 product must equal the double one; scratch starts as 0xFF bytes.
TEST_F(Gemm, FC005_AnyMultipleOf32IsExact) {
  for (int64_t K : {32, 96, 2880}) {
    for (int64_t N : {1, 7, 33}) {
      const Weights w = random_mx(rng_, N, K, 124, 129), wide = random_mx(rng_, N, K, 120, 135);
      for (int64_t M : {1, 4, 19}) {
        Floats x(static_cast<size_t>(M * K));
        for (float& v : x) v = static_cast<float>(rng_.below(5) - 2);
        for (Isa isa : levels()) {
          const Floats y = product(isa, w, x, {.M = M, .padding = 0});
          for (int64_t i = 0; i < M * N; ++i) {
            double want = 0;
            for (int64_t k = 0; k < K; ++k)
              want += w.value[static_cast<size_t>(i % N * K + k)] * x[static_cast<size_t>(i / N * K + k)];
            ASSERT_EQ(want, y[static_cast<size_t>(i)]) << isa_name(isa) << " K " << K << " N " << N << " at " << i;
          }
        }
        check_levels(wide, random_floats(rng_, M * K), {.M = M});
        check_levels(wide, random_floats(rng_, M * K), {.q8 = true, .M = M});
      }
    }
  }
}

// Scale byte 0 is the subnormal 2^-127; 254 is 2^127, where codes of 2 and above overflow to infinity.
TEST_F(Gemm, ExtremeScales) {
  constexpr int64_t kN = 18, kK = 64;
  const Weights tiny = random_mx(rng_, kN, kK, 0, 3);
  const Weights mixed = random_mx(rng_, kN, kK, 0, 255);
  for (int64_t M : {1, 3, 20}) {
    Floats big(static_cast<size_t>(M * kK));
    for (float& v : big) v = std::ldexp(static_cast<float>(rng_.below(5) - 2), 120);
    for (Isa isa : levels()) {
      const Floats y = product(isa, tiny, big, {.M = M, .padding = 0});
      for (int64_t i = 0; i < M * kN; ++i) {
        double want = 0;
        for (int64_t k = 0; k < kK; ++k)
          want += tiny.value[static_cast<size_t>(i % kN * kK + k)] * big[static_cast<size_t>(i / kN * kK + k)];
        ASSERT_EQ(want, y[static_cast<size_t>(i)]) << isa_name(isa);
      }
      const Floats x = random_floats(rng_, M * kK);
      for (bool q8 : {false, true}) {
        const Call call{.q8 = q8, .M = M};
        expect_same_bits(product(Isa::scalar, mixed, x, call), product(isa, mixed, x, call),
                         describe(isa, mixed, call));
      }
    }
  }
}

// A kernel may keep sums divided by the scales while those are ordinary; leaving and re-entering that range at any
// group, and activations of any size, must not show.
TEST_F(Gemm, ScalesAndActivationsOutsideTheOrdinaryRange) {
  constexpr int64_t kN = 80, kK = 320;
  for (int round = 0; round < 20; ++round) {
    Bytes codes(kN * kK / 2), scales(kN * kK / 32);
    const int64_t odd_ones = rng_.below(4) * rng_.below(4);
    for (std::byte& b : codes) b = static_cast<std::byte>(rng_.bits());
    for (std::byte& b : scales) b = static_cast<std::byte>(97 + rng_.below(51));
    for (int64_t i = 0; i < odd_ones; ++i)
      scales[static_cast<size_t>(rng_.below(kN * kK / 32))] = static_cast<std::byte>(rng_.below(255));
    const Weights w = mx_weights(codes, scales, kN, kK);
    for (int64_t M : {1, 2, 3, 5, 9, 30}) {
      Floats x = random_floats(rng_, M * kK);
      for (float& v : x)
        if (rng_.below(round % 2 == 0 ? 4 : 400) == 0) v = std::ldexp(v, static_cast<int>(rng_.below(240) - 130));
      for (float& v : x)
        if (rng_.below(8) == 0) v = 0;
      const Call call{.M = M};
      const Floats want = product(Isa::scalar, w, x, call);
      for (Isa isa : levels()) expect_same_bits(want, product(isa, w, x, call), describe(isa, w, call));
    }
  }
}

// Weight -12 .. 12 (doubled) times activation +-127 in every place: the largest integer sums.
TEST_F(Gemm, LargestIntegerSums) {
  for (int code : {0x77, 0xFF, 0x7F, 0xF7}) {
    for (float sign : {1.0f, -1.0f}) {
      const Weights w = mx_weights(Bytes(17 * 16, static_cast<std::byte>(code)), Bytes(17, std::byte{127}), 17, 32);
      check_levels(w, Floats(32, sign * 127.0f), {.q8 = true, .M = 1});
    }
  }
}

Floats activation_row(Rng& rng, int kind) {
  Floats x = random_floats(rng, 64);
  for (float& v : x) {
    if (kind == 1) v = 0;
    if (kind == 2) v *= 1e-38f;  // 127 / amax near the largest float
    if (kind == 3) v *= 1e38f;
    if (kind == 4) v = static_cast<float>(rng.below(255) - 127) + 0.5f * static_cast<float>(rng.below(2));
    if (kind == 5) v *= 1e-42f;  // subnormal
  }
  if (kind == 4) x[0] = x[32] = 127;  // halves stay halves: ties
  if (kind == 6) x[5] = kNan;
  if (kind == 7) x[40] = -std::numeric_limits<float>::infinity();
  return x;
}

TEST_F(Gemm, QuantisesAlikeAtEveryLevel) {
  for (int round = 0; round < 50; ++round) {
    for (int kind = 0; kind < 8; ++kind) {
      const Floats x = activation_row(rng_, kind);
      for (Isa isa : levels()) {
        Q8Group q[2];
        quantize_q8(gemm_kernels(isa), x.data(), 64, 0, 1, 64, q);
        for (int g = 0; g < 2; ++g) {
          float amax = 0;
          bool finite = true;
          for (int k = 0; k < 32; ++k) {
            amax = std::max(amax, std::abs(x[static_cast<size_t>(g * 32 + k)]));
            finite = finite && std::isfinite(x[static_cast<size_t>(g * 32 + k)]);
          }
          int sum = 0;
          float inverse = amax > 0 ? 127.0f / amax : 0.0f;
          if (std::isinf(inverse)) inverse = 0;
          for (int k = 0; k < 32; ++k) {
            const float want = finite ? std::nearbyint(x[static_cast<size_t>(g * 32 + k)] * inverse) : 0.0f;
            ASSERT_EQ(want, static_cast<float>(q[g].q[k])) << isa_name(isa) << " kind " << kind;
            sum += q[g].q[k];
          }
          ASSERT_EQ(-12 * sum, q[g].offset);
          ASSERT_EQ(!finite, std::isnan(q[g].half_d));
          if (finite) {
            ASSERT_EQ(0.5f * (amax / 127.0f), q[g].half_d);
          }
        }
      }
    }
  }
}

// Quantisation error: half a step of amax / 127 per activation.
TEST_F(Gemm, Q8IsCloseToF32) {
  const Weights w = random_mx(rng_, 32, 288);
  const Floats x = random_floats(rng_, 3 * w.K);
  const Floats exact = product(cpu_isa(), w, x, {.M = 3, .padding = 0});
  const Floats q8 = product(cpu_isa(), w, x, {.q8 = true, .M = 3, .padding = 0});
  for (int64_t i = 0; i < 3 * w.N; ++i) {
    double bound = 0;
    for (int64_t k = 0; k < w.K; ++k) {
      float amax = 0;
      for (int64_t j = k / 32 * 32; j < k / 32 * 32 + 32; ++j)
        amax = std::max(amax, std::abs(x[static_cast<size_t>(i / w.N * w.K + j)]));
      bound += std::abs(w.value[static_cast<size_t>(i % w.N * w.K + k)]) * static_cast<double>(amax) / 254 * 1.01;
    }
    ASSERT_NEAR(exact[static_cast<size_t>(i)], q8[static_cast<size_t>(i)], bound);
  }
}

}  // namespace
}  // namespace moesaic
