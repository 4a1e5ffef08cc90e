// Weights in formats that the packed products do not read: widened to f32 sixteen rows at a time, in scratch.
#pragma once

#include "kernels/kernel.h"

namespace moesaic::cpu {

// One matrix [N, K] as it lies in memory, row_major.
struct WideMatrix {
  const OperandDesc* weight;  // its format, N and K
  const std::byte* data;
};
// The matrix of expert `e` of a stack (0 for a plain weight).
WideMatrix wide_matrix(const OperandDesc& weight, const std::byte* data, int64_t e);
bool is_widened_format(const OperandDesc& weight);  // fp8 or int4

// Rows [first, first + rows), rows <= 16, as a packed f32 matrix of gemm.h: [K][16], or row-major when rows < 16.
void widen_rows(const WideMatrix& matrix, int64_t first, int64_t rows, float* panel);
constexpr int64_t panel_bytes(int64_t K) {
  return (16 * K * 4 + 255) / 256 * 256;
}

}  // namespace moesaic::cpu
