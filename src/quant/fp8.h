// E4M3FN (FP8): bias 7, largest value 448, NaN is 0x7F and 0xFF, no infinity.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace moesaic {

constexpr float kE4m3Max = 448.0f;

constexpr float e4m3_to_float(uint8_t byte) {
  const int exponent = (byte >> 3) & 15, mantissa = byte & 7;
  const uint32_t sign = static_cast<uint32_t>(byte & 0x80) << 24;
  if ((byte & 0x7F) == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | static_cast<uint32_t>(exponent + 120) << 23 |
                              static_cast<uint32_t>(mantissa) << 20);
}

// Rounds to nearest even and saturates: finite overflow and infinities give +-448, NaN gives NaN (as PTX satfinite).
inline uint8_t float_to_e4m3(float value) {
  const uint8_t sign = static_cast<uint8_t>(std::bit_cast<uint32_t>(value) >> 24 & 0x80);
  const float magnitude = std::abs(value);
  if (std::isnan(value)) return sign | 0x7F;
  if (magnitude >= kE4m3Max) return sign | 0x7E;
  if (magnitude < 0x1p-6f) return sign | static_cast<uint8_t>(std::nearbyint(magnitude * 0x1p9f));
  // Normal: round the mantissa to 3 bits, ties to even; a carry moves into the exponent as it should.
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = bits + 0x7FFFF + ((bits >> 20) & 1);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return sign | static_cast<uint8_t>(code > 0x7E ? 0x7E : code);
}

}  // namespace moesaic
