// Every code of the small formats against values computed in double from the formats' definitions, and every rounding
// against a search over all codes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/fresh_rng.h"
#include "quant/bf16.h"
#include "quant/fp4.h"
#include "quant/fp8.h"

namespace moesaic {
namespace {

// The value of sign, exponent and mantissa fields of a binary format with gradual underflow.
double decode(uint32_t bits, int exponent_bits, int mantissa_bits, int bias) {
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const double sign = (bits >> (exponent_bits + mantissa_bits) & 1) != 0 ? -1 : 1;
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
}

void expect_same(float got, double want, uint32_t code) {
  EXPECT_EQ(static_cast<double>(got), want) << "code " << code;
  EXPECT_EQ(std::signbit(got), std::signbit(want)) << "code " << code;
}

// The code below `count` whose magnitude is nearest to `magnitude`; of two equally near, the even one.
uint8_t nearest(double magnitude, uint8_t count, int exponent_bits, int mantissa_bits, int bias) {
  uint8_t best = 0;
  double distance = std::numeric_limits<double>::infinity();
  for (uint8_t code = 0; code < count; ++code) {
    const double d = std::abs(decode(code, exponent_bits, mantissa_bits, bias) - magnitude);
    if (d < distance || (d == distance && code % 2 == 0)) best = code, distance = d;
  }
  return best;
}

// Floats that matter to a format: each code's value, each midpoint between two codes, and their neighbours.
std::vector<float> interesting(uint8_t count, int exponent_bits, int mantissa_bits, int bias) {
  std::vector<float> values;
  for (uint8_t code = 0; code < count; ++code) {
    const double value = decode(code, exponent_bits, mantissa_bits, bias);
    const double next = decode(code + 1u, exponent_bits, mantissa_bits, bias);
    for (const float f : {static_cast<float>(value), static_cast<float>((value + next) / 2)})
      for (const float g : {std::nextafter(f, 0.0f), f, std::nextafter(f, INFINITY)})
        values.push_back(g), values.push_back(-g);
  }
  return values;
}

TEST(Mxfp4, FC001_PairOrder) {
  constexpr uint8_t kBytes[16] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE,
                                  0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE};
  constexpr float kRight[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  for (int i = 0; i < kMxGroup; ++i) {
    const uint8_t byte = kBytes[i / 2];
    const uint8_t code = i % 2 == 0 ? byte & 15 : byte >> 4;
    expect_same(e2m1_to_float(code) * e8m0_to_float(127), static_cast<double>(kRight[i % 16]), code);
  }
}

TEST(Mxfp4, FC002_ScaleBias) {
  float dot = 0;
  const std::pair<uint8_t, float> kGroups[] = {{125, 8}, {127, 32}, {129, 128}};
  for (const auto& [byte, right] : kGroups) {
    float sum = 0;
    for (int i = 0; i < kMxGroup; ++i) sum += e2m1_to_float(0x2) * e8m0_to_float(byte);
    EXPECT_EQ(sum, right);
    dot += sum;
  }
  EXPECT_EQ(dot, 168);
}

TEST(Mxfp4, FC003_CodesAreExactInE4m3) {
  constexpr uint8_t kRight[16] = {0x00, 0x30, 0x38, 0x3C, 0x40, 0x44, 0x48, 0x4C,
                                  0x80, 0xB0, 0xB8, 0xBC, 0xC0, 0xC4, 0xC8, 0xCC};
  for (uint8_t code = 0; code < 16; ++code) {
    EXPECT_EQ(e2m1_to_e4m3(code), kRight[code]) << int{code};
    expect_same(e4m3_to_float(e2m1_to_e4m3(code)), static_cast<double>(e2m1_to_float(code)), code);
    EXPECT_EQ(float_to_e4m3(e2m1_to_float(code)), kRight[code]) << int{code};
  }
}

// Exact for relative exponents -8 to 6 and for no wider range: the window in which group scales fold into FP8.
TEST(Mxfp4, CodesTimesPowersOfTwoAreExactInE4m3From8BelowTo6Above) {
  for (int shift = -10; shift <= 8; ++shift) {
    bool exact = true;
    for (uint8_t code = 0; code < 16; ++code) {
      const float value = std::ldexp(e2m1_to_float(code), shift);
      exact &= e4m3_to_float(float_to_e4m3(value)) == value;
    }
    EXPECT_EQ(exact, shift >= -8 && shift <= 6) << shift;
  }
}

TEST(E2m1, EveryCode) {
  for (uint8_t code = 0; code < 16; ++code) {
    const double want = decode(code, 2, 1, 1);
    expect_same(e2m1_to_float(code), want, code);
    EXPECT_EQ(kE2m1Doubled[code], 2 * want) << int{code};
    EXPECT_EQ(float_to_e2m1(e2m1_to_float(code)), code);
  }
}

void expect_rounds_to_e2m1(float value) {
  const uint8_t want = nearest(std::abs(static_cast<double>(value)), 8, 2, 1, 1) | (std::signbit(value) ? 8 : 0);
  ASSERT_EQ(float_to_e2m1(value), want) << value;
}

TEST(E2m1, RoundsToNearestEven) {
  for (float value : interesting(8, 2, 1, 1)) expect_rounds_to_e2m1(value);
  Rng rng = fresh_rng();
  for (int i = 0; i < 100'000; ++i) expect_rounds_to_e2m1(static_cast<float>(rng.uniform(-8, 8)));
  EXPECT_EQ(float_to_e2m1(INFINITY), 7);
  EXPECT_EQ(float_to_e2m1(-1e30f), 15);
}

TEST(E8m0, EveryByteIsAPowerOfTwo) {
  for (int byte = 0; byte < 255; ++byte)
    expect_same(e8m0_to_float(static_cast<uint8_t>(byte)), std::ldexp(1.0, byte - 127), static_cast<uint32_t>(byte));
}

TEST(E4m3, EveryByte) {
  for (int byte = 0; byte < 256; ++byte) {
    const float got = e4m3_to_float(static_cast<uint8_t>(byte));
    if ((byte & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(got)) << byte;
      EXPECT_EQ(float_to_e4m3(got) & 0x7F, 0x7F) << byte;
      continue;
    }
    expect_same(got, decode(static_cast<uint32_t>(byte), 4, 3, 7), static_cast<uint32_t>(byte));
    EXPECT_EQ(float_to_e4m3(got), byte);
  }
}

TEST(E4m3, FC006_SaturatesAndRoundsToNearestEven) {
  const std::pair<float, uint8_t> kCases[] = {
      {448, 0x7E}, {464, 0x7E}, {465, 0x7E},      {1000, 0x7E},     {-1000, 0xFE},  {INFINITY, 0x7E}, {-INFINITY, 0xFE},
      {17, 0x58},  {19, 0x5A},  {0x1p-10f, 0x00}, {0x3p-10f, 0x02}, {0.001f, 0x01}, {-0.0f, 0x80}};
  for (const auto& [value, byte] : kCases) EXPECT_EQ(float_to_e4m3(value), byte) << value;
  EXPECT_EQ(float_to_e4m3(NAN) & 0x7F, 0x7F);
  EXPECT_EQ(float_to_e4m3(-NAN) & 0x7F, 0x7F);
}

void expect_rounds_to_e4m3(float value) {
  const uint8_t want = nearest(std::abs(static_cast<double>(value)), 0x7F, 4, 3, 7) | (std::signbit(value) ? 0x80 : 0);
  ASSERT_EQ(float_to_e4m3(value), want) << value;
}

TEST(E4m3, EveryRoundingIsTheNearestCode) {
  for (float value : interesting(0x7F, 4, 3, 7)) expect_rounds_to_e4m3(value);
  Rng rng = fresh_rng();
  for (int i = 0; i < 100'000; ++i) {
    expect_rounds_to_e4m3(static_cast<float>(std::ldexp(rng.uniform(-1, 1), static_cast<int>(rng.below(24)) - 13)));
    const float any = std::bit_cast<float>(static_cast<uint32_t>(rng.bits()));
    if (std::isfinite(any)) expect_rounds_to_e4m3(any);
  }
}

TEST(Bf16, EveryCodeRoundTrips) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = bf16_to_float(static_cast<uint16_t>(code));
    if ((code & 0x7FFF) > 0x7F80) {
      ASSERT_TRUE(std::isnan(value)) << code;
      ASSERT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value)))) << code;
      continue;
    }
    const double infinite = code == 0x7F80 ? INFINITY : -INFINITY;
    ASSERT_EQ(value, (code & 0x7FFF) == 0x7F80 ? infinite : decode(code, 8, 7, 127)) << code;
    ASSERT_EQ(float_to_bf16(value), code);
  }
}

