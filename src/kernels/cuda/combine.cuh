// combine: the weighted sum of what a token's experts gave, alone or on its way into the norm that follows.
#pragma once

#include "kernels/cuda/rows.cuh"

namespace moesaic::cuda {

struct Combine {
  const float* y = nullptr;         // [R, H]
  const int32_t* places = nullptr;  // [T, k]; -1: nothing
  const float* weights = nullptr;   // [T, k]
  int k = 0;
  float* out = nullptr;  // [T, H]
};

// Columns h to h + kWide - 1 of token t: the sum over j of weights[t, j] * y[places[t, j]], j ascending. Several rows
// are in flight.
template <int kWide>
__device__ __forceinline__ Floats<kWide> combined(const Combine& c, int64_t t, int H, int h) {
  constexpr int kRows = 8;
  const int32_t* places = c.places + t * c.k;
  const float* weights = c.weights + t * c.k;
  Floats<kWide> sum{};
  for (int first = 0; first < c.k; first += kRows) {
    Floats<kWide> row[kRows];
    float weight[kRows];
    bool real[kRows];
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int place = first + j < c.k ? places[first + j] : -1;
      real[j] = place >= 0;
      weight[j] = real[j] ? weights[first + j] : 0;
      if (real[j]) row[j] = load_floats<kWide>(c.y + static_cast<int64_t>(place) * H + h);
    }
#pragma unroll
    for (int j = 0; j < kRows; ++j)
      if (real[j])
        for (int i = 0; i < kWide; ++i) sum.v[i] = __fmaf_rn(weight[j], row[j].v[i], sum.v[i]);
  }
  return sum;
}

// The combination `c` and the add_rms_norm `norm` that reads its output, in one launch where the rows allow it: whether
// they did.
bool combine_and_norm(const Combine& c, const OpDesc& norm, const Args& args, Stream& stream);

}  // namespace moesaic::cuda
