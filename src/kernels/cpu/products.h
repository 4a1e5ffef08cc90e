// What linear.cc and experts.cc share: formats, layouts and how rows are cut into tasks.
#pragma once

#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/kernel.h"

namespace moesaic::cpu {

inline GemmFormat gemm_format(const OperandDesc& weight) {
  if (weight.format == Format::mxfp4) return GemmFormat::mxfp4;
  return weight.stored == DType::bf16  ? GemmFormat::bf16
         : weight.stored == DType::f16 ? GemmFormat::f16
                                       : GemmFormat::f32;
}

// Weight input `kInput` is read packed; everything else as stored.
template <int kInput>
Layout packed_weight(const OpDesc&, int input) {
  return input == kInput ? Layout::rows16 : Layout::row_major;
}

// Scratch of one thread, rounded up so that threads do not share cache lines.
inline int64_t scratch_bytes(int64_t K) {
  return (static_cast<int64_t>(gemm_scratch_bytes(K)) + 255) / 256 * 256;
}

// Output rows per task: a multiple of 16, about 256 kB of weights, but at least four tasks for each thread where the
// matrix allows it, so that a late thread costs little.
inline int64_t task_rows(int64_t N, int64_t row_bytes, int threads) {
  const int64_t by_bytes = std::max<int64_t>(1, (256 << 10) / std::max<int64_t>(1, row_bytes * 16));
  const int64_t by_threads = std::max<int64_t>(1, N / 16 / (4 * threads));
  return 16 * std::min(by_bytes, by_threads);
}

}  // namespace moesaic::cpu
