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
  double product = 0;  // operations per second of our own float32 gemm on that shape, the median
  double fma = 0;      // operations per second on registers alone

  // The faster of the two measurements: neighbours on the machine only slow a measurement down.
  double read() const { return read_before > read_after ? read_before : read_after; }
};

// Operations per second of gemm_f32 on float32 weights: the median of several products.
double measure_product(ThreadPool& pool, const ProductShape& shape);

}  // namespace moesaic
