// Which cells of a learned grid of positions, and how much of each, make the position of one row or column of patches.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define MOESAIC_HOST_DEVICE __host__ __device__
#else
#define MOESAIC_HOST_DEVICE
#endif

namespace moesaic {

struct GridTaps {
  std::array<int64_t, 4> cell;
  std::array<double, 4> weight;
};

// Cell i of `size`, in a grid of `cells`, as torch's interpolate with align_corners=False and no antialias: the source
// is (i + 0.5) * cells / size - 0.5; bicubic has a = -0.75 and repeats the cells at the edges, bilinear stays between
// the first and the last.
MOESAIC_HOST_DEVICE inline GridTaps grid_taps(int64_t i, int64_t size, int64_t cells, bool cubic) {
  double source = (static_cast<double>(i) + 0.5) * static_cast<double>(cells) / static_cast<double>(size) - 0.5;
  if (!cubic) source = std::clamp(source, 0.0, static_cast<double>(cells - 1));
  const double whole = std::floor(source), t = source - whole;
  constexpr double a = -0.75;
  const auto near = [](double x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
  const auto far = [](double x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
  GridTaps taps;
  for (int k = 0; k < 4; ++k)
    taps.cell[static_cast<size_t>(k)] = std::clamp<int64_t>(static_cast<int64_t>(whole) + k - 1, 0, cells - 1);
  if (cubic) taps.weight = {far(t + 1), near(t), near(1 - t), far(2 - t)};
  else taps.weight = {0, 1 - t, t, 0};
  return taps;
}

}  // namespace moesaic
