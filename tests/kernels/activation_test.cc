// The clamped SwiGLU of gpt-oss's experts, in the reference and in the SIMD loops.
#include "kernels/cpu/activation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/ref/ref.h"

namespace moesaic {
namespace {

struct Case {
  float gate, up;
  double want;
};

TEST(Activation, FC009_ClampedSwigluKeepsItsLimit) {
  const Case cases[] = {
      {8, -9, -41.99971877}, {-8, 9, -7.8131431e-05}, {1, 0, 0.84579577}, {0.5f, -1, 0}, {20, 20, 55.99962503}};
  for (const Case& c : cases) {
    EXPECT_NEAR(ref::clamped_swiglu(c.gate, c.up, 7, 1.702), c.want, 1e-7 * std::abs(c.want) + 5e-9);
    const float h[2] = {c.gate, c.up};
    for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
      if (isa > cpu_isa()) continue;
      float out;
      cpu::clamped_swiglu_rows(isa, h, 1, 7, 1.702f, &out);
      EXPECT_NEAR(static_cast<double>(out), c.want, 4e-7 * std::abs(c.want) + 5e-9) << isa_name(isa);
    }
  }
  // Without a limit nothing is clamped: (up + 1) * gate * sigmoid(alpha * gate).
  EXPECT_NEAR(ref::clamped_swiglu(8, -9, 0, 1.702), -8 * 8 / (1 + std::exp(-1.702 * 8)), 1e-12);
}

TEST(Activation, FC010_GateAndUpAreInterleaved) {
  const float h[4] = {1, 0, 0.5f, -1};  // g0, u0, g1, u1
  float out[2];
  cpu::clamped_swiglu_rows(h, 2, 7, 1.702f, out);
  EXPECT_NEAR(static_cast<double>(out[0]), 0.84579577, 1e-6);
  EXPECT_EQ(out[1], 0);
}

}  // namespace
}  // namespace moesaic
