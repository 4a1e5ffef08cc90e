// The rows16 layout: positions by the formula in weights/layout.h, and round trips bit for bit.
#include "weights/layout.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "base/rng.h"

namespace moesaic {
namespace {

using Bytes = std::vector<std::byte>;

uint64_t test_seed() {
  const char* text = std::getenv("MOESAIC_SEED");
  const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device{}();
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}

Bytes random_bytes(Rng& rng, int64_t count) {
  Bytes out(static_cast<size_t>(count));
  for (std::byte& b : out) b = static_cast<std::byte>(rng.bits());
  return out;
}

// Scale bytes without NaN.
Bytes random_scales(Rng& rng, int64_t count) {
  Bytes out(static_cast<size_t>(count));
  for (std::byte& b : out) b = static_cast<std::byte>(rng.below(255));
  return out;
}

constexpr int64_t kRows[] = {1, 15, 16, 17, 33, 64};

Bytes packed_dense(const Bytes& source, int64_t offset, DenseOrder order, int64_t size, int64_t N, int64_t K) {
  Bytes packed(static_cast<size_t>(dense_bytes(size, N, K)), std::byte{0xEE});
  // Block by block and backwards: the loader packs ranges in any order.
  for (int64_t b = row_blocks(N) - 1; b >= 0; --b)
    pack_dense(source.data() + offset, order, size, N, K, b, b + 1, packed.data());
  return packed;
}

class DenseLayout : public ::testing::TestWithParam<std::tuple<int64_t, DenseOrder>> {};

TEST_P(DenseLayout, EveryElementIsWhereTheFormulaSays) {
  const auto [size, order] = GetParam();
  const uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "MOESAIC_SEED=" << seed);
  Rng rng(seed);
  for (int64_t N : kRows) {
    for (int64_t K : {1, 7, 32, 65, 96, 2880}) {
      const int64_t offset = rng.below(4);  // unaligned sources
      const Bytes source = random_bytes(rng, offset + dense_bytes(size, N, K));
      const Bytes packed = packed_dense(source, offset, order, size, N, K);
      for (int64_t n = 0; n < N; ++n) {
        const int64_t block = n / 16 * 16;
        for (int64_t k = 0; k < K; ++k) {
          const int64_t from = order == DenseOrder::rows_first ? n * K + k : k * N + n;
          const int64_t to = block + 16 <= N ? block * K + k * 16 + n % 16 : n * K + k;
          ASSERT_EQ(0, std::memcmp(&source[static_cast<size_t>(offset + from * size)],
                                   &packed[static_cast<size_t>(to * size)], static_cast<size_t>(size)))
              << "N " << N << " K " << K << " n " << n << " k " << k;
        }
      }
      Bytes back(static_cast<size_t>(dense_bytes(size, N, K)));
      unpack_dense(packed.data(), order, size, N, K, back.data());
      ASSERT_TRUE(std::equal(back.begin(), back.end(), source.begin() + offset)) << "N " << N << " K " << K;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, DenseLayout,
                         ::testing::Combine(::testing::Values(2, 4),
                                            ::testing::Values(DenseOrder::rows_first, DenseOrder::k_first)));

// The code of (row, k) in checkpoint bytes: adjacent pairs, the even k in the low nibble.
int checkpoint_code(const Bytes& codes, int64_t offset, int64_t K, int64_t n, int64_t k) {
  const int byte = static_cast<int>(codes[static_cast<size_t>(offset + (n * K + k) / 2)]);
  return k % 2 == 0 ? byte & 15 : byte >> 4;
}

// The code of (row, k) in packed bytes, by the text in layout.h.
int packed_code(const Bytes& packed, int64_t N, int64_t K, int64_t n, int64_t k) {
  const int64_t groups = K / 32, g = k / 32, in = k % 32, block = n / 16 * 16;
  if (block + 16 > N) {
    const int byte = static_cast<int>(packed[static_cast<size_t>((n * groups + g) * 17 + 1 + in / 2)]);
    return in % 2 == 0 ? byte & 15 : byte >> 4;
  }
  const int64_t c = in % 16 / 4, i = in % 4;
  const int64_t at = block * groups * 17 + g * 272 + 16 + c * 64 + n % 16 * 4 + i;
  const int byte = static_cast<int>(packed[static_cast<size_t>(at)]);
  return in < 16 ? byte & 15 : byte >> 4;
}

std::byte packed_scale(const Bytes& packed, int64_t N, int64_t K, int64_t n, int64_t g) {
  const int64_t groups = K / 32, block = n / 16 * 16;
  if (block + 16 > N) return packed[static_cast<size_t>((n * groups + g) * 17)];
  return packed[static_cast<size_t>(block * groups * 17 + g * 272 + n % 16)];
}

TEST(Mxfp4Layout, EveryCodeAndScaleIsWhereTheFormulaSays) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "MOESAIC_SEED=" << seed);
  Rng rng(seed);
  for (int64_t N : kRows) {
    for (int64_t K : {32, 96, 2880}) {
      const int64_t offset = rng.below(4);
      const Bytes codes = random_bytes(rng, offset + N * K / 2), scales = random_scales(rng, offset + N * K / 32);
      Bytes packed(static_cast<size_t>(mxfp4_bytes(N, K)), std::byte{0xEE});
      for (int64_t b = row_blocks(N) - 1; b >= 0; --b)
        ASSERT_FALSE(pack_mxfp4(codes.data() + offset, scales.data() + offset, N, K, b, b + 1, packed.data()));
      for (int64_t n = 0; n < N; ++n) {
        for (int64_t k = 0; k < K; ++k)
          ASSERT_EQ(checkpoint_code(codes, offset, K, n, k), packed_code(packed, N, K, n, k))
              << "N " << N << " K " << K << " n " << n << " k " << k;
        for (int64_t g = 0; g < K / 32; ++g)
          ASSERT_EQ(scales[static_cast<size_t>(offset + n * (K / 32) + g)], packed_scale(packed, N, K, n, g));
      }
      Bytes codes_back(static_cast<size_t>(N * K / 2)), scales_back(static_cast<size_t>(N * K / 32));
      unpack_mxfp4(packed.data(), N, K, codes_back.data(), scales_back.data());
      ASSERT_TRUE(std::equal(codes_back.begin(), codes_back.end(), codes.begin() + offset));
      ASSERT_TRUE(std::equal(scales_back.begin(), scales_back.end(), scales.begin() + offset));
    }
  }
}

TEST(Mxfp4Layout, ReportsTheNanScale) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "MOESAIC_SEED=" << seed);
  Rng rng(seed);
  constexpr int64_t kN = 37, kK = 96, kGroups = kK / 32;
  const Bytes codes = random_bytes(rng, kN * kK / 2);
  Bytes packed(static_cast<size_t>(mxfp4_bytes(kN, kK)));
  for (int64_t row : {0, 15, 16, 31, 32, 36}) {
    Bytes scales = random_scales(rng, kN * kGroups);
    const int64_t group = rng.below(kGroups);
    scales[static_cast<size_t>(row * kGroups + group)] = std::byte{0xFF};
    const auto bad = pack_mxfp4(codes.data(), scales.data(), kN, kK, 0, row_blocks(kN), packed.data());
    ASSERT_TRUE(bad.has_value()) << "row " << row;
    EXPECT_EQ(row, bad->row);
    EXPECT_EQ(group, bad->group);
    // Ranges of blocks without it are accepted.
    const int64_t block = row / 16;
    EXPECT_FALSE(pack_mxfp4(codes.data(), scales.data(), kN, kK, 0, block, packed.data()));
    EXPECT_FALSE(pack_mxfp4(codes.data(), scales.data(), kN, kK, block + 1, row_blocks(kN), packed.data()));
  }
}

TEST(Layout, BytesInEqualBytesOut) {
  for (int64_t N : kRows) {
    EXPECT_EQ(N * 2880 * 2, dense_bytes(2, N, 2880));
    EXPECT_EQ(N * 2880 / 2 + N * 2880 / 32, mxfp4_bytes(N, 2880));
  }
}

}  // namespace
}  // namespace moesaic
