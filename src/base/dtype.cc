#include "base/dtype.h"

#include <array>

#include "base/error.h"

namespace moesaic {
namespace {

struct Row {
  DType dtype;
  int bits;
  std::string_view name;
  std::string_view safetensors;
};

constexpr std::array kRows = {
    Row{DType::none, 0, "none", ""},        Row{DType::boolean, 8, "bool", "BOOL"},
    Row{DType::u8, 8, "u8", "U8"},          Row{DType::i8, 8, "i8", "I8"},
    Row{DType::i16, 16, "i16", "I16"},      Row{DType::u16, 16, "u16", "U16"},
    Row{DType::i32, 32, "i32", "I32"},      Row{DType::u32, 32, "u32", "U32"},
    Row{DType::i64, 64, "i64", "I64"},      Row{DType::u64, 64, "u64", "U64"},
    Row{DType::f16, 16, "f16", "F16"},      Row{DType::bf16, 16, "bf16", "BF16"},
    Row{DType::f32, 32, "f32", "F32"},      Row{DType::f64, 64, "f64", "F64"},
    Row{DType::e4m3, 8, "e4m3", "F8_E4M3"}, Row{DType::e5m2, 8, "e5m2", "F8_E5M2"},
    Row{DType::e8m0, 8, "e8m0", "F8_E8M0"},
};

const Row& row(DType dtype) {
  const Row& r = kRows[static_cast<size_t>(dtype)];
  CHECK(r.dtype == dtype);
  return r;
}

}  // namespace

int dtype_bits(DType dtype) {
  return row(dtype).bits;
}

std::string_view dtype_name(DType dtype) {
  return row(dtype).name;
}

std::string_view safetensors_name(DType dtype) {
  return row(dtype).safetensors;
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const Row& r : kRows)
    if (r.name == name && r.dtype != DType::none) return r.dtype;
  return std::nullopt;
}

std::optional<DType> parse_safetensors_dtype(std::string_view name) {
  for (const Row& r : kRows)
    if (r.safetensors == name && r.dtype != DType::none) return r.dtype;
  return std::nullopt;
}

}  // namespace moesaic
