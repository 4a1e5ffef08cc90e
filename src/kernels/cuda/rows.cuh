// Kernels over rows of float32: their sizes, the grid of one thread per few neighbouring elements, and 16-byte access
// where width and addresses allow it.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace moesaic::cuda {

// Width of the innermost dimension and number of rows before it.
inline int64_t width_of(const OperandDesc& operand) {
  return operand.type.dim(-1).factor;
}
inline int64_t rows_of(const OperandDesc& operand, const Bounds& now) {
  int64_t n = 1;
  for (int i = 0; i + 1 < operand.type.rank(); ++i) n *= now.of(operand.type.dim(i));
  return n;
}

// Activations are f32 and vector weights arrive as f32; null when that holds for every operand.
inline const char* refuse_types(const OpDesc& desc, const DeviceInfo&) {
  for (const OperandDesc& in : desc.inputs) {
    if (in.is_weight && in.kind == WeightKind::vector && in.stored != DType::f32) return "vector weights must be f32";
    if (!in.is_weight && in.type.dtype != DType::f32 && in.type.dtype != DType::i32) return "activations must be f32";
  }
  for (const OperandDesc& out : desc.outputs)
    if (out.type.dtype != DType::f32 && out.type.dtype != DType::i32) return "activations must be f32";
  return nullptr;
}

// Whether rows of `width` floats at these addresses can be read four at a time. Looks at addresses alone.
template <typename... Pointers>
bool in_fours(int64_t width, const Pointers*... pointers) {
  return width % 4 == 0 && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

// kWide neighbouring floats; loads and stores of 4 need 16-byte alignment.
template <int kWide>
struct Floats {
  float v[kWide];
};
template <int kWide>
__device__ __forceinline__ Floats<kWide> load_floats(const float* p) {
  if constexpr (kWide == 4) {
    const float4 f = *reinterpret_cast<const float4*>(p);
    return {f.x, f.y, f.z, f.w};
  } else {
    Floats<kWide> out;
    for (int i = 0; i < kWide; ++i) out.v[i] = p[i];
    return out;
  }
}
template <int kWide>
__device__ __forceinline__ void store_floats(float* p, const Floats<kWide>& x) {
  if constexpr (kWide == 4) {
    *reinterpret_cast<float4*>(p) = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
  } else {
    for (int i = 0; i < kWide; ++i) p[i] = x.v[i];
  }
}

// One thread for each unit of each row: short rows share a block, long ones take several.
struct RowGrid {
  dim3 grid, block;
};
inline RowGrid row_grid(int64_t rows, int64_t units) {
  constexpr unsigned kThreads = 128;
  unsigned across = 1, down = 1;
  while (across < kThreads && across < units) across *= 2;
  while (across * down < kThreads && down < rows) down *= 2;
  return {
      {static_cast<unsigned>(ceil_div(rows, int64_t{down})), static_cast<unsigned>(ceil_div(units, int64_t{across}))},
      {across, down}};
}
struct RowUnit {
  int64_t row;
  int unit;
};
__device__ __forceinline__ RowUnit row_unit() {
  return {static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y,
          static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x)};
}

// y[row] = x[source(row), .. + count).
template <int kWide, typename Source>
__global__ void copy_rows_kernel(Source source, const float* x, int64_t rows, int count, float* y) {
  after_previous();
  const RowUnit at = row_unit();
  const int i = at.unit * kWide;
  if (at.row >= rows || i >= count) return;
  store_floats<kWide>(y + at.row * count + i, load_floats<kWide>(x + source(at.row) + i));
}
// `fours`: whether source(row) and count are multiples of 4 and x, y aligned.
template <typename Source>
void copy_rows(const Source& source, bool fours, const float* x, int64_t rows, int64_t count, float* y,
               Stream& stream) {
  const RowGrid g = row_grid(rows, fours ? count / 4 : count);
  launch(fours ? copy_rows_kernel<4, Source> : copy_rows_kernel<1, Source>, g.grid, g.block, 0, stream, source, x, rows,
         static_cast<int>(count), y);
}

}  // namespace moesaic::cuda
