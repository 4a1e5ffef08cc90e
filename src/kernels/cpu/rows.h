// Small pieces that the CPU kernels share: row counts, splits over threads, and reasons to refuse.
#pragma once

#include <algorithm>

#include "kernels/kernel.h"

namespace moesaic::cpu {

// Width of the innermost dimension and number of rows before it.
inline int64_t width_of(const OperandDesc& operand) {
  return operand.type.dim(-1).factor;
}
inline int64_t rows_of(const OperandDesc& operand, const Bounds& now) {
  int64_t n = 1;
  for (int i = 0; i + 1 < operand.type.rank(); ++i) n *= now.of(operand.type.dim(i));
  return n;
}

// Calls body(begin, end) for ranges that cover [0, n), about `grain` long each; a single range runs at once.
template <typename Body>
void for_ranges(Stream& stream, int64_t n, int64_t grain, Body body) {
  const int64_t ranges = (n + grain - 1) / grain;
  if (ranges <= 1) return n > 0 ? body(int64_t{0}, n) : void();
  stream.pool->run(ranges, [&](int64_t i, int) { body(i * grain, std::min(n, (i + 1) * grain)); });
}
// As many rows of `width` floats as are worth handing to a thread.
inline int64_t row_grain(int64_t width) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width));
}

// Activations are f32 and vector weights arrive as f32; null when that holds for every operand.
inline const char* refuse_types(const OpDesc& desc) {
  for (const OperandDesc& in : desc.inputs) {
    if (in.is_weight && in.kind == WeightKind::vector && in.stored != DType::f32) return "vector weights must be f32";
    if (!in.is_weight && in.type.dtype != DType::f32 && in.type.dtype != DType::i32) return "activations must be f32";
  }
  for (const OperandDesc& out : desc.outputs)
    if (out.type.dtype != DType::f32 && out.type.dtype != DType::i32) return "activations must be f32";
  return nullptr;
}
inline const char* refuse_types(const OpDesc& desc, const DeviceInfo&) {
  return refuse_types(desc);
}

}  // namespace moesaic::cpu
