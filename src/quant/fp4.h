// E2M1 (FP4) codes and E8M0 scales: the two halves of MXFP4 (OCP Microscaling Formats v1.0).
// A group is 32 consecutive elements along K with one scale; a byte holds two codes, the even element in the low
// nibble.
#pragma once

#include <bit>
#include <cstdint>

namespace moesaic {

constexpr int kMxGroup = 32;        // elements per scale
constexpr uint8_t kE8m0Nan = 0xFF;  // a corrupt checkpoint: refused at load

// Twice the value of each code: exact integers. Code 8 is -0.
constexpr int8_t kE2m1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

constexpr float e2m1_to_float(uint8_t code) {
  constexpr float kMagnitude[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const float magnitude = kMagnitude[code & 7];
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// 2^(byte-127); byte 0 is the float subnormal 2^-127. 0xFF (NaN) must not reach it.
constexpr float e8m0_to_float(uint8_t byte) {
  return std::bit_cast<float>(byte == 0 ? 0x00400000u : static_cast<uint32_t>(byte) << 23);
}

// The E4M3 byte of a code, exact, with the sign of zero kept: the conversion our FP8 kernels do in registers.
constexpr uint8_t e2m1_to_e4m3(uint8_t code) {
  constexpr uint8_t kBytes[8] = {0x00, 0x30, 0x38, 0x3C, 0x40, 0x44, 0x48, 0x4C};
  return static_cast<uint8_t>(kBytes[code & 7] | (code & 8) << 4);
}

// Nearest code, ties to even codes; magnitudes above 6 give 6.
constexpr uint8_t float_to_e2m1(float value) {
  constexpr float kBounds[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const bool negative = std::bit_cast<uint32_t>(value) >> 31 != 0;
  const float magnitude = negative ? -value : value;
  uint8_t code = 0;
  for (int i = 0; i < 7; ++i)
    if (magnitude > kBounds[i] || (magnitude == kBounds[i] && i % 2 == 1)) code = static_cast<uint8_t>(i + 1);
  return static_cast<uint8_t>(code | (negative ? 8 : 0));
}

}  // namespace moesaic
