// The FP8 latent entry and the FP8 indexer page: exact bytes, and what decoding gives back.
#include "quant/mla_page.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "base/fresh_rng.h"

namespace moesaic {
namespace {

float float_at(const std::byte* at) {
  float value;
  std::memcpy(&value, at, 4);
  return value;
}

struct Latent {
  std::array<float, kLatentDim> latent{};
  std::array<float, kLatentRope> k_pe{};
  std::vector<std::byte> bytes = std::vector<std::byte>(kLatentEntryBytes + 8, std::byte{0xA5});

  std::byte* entry() { return bytes.data() + 4; }
  void encode() { encode_latent(latent, k_pe, entry()); }
};

TEST(MlaPage, LatentEntryIsLaidOutByteForByte) {
  Latent x;
  x.latent[0] = 448, x.latent[1] = -1, x.latent[127] = 0.5f;  // tile 0: scale 1
  x.latent[128] = 449, x.latent[129] = 2;                     // tile 1: 449 / 448 is raised to 2
  x.latent[256] = 0.01f;                                      // tile 2: the least scale, 1e-4, is raised to 2^-13
  x.latent[511] = -1.75f * 0x1p-3f;                           // tile 3: 0.21875 / 448 = 2^-11 exactly
  x.k_pe[0] = 1, x.k_pe[1] = -2, x.k_pe[63] = 1.00390625f;    // half way between two bf16: to even
  x.encode();
  const std::byte* e = x.entry();
  EXPECT_EQ(e[0], std::byte{0x7E});    // 448
  EXPECT_EQ(e[1], std::byte{0xB8});    // -1
  EXPECT_EQ(e[127], std::byte{0x30});  // 0.5
  EXPECT_EQ(e[128], std::byte{0x76});  // 449 / 2 to 224
  EXPECT_EQ(e[129], std::byte{0x38});  // 2 / 2
  EXPECT_EQ(e[256], std::byte{0x6A});  // 81.92 to 80
  EXPECT_EQ(e[511], std::byte{0xFE});  // -448
  EXPECT_EQ(e[2], std::byte{0});
  const float scales[] = {1, 2, 0x1p-13f, 0x1p-11f};
  for (int64_t tile = 0; tile < 4; ++tile) EXPECT_EQ(float_at(e + 512 + 4 * tile), scales[tile]) << tile;
  const uint8_t rope[] = {0x80, 0x3F, 0x00, 0xC0};  // little-endian bf16
  EXPECT_EQ(std::memcmp(e + 528, rope, 4), 0);
  EXPECT_EQ(e[654], std::byte{0x80});
  EXPECT_EQ(e[655], std::byte{0x3F});
  EXPECT_EQ(x.bytes[3], std::byte{0xA5});
  EXPECT_EQ(x.bytes[660], std::byte{0xA5});
}

// E4M3 keeps 4 significant bits and scales are powers of two: half an ulp is 2^-4 of a value, or 2^-10 scale below the
// normal range (2^-6 scale); bf16 adds nothing to 4 bits.
TEST(MlaPage, LatentsComeBackWithinHalfAnUlp) {
  Rng rng = fresh_rng();
  for (int round = 0; round < 50; ++round) {
    Latent x;
    const double size = std::exp(4 * rng.normal());
    for (float& v : x.latent) v = static_cast<float>(size * rng.normal());
    for (float& v : x.k_pe) v = static_cast<float>(rng.normal());
    x.encode();
    Latent back;
    decode_latent(x.entry(), back.latent, back.k_pe);
    for (size_t i = 0; i < x.latent.size(); ++i) {
      const float scale = float_at(x.entry() + 512 + i / 128 * 4);
      EXPECT_LE(std::abs(back.latent[i] - x.latent[i]), std::max(std::abs(x.latent[i]) * 0x1p-4f, scale * 0x1p-10f))
          << i;
    }
    for (size_t i = 0; i < x.k_pe.size(); ++i) EXPECT_EQ(back.k_pe[i], bf16_to_float(float_to_bf16(x.k_pe[i])));
    Latent again = back;
    again.encode();
    EXPECT_EQ(std::memcmp(again.entry() + 528, x.entry() + 528, 128), 0);
  }
}

TEST(MlaPage, IndexerPageKeepsScalesBehindAllKeys) {
  constexpr int64_t kTokens = 64;
  std::vector<std::byte> page(kTokens * kIndexEntryBytes + 4, std::byte{0xA5});
  std::array<float, kIndexDim> key{};
  key[0] = 3, key[1] = -0.75f, key[127] = 1.5f;
  encode_index_key(key, IndexScale::exact, page.data(), kTokens, 5);
  EXPECT_EQ(float_at(page.data() + 64 * 128 + 5 * 4), 3.0f / 448.0f);
  EXPECT_EQ(page[5 * 128], std::byte{0x7E});        // 448
  EXPECT_EQ(page[5 * 128 + 1], std::byte{0xEE});    // -112
  EXPECT_EQ(page[5 * 128 + 127], std::byte{0x76});  // 224
  encode_index_key(key, IndexScale::power_of_two, page.data(), kTokens, 63);
  EXPECT_EQ(float_at(page.data() + 64 * 128 + 63 * 4), 0x1p-7f);  // 3 / 448 = 0.0067 is raised to 1 / 128
  EXPECT_EQ(page[63 * 128], std::byte{0x7C});                     // 384
  for (int64_t i : {int64_t{4 * 128 + 127}, int64_t{6 * 128}, int64_t{64 * 128 + 4 * 4 + 3}, int64_t{64 * 128 + 6 * 4},
                    kTokens * kIndexEntryBytes})
    EXPECT_EQ(page[static_cast<size_t>(i)], std::byte{0xA5}) << i;
  std::array<float, kIndexDim> back;
  decode_index_key(page.data(), kTokens, 63, back);
  EXPECT_EQ(back, key);
}

TEST(MlaPage, ZeroKeysHaveTheLeastScale) {
  std::vector<std::byte> page(kIndexEntryBytes);
  const std::array<float, kIndexDim> zero{};
  encode_index_key(zero, IndexScale::exact, page.data(), 1, 0);
  EXPECT_EQ(float_at(page.data() + 128), 1e-4f / 448.0f);
  std::array<float, kIndexDim> back;
  decode_index_key(page.data(), 1, 0, back);
  EXPECT_EQ(back, zero);
}

TEST(MlaPage, PowerOfTwoAbove) {
  EXPECT_EQ(power_of_two_above(1), 1);
  EXPECT_EQ(power_of_two_above(std::nextafter(1.0f, 2.0f)), 2);
  EXPECT_EQ(power_of_two_above(0.3f), 0.5f);
  EXPECT_EQ(power_of_two_above(0x1p-20f), 0x1p-20f);
}

}  // namespace
}  // namespace moesaic