TEST(Bf16, NanWithLowBitsOnlyStaysNan) {
  for (uint32_t bits : {0x7F800001u, 0xFF800001u, 0x7FFFFFFFu, 0xFFFFFFFFu})
    EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(bits))))) << bits;
}

// Of the two codes around a value, the nearer one; of equally near ones, the even one.
TEST(Bf16, RoundsToNearestEven) {
  Rng rng = fresh_rng();
  for (int i = 0; i < 300'000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(rng.bits()) & (i % 3 == 0 ? 0xFFFF8000u : 0xFFFFFFFFu);  // ties too
    const float value = std::bit_cast<float>(bits);
    if (!std::isfinite(value)) continue;
    const uint32_t below = bits >> 16, above = below + 1;
    const double exact = std::abs(static_cast<double>(value));
    const double low = exact - decode(below & 0x7FFF, 8, 7, 127);
    const double high = ((above & 0x7FFF) == 0x7F80 ? 0x1p128 : decode(above & 0x7FFF, 8, 7, 127)) - exact;
    const uint32_t want = low < high || (low == high && below % 2 == 0) ? below : above;
    ASSERT_EQ(float_to_bf16(value), want) << bits;
  }
}

TEST(F16, EveryCode) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = f16_to_float(static_cast<uint16_t>(code));
    const uint32_t magnitude = code & 0x7FFF;
    if (magnitude > 0x7C00) {
      ASSERT_TRUE(std::isnan(value)) << code;
    } else if (magnitude == 0x7C00) {
      ASSERT_EQ(value, code == magnitude ? INFINITY : -INFINITY);
    } else {
      expect_same(value, decode(code, 5, 10, 15), code);
    }
  }
}

}  // namespace
}  // namespace moesaic
