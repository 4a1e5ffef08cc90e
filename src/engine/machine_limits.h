// MachineLimits: what this machine can do with the same threads in the same run, to hold speeds against.
#pragma once

#include "compile/plan.h"

namespace moesaic {

// A matrix product [M, K] x [K, N].
struct ProductShape {
  int64_t M = 0, N = 0, K = 0;
};

// Of the product in `plan` that does the most operations in a step of `tokens` tokens. N is cut to kMaxProductRows, so
// that float32 weights of any model fit.
constexpr int64_t kMaxProductRows = 8192;
ProductShape largest_product(const Plan& plan, int64_t tokens);

struct MachineLimits {
  double read_before = 0, read_after = 0;  // bytes per second, before and after the tests
  ProductShape shape;
  double product = 0;  // operations per second of our own product of that shape, the median: float32, bf16 on a GPU
  double peak = 0;     // operations per second on registers alone; 0 on a GPU

  // The faster of the two measurements: neighbours on the machine only slow a measurement down.
  double read() const { return read_before > read_after ? read_before : read_after; }
};

// Bytes per second that the device's memory delivers.
double measure_read(Device& device);
// Fills shape, product and peak.
void measure_arithmetic(Device& device, const ProductShape& shape, MachineLimits& limits);

// Operations per second of gemm_f32 on float32 weights: the median of several products.
double measure_product(ThreadPool& pool, const ProductShape& shape);

}  // namespace moesaic
