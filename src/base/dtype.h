// Element types of tensors, as named in printed graphs and in safetensors headers.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace moesaic {

enum class DType : uint8_t {
  none,
  boolean,
  u8,
  i8,
  i16,
  u16,
  i32,
  u32,
  i64,
  u64,
  f16,
  bf16,
  f32,
  f64,
  e4m3,  // FP8 E4M3FN, largest value 448
  e5m2,
  e8m0,  // a power-of-two scale
};

// Size of one element in bits; 0 for DType::none.
int dtype_bits(DType dtype);
inline int64_t dtype_bytes(DType dtype) {
  return dtype_bits(dtype) / 8;
}

// Short name in printed graphs: "f32", "bf16", "e4m3".
std::string_view dtype_name(DType dtype);
std::optional<DType> parse_dtype(std::string_view name);

// Name in a safetensors header: "F32", "BF16", "F8_E4M3". Types we do not compute with give nullopt.
std::string_view safetensors_name(DType dtype);
std::optional<DType> parse_safetensors_dtype(std::string_view name);

}  // namespace moesaic
